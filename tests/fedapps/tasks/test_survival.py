"""The task ``survival``: a federation against Newton's method, pooled scores against
all rows, what leaves a site, and wrong tables.
"""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedapps
from fedapps.algorithms.common.survival import concordance, pair_counts
from fedapps.clients.base.survival import SURVIVAL
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.records.reader import read_run
from fedapps.records.tables import pooled_concordance
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import refused, summary_of, write_csv

SLOPES = np.array([0.8, -0.5, 0.0])


def patients(folder, sites=3, rows=80, **changed):
    """A csv of patients with proportional hazards; each site has its own baseline."""
    rng, lines = np.random.default_rng(0), []
    for site in range(sites):
        x = rng.normal(size=(rows, 3))
        death = rng.exponential(np.exp(-x @ SLOPES)) * 100 * 3**site
        end = rng.exponential(150.0 * 3**site, size=rows)
        for row, t, e in zip(x, np.minimum(death, end), death <= end, strict=True):
            lines.append({"site": f"s{site}", **dict(zip("abc", row, strict=True))})
            lines[-1] |= {"days": np.ceil(t), "dead": int(e)}
    return write_csv(folder / "patients.csv", lines, changed)


def table(path):
    named = {"data.natural-id": "site", "data.label": "days", "survival.event": "dead"}
    return {"task": "survival", "data.source": str(path), "checkpoint-every": 0, **named}


def run(out, settings):
    settings = with_defaults({**settings, "out": str(out)})
    parts = assemble(settings)
    return execute_inline(parts.settings, parts=parts), parts


def newton(clients):
    """The coefficients at which the sum of the clients' log partial likelihoods (ties:
    Breslow) is largest.
    """
    beta = np.zeros(clients[0][0].shape[1])
    for _ in range(20):
        gradient, hessian = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
        for x, (times, events) in clients:
            for i in np.flatnonzero(events):
                at_risk = x[times >= times[i]]
                p = np.exp(at_risk @ beta)
                p /= p.sum()
                mean = p @ at_risk
                gradient += x[i] - mean
                hessian += (at_risk - mean).T @ (p[:, None] * (at_risk - mean))
        beta = beta + np.linalg.solve(hessian, gradient)
    return beta


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 3])
def test_fedavg_with_full_batches_finds_the_cox_fit_stratified_by_site(sites, tmp_path):
    plain = {"local-epochs": 1, "learning-rate": 1.0, "lr-decay": 1.0, "weight-decay": 0.0}
    own = {f"train.{key}": value for key, value in plain.items()}
    own |= {"train.max-gradient-norm": 0.0, "num-rounds": 80, "evaluate-every": 0}
    _, parts = run(tmp_path / "run", table(patients(tmp_path, sites)) | own)
    data = [parts.task.client_data(k, sites).train for k in range(sites)]
    x = [part.x.double().numpy().reshape(len(part), -1) for part in data]
    wanted = newton(list(zip(x, (part.y.numpy().T for part in data), strict=True)))
    found = load_file(tmp_path / "run" / "model.safetensors")
    (weights,) = (array for name, array in found.items() if name.endswith("weight"))
    np.testing.assert_allclose(weights[0], wanted, atol=1e-3)
    assert np.abs(wanted - SLOPES).max() < 0.5  # the table's own


def test_the_pooled_concordance_is_that_of_all_sites_rows(tmp_path):
    summary, parts = run(tmp_path / "run", {**table(patients(tmp_path)), "num-rounds": 2})
    model = parts.task.work_model()
    arrays = load_file(tmp_path / "run" / "model.safetensors")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    total, own = np.zeros(3, int), []
    for k in range(3):
        test = parts.task.client_data(k, 3).test
        counts = pair_counts(*test.y.numpy().T, model(test.x).detach().double().numpy().ravel())
        total += counts
        own.append(concordance(counts))
    assert summary["concordance-pooled"] == pytest.approx(concordance(total))
    assert summary["concordance-mean"] == pytest.approx(np.mean(own))
    assert {"event", "dead", "days"}.isdisjoint(parts.task.samples.numbers.used)


def test_a_site_without_a_pair_is_named_and_not_in_the_mean():
    one = {"loss": 0.1, "test-samples": 9, "concordance": 0.7, "pair-counts": [7, 3, 0]}
    none = {"loss": 0.0, "test-samples": 9, "pair-counts": [0, 0, 0]}
    liar = one | {"pair-counts": [9, 0, 0]}
    _, measures, left_out = pooled_concordance({"a": one, "b": none, "c": liar})
    assert measures == {"concordance-pooled": 0.7}
    assert {entry["client"]: entry["reason"][:26] for entry in left_out} == {
        "b": "pair-counts: no pair of it",
        "c": "pair-counts: the counts ha",
    }
    assert pooled_concordance({"b": none})[1] == {}
    assert pooled_concordance({"a": {"accuracy": 1.0}}) == ([], {}, [])


def test_a_run_with_such_sites_goes_on_and_its_log_names_them(tmp_path):
    path = patients(tmp_path, dead=[0] * 80)
    settings = {**table(path), "num-rounds": 2, "method": "superfed-mm"}
    summary, parts = run(tmp_path / "run", settings)
    assert any("no event to learn from at s0" in line for line in parts.task.remarks(3))
    folder = read_run(tmp_path / "run")
    assert folder.left_out("pair-counts") == ["s0"]
    own = folder.column("concordance")
    assert (len(own), summary["concordance-mean"]) == (2, pytest.approx(np.mean(own)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "finetune", "fedprox", "scaffold", "apfl"])
def test_methods_that_train_one_net_run(method, tmp_path):
    settings = {"task": "survival", "num-clients": 4, "num-rounds": 2, "method": method}
    summary, _ = run(tmp_path / "run", {**settings, "device": "cpu"})
    assert summary["concordance-mean"] > 0.6


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        ({"dead": [2]}, {}, r"survival\.event = 'dead': .* other values than 1"),
        ({"dead": [""]}, {}, r"survival\.event = 'dead'"),
        ({"days": [-1]}, {}, r"data\.label = 'days': .* at least 0"),
        ({"dead": [0] * 240}, {}, r"survival\.event = 'dead'"),
        ({}, {"survival.event": "died"}, r"survival\.event = 'died': .*did you mean 'dead'"),
        ({}, {"data.label": "days,a"}, "must be one column"),
        ({}, {"data.noise": "pair", "data.noise-ratio": 0.1}, "survival has times"),
        ({}, {"data.group": "a"}, "not scored by group"),
        (
            {},
            {"method": "histogram-boosting"},
            "task = 'survival': this method needs classes",
        ),
    ],
)
def test_wrong_tables_and_settings_are_refused(changed, settings, message, tmp_path):
    refused(
        lambda: assemble(with_defaults(table(patients(tmp_path, **changed)) | settings)),
        message,
        UserError,
    )


def test_all_may_have_happened(tmp_path):
    given = {"survival.event": "", "data.drop": "dead", "num-clients": 3}
    task = build_task(with_defaults(table(patients(tmp_path)) | given))
    assert task.client_data(0, 3).train.y[:, 1].min() == 1


def test_sites_with_tables_of_their_own(tmp_path):
    path = patients(tmp_path, sites=1, dead=[0] * 80)  # no event there
    given = {"task": "survival", "data.label": "days", "survival.event": "dead"}
    chosen = with_defaults(given | {"sites.columns": "a,b,c"})
    site = build_task(chosen, str(path))
    data = site.client_data("s0", 1)
    assert (data.train.y.shape, data.train.x.shape) == ((64, 2), (64, 3))
    assert not data.train.y[:, 1].any()
    assert build_task(chosen).input_scale(1) == {}  # the server reads no samples there
    assert len(SURVIVAL.score(site.work_model(), data.test)["pair-counts"]) == 3


def test_from_python_and_from_the_command(tmp_path):
    given = table(patients(tmp_path)) | {"num-rounds": 2}
    assert main(["data", *(f"{key}={value}" for key, value in given.items())]) == 0
    assert fedapps.run(**given, out=tmp_path / "run", progress=False)
    assert summary_of(tmp_path / "run")["concordance-pooled"] > 0.5
