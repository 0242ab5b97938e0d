"""No test module imports another one: what tests share is in modules without tests.
The layers of the packages are contracts in pyproject.toml, which `make lint` checks.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def test_no_test_module_is_imported_by_another():
    found = {path.name: borrowed(path.read_text(encoding="utf-8")) for path in TESTS}
    assert not any(found.values()), {name: lines for name, lines in found.items() if lines}


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
