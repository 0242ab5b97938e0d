"""A method in the place of FedAvg in a torch app of Flower's message API: what it costs
in lines, and that every recipe runs.
"""

import ast
import importlib
import inspect
import re
import tomllib
from types import ModuleType

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapps import strategies
from fedapps.engines.inline import InlineGrid
from tests.helpers import ROOT
from tools.example_diffs import changed

FOLDER = ROOT / "examples" / "quickstart" / "quickstart"
APP = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
    "app"
]
CONFIG = APP["config"]
PAGE = (ROOT / "docs" / "strategy-in-your-project.md").read_text(encoding="utf-8")


@pytest.fixture
def module(monkeypatch):
    """Return a function that makes a module of a file of the example, with changes to
    its text.
    """
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    importlib.import_module("quickstart.task")

    def make(name, change=lambda text: text):
        module = ModuleType(name)
        exec(
            compile(change((FOLDER / f"{name}.py").read_text(encoding="utf-8")), name, "exec"),
            module.__dict__,
        )
        return module

    return make


def accuracies(server, client, capsys, clients=10, **config):
    server.app(
        InlineGrid(client.app, clients, {**CONFIG, **config}),
        Context(
            run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={**CONFIG, **config}
        ),
    )
    return [float(number) for number in re.findall(r"accuracy (\d\.\d+)", capsys.readouterr().out)]


@pytest.mark.parametrize("variant", ["scaffold", "superfed"])
def test_a_swap_costs_few_lines(variant):
    for half in ("server", "client"):
        assert (FOLDER / f"{half}_{variant}.py").is_file()
        assert APP["components"][f"{half}app"] == f"quickstart.{half}_app:app"
    client, server = changed(FOLDER, f"client_{variant}"), changed(FOLDER, f"server_{variant}")
    assert len(client) <= 20, "added and removed together"
    assert len(server) <= 4
    assert sum(line.startswith("+") for line in client) <= 10
    assert ("\n".join(client) if variant == "scaffold" else client[-1].lstrip("+ ")) in PAGE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "word"),
    [("app", "FedAvg"), ("scaffold", "SCAFFOLD"), ("superfed", "SuPerFed's mixture")],
)
def test_the_example_ends_as_the_page_says(variant, word, module, capsys):
    reached = accuracies(module(f"server_{variant}"), module(f"client_{variant}"), capsys)
    assert len(reached) == CONFIG["num-server-rounds"]
    said = float(re.search(rf"(\d\.\d+)\s+with\s+{word}", PAGE)[1])
    assert reached[-1] == pytest.approx(said, abs=0.1)


def test_a_loop_that_does_not_choose_lambda_is_asked_once_only(module, capsys, caplog):
    """It scores one mixture, so the question costs an evaluation. Then each client has
    one per round, scored as if the clients chose by themselves.
    """
    reached, calls = [], []
    for given in ("", "SuPerFedOptions(lambda_choice='own'), "):
        client = module(
            "client_superfed",
            lambda text: text.replace("def evaluate(msg", "def evaluate_(msg").replace(
                "@app.evaluate()", ""
            ),
        )

        @client.app.evaluate()
        def evaluate(message, context, client=client, given=given):
            calls.append(given)
            return client.evaluate_(message, context)

        server = module(
            "server_superfed",
            lambda text, given=given: text.replace("SuPerFed(", f"SuPerFed({given}").replace(
                "import SuPerFed", "import SuPerFed, SuPerFedOptions"
            ),
        )
        reached.append(accuracies(server, client, capsys, clients=4, **{"num-server-rounds": 3}))
    assert reached[0] == reached[1]
    assert (len(calls) - calls.count(""), calls.count("")) == (12, 16)
    (said,) = [one.message for one in caplog.records if "validation losses" in one.message]
    assert "lambda_choice='own'" in said


def recipes():
    """Return (method, strategy, class) of every row of the page's table; if a row has
    two classes or strategies, the first.
    """
    rows = re.findall(r"^\| ([\w ,-]+?) \| `(\w+\(.*?\))`.*? \| `(\w+Loop)`(.*?) \|$", PAGE, re.M)
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


def test_the_recipes_are_found():
    named = " ".join(param.id for param in recipes())
    for method in ("SCAFFOLD", "SuPerFed", "Ditto", "APFL", "FedRep", "FedDyn"):
        assert method in named


@pytest.mark.parametrize(("strategy", "loop", "remark"), recipes())
def test_every_recipe_runs(strategy, loop, remark, module, capsys):
    """As on the page: only the names in one of the two variants are replaced."""
    variant, old = (
        ("scaffold", "ScaffoldLoop") if "as it was" in remark else ("superfed", "SuPerFedLoop")
    )

    def on_server(text):
        names = sorted(set(re.findall(r"[A-Z]\w+", strategy)) - {"True"})
        made = strategy.replace("()", "(").removesuffix(")") + (
            ", " if not strategy.endswith("()") else ""
        )
        kind = {"scaffold": "Scaffold", "superfed": "SuPerFed"}[variant]
        return text.replace(f"{kind}(", made).replace(
            f"import {kind}", f"import {', '.join(names)}"
        )

    reached = accuracies(
        module(f"server_{variant}", on_server),
        module(f"client_{variant}", lambda text: text.replace(old, loop)),
        capsys,
        clients=4,
        **{"num-server-rounds": 2},
    )
    assert len(reached) == 2
    assert reached[-1] > 0.2  # of ten classes


# --- the contracts --------------------------------------------------------------------


def contract_of(module):
    """Return the contract of a strategy's module: the paragraph of its docstring that
    begins with "Contract".
    """
    found = re.search(
        r"^Contract(?: of .*?)?[.:] (.*?)(?=\n\n|\Z)", inspect.getdoc(module) or "", re.M | re.S
    )
    return found[1] if found else ""


STRATEGIES = sorted(
    {
        kind.__module__
        for kind in (getattr(strategies, name) for name in strategies.__all__)
        if inspect.isclass(kind) and issubclass(kind, Strategy) and not inspect.isabstract(kind)
    }
)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_contract_names_every_option_that_is_sent(name):
    module = importlib.import_module(name)
    text = contract_of(module)
    assert text
    hooks = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef) and node.name in ("train_options", "evaluate_options")
    ]
    dictionaries = [part for hook in hooks for part in ast.walk(hook) if isinstance(part, ast.Dict)]
    keys = {
        key.value for part in dictionaries for key in part.keys if isinstance(key, ast.Constant)
    }
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
