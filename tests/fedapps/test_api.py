"""Runs from Python: the command's numbers and errors, and models as PyTorch modules."""

import ast
import inspect
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import fedapps
from fedapps.commands.parser import main
from fedapps.errors import ARGUMENTS, UserError, in_python
from tests.helpers import assert_arrays, printed, refused

JOB = {
    "num_rounds": 2,
    "num_clients": 4,
    "clients_per_round": 0,
    "evaluate_every": 1,
    "train": {"local_epochs": 1},
}
WORDS = [
    "num-rounds=2",
    "num-clients=4",
    "clients-per-round=0",
    "evaluate-every=1",
    "train.local-epochs=1",
]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of a method with personal models."""
    out = tmp_path_factory.mktemp("api") / "run"
    return fedapps.run("apfl", data={"min_samples": 5}, out=out, progress=False, **JOB)


def test_a_run_from_python_equals_the_command(done, tmp_path, capsys):
    assert (
        main(
            [
                "run",
                "method=apfl",
                "data.min-samples=5",
                *WORDS,
                "--engine",
                "inline",
                "--out",
                str(tmp_path / "c"),
            ]
        )
        == 0
    )
    command = fedapps.load(tmp_path / "c")
    assert (command.folder / "clients.csv").read_text() == (done.folder / "clients.csv").read_text()
    assert {**command.settings, "out": ""} == {**done.settings, "out": ""}
    assert done.summary["status"] == "completed"
    assert repr(done).startswith("<fedapps.Run apfl on digits, completed: ")


def test_a_run_without_progress_prints_nothing_and_leaves_the_log_alone(tmp_path, capfd):
    logger = logging.getLogger("flwr")
    before = (list(logger.handlers), logger.propagate, logger.level)
    fedapps.run("fedavg", out=tmp_path / "r", progress=False, **{**JOB, "num_rounds": 1})
    assert (logger.handlers, logger.propagate, logger.level) == before
    assert capfd.readouterr() == ("", "")
    assert "round" in (tmp_path / "r" / "run.log").read_text().lower()


def test_rounds_and_clients_are_rows(done, monkeypatch):
    assert isinstance(done.clients, pytest.importorskip("pandas").DataFrame)
    assert (len(done.clients), list(done.rounds["round"])) == (4, [1, 2])
    assert done.clients["accuracy"].mean() == pytest.approx(done.summary["accuracy-mean"], abs=1e-6)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["client"] for row in done.clients] == ["0", "1", "2", "3"]


def test_the_model_is_the_one_of_the_file(done):
    model = done.model()
    assert not model.training
    assert_arrays(load_file(done.folder / "model.safetensors"), model.state_dict())


def test_errors_are_those_of_the_command(tmp_path, done):
    for given, said in (
        ({"method": "fedavgg"}, "method = 'fedavgg': did you mean 'fedavg'"),
        ({"num_round": 2}, "unknown setting 'num_round': did you mean 'num_rounds'"),
        ({"data": {"alpha": -1.0}}, "data.alpha = -1"),
        (
            {"method": ["fedavg"]},
            r"method = \['fedavg'\]: a run takes one value per setting\. For lists use fedapps\.sweep",
        ),
        ({"engine": "spark"}, "engine = 'spark': choose one of inline, ray, deployment"),
        (
            {"out": done.folder},
            "is not empty .*: add overwrite=True or resume=True, or choose another out$",
        ),
        (
            {"gpus_per_client": 1.0, "engine": "inline"},
            "^gpus_per_client is for engine='ray': .* with engine='inline'",
        ),
    ):
        refused(lambda: fedapps.run(**{**JOB, "progress": False, **given}), said, UserError)
    refused(lambda: fedapps.load(tmp_path), "holds no run: it has no settings", UserError)
    refused(
        lambda: done.personal_model(9), r"^client=9: .* has no scores of this client", UserError
    )
    refused(lambda: fedapps.runn, "has no attribute 'runn'", AttributeError)


#: Options in messages that no function in Python raises.
OF_COMMANDS = {
    "format": "of export",
    "dir": "fedapps deploy",
    "net": "fedapps export of a file",
    "program": "fedapps export",
    "ray-address": "fedapps run",
}


def test_messages_name_arguments_not_options():
    """Every option in a message of an error is an argument, or of a command alone."""
    options = set()
    for path in sorted(Path(fedapps.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            raised = isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "UserError",
                "RunFailed",
                "ValueError",
                "refuse_first",
            )
            if raised and path.parent.name not in ("commands", "deployment"):
                for case in node.args:  # of several, each with its condition
                    message = case.elts[-1] if isinstance(case, ast.Tuple) else case
                    parts = [one for one in ast.walk(message) if isinstance(one, ast.Constant)]
                    text = re.sub("`.*?`", "", "".join(str(part.value) for part in parts))
                    options |= set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text))
    assert {"overwrite", "client", "out"} <= options
    assert options <= ARGUMENTS.keys() | OF_COMMANDS.keys()
    functions = (fedapps.run, fedapps.sweep, fedapps.contest, fedapps.compare, fedapps.load)
    known = {name for one in functions for name in inspect.signature(one).parameters}
    assert {value.partition("=")[0] for value in ARGUMENTS.values()} <= known | {"num_clients"}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("--out /a b: is a file", "out=/a b: is a file"),
        ("--jobs -1: choose 1", "jobs=-1: choose 1"),
        ("--client bern: has no scores", "client=bern: has no scores"),
        ("clients (--nodes) instead", "clients instead"),
        ("make one with `fedapps deploy up --out x`", "make one with `fedapps deploy up --out x`"),
        ("leave out --client to export", "leave out client to export"),
        ("/a/--out/b and a--out", "/a/--out/b and a--out"),
        (
            "data.label: no label in /home/me/in-memory/DataFrame-0a1b, name one as data.label=y",
            "label: no label in the DataFrame, name one as label='y'",
        ),
        ("data.natural-id = '': data.natural-id=plant", "client = '': client='plant'"),
    ],
)
def test_options_in_a_message_become_arguments(message, said):
    def fails():
        raise UserError(message)

    refused(lambda: in_python(fails)(), f"^{re.escape(said)}$", UserError)


def test_importing_it_stays_cheap():
    code = (
        "import sys, json, fedapps; print(json.dumps([n for n in ('torch', 'flwr', 'rich', "
        "'numpy', 'pandas') if n in sys.modules]))"
    )
    assert json.loads(printed("-c", code)) == []
