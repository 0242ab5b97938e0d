"""The imports of a client process. A SuperNode starts one per message, so it must not
import anything slow that it does not need.
"""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.deployment import CHILD, Recorder, app, execute, measure, read_settings
from fedapps.runs.prepare import prepare_folder
from tests.helpers import ROOT, printed, python, refused, write_file

pytestmark = pytest.mark.slow

LATE = {
    "torch",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "datasets",
    "flwr_datasets",
    "PIL",
    "daqp",
    "torchvision",
    "transformers",
    "ray",
}
IMPORTED = "import sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))\n"


def imported(code):
    return set(printed("-c", code + IMPORTED, cwd=ROOT).split())


IDENTITY = """
from flwr.app import RecordDict
from fedapps.runs.client_app import app
from fedapps.engines.inline import InlineGrid
grid = InlineGrid(app, 3)
(answer,) = grid.send_and_receive([grid.create_message(RecordDict(), "query.identity", 1002, "1")])
assert dict(answer.content["config"]) == {"client-id": 2, "num-clients": 3}
"""
OPTIONS = [
    ".".join(("fedapps", *path.relative_to(ROOT).with_suffix("").parts))
    for path in [*ROOT.joinpath("strategies").rglob("*.py"), ROOT / "clients/base/options.py"]
    if path.name != "__init__.py"
]
SERVER = """
import sys, fedapps.server_app
assert not [name for name in sys.modules if name.startswith('fedapps.lab.charts')]
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(IDENTITY, id="ids of clients"),
        pytest.param("import fedapps.runs.client_factory\n", id="training clients"),
        pytest.param(f"import {', '.join(sorted(OPTIONS))}\n", id="options"),
        pytest.param(
            "import fedapps.lab.results.report, fedapps.lab.results.report\n", id="report"
        ),
        pytest.param(SERVER, id="server"),
    ],
)
def test_training_packages_are_not_imported_without_need(code):
    assert LATE & imported(code) == set()


@pytest.mark.parametrize("name", ["fedapps.clients", "fedapps.strategies"])
def test_names_of_a_package_are_imported_on_use(name):
    assert "torch" not in imported(
        f"import {name}\nfrom {name} import {'to_client_app' if name == 'fedapps.clients' else 'FedAvg'}\n"
    )
    package = importlib.import_module(name)
    assert sorted(package.__all__) == dir(package)
    assert {getattr(package, one).__name__ for one in package.__all__} == set(package.__all__)
    refused(lambda: exec(f"from {name} import Fedavg"), "cannot import name 'Fedavg'", ImportError)


# --- a client without a net -----------------------------------------------------------


HEAVY = {"torch", "scipy", "sklearn", "pandas", "datasets", "matplotlib", "PIL", "ray"}
#: A job of each kind of client.
SMALL = [
    "fedfw:lasso",
    "dfw-trace:matrix-completion",
    "fedboost:point-mass",
    "ffgb:tabular",
    "histogram-boosting:tabular",
]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="resident memory is read from /proc"
)
@pytest.mark.parametrize("job", SMALL)
def test_a_client_without_a_net_trains_without_importing_pytorch(job, tmp_path):
    measured = measure(job, tmp_path)
    assert HEAVY & set(measured["modules"]) == set()
    assert measured["peak"] < 200  # MB; 160 with the oldest packages, 600 with PyTorch
    assert measured["up"] > 0


def test_a_client_with_a_net_is_seen_to_import_pytorch(tmp_path):
    assert measure("fedavg:tabular", tmp_path)["torch"]


def child_of_a_site(method, folder, *, without):
    """Run two rounds at three sites, each with its own .csv, then let a new process
    that has none of the packages ``without`` answer a training message.
    """
    given = {"method": method, "task": "tabular", "sites.columns": "age,kind=a|b|c"}
    given |= {"num-rounds": 2, "num-clients": 3, "clients-per-round": 0, "checkpoint-every": 0}
    settings = replace(read_settings(given), out=str(folder / "run"))
    grid, random = Recorder(app, 3, settings.flat()), np.random.default_rng(0)
    for number, context in enumerate(grid.contexts.values()):
        rows = [
            f"{age:.1f},{kind},{int(age > 50)}"
            for age, kind in zip(
                random.normal(50, 9, 60), random.choice(list("abc"), 60), strict=True
            )
        ]
        path = write_file(folder / f"{number}.csv", "\n".join(["age,kind,label", *rows]))
        context.node_config |= {"client-id": f"site-{number}", "data": str(path)}
    prepare_folder(settings, overwrite=True)
    execute(settings, grid, [])
    for name, content in zip(("message", "context"), grid.last[:2], strict=True):
        (folder / name).write_bytes(content)
    block = f"import sys; sys.modules |= dict.fromkeys({sorted(without)!r})\n"
    return python("-c", block + CHILD, folder / "message", folder / "context", cwd=ROOT)


@pytest.mark.parametrize("method", ["ffgb", "ffgb-c", "histogram-boosting"])
def test_a_site_with_a_csv_needs_no_pytorch_for_trees(method, tmp_path):
    done = child_of_a_site(method, tmp_path, without=HEAVY | {"torchvision"})
    assert done.returncode == 0, done.stderr


def test_a_site_that_lacks_a_package_says_which_and_for_what(tmp_path):
    assert (
        "method 'fedavg' needs torch, which is not installed: pip install 'fedapps[site,torch]'"
        in child_of_a_site("fedavg", tmp_path, without={"torch"}).stderr
    )
