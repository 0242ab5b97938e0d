"""A choice that all clients share, against sums computed by hand from FedAvg's clients;
clients that fail, lie or have nothing to say.
"""

import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from algorithms.personal.sent import FINETUNE_EPOCHS
from clients import FedAvgClient, FinetuneClient, to_client_app
from clients.base.training import get_arrays
from fedapps.engines.inline import InlineGrid
from strategies import ClientGrid, Finetune, FinetuneOptions
from tests.helpers import blobs, simulate, small_net

TRAIN = {
    "learning-rate": 0.3,
    "lr-decay": 0.9,
    "momentum": 0.9,
    "weight-decay": 1e-3,
    "batch-size": 8,
    "local-epochs": 2,
    "seed": 3,
}
INITIAL = {name: tensor.numpy() for name, tensor in small_net(11).state_dict().items()}
ROUNDS = 2


def data_of(client, shift):
    """Few validation samples, moved by ``shift``; -1: with other labels, so that
    fine-tuning harms.
    """
    own, other = blobs(client), blobs(client + 20, n=20 + 10 * client, shift=max(shift, 0.0)).train
    return replace(own, validation=other if shift >= 0 else replace(other, y=(other.y + 1) % 3))


def run(kind=FinetuneClient, shift=0.0, clients=4, data=data_of, options=None, grid=InlineGrid):
    """Return the strategy, the rounds and, by client, its last metrics and model."""
    seen, models, rounds = {}, {}, []

    class Noting(kind):
        def evaluate(self, parameters, config):
            reply = super().evaluate(parameters, config)
            if config["server-round"] == ROUNDS and config["finetune-epochs"] >= 0:
                seen[self.client_id], models[self.client_id] = reply, get_arrays(self.model)
            return reply

    def client(context):
        i = int(context.node_config["partition-id"])
        return Noting(small_net, data(i, shift), i)

    strategy = Finetune(options)
    simulate(
        strategy,
        None,
        clients,
        INITIAL,
        ROUNDS,
        TRAIN,
        grid=ClientGrid(grid(to_client_app(client), clients)),
        evaluate_config=ConfigRecord(TRAIN),
        evaluate_every=0,
        callbacks=[rounds.append],
    )
    return strategy, rounds, seen, models


def sums_by_hand(rounds, shift, clients=range(4)):
    """Return the sums over clients of the validation losses after each number of
    epochs, computed by FedAvg's clients.
    """
    sent = [array.numpy() for array in rounds[-1].arrays.values()]
    sums = np.zeros(len(FINETUNE_EPOCHS))
    for i in clients:
        data = data_of(i, shift)
        for place, epochs in enumerate(FINETUNE_EPOCHS):
            client = FedAvgClient(small_net, data, i)
            config = {**TRAIN, "server-round": ROUNDS, "local-epochs": epochs}
            trained = client.fit(sent, config)[0] if epochs else sent
            tested = replace(data, test=data.validation)
            loss = FedAvgClient(small_net, tested, i).evaluate(trained, config)[0]
            sums[place] += loss * len(data.validation)
    return sums


@pytest.mark.parametrize("shift", [0.0, 1.0, -1])
def test_all_clients_take_the_epochs_of_the_least_sum(shift):
    """Partial batches and momentum; never above the sum of the global model."""
    strategy, rounds, seen, models = run(shift=shift)
    sums = sums_by_hand(rounds, shift)
    chosen = strategy.chosen[1]
    assert chosen == FINETUNE_EPOCHS[int(sums.argmin())]
    assert rounds[-1].evaluate_metrics["finetune-epochs"] == chosen
    sent = [array.numpy() for array in rounds[-1].arrays.values()]
    for i, (loss, _, _) in seen.items():
        config = {**TRAIN, "server-round": ROUNDS, "local-epochs": chosen}
        client = FedAvgClient(small_net, data_of(i, shift), i)
        trained = client.fit(sent, config)[0] if chosen else sent
        for got, want in zip(models[i], trained, strict=True):
            np.testing.assert_array_equal(got, want)
        assert loss == client.evaluate(trained, config)[0]


def test_the_choices_differ():
    """Else the exam above would not see a strategy that always takes the same."""
    chosen = {run(shift=shift)[0].chosen[1] for shift in (0.0, 1.0, -1)}
    assert len(chosen) > 1
    assert 0 in chosen


class Failing(FinetuneClient):
    """Client 2 does not answer the question."""

    def evaluate(self, parameters, config):
        if self.client_id == 2 and config["finetune-epochs"] < 0:
            raise RuntimeError("out of reach")
        return super().evaluate(parameters, config)


def test_a_client_that_fails_before_the_choice_is_scored_with_that_of_the_others():
    strategy, rounds, seen, _ = run(Failing, shift=1.0)
    sums = sums_by_hand(rounds, 1.0, [0, 1, 3])
    assert strategy.chosen[1] == FINETUNE_EPOCHS[int(sums.argmin())]
    assert sorted(seen) == [0, 1, 2, 3]
    assert rounds[-1].evaluated.clients == [0, 1, 2, 3]
    assert [(f.client, f.reason) for f in rounds[-1].failures] == [
        (2, "RuntimeError: out of reach")
    ]


class Silent(FinetuneClient):
    """Nobody answers the question."""

    def evaluate(self, parameters, config):
        if config["finetune-epochs"] < 0:
            raise RuntimeError("out of reach")
        return super().evaluate(parameters, config)


def without_validation(client, shift):
    data = blobs(client)
    return replace(data, validation=data.train)


@pytest.mark.parametrize("how", [{"kind": Silent}, {"data": without_validation}])
def test_if_nothing_is_known_clients_take_one_epoch(how, caplog):
    with caplog.at_level(logging.WARNING):
        strategy, rounds, seen, _ = run(**how)
    assert strategy.chosen == (ROUNDS, None)
    assert "finetune-epochs" not in rounds[-1].evaluate_metrics
    assert "no shared choice" in caplog.text
    fixed = run(options=FinetuneOptions(epochs=1), **how)[2]
    assert {i: reply[0] for i, reply in seen.items()} == {i: r[0] for i, r in fixed.items()}


class Diverging(FinetuneClient):
    """Eight epochs are too many for client 0."""

    def loss_after(self, parameters, epochs, config):
        loss = super().loss_after(parameters, epochs, config)
        return float("nan") if self.client_id == 0 and epochs == 8 else loss


def test_a_candidate_that_diverges_at_one_client_is_not_taken_and_its_other_losses_count():
    strategy, rounds, _, _ = run(Diverging, shift=0.0)
    sums = sums_by_hand(rounds, 0.0)
    assert strategy.chosen[1] in FINETUNE_EPOCHS[:-1]
    assert not rounds[-1].failures
    assert strategy.chosen[1] == FINETUNE_EPOCHS[int(sums[:-1].argmin())]


class Liar(FinetuneClient):
    """Client 0 claims that its loss is least at eight epochs, by far."""

    def evaluate(self, parameters, config):
        loss, number, metrics = super().evaluate(parameters, config)
        if self.client_id == 0 and config["finetune-epochs"] < 0:
            metrics = {"candidate-losses": [9e14] * 4 + [0.0], "validation-samples": 9 * 10**14}
        return loss, number, metrics


def test_one_of_twelve_clients_does_not_choose_for_all():
    honest = run(shift=-1, clients=12)[0].chosen
    assert run(Liar, shift=-1, clients=12)[0].chosen == honest


def test_the_bytes_of_the_question_are_counted():
    rounds, fixed = run()[1], run(options=FinetuneOptions(epochs=1))[1]
    asked, plain = rounds[-1].evaluated, fixed[-1].evaluated
    assert 1.9 < asked.bytes_down / plain.bytes_down < 2.1
    assert 1.2 < asked.bytes_up / plain.bytes_up < 2
