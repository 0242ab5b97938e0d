"""The command as users run it: inline runs from command line to results folder,
resuming, and errors.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from safetensors.numpy import load_file

from fedapps.clients import FedAvgClient, MessageStore
from fedapps.commands.parser import main
from fedapps.methods import METHODS
from fedapps.runs import launch
from fedapps.runs.assembly import build_client
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import (
    clients_of,
    dying_after,
    lacking,
    outcome_of,
    rounds_of,
    summary_of,
    write_file,
)
from tests.small_jobs import SMALL

QUICK = [
    "num-rounds=4",
    "evaluate-every=2",
    "checkpoint-every=2",
    "train.local-epochs=1",
    "--nodes",
    "6",
    "clients-per-round=2",
]
# 6 clients of digits hold enough of each class for any partition


def run(*arguments):
    return main(["run", "--engine", "inline", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_needs_nothing_but_its_name_and_runs_a_small_job(method, tmp_path, capsys):
    """The job has the defaults' task. Its second round meets what the first has left;
    the first rounds of dfw-trace measure, and train nothing that could be scored.
    """
    settings, task, _ = assemble(with_defaults({"method": method}))
    build_client(settings, task, 0, settings.num_clients, MessageStore(RecordDict()))
    job = {"num-clients": 6, "num-rounds": 5 if method == "dfw-trace" else 2}
    job |= {"train.local-epochs": 1, "train.batch-size": 40, **SMALL.get(method, {})}
    job |= {"superfed.start": 0.4} if method.startswith("superfed") else {}
    job["clients-per-round"] = 0 if METHODS[method].all_clients else 3
    given = [f"{key}={value}" for key, value in job.items()]
    assert run(f"method={method}", *given, "--out", tmp_path / "r") == 0
    summary = summary_of(tmp_path / "r")
    assert (summary["status"], summary["failures"]) == ("completed", 0)
    assert summary["rounds-completed"] == summary["num-rounds"]
    assert "report" in capsys.readouterr().out


@pytest.mark.slow
def test_the_results_folder(tmp_path):
    out = tmp_path / "r"
    assert run("method=superfed-mm", "superfed.start=0.5", *QUICK, "--out", out) == 0
    names = {p.name for p in out.iterdir()}
    files = {
        "settings.toml",
        "rounds.jsonl",
        "clients.csv",
        "summary.json",
        "report.html",
        "model.safetensors",
        "curves.json",
        "confusion.csv",
        "dataset.json",
    }
    assert files | {"checkpoint", "clients", "run.log"} == names
    summary = summary_of(out)
    assert all(not isinstance(v, dict | list) for v in summary.values())
    rows = rounds_of(out)
    assert [(r["round"], "evaluate" in r) for r in rows] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]
    clients = clients_of(out)
    assert [int(c["client"]) for c in clients] == list(range(6))
    accuracy = np.array([float(c["accuracy"]) for c in clients])
    wanted = {
        "bytes-up": sum(r["bytes-up"] for r in rows),
        "accuracy-mean": accuracy.mean(),
        "accuracy-worst10": accuracy.min(),
        "parity-gap": accuracy.max() - accuracy.min(),
    }
    assert {key: summary[key] for key in wanted} == pytest.approx(wanted)
    curve = json.loads((out / "curves.json").read_text())
    assert len(curve["lambda"]) == len(curve["lambda-accuracy"]) == 11
    assert (
        sum(a.size for a in load_file(out / "model.safetensors").values())
        == 64 * 64 + 64 + 64 * 10 + 10
    )
    text = (out / "settings.toml").read_text()
    assert lacking(text, "superfed.start", "start = 0.5", "[versions]") == ["superfed.start"]


#: A method for each kind of state: of server and clients, of clients, of replies that
#: are under way, of what is not a net.
WITH_STATE = {
    "scaffold": [],
    "superfed-mm": ["superfed.start=0.2"],
    "fedbuff": [],
    "fedboost": ["fedboost.library=clients"],
    "fens": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("method", WITH_STATE)
def test_a_resumed_run_equals_an_uninterrupted_one(method, tmp_path):
    """The run dies in the middle of round 6, two rounds after its last checkpoint. The
    state of its clients is then newer than the checkpoint. The exams resume every
    method.
    """
    settings = [f"method={method}", "train.batch-size=40", *WITH_STATE[method], *QUICK]
    settings += ["num-rounds=6", "checkpoint-every=3", "clients-per-round=3"]
    assert run(*settings, "--out", tmp_path / "whole") == 0
    with dying_after(5):
        assert run(*settings, "--out", tmp_path / "broken") == 130
    assert len(rounds_of(tmp_path / "broken")) == 5
    assert summary_of(tmp_path / "broken")["status"] == "interrupted"
    # the folder's settings are used
    assert run("--resume", "--out", tmp_path / "broken") == 0
    assert outcome_of(tmp_path / "broken") == outcome_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "words", [["sweep", "grid.toml"], ["contest"], ["deploy", "up"], ["run", "--engine=inline"]]
)
def test_a_place_where_no_folder_can_be(words, tmp_path, capsys, monkeypatch):
    """As a read-only folder for an ordinary user; root ignores permissions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text("num-rounds = 1\nseed = [0, 1]\n")
    option = "--dir" if words[0] == "deploy" else "--out"
    assert main([*words, option, str(tmp_path / "grid.toml" / "there")]) == 2
    assert re.search("^fedapps: .*grid.toml.*: Not a directory\n$", capsys.readouterr().err, re.M)


@pytest.mark.slow
def test_mistakes_about_the_folder(tmp_path, error_of, caplog, monkeypatch):
    command = ["run", "--engine", "inline", *QUICK, "--out", tmp_path / "r"]
    assert "holds no run to resume" in error_of(*command, "--resume")
    (tmp_path / "killed").mkdir()
    for name in ("launch.lock", "run.log", "settings.toml.partial"):
        (tmp_path / "killed" / name).write_text("{}")
    settled = []
    monkeypatch.setattr(launch, "settle", lambda folder, how: settled.append(folder.name))
    for times in (1, 2):  # as a job that is started again with the same command
        assert run(*QUICK, "--out", tmp_path / "killed", "--resume") == 0
        assert caplog.text.count("this one begins") == 1
        # what a killed command left running is waited for
        assert settled == ["killed"] * times
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "settings.toml.partial").write_text("")  # as runs of a contest leave it
    assert run(*QUICK, "--out", tmp_path / "draft", "--overwrite") == 0
    notes = write_file(tmp_path / "r" / "notes.txt", "mine")
    assert "is not empty (notes.txt): add --overwrite or --resume" in error_of(*command)
    said = "is not the folder of a run, so --overwrite deletes nothing in it"
    assert said in error_of(*command, "--overwrite")
    notes.unlink()
    assert run(*QUICK, "--out", tmp_path / "r") == 0
    assert "is not empty" in error_of(*command)
    said = "num-rounds = 4, but now num-rounds = 9. Resume with the same settings"
    assert said in error_of(*command, "--resume", "num-rounds=9")
    notes.write_text("mine")
    assert run(*QUICK, "--out", tmp_path / "r", "--overwrite", "seed=3") == 0
    assert notes.read_text() == "mine"
    next((tmp_path / "r" / "checkpoint").glob("*/model.safetensors")).write_bytes(b"torn")
    assert "the checkpoint cannot be read" in error_of(*command, "--resume", "seed=3")


@pytest.mark.slow
def test_what_clients_kept_and_is_gone_is_named(tmp_path, caplog):
    job = [*QUICK, "method=ditto", "clients-per-round=6", "--out", tmp_path / "r"]
    assert run(*job, "--until", "2") == 0
    shutil.rmtree(tmp_path / "r" / "clients" / "client-3")
    assert run(*job, "--until", "3", "--resume") == 0
    (said,) = [one.message for one in caplog.records if "is gone" in one.message]
    assert "what 1 clients kept is gone since the checkpoint of round 2" in said
    assert said.endswith("they begin anew: client-3")
    caplog.clear()
    assert run(*job, "--resume") == 0
    assert "is gone" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["clients-per-round=7", "--nodes", "6"],
            "clients-per-round = 7, but there are 6 clients: choose 1..6, or 0 for all",
        ),
        (["min-replies=3", "clients-per-round=2"], "min-replies = 3, but a round has 2 clients"),
        (
            ["data.classes-per-client=12"],
            "data.classes-per-client = 12, but digits has 10 classes: choose 1..10",
        ),
        (["data.partition=dirichlet", "data.alpha=0.001"], "data.alpha"),
        (["data.source=/no/such/folder"], "/no/such/folder"),
        (["model.name=mpl"], "model.name = 'mpl': did you mean 'mlp'?"),
        (["seed=9223372036854775808"], "seed = 9223372036854775808: must be a number of 64 bits"),
        (["evaluate-every=-2"], "evaluate-every = -2: choose a value in [-1, inf)"),
        (["--deployment", "sites"], "--deployment sites does not go with --engine inline"),
        (["task=digit"], "task = 'digit': did you mean 'digits'?"),
        (["device=cuda"], "device = 'cuda', but no GPU is visible here"),
        (["--nodes", "2000"], "2000"),
        (["--gpus-per-client", "0.5"], "--gpus-per-client is for --engine ray"),
        (["fedavg"], "'fedavg': write a setting as key=value"),
        (
            ["method=fedboost", "fedboost.budget=101"],
            "fedboost.budget = 101, but the library holds 100 predictors: choose 1 to 100",
        ),
        (["method=fedboost", "fedboost.library=/no/such/folder"], "/no/such/folder"),
        (
            ["method=fedboost", "task=digits"],
            "task = 'digits': this method runs on point-mass, unigram, ensemble-classification",
        ),
        (
            ["method=fedboost", "fedboost.cache=3", "fedboost.repeats=2"],
            "fedboost.cache = 3 needs repeats = 1, not 2",
        ),
        (
            ["method=fens", "ensemble.predictors=3"],
            "ensemble.predictors = 3: method = 'fens' does not use it, its clients train one "
            "predictor each: leave it 10",
        ),
        (
            ["method=aaggff-s", "secure.on=true", "clients-per-round=0"],
            "secure.on = true: secure sums: AAggFFS weights ",
        ),
        (
            ["robust.rule=median", "secure.on=true", "clients-per-round=0"],
            "secure.on = true: secure sums: Robust looks at single clients' replies",
        ),
        (
            ["method=fens", "secure.on=true"],
            "the replies to FENS are no vectors that could be added",
        ),
        (
            ["method=aaggff-s", "clients-per-round=3", "--nodes", "6"],
            "clients-per-round = 3, but aaggff-s needs all 6 clients in every round: choose 0, or "
            "method = 'aaggff-d'",
        ),
        (
            ["method=afl", "fedavg.weights=uniform"],
            "FedAvg does not average by the weights of the replies",
        ),
        (["none.toml"], "none.toml: no such file"),
        (
            ["train.lr=0.1"],
            "unknown setting 'train.lr': did you mean 'train.learning-rate'? `fedapps settings` "
            "lists all keys",
        ),
        (["rounds=3"], "did you mean 'num-rounds'?"),
        (["epochs=3"], "did you mean 'train.local-epochs'?"),
        (["train.epochs=3"], "did you mean 'train.local-epochs'?"),
        (
            ["model=my_net:Net"],
            "unknown setting 'model': it is a table with keys such as model.name",
        ),
        (["model.name=my_net"], "or name your own net as my_net:NAME"),
        (["model.name=my_nett:Net"], "no module 'my_nett'"),
        (["max-update-norm=-1"], "max-update-norm = -1.0: choose a value in [0, inf)"),
        (["on-large-update=cut"], "on-large-update = 'cut': choose one of reject, clip"),
        (
            ["method=fedfw", "max-update-norm=2.0"],
            "fedapps: max-update-norm = 2.0: the clients of this method send nothing that has a norm",
        ),
        (["method=local", "max-update-norm=2.0"], "max-update-norm = 2.0"),
        (
            ["method=afl", "dp.noise-multiplier=1.0"],
            "dp.noise-multiplier: AFL uses more than the average of updates",
        ),
        (
            ["dp.noise-multiplier=1.0", "dp.max-epsilon=1.0"],
            "fedapps: dp.max-epsilon = 1.0: one round with noise-multiplier = 1.0 spends 4.38",
        ),
        (["dp.delta=1.0"], "dp.delta = 1.0"),
        (
            ["data.noise=pair", "data.noise-ratio=1.0"],
            "data.noise-ratio = 1.0: choose a value in [0, 1)",
        ),
        (
            ["data.noise-ratio=0.2"],
            "data.noise-ratio = 0.2: noise = 'none': choose noise = pair or symmetric",
        ),
        (
            ["task=text", "data.noise=pair"],
            "data.noise = 'pair': task 'text' does not use it: leave it out",
        ),
        (
            [
                "task=tabular",
                "model.start=zero",
                "method=propfair",
                "propfair.base=superfed-mm",
                "form=printed",
            ],
            "model.start = 'zero': superfed-mm mixes two models that must differ: choose 'random'",
        ),
        (
            ["method=fedper", "model.name=logistic"],
            "model.name = 'logistic': the body, which is shared, has 0 of the model's 2 arrays",
        ),
        (
            ["method=fedrep", "model.head=output"],
            "model.head = 'output': there is no layer 'output': choose among body.1, ",
        ),
        (
            ["method=fedper", "model.head=body,classifier"],
            "0 of the model's 4 arrays (head: body., classifier.): choose a model with",
        ),
        (
            ["method=pfedme", "pfedme.lambda=200"],
            "pfedme.lambda = 200, but the rate is 0.01: their product must be at most 1",
        ),
        (
            ["method=scaffold", "dp.noise-multiplier=1.0"],
            "dp.noise-multiplier: Scaffold uses more than the average of updates",
        ),
    ],
)
def test_mistakes_in_the_settings(arguments, message, tmp_path, error_of, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ("run", "--engine", "inline", *arguments)
    assert message in error_of(*command, "--out", tmp_path / "r")
    assert not (tmp_path / "r" / "settings.toml").exists()


def test_too_few_replies_stop_the_run_with_its_state(tmp_path, capsys, monkeypatch):
    """Five of six clients fail from round 3 on. After two such rounds the run ends with
    exit status 1; with a lower `min-replies` it continues from there.
    """
    train = FedAvgClient.train

    def fails(self, config):
        if config["server-round"] in (3, 4) and self.client_id:
            raise RuntimeError("the site is being moved")
        return train(self, config)

    settings = [*QUICK, "num-rounds=6", "checkpoint-every=5", "clients-per-round=0"]
    with monkeypatch.context() as patch:
        patch.setattr(FedAvgClient, "train", fails)
        assert run(*settings, "min-replies=2", "max-failed-rounds=2", "--out", tmp_path / "r") == 1
    error = capsys.readouterr().err
    said = "round 4: fewer than min-replies = 2 valid replies for 2 rounds in a row; client 1: "
    assert lacking(error, "the run failed", said, "the site is being moved") == []
    summary = summary_of(tmp_path / "r")
    assert (summary["status"], summary["failures"]) == ("failed", 10)
    assert "the site is being moved" in (tmp_path / "r" / "report.html").read_text()
    assert (tmp_path / "r" / "checkpoint" / "4" / "model.safetensors").exists()
    assert run("--resume", "min-replies=1", "--out", tmp_path / "r") == 0
    assert [len(row["failures"]) for row in rounds_of(tmp_path / "r")] == [0, 0, 5, 5, 0, 0]


def test_a_run_from_before_a_setting_existed_can_be_resumed(tmp_path):
    assert run(*QUICK, "num-rounds=2", "--out", tmp_path / "r") == 0
    path = tmp_path / "r" / "settings.toml"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if "update" not in line)
    )
    assert run("--resume", "--out", tmp_path / "r") == 0


def test_methods_lists_every_method_and_how_its_printed_form_differs(capsys):
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and method.paper in out for name, method in METHODS.items())
    assert "fedfw-plus: fedfw.dual-step = 0.0\n" in out
