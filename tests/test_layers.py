"""Imports point downwards only: fedapps -> strategies, clients -> algorithms;
strategies, clients and tests never meet.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "algorithms": {"algorithms"},
    "strategies": {"strategies", "algorithms"},
    "clients": {"clients", "algorithms"},
    "fedapps": {"fedapps", "strategies", "clients", "algorithms"},
    "tools": {"tools", "fedapps", "strategies", "clients", "algorithms"},
}
# Packages that a layer must not import: algorithms no framework, the two halves of a
# method no data sets.
DATA_SETS = {"datasets", "flwr_datasets", "huggingface_hub", "sklearn", "torchvision"}
FOREIGN = {
    "algorithms": {"flwr", "ray"} | DATA_SETS,
    "strategies": DATA_SETS,
    "clients": DATA_SETS,
    "fedapps": set(),
    "tools": set(),
}
FILES = [
    path.relative_to(ROOT) for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))
]


def violations(package: str, source: str) -> list[str]:
    """Return one line for every import in ``source``, at any place, that a module of
    ``package`` must not make.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            lines.append(f"line {node.lineno}: relative import: write 'from {package}...'")
            continue
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "__import__",
            "import_module",
            "importlib.import_module",
        ):
            modules = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if (top in ALLOWED and top not in ALLOWED[package]) or top in FOREIGN[package]:
                lines.append(f"line {node.lineno}: {package} must not import {module}")
    return lines


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_downwards(path):
    assert violations(path.parts[0], (ROOT / path).read_text(encoding="utf-8")) == []


def test_every_package_is_checked():
    assert {path.parts[0] for path in FILES} == set(ALLOWED)
    assert {
        path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"
    } == set(ALLOWED)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("strategies", "from fedapps.clients.base.training import SGD"),
        ("strategies", "from fedapps import clients"),
        ("clients", "from fedapps.strategies import FedAvg"),
        ("clients", "def f():\n    import fedapps.settings.settings"),
        ("strategies", "import importlib\nimportlib.import_module('fedapps')"),
        ("algorithms", "import numpy, flwr.app"),
        ("algorithms", "if TYPE_CHECKING:\n    from flwr.app import ArrayRecord"),
        ("algorithms", "from fedapps.strategies.base.client_grid import ClientGrid"),
        ("clients", "from datasets import load_dataset"),
        ("fedapps", "from . import settings"),
        ("clients", "from .data import Split"),
    ],
)
def test_a_wrong_import_is_detected(package, source):
    assert len(violations(package, source)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (
            "fedapps",
            "from fedapps.clients import FedAvgClient\nfrom strategies import FedAvg\nimport datasets",
        ),
        (
            "clients",
            "from fedapps.clients.base.data import Split\nfrom fedapps.algorithms.common.seeds import "
            "generator\nimport flwr",
        ),
        ("strategies", "from flwr.app import Message\nimport fedapps.algorithms.common.averaging"),
    ],
)
def test_a_right_import_is_let_through(package, source):
    assert violations(package, source) == []


# --- tests ----------------------------------------------------------------------------

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def borrowed(source: str) -> list[str]:
    """Return one line for every import of a test module in ``source``: shared code
    belongs in modules without tests.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            modules = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("__import__", "import_module", "importorskip")
        ):
            modules = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            ours = (
                parts[0] in ("", "tests")
                or parts[0].startswith("test_")
                or (isinstance(node, ast.ImportFrom) and node.level)
            )
            if ours and any(part.startswith("test_") for part in parts):
                lines.append(f"line {node.lineno}: {module}")
    return lines


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_test_module_is_imported_by_another(path):
    assert borrowed(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.algorithms.test_domains import ALL",
        "from tests.algorithms import helpers, test_domains",
        "import tests.algorithms.test_domains as domains",
        "def f():\n    import test_domains",
        "from test_domains import ALL",
        "from . import test_domains",
        "from ..algorithms.test_domains import ALL",
        "import importlib\nimportlib.import_module('tests.test_layers')",
    ],
)
def test_an_import_of_a_test_module_is_found(source):
    assert len(borrowed(source)) == 1


def test_an_import_of_shared_helpers_is_let_through():
    assert (
        borrowed(
            "from tests.helpers import blobs\nimport tests.domains\nfrom sklearn.model_selection "
            "import test_split"
        )
        == []
    )
