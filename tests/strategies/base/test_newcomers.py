"""Clients kept out of training, with clients whose result is known by hand."""

from functools import partial

import numpy as np
import pytest
from flwr.app import RecordDict

from fedapps.clients import MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import FIRST_NODE
from fedapps.strategies import ClientGrid, FedAvg
from tests.helpers import START, EchoClient, arrays_of, play, refused
from tests.strangers import Unruly


class Guest(EchoClient):
    """Moves the model by its number; as a new client it reports the model's value, and
    the number of epochs.
    """

    def __init__(self, number):
        super().__init__(float(number), num_examples=number + 1)
        self.store = MessageStore(RecordDict())

    def evaluate_new(self, epochs, parameters, config, train_parameters, train_config):
        assert self.store.load("kept", config, before=False) is None
        self.store.save("kept", parameters, config)
        return 0.0, 7, {"accuracy": epochs / 10, "loss": float(parameters[0][0]), "other": 1.0}


class Meeting(FedAvg):
    """Notes whom it writes to."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.met = {message.metadata.dst_node_id - FIRST_NODE for message in messages}
        self.met |= set(grid.clients.values())
        return messages


numbered = partial(InlineGrid, numbered=True)
ONE_NEW = {"num_new": 1}


@pytest.mark.parametrize("kind", [InlineGrid, numbered])
def test_they_are_met_by_nobody_and_averaged_with_nothing(kind):
    strategy = Meeting()
    result = play(
        strategy, Guest, 5, START, 3, inner=kind, on={"seed": 1, "num_new": 2}, evaluate_every=2
    )
    rounds = result.seen
    new = rounds[0].new_clients
    others = [client for client in range(5) if client not in new]
    assert len(new) == 2
    assert strategy.met == set(others)
    mean = sum(k * (k + 1) for k in others) / sum(k + 1 for k in others)
    np.testing.assert_allclose(arrays_of(result)["w"], 3 * mean, rtol=1e-6)
    assert [r.newcomers.clients if r.newcomers else None for r in rounds] == [None, new, new]
    scores_of_new = rounds[1].newcomers.metrics
    assert scores_of_new[new[0]] == {
        "num-examples": 7, "new-accuracy": 0.0, "new-accuracy-1": 0.1, "new-accuracy-5": 0.5,
        **dict.fromkeys(("new-loss", "new-loss-1", "new-loss-5"), pytest.approx(2 * mean)),
    }  # fmt: skip
    assert rounds[1].evaluated.clients == others


def test_a_new_client_that_returns_at_another_node_is_still_new():
    grid = Unruly(to_client_app(lambda context: Guest(context.node_config["partition-id"])), 4)
    clients = ClientGrid(grid, seed=3, num_new=1)
    clients.wait()
    (new,) = clients.new_clients
    grid.on.remove(FIRST_NODE + new)
    assert clients.newcomers() == {}
    assert len(clients.get_node_ids()) == 3
    other = FIRST_NODE + (new + 1) % 4  # whose node now says that it is the new one
    clients._ids[other] = new
    assert clients.newcomers() == {other: new}
    assert other not in clients.get_node_ids()


def test_a_client_that_cannot_be_new_is_a_failure_of_its_own():
    result = play(FedAvg(), lambda _: EchoClient(1.0), 4, START, 2, inner=numbered, on=ONE_NEW)
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)
    (failure,) = result.seen[-1].failures
    assert "EchoClient has no evaluate_new" in failure.reason


def test_an_accuracy_that_is_none_is_left_out():
    class Boaster(Guest):
        def evaluate_new(self, epochs, *sent):
            return 0.0, 7, {"accuracy": -0.5 if epochs else 0.5, "loss": 1.0}

    result = play(FedAvg(), Boaster, 4, START, inner=numbered, on=ONE_NEW)
    assert "new-accuracy-1" in result.seen[-1].failures[0].reason


def test_somebody_must_train():
    refused(
        lambda: play(FedAvg(), Guest, 3, START, inner=numbered, on={"num_new": 3}),
        "num-new-clients = 3, but 3 clients are connected",
    )
