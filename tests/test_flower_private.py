"""Private names of Flower are used in one module only, not elsewhere in the packages,
tools, examples and pages.
"""

import ast
import importlib
import re

import pytest

from tests.helpers import ROOT

ONE = "strategies/base/flower_private.py"
PUBLIC = {
    "flwr.app",
    "flwr.client",
    "flwr.client.mod",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.common",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
}
# Fields that only Flower's own programs set, and modules named in a string.
WORDS = re.compile(
    r"_message_id\"|pull_interval|flwr\.(?:supercore|supernode|superlink|cli|proto|compat)\b"
)
# These measure Flower's own programs, piece by piece.
MEASURED = {
    "benchmarks/deployment.py",
    "benchmarks/ray_floor.py",
}


def private_names(text):
    """Return the private names of Flower in a program."""
    names_used = WORDS.findall(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            public = node.module in PUBLIC and importlib.import_module(node.module).__all__
            names_used += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if alias.name not in (public or ()) and f"{node.module}.{alias.name}" not in PUBLIC
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            names_used += [
                name for name in names if name.startswith("flwr.") and name not in PUBLIC
            ]
    return names_used


def programs():
    folders = ("algorithms", "strategies", "clients", "fedapps", "tools", "benchmarks", "examples")
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name not in {ONE, *MEASURED}:
                yield name, path.read_text(encoding="utf-8")


def test_no_other_module_uses_a_private_name_of_flower():
    seen = dict(programs())
    assert len(seen) > 300
    assert {name: private for name, text in seen.items() if (private := private_names(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from flwr.supercore.run import Run",
        "from flwr.common.constant import ErrorCode",
        "from flwr.serverapp.strategy.strategy_utils import sample_nodes",
        "import flwr.supercore.task_identity",
        "from flwr.app import MadeUp",
        'message.metadata.__dict__["_message_id"] = "1"',
        "grid.pull_interval = 1",
    ],
)
def test_a_private_name_is_found(line):
    assert private_names(line)
    assert not private_names("from flwr.app import Message\nfrom flwr.serverapp import strategy")
