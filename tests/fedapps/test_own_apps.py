"""`benchmarks/own_apps.py`: the lines on the page are those of the apps, scikit-learn's
terms are exact where they are zero.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import own_apps
from fedapps.strategies import FedProx, FedProxOptions
from tests.helpers import some_slow

PAGE = Path(__file__).parents[2] / "docs" / "strategy-in-your-project.md"
own_apps.quiet()


@pytest.mark.parametrize("method", ["FedProx", "SCAFFOLD", "AAggFF-S", "Ditto"])
def test_the_page_counts_the_lines_that_change(method):
    table = PAGE.read_text(encoding="utf-8").partition("## What the methods bring")[2]
    row = re.findall(rf"^\| {method} \|(.*)\|$", table, re.M)[0]
    counted = [int(cell.rpartition(",")[2]) for cell in row.split("|")]
    apps = [own_apps.APPS[name] for name in ("torch", "NumPy", "scikit-learn")]
    assert counted == [own_apps.changed(app, method) for app in apps]


@pytest.mark.parametrize("name", some_slow(["NumPy", "scikit-learn"], "NumPy"))
def test_a_pull_of_zero_is_fedavg_and_the_methods_move(name, monkeypatch):
    app = own_apps.APPS[name]

    def score(method):
        return own_apps.run(app, method, app.rates[0], 3, 0)[method]

    plain = score("FedAvg")
    assert score("SCAFFOLD") != plain != score("FedProx")
    none = FedProxOptions(mu=0)
    monkeypatch.setitem(own_apps.METHODS, "FedProx", lambda **more: FedProx(none, **more))
    assert score("FedProx") == plain


def test_scaffolds_reply_of_scikit_learn_is_the_mean_gradient():
    """A step a sample: after one epoch of one sample the control variate is the
    gradient of that step.
    """
    client = own_apps.ScaffoldSklearn
    x, y = own_apps.dealt(0)[0][0][:1], own_apps.dealt(0)[0][1][:1]
    store = own_apps.MessageStore(own_apps.RecordDict())
    start = np.zeros((65, 10))
    config = {"lr": 1e-6, "server-round": 1}
    reply, _, _ = client(store, x, y, x, y).fit([start, start], config)
    target = np.eye(10)[y[0]]
    want = np.outer(np.append(x[0], 1), 0.5 - target)  # of one-versus-all logistic losses at 0
    np.testing.assert_allclose(reply[1], want, atol=1e-3)
