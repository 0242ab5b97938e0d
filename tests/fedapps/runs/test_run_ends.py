"""How a run ends: whose last round or final evaluation nobody answered is no success,
and can be continued. A model that most clients cannot use never replaces the last sound
one, a paused run goes on, and `flwr stop` closes the record.
"""

import logging
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from safetensors.numpy import load_file

from fedapps import server_app
from fedapps.clients import to_client_app
from fedapps.commands.parser import main
from fedapps.engines.inline import InlineGrid
from fedapps.records.lock import FolderLost
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from fedapps.strategies import FedAvg, Patience, TooFewReplies
from fedapps.strategies.base.flower_private import identify_process
from tests.helpers import (
    START,
    EchoClient,
    lacking,
    outcome_of,
    play,
    refused,
    rounds_of,
    run_inline,
    summary_of,
)

JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "num-rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 1,
}


def executed(folder, client, resume=False, **given):
    """Run with clients that ``client()`` makes, and a model of two numbers."""
    settings = read_settings(JOB | given | {"out": str(folder), "resume": resume})
    app = to_client_app(lambda context: client())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedapps.tasks.classification.Classification.initial_arrays", lambda self: START
        )
        return execute(settings, InlineGrid(app, 3))


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
            (
                kind,
                {"trainings": [3]},
                Patience(),
                "round 3 had 0 valid replies, at least 1 .*full",
                2.0,
            )
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
    assert lacking(said, "fraction_evaluate=0", "LocalDpMod") == []


@pytest.mark.parametrize(
    ("strategy", "fails"),
    [
        (FedAvg(), {"trainings": [1, 2], "evaluations": [1, 2]}),
        (FedAvg(fraction_evaluate=0.0), {"evaluations": [1, 2, 3]}),
    ],
)
def test_failures_before_the_end_are_none(strategy, fails):
    assert len(play(strategy, lambda _: Failing(**fails), 3, START, 3).seen) == 3


def played(client, rounds=1, **options):
    return play(FedAvg(), client, 3, START, rounds, **options)


def test_one_reply_is_enough_for_the_last_round_where_one_is_asked_for():
    assert played(lambda number: Failing([3] if number else []), 3, patience=Patience(1)).seen


@pytest.mark.parametrize("fails", [{"trainings": [4]}, {"evaluations": [4]}])
def test_such_a_run_has_failed_and_its_continuation_equals_a_run_without_fault(fails, tmp_path):
    """Round 4 of 4 fails: the folder says so, keeps the model, and a resumed run
    repeats what is missing.
    """
    executed(tmp_path / "clean", Failing)
    refused(
        lambda: executed(tmp_path / "run", lambda: Failing(**fails)), "valid replies", TooFewReplies
    )
    summary = summary_of(tmp_path / "run")
    assert (summary["status"], "the last" in summary["error"]) == ("failed", True)
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert executed(tmp_path / "run", Failing, resume=True)["status"] == "completed"
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "clean")


# --- a model that most clients cannot use ---------------------------------------------


class Poisoned(EchoClient):
    """In round 4 a client moves the model far away; from there nobody can train."""

    def __init__(self, poison, fails):
        super().__init__(1.0)
        self.poison, self.fails = poison, fails

    def fit(self, parameters, config):
        if np.abs(parameters[0]).max() > 1e6:
            return self.fails(parameters, config)
        arrays, n, metrics = super().fit(parameters, config)
        return (
            [a + np.float32(1e12 * (self.poison and config["server-round"] == 4)) for a in arrays],
            n,
            metrics,
        )

    def evaluate(self, parameters, config):
        if np.abs(parameters[0]).max() > 1e6:
            return float("nan"), 1, {}
        return super().evaluate(parameters, config)


def broken(parameters, config):
    return [array * np.nan for array in parameters], 1, {}


def raises(parameters, config):
    raise RuntimeError("local training diverged")


def go(folder, poison=True, fails=broken, resume=False, client=Poisoned, **given):
    job = {"num-rounds": 8, "evaluate-every": 0, "checkpoint-every": 2, **given}
    return executed(folder, lambda: client(poison, fails), resume, **job)


def kept(folder):
    return sorted(int(path.name) for path in (folder / "checkpoint").iterdir())


def model(folder):
    return (folder / "model.safetensors").read_bytes()


def test_broken_numbers_from_most_clients_delete_the_checkpoint(tmp_path, caplog):
    go(tmp_path / "clean", poison=False)
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(TooFewReplies):
        go(tmp_path / "run")
    assert kept(tmp_path / "run") == [2]
    assert "the checkpoint of round 4 is deleted: most clients could not use its model" in (
        caplog.text
    )
    assert go(tmp_path / "run", poison=False, resume=True)["status"] == "completed"
    assert model(tmp_path / "run") == model(tmp_path / "clean")


@pytest.mark.parametrize("rounds", [8, 12])
def test_errors_may_not_be_the_models_fault_until_a_resumed_run_fails_again(rounds, tmp_path):
    """The checkpoint of the end is kept beside the sound one, for one attempt, whether
    its last round scores the model (8) or not.
    """
    refused(
        lambda: go(tmp_path, fails=raises, **{"num-rounds": rounds}), "valid replies", TooFewReplies
    )
    assert kept(tmp_path) == [2, 7]
    refused(
        lambda: go(tmp_path, fails=raises, resume=True, **{"num-rounds": rounds}),
        "valid replies",
        TooFewReplies,
    )
    assert kept(tmp_path) == [2]
    again = go(tmp_path, poison=False, resume=True, **{"num-rounds": rounds})
    assert again["status"] == "completed"


def test_a_model_that_could_not_be_scored_gets_no_checkpoint(tmp_path):
    """Not after its round, and not at the end of the run; training alone would not show
    whose fault it is.
    """
    refused(
        lambda: go(tmp_path, fails=raises, **{"evaluate-every": 4}), "valid replies", TooFewReplies
    )
    assert kept(tmp_path) == [2]


def test_a_checkpoint_is_kept_until_the_next_one_was_of_use(tmp_path):
    """Round 4 is the last: whether its model is of use is known from the evaluation."""
    refused(lambda: go(tmp_path, **{"num-rounds": 4}), "valid replies", TooFewReplies)
    assert kept(tmp_path) == [2]
    # and the model of the run is the last one that clients could train from
    np.testing.assert_allclose(load_file(tmp_path / "model.safetensors")["w"], 3.0)
    assert rounds_of(tmp_path)[-1]["unusable"]


def test_the_model_of_a_run_is_the_last_one_that_was_scored(tmp_path):
    """That of round 1 was scored; nobody can say whether it can be trained from."""

    class Away(Poisoned):
        def fit(self, parameters, config):
            arrays, n, metrics = super().fit(parameters, config)
            if config["server-round"] == 2:
                if len(away) < 2:
                    away.append(1)
                    raise RuntimeError("no power")
                arrays = [array + np.float32(500) for array in arrays]
            return arrays, n, metrics

        def evaluate(self, parameters, config):
            return (float("nan") if parameters[0].max() > 100 else 0.5), 1, {}

    away = []
    given = {"num-rounds": 2, "evaluate-every": 1, "min-replies": 1, "max-relative-update": 0}
    refused(lambda: go(tmp_path, client=Away, **given), "valid replies", TooFewReplies)
    assert [len(row["failures"]) for row in rounds_of(tmp_path)] == [0, 5]
    np.testing.assert_allclose(load_file(tmp_path / "model.safetensors")["w"], 1.0)


# --- a pause --------------------------------------------------------------------------

PAUSED = {"num-clients": 4, "num-rounds": 6, "clients-per-round": 2, "evaluate-every": 2}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold", "ifca", "superfed-mm"])
def test_a_paused_and_lengthened_run_equals_a_whole_one(tmp_path, method, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_inline(whole, f"method={method}", **PAUSED, seed=3)
    # round 3 is scored for the pause only; schedules go by num-rounds in each part
    run_inline(parts, f"method={method}", "--until", "3", **PAUSED, seed=3)
    assert "paused after round 3" in capsys.readouterr().out
    assert (summary_of(parts)["status"], summary_of(parts)["rounds-completed"]) == (
        "interrupted",
        3,
    )
    for words in (["--until", "3"], ["--until", "4"], []):
        words = ["run", "--resume", "--out", str(parts), "--engine", "inline", *words]
        assert main(words) == 0
    assert summary_of(parts)["status"] == "completed"
    (rows, files), wanted = outcome_of(parts), outcome_of(whole)
    assert rows[2]["evaluate"]
    rows[2] = {key: value for key, value in rows[2].items() if key in wanted[0][2]}
    assert (rows, files) == wanted


# --- `flwr stop` ----------------------------------------------------------------------

STOPPED = {"num-clients": 3, "num-rounds": 200, "clients-per-round": 0, "checkpoint-every": 2}


class Hanging(InlineGrid):
    """Waits in round 6 until it may ``go``."""

    def push_messages(self, messages):
        listed = list(messages)
        if any(m.content["config"].get("server-round") == 6 for m in listed):
            self.reached.set()
            self.go.wait(60)
            raise KeyboardInterrupt  # the process has ended
        return super().push_messages(listed)


@pytest.mark.parametrize("out", ["given", ""])
def test_a_stopped_run_is_closed_and_has_its_state(out, tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    folder = tmp_path / (out or "fedapps-results/7")
    config = read_settings(STOPPED | {"out": str(folder) if out else ""}).flat()
    grid = Hanging(app, 3, config)
    grid.reached, grid.go = threading.Event(), threading.Event()
    identify_process(7)
    context = Context(7, 1, {}, RecordDict(), config)

    def run():
        with pytest.raises((KeyboardInterrupt, FolderLost)):
            server_app.run(grid, context)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert grid.reached.wait(120)
        trigger_exit_handlers(run_before_force_exit=False)
        assert summary_of(folder)["status"] == "interrupted"
        assert load_file(folder / "model.safetensors")
        assert (folder / "report.html").exists()
        assert not (folder / "run.lock").exists()
        assert (folder / "checkpoint" / "4").is_dir()
        assert len(rounds_of(folder)) == 5
    finally:
        grid.go.set()
        thread.join()


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


@pytest.mark.parametrize(
    ("call", "message", "kind"),
    [
        (
            lambda: played(lambda number: Failing([3] if number else []), 3, patience=Patience(2)),
            "had 1 valid replies, at least 2 needed",
            TooFewReplies,
        ),
        # a callback that stops after a failed round does not make it a success
        (
            lambda: played(lambda _: Failing([2]), 5, callbacks=[lambda now: now.number == 2]),
            "the last round 2",
            TooFewReplies,
        ),
        # the server waits for the number that most nodes report
        (
            lambda: played(
                lambda _: EchoClient(1.0),
                inner=reporting(dict.fromkeys(range(3), 4)),
                on={"start_timeout": 0.2},
            ),
            "3 of 4 clients connected",
            TimeoutError,
        ),
    ],
)
def test_a_run_without_enough_clients_or_replies_is_an_error(call, message, kind):
    refused(call, message, kind)
