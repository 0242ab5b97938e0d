"""How a run ends: whose last round or final evaluation nobody answered is no success,
and can be continued.
"""

import json

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
from fedapps.strategies import ClientGrid, FedAvg, Patience, TooFewReplies, run_rounds
from tests.helpers import EchoClient

START = {"w": np.zeros(2, np.float32)}


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


def run(strategy=None, rounds=3, clients=3, patience=None, **fails):
    app = to_client_app(lambda context: Failing(**fails))
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    grid = ClientGrid(InlineGrid(app, clients))
    return run_rounds(strategy or FedAvg(), grid, arrays, rounds, patience=patience)


@pytest.mark.parametrize("kind", [FedAvg, flower.FedAvg])
def test_a_last_round_without_a_reply(kind):
    with pytest.raises(
        TooFewReplies,
        match=r"the last round 3 had 0 valid replies, at least 1 needed; client 0: .*the disk is "
        r"full",
    ) as error:
        run(kind(), trainings=[3])
    # what the rounds before made is not lost
    np.testing.assert_allclose(error.value.result.arrays["w"].numpy(), 2.0)


def test_a_final_evaluation_without_a_reply():
    with pytest.raises(
        TooFewReplies, match=r"the last evaluation after round 3 had 0 valid replies.*no test data"
    ) as error:
        run(evaluations=[3], patience=Patience(scored=True))
    np.testing.assert_allclose(error.value.result.arrays["w"].numpy(), 3.0)


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


def test_failures_before_the_end_are_none():
    run(trainings=[1, 2], evaluations=[1, 2])
    run(FedAvg(fraction_evaluate=0.0), evaluations=[1, 2, 3])


def test_min_replies_holds_in_the_last_round_too():
    class Last(Failing):
        def __init__(self, i):
            super().__init__([3] if i else [])

    app = to_client_app(lambda context: Last(context.node_config["partition-id"]))
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    for least, ends_well in ((1, True), (2, False)):
        grid = ClientGrid(InlineGrid(app, 3))
        if ends_well:
            run_rounds(FedAvg(), grid, arrays, 3, patience=Patience(least))
        else:
            with pytest.raises(TooFewReplies, match="had 1 valid replies, at least 2 needed"):
                run_rounds(FedAvg(), grid, arrays, 3, patience=Patience(least))


def test_a_callback_that_stops_after_a_failed_round_does_not_make_it_a_success():
    app = to_client_app(lambda context: Failing([2]))
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    with pytest.raises(TooFewReplies, match="the last round 2"):
        run_rounds(
            FedAvg(),
            ClientGrid(InlineGrid(app, 3)),
            arrays,
            5,
            callbacks=[lambda now: now.number == 2],
        )


@pytest.mark.parametrize("fails", [{"trainings": [4]}, {"evaluations": [4]}])
def test_such_a_run_has_failed_and_its_continuation_equals_a_run_without_fault(fails, tmp_path):
    """Round 4 of 4 fails: the folder says so, keeps the model, and a resumed run
    repeats what is missing.
    """
    given = {
        "num-clients": 3,
        "clients-per-round": 0,
        "num-rounds": 4,
        "evaluate-every": 2,
        "checkpoint-every": 1,
        "method": "fedavg",
    }

    def go(folder, resume=False, **faults):
        settings = read_settings({**given, "out": str(folder), "resume": resume})
        app = to_client_app(lambda context: Failing(**faults))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "fedapps.tasks.classification.Classification.initial_arrays",
                lambda self: {"w": START["w"]},
            )
            return execute(settings, InlineGrid(app, 3))

    clean = go(tmp_path / "clean")
    with pytest.raises(TooFewReplies):
        go(tmp_path / "run", **fails)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "the last" in summary["error"]
    assert (tmp_path / "run" / "model.safetensors").exists()
    again = go(tmp_path / "run", resume=True)
    assert again["status"] == "completed"
    skip = ("seconds", "out", "resume")
    assert {k: v for k, v in again.items() if k not in skip} == {
        k: v for k, v in clean.items() if k not in skip
    }
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "clean" / "model.safetensors"
    ).read_bytes()


# --- the start ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [10**9, 2**62, -5, 0])
@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_wrong_number_of_clients_from_one_node_does_not_end_the_run(number, liar):
    app = to_client_app(lambda context: EchoClient(1.0))
    inline = InlineGrid(app, 3)
    inline.contexts[1000 + liar].node_config["num-partitions"] = number
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    rounds = []
    run_rounds(
        FedAvg(), ClientGrid(inline, start_timeout=0.5), arrays, 1, callbacks=[rounds.append]
    )
    assert rounds[0].trained.clients == [0, 1, 2]


def test_the_server_waits_for_the_number_that_most_nodes_report():
    app = to_client_app(lambda context: EchoClient(1.0))
    inline = InlineGrid(app, 3)
    for context in inline.contexts.values():
        context.node_config["num-partitions"] = 4
    with pytest.raises(TimeoutError, match="3 of 4 clients connected"):
        ClientGrid(inline, start_timeout=0.2).wait()
