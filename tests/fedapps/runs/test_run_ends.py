"""How a run ends: whose last round or final evaluation nobody answered is no success,
and can be continued.
"""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from fedapps.strategies import FedAvg, Patience, TooFewReplies
from tests.helpers import EchoClient, outcome_of, play, summary_of

START = {"w": np.zeros(2, np.float32)}
JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "num-rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 1,
}


class Failing(EchoClient):
    """Fails in the rounds of training and evaluation that are given."""

    def __init__(self, trainings=(), evaluations=()):
        super().__init__(1.0)
        self.trainings, self.evaluations = trainings, evaluations

    def fit(self, parameters, config):
        if config["server-round"] in self.trainings:
            raise RuntimeError("the disk is full")
        return super().fit(parameters, config)

    def evaluate(self, parameters, config):
        if config["server-round"] in self.evaluations:
            raise RuntimeError("no test data")
        return super().evaluate(parameters, config)


@pytest.mark.parametrize(
    ("kind", "fails", "patience", "why", "left"),
    [
        *(
            (kind, {"trainings": [3]}, None, "round 3 had 0 valid replies, at least 1 .*full", 2.0)
            for kind in (FedAvg, flower.FedAvg)
        ),
        (
            FedAvg,
            {"evaluations": [3]},
            Patience(scored=True),
            "evaluation after round 3 had 0 valid replies.*no test data",
            3.0,
        ),
    ],
)
def test_a_run_whose_last_phase_had_no_reply(kind, fails, patience, why, left):
    """Its error has what the rounds before it made."""
    with pytest.raises(TooFewReplies, match=f"the last {why}") as error:
        play(kind(), lambda _: Failing(**fails), 3, START, 3, patience=patience)
    np.testing.assert_allclose(error.value.result.arrays["w"].numpy(), left)


@pytest.mark.parametrize("app", ["train-only", "LocalDpMod"])
def test_a_model_that_nobody_scores_is_returned_with_one_warning(app, caplog):
    """Of an app without `@app.evaluate`, and of one whose mods refuse evaluation."""
    mods = [LocalDpMod(1e3, 0.0, 1.0, 1e-5)] if app == "LocalDpMod" else []
    own = ClientApp(mods=mods)

    @own.train()
    def train(message, context):
        new = {name: Array(array.numpy() + 1) for name, array in message.content["arrays"].items()}
        records = {"arrays": ArrayRecord(new), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    if mods:

        @own.evaluate()
        def evaluate(message, context):
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    result = FedAvg().start(InlineGrid(own, 3), arrays, num_rounds=3)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3.0)
    (said,) = [text for text in caplog.messages if "no client was scored" in text]
    assert said.startswith("evaluation after round 1")
    assert "fraction_evaluate=0" in said
    assert "LocalDpMod" in said


@pytest.mark.parametrize(
    ("strategy", "fails"),
    [
        (FedAvg(), {"trainings": [1, 2], "evaluations": [1, 2]}),
        (FedAvg(fraction_evaluate=0.0), {"evaluations": [1, 2, 3]}),
    ],
)
def test_failures_before_the_end_are_none(strategy, fails):
    assert len(play(strategy, lambda _: Failing(**fails), 3, START, 3).seen) == 3


def test_min_replies_holds_in_the_last_round_too():
    def client(number):
        return Failing([3] if number else [])

    assert play(FedAvg(), client, 3, START, 3, patience=Patience(1)).seen
    with pytest.raises(TooFewReplies, match="had 1 valid replies, at least 2 needed"):
        play(FedAvg(), client, 3, START, 3, patience=Patience(2))


def test_a_callback_that_stops_after_a_failed_round_does_not_make_it_a_success():
    stop = {"callbacks": [lambda now: now.number == 2]}
    with pytest.raises(TooFewReplies, match="the last round 2"):
        play(FedAvg(), lambda _: Failing([2]), 3, START, 5, **stop)


@pytest.mark.parametrize("fails", [{"trainings": [4]}, {"evaluations": [4]}])
def test_such_a_run_has_failed_and_its_continuation_equals_a_run_without_fault(
    fails, tmp_path, monkeypatch
):
    """Round 4 of 4 fails: the folder says so, keeps the model, and a resumed run
    repeats what is missing.
    """
    start = "fedapps.tasks.classification.Classification.initial_arrays"
    monkeypatch.setattr(start, lambda self: START)

    def go(folder, resume=False, **faults):
        settings = read_settings({**JOB, "out": str(folder), "resume": resume})
        return execute(settings, InlineGrid(to_client_app(lambda _: Failing(**faults)), 3))

    go(tmp_path / "clean")
    with pytest.raises(TooFewReplies):
        go(tmp_path / "run", **fails)
    summary = summary_of(tmp_path / "run")
    assert summary["status"] == "failed"
    assert "the last" in summary["error"]
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert go(tmp_path / "run", resume=True)["status"] == "completed"
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "clean")


# --- the start ------------------------------------------------------------------------


def reporting(numbers):
    """Return what makes a grid whose nodes report these numbers of clients."""

    def grid(app, clients):
        inline = InlineGrid(app, clients)
        for node, number in numbers.items():
            inline.contexts[1000 + node].node_config["num-partitions"] = number
        return inline

    return grid


@pytest.mark.parametrize("number", [10**9, 2**62, -5, 0])
@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_wrong_number_of_clients_from_one_node_does_not_end_the_run(number, liar):
    on = {"inner": reporting({liar: number}), "on": {"start_timeout": 0.5}}
    result = play(FedAvg(), lambda _: EchoClient(1.0), 3, START, **on)
    assert result.seen[0].trained.clients == [0, 1, 2]


def test_the_server_waits_for_the_number_that_most_nodes_report():
    on = {"inner": reporting(dict.fromkeys(range(3), 4)), "on": {"start_timeout": 0.2}}
    with pytest.raises(TimeoutError, match="3 of 4 clients connected"):
        play(FedAvg(), lambda _: EchoClient(1.0), 3, START, **on)
