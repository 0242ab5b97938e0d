"""No test module imports another one: what tests share is in modules without tests.
The layers of the packages are contracts in pyproject.toml, which `make lint` checks.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests").rglob("*.py"))
#: An import of a test module, at the beginning of a line.
BORROWED = re.compile(
    r"^\s*(?:from (?:tests|\.)\S* import (?:\([^)]*|.*)\btest_"
    r"|(?:from|import) (?:tests\b|\.)?\S*(?<!\w)test_"
    r"|[^\"\n]*import_module\(.tests\.(?:\w+\.)*test_)",
    re.MULTILINE,
)


def test_no_test_module_is_imported_by_another():
    assert [p.name for p in TESTS if BORROWED.search(p.read_text(encoding="utf-8"))] == []


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
    assert len(BORROWED.findall(source)) == 1


def test_an_import_of_shared_helpers_is_let_through():
    assert not BORROWED.search(
        "from tests.helpers import blobs\nimport tests.domains\nfrom sklearn.model_selection "
        "import test_split"
    )
