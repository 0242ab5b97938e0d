"""A model that most clients cannot use never replaces the last sound one, and a run
that it ended can be continued from before it.
"""

import logging

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from fedapps.strategies import TooFewReplies
from tests.helpers import EchoClient, rounds_of

GIVEN = {
    "num-clients": 3,
    "clients-per-round": 0,
    "num-rounds": 8,
    "evaluate-every": 0,
    "checkpoint-every": 2,
}


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
    settings = read_settings(GIVEN | given | {"out": str(folder), "resume": resume})
    app = to_client_app(lambda context: client(poison, fails))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedapps.tasks.classification.Classification.initial_arrays",
            lambda self: {"w": np.zeros(2, np.float32)},
        )
        return execute(settings, InlineGrid(app, 3))


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
    with pytest.raises(TooFewReplies):
        go(tmp_path, fails=raises, **{"num-rounds": rounds})
    assert kept(tmp_path) == [2, 7]
    with pytest.raises(TooFewReplies):
        go(tmp_path, fails=raises, resume=True, **{"num-rounds": rounds})
    assert kept(tmp_path) == [2]
    again = go(tmp_path, poison=False, resume=True, **{"num-rounds": rounds})
    assert again["status"] == "completed"


def test_a_model_that_could_not_be_scored_gets_no_checkpoint(tmp_path):
    """Not after its round, and not at the end of the run; training alone would not show
    whose fault it is.
    """
    with pytest.raises(TooFewReplies):
        go(tmp_path, fails=raises, **{"evaluate-every": 4})
    assert kept(tmp_path) == [2]


def test_a_checkpoint_is_kept_until_the_next_one_was_of_use(tmp_path):
    """Round 4 is the last: whether its model is of use is known from the evaluation."""
    with pytest.raises(TooFewReplies):
        go(tmp_path, **{"num-rounds": 4})
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
    with pytest.raises(TooFewReplies):
        go(tmp_path, client=Away, **given)
    assert [len(row["failures"]) for row in rounds_of(tmp_path)] == [0, 5]
    np.testing.assert_allclose(load_file(tmp_path / "model.safetensors")["w"], 1.0)
