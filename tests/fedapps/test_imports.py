"""The imports of a client process. A SuperNode starts one per message, so it must not
import anything slow that it does not need.
"""

import importlib

import pytest

from tests.helpers import ROOT, printed, refused

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
