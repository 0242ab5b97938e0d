"""``train.precision``, ``train.optimizer`` and ``data.augment`` in a run: where they
act, and one line where they cannot.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedapps.algorithms.common import precision
from fedapps.commands.parser import main
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task, check_steps, takes_steps
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.runs.work import WORTH, seconds_saved, with_compilation
from fedapps.settings.reading import read_settings
from fedapps.testing.problems import Blobs
from fedapps.toml_text import read_toml
from tests.clients.steps.traced import Traced
from tests.helpers import dying_after, outcome_of, refused, run_inline

SMALL = {"num-clients": 6, "num-rounds": 1, "clients-per-round": 3, "checkpoint-every": 0}
BF16, AUGMENT = {"train.precision": "bf16"}, {"data.augment": "crop-flip"}
ADAM = {"train.optimizer": "adam"}
JOB = {
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 4,
    "checkpoint-every": 2,
    "data.max-samples": 200,
    "data.partition": "iid",
    "train.local-epochs": 1,
}


def prepared(**given):
    return assemble(with_defaults({**SMALL, **given}))


WITHOUT_STEPS = [
    {"method": "ffgb"},
    {"method": "fedevg"},
    {"method": "fedcgan"},
    {"method": "feddm"},
    {"method": "fens"},
    {"method": "histogram-boosting"},
    {"method": "fedboost", "task": "ensemble-classification"},
    {"method": "fedfw", "task": "constrained-classification"},
]
HALVES = {"method": "warm-start", "warm-start.first": "fedavg"}
NOT_AUGMENTED = "^data.augment = 'crop-flip': .*"
NOT_ADAM = "^train.optimizer = 'adam': .*"
REFUSED = [
    *(
        (
            {**given, key: value},
            f"^{key} = '{value}': method '{given['method']}': its clients do not train the "
            "task's net by the options of train",
        )
        for given in WITHOUT_STEPS
        for key, value in (BF16 | AUGMENT).items()
    ),
    *(
        (given | AUGMENT, NOT_AUGMENTED + why)
        for given, why in (
            ({"task": "tabular"}, "is for images, which the samples are not: leave it 'none'"),
            ({"task": "regression"}, "is for images, which the samples are not"),
            ({"task": "text"}, "task 'text' does not use it"),
            ({"method": "ffgb-distill"}, "method 'ffgb-distill': its clients fit the gradient"),
            (
                HALVES | {"warm-start.then": "ffgb-distill"},
                "method 'ffgb-distill': its clients fit the gradient",
            ),
        )
    ),
    *(
        (given | ADAM, NOT_ADAM + why)
        for given, why in (
            ({"method": "scaffold"}, "method 'scaffold': SCAFFOLD reads the mean gradient"),
            ({"method": "propfair"}, "Adam divides gradients by their size"),
            ({"method": "q-fedavg"}, "q-FedAvg takes L from the learning rate"),
            ({"method": "ffgb-distill"}, "it has an optimiser of its own"),
            ({"method": "fedfw"}, "its clients do not train the task's net by"),
            ({"method": "fens"}, "its clients do not train the task's net by"),
            (HALVES | {"warm-start.then": "scaffold"}, "method 'scaffold'"),
        )
    ),
]


@pytest.mark.parametrize(
    "given",
    [
        HALVES | {"warm-start.then": "ffgb-distill"} | BF16,
        {"method": "q-fedavg", "q-fedavg.step": "average"} | ADAM,
    ],
)
def test_what_they_can_do_is_taken(given):
    assert prepared(**given).settings.method == given["method"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda given=given: prepared(**given), line) for given, line in REFUSED),
        (
            lambda: check_steps(with_defaults({**SMALL, **AUGMENT}), Blobs()),
            "^data.augment = 'crop-flip': task 'digits' does not augment",
        ),
    ],
)
def test_what_clients_cannot_do_is_refused_in_one_line(call, message):
    refused(call, message, UserError)


def test_a_device_without_bfloat16_is_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    refused(lambda: prepared(**BF16), "^train.precision = 'bf16': the device cpu has no", UserError)


def test_steps_in_bfloat16_are_not_compiled_unasked():
    settings = with_defaults({**SMALL, **BF16, "num-rounds": 100_000})
    decided = with_compilation(settings, None, lambda *_: pytest.fail("there is nothing to ask"))
    assert decided.train.compile == "off"
    forced = settings.but(train={"compile": "on"})
    assert with_compilation(forced, None, lambda *_: True).train.compile == "on"


def test_the_rate_that_a_task_has_for_sgd_is_not_adams():
    settings = with_defaults({"task": "tabular", "train.optimizer": "adamw"})
    assert (settings.train.learning_rate, settings.train.momentum) == (0.01, 0.9)
    assert with_defaults({"task": "tabular"}).train.learning_rate == 0.3


def test_a_run_with_adam_learns(tmp_path):
    steps = {"train.learning-rate": 0.003, "train.local-epochs": 2}
    job = {"num-clients": 6, "num-rounds": 3, "data.partition": "iid", **ADAM, **steps}
    assert run_inline(tmp_path, **job)["accuracy-mean"] > 0.8


@pytest.mark.parametrize("setting", [BF16, AUGMENT])
def test_a_method_of_ones_own_with_any_client_is_named(setting, modules, caplog):
    """Whether a plain NumPyClient does what is asked, nobody else can know."""
    modules(
        plain_client="from flwr.client import NumPyClient\n"
        "from fedapps.methods.method import Method\n"
        "from fedapps.strategies import FedAvg\n"
        'METHOD = Method("mine", "nobody 2026", "one global model",'
        " lambda o, t, c: FedAvg(), lambda o, t, i, n, store: NumPyClient())\n"
    )
    ((key, value),) = setting.items()
    prepared(method="plain_client:METHOD", **setting)
    line = f"{key} = '{value}': clients of method 'plain_client:METHOD' must act on it themselves"
    assert caplog.messages.count(line) == 1
    caplog.clear()
    prepared(method="plain_client:METHOD")
    assert not caplog.messages


def test_a_validation_set_that_is_the_training_set_stays_so():
    data = prepared(**AUGMENT, **{"data.validation": 0.0}).task.client_data(0, 6)
    assert data.validation is data.train
    assert (data.train.augment, data.test.augment) == ("crop-flip", "none")
    own = prepared(**AUGMENT, **{"data.validation": 0.2}).task.client_data(0, 6)
    assert (own.train.augment, own.validation.augment) == ("crop-flip", "none")


def test_augmented_runs_do_not_depend_on_workers_and_resume_to_the_same_bits(tmp_path):
    job = {**JOB, **AUGMENT}
    run_inline(tmp_path / "one", **job)
    run_inline(tmp_path / "two", "--workers", "2", **job)
    assert outcome_of(tmp_path / "two") == outcome_of(tmp_path / "one")
    words = [f"{key}={json.dumps(value)}" for key, value in job.items()]
    with dying_after(3):
        assert main(["run", *words, "--engine", "inline", "--out", str(tmp_path / "cut")]) == 130
    assert main(["run", "--resume", "--engine", "inline", "--out", str(tmp_path / "cut")]) == 0
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "one")
    run_inline(tmp_path / "plain", **JOB)
    assert outcome_of(tmp_path / "plain") != outcome_of(tmp_path / "one")


def test_a_run_in_bfloat16_learns_and_its_models_are_float32(tmp_path, capsys):
    job = {**JOB, "method": "ditto", "num-rounds": 2}
    plain, rounded = (
        run_inline(tmp_path / name, **job, **more)
        for name, more in (("plain", {}), ("rounded", BF16))
    )
    assert rounded["loss-mean"] != plain["loss-mean"]
    assert rounded["loss-mean"] == pytest.approx(plain["loss-mean"], rel=0.05)
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "rounded")]
    assert all(array.dtype == np.float32 for array in models[1].values())
    # the export scores the client again, in the run's precision
    out = tmp_path / "own.safetensors"
    words = ["export", str(tmp_path / "rounded"), "--client", "0", "--out", str(out)]
    assert main(words) == 0, capsys.readouterr().err
    assert all(array.dtype == np.float32 for array in load_file(out).values())


def test_the_server_distils_in_the_precision_of_the_clients():
    nets = [
        prepared(
            method="fedavg-distill", **more, **{"public.samples": 40}
        ).strategy.distiller.module
        for more in ({}, BF16)
    ]
    assert [isinstance(net, precision.Bfloat16) for net in nets] == [False, True]


# --- train.compile --------------------------------------------------------------------


SHORT = {
    "num-clients": 4,
    "clients-per-round": 0,
    "num-rounds": 2,
    "train.local-epochs": 1,
    "evaluate-every": 0,
}


def settings_of(**keys):
    return read_settings({"method": "fedavg", "num-clients": 20, **keys})


def test_auto_compiles_long_runs_of_methods_that_take_steps():
    task = build_task(settings_of())
    short, long = settings_of(), settings_of(**{"num-rounds": 20_000})
    assert [with_compilation(one, task, takes_steps).train.compile for one in (short, long)] == [
        "off",
        "on",
    ]
    assert seconds_saved(long, task) == pytest.approx(400 * seconds_saved(short, task))
    # 5 clients a round, 10 epochs: just what saves twice the time that compiling takes
    rounds = round(50 * WORTH / seconds_saved(short, task))
    for number, decision in ((rounds - 1, "off"), (rounds + 1, "on")):
        settings = settings_of(**{"num-rounds": number})
        assert with_compilation(settings, task, takes_steps).train.compile == decision
    trees = settings_of(method="ffgb", task="tabular", **{"num-rounds": 20_000})
    assert with_compilation(trees, build_task(trees), takes_steps).train.compile == "off"


def test_steps_of_fits_are_counted_by_their_own_options():
    """10 epochs of 9 batches of 6 of 54 samples for each of 20 clients; trees take
    none, and nets of the L2 oracle theirs.
    """
    keys = {
        "method": "ffgb-distill",
        "ffgb-distill.oracle-epochs": 10,
        "ffgb-distill.oracle-batch-size": 6,
    }
    distilled = settings_of(**keys)
    task = build_task(distilled)
    few, twice = (
        seconds_saved(distilled, task),
        seconds_saved(settings_of(**{**keys, "ffgb-distill.oracle-epochs": 20}), task),
    )
    assert twice == pytest.approx(2 * few)
    assert few == pytest.approx(
        seconds_saved(settings_of(**{**keys, "train.local-epochs": 50}), task)
    )
    nets, worst = (
        settings_of(method=method, **{"num-rounds": 20_000}) for method in ("ffgb", "ffgb-c")
    )
    assert [with_compilation(one, task, takes_steps).train.compile for one in (nets, worst)] == [
        "on",
        "off",
    ]


def test_on_supernodes_auto_is_off():
    assert settings_of(**{"num-rounds": 20_000}).deployed().train.compile == "off"
    assert settings_of(**{"train.compile": "on"}).deployed().train.compile == "on"


def test_the_decision_reaches_the_clients_and_the_settings_and_a_resume_keeps_it(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        "fedapps.clients.fedavg.FedAvgClient.train",
        lambda self, config: seen.append(config["compile"]) or 0.0,
    )
    monkeypatch.setattr("fedapps.runs.work.seconds_saved", lambda *_: 1e9)
    keys = {**SHORT, "out": str(tmp_path / "run"), "checkpoint-every": 1}
    settings = settings_of(**keys)
    execute(settings, InlineGrid(app, 4, settings.flat()))
    assert read_toml(tmp_path / "run" / "settings.toml")["train.compile"] == "on"
    monkeypatch.setattr("fedapps.runs.work.seconds_saved", lambda *_: 0.0)
    longer = settings_of(**{**keys, "num-rounds": 2, "resume": True})
    assert with_compilation(longer, None, takes_steps).train.compile == "on"
    assert set(seen) == {"on"}


@pytest.mark.parametrize("method", ["ffgb", "ffgb-distill"])
def test_fits_with_adam_are_compiled_where_the_run_says_so(method, tmp_path, monkeypatch):
    compiler = Traced(tmp_path)
    monkeypatch.setattr("fedapps.runs.assembly.compiler", lambda: compiler)
    steps = (
        {"ffgb.fit-steps": 5}
        if method == "ffgb"
        else {"ffgb-distill.oracle-epochs": 2, "ffgb-distill.distill-epochs": 1}
    )
    settings = settings_of(
        **{
            **SHORT,
            **steps,
            "method": method,
            "train.compile": "on",
            "num-rounds": 1,
            "out": str(tmp_path / "run"),
        }
    )
    execute(settings, InlineGrid(app, 4, settings.flat()))
    assert compiler.graphs
    assert all(graph.run is not None for graph in compiler.graphs.values()), compiler.logged
