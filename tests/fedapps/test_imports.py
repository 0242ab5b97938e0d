"""The imports of a client process. A SuperNode starts one per message, so it must not
import anything slow that it does not need.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
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
    done = subprocess.run(
        [sys.executable, "-c", code + IMPORTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_client_ids_are_read_without_training_packages():
    code = """
from flwr.app import RecordDict
from fedapps.runs.client_app import app
from fedapps.engines.inline import InlineGrid
grid = InlineGrid(app, 3)
(answer,) = grid.send_and_receive([grid.create_message(RecordDict(), "query.identity", 1002, "1")])
assert dict(answer.content["config"]) == {"client-id": 2, "num-clients": 3}
"""
    assert LATE & imported(code) == set()


def test_training_clients_import_only_what_they_need():
    assert LATE & imported("import fedapps.runs.client_factory\n") == set()


def test_options_are_read_without_training_packages():
    modules = [*ROOT.joinpath("strategies").rglob("*.py"), ROOT / "clients/base/options.py"]
    names = [
        ".".join(("fedapps", *path.relative_to(ROOT).with_suffix("").parts))
        for path in modules
        if path.name != "__init__.py"
    ]
    assert len(names) > 30
    assert LATE & imported(f"import {', '.join(sorted(names))}\n") == set()


def test_a_report_is_made_without_training_packages_and_plotting_libraries():
    code = "import fedapps.lab.results.report, fedapps.lab.results.ending\n"
    assert LATE & imported(code) == set()


def test_flowers_server_app_starts_without_charts_and_training_packages():
    code = "import sys, fedapps.server_app\n"
    shown = "print(*(name for name in sys.modules if name.startswith('fedapps.lab.charts')))\n"
    found = imported(code + shown)
    assert LATE & found == set()
    assert not [name for name in found if name.startswith("fedapps.")]  # no charts


@pytest.mark.parametrize("name", ["fedapps.clients", "fedapps.strategies"])
def test_names_of_a_package_are_imported_on_use(name):
    assert "torch" not in imported(
        f"import {name}\nfrom {name} import {'to_client_app' if name == 'fedapps.clients' else 'FedAvg'}\n"
    )
    package = importlib.import_module(name)
    assert sorted(package.__all__) == dir(package)
    assert {getattr(package, one).__name__ for one in package.__all__} == set(package.__all__)
    with pytest.raises(ImportError, match="cannot import name 'Fedavg'"):
        exec(f"from {name} import Fedavg")
