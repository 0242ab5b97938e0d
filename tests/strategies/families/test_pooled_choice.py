"""A choice by the losses of all clients, against curves computed by hand from FedAvg's
clients; clients that fail, lie or have nothing to say.
"""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedapps.algorithms.contract.sent import FINETUNE_EPOCHS
from fedapps.clients import FedAvgClient, FinetuneClient
from fedapps.clients.base.training import get_arrays
from fedapps.strategies import Finetune, FinetuneOptions
from tests.helpers import assert_arrays, blobs, play, small_net

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


def run(kind=FinetuneClient, shift=0.0, clients=4, data=data_of, options=None, every=0):
    """Return the strategy, the rounds and, by client, its last reply and model."""
    seen, models = {}, {}

    class Noting(kind):
        def evaluate(self, parameters, config):
            reply = super().evaluate(parameters, config)
            if config["server-round"] == ROUNDS and config["finetune-epochs"] >= 0:
                seen[self.client_id], models[self.client_id] = reply, get_arrays(self.model)
            return reply

    strategy, client = Finetune(options), lambda i: Noting(small_net, data(i, shift), i)
    given = {"evaluate_config": ConfigRecord(TRAIN), "evaluate_every": every}
    result = play(strategy, client, clients, INITIAL, ROUNDS, TRAIN, **given)
    return strategy, result.seen, seen, models


def curves_by_hand(rounds, shift, clients=range(4)):
    """Return the validation losses after each number of epochs, by FedAvg's clients,
    less their means: shape (clients, candidates); and the numbers of samples.
    """
    sent = [array.numpy() for array in rounds[-1].arrays.values()]
    curves = np.zeros((len(clients), len(FINETUNE_EPOCHS)))
    for row, i in enumerate(clients):
        data = data_of(i, shift)
        for place, epochs in enumerate(FINETUNE_EPOCHS):
            client = FedAvgClient(small_net, data, i)
            config = {**TRAIN, "server-round": ROUNDS, "local-epochs": epochs}
            curves[row, place] = FedAvgClient(
                small_net, replace(data, test=data.validation), i
            ).evaluate(client.fit(sent, config)[0] if epochs else sent, config)[0]
    return curves - curves.mean(axis=1, keepdims=True), np.array(
        [len(data_of(i, shift).validation) for i in clients]
    )


def choices_by_hand(curves, samples):
    """Return the number of epochs of each client: n of its samples count beside 12 of
    all clients'.
    """
    pooled = samples @ curves / samples.sum()
    mixed = [(n * own + 12 * pooled) / (n + 12) for own, n in zip(curves, samples, strict=True)]
    return [FINETUNE_EPOCHS[int(one.argmin())] for one in mixed]


@pytest.mark.parametrize("shift", [0.0, 1.0, -1])
def test_a_client_takes_the_epochs_of_its_losses_shrunk_to_those_of_all(shift):
    """Partial batches and momentum. The scored model is that of so many epochs, and by
    these losses never worse than the global one.
    """
    _, rounds, seen, models = run(shift=shift)
    wanted = choices_by_hand(*curves_by_hand(rounds, shift))
    assert [seen[i][2]["finetune-epochs"] for i in range(4)] == wanted
    sent = [array.numpy() for array in rounds[-1].arrays.values()]
    for i, (loss, _, _) in seen.items():
        config = {**TRAIN, "server-round": ROUNDS, "local-epochs": wanted[i]}
        client = FedAvgClient(small_net, data_of(i, shift), i)
        trained = client.fit(sent, config)[0] if wanted[i] else sent
        assert_arrays(models[i], trained, atol=1e-6)
        assert loss == pytest.approx(client.evaluate(trained, config)[0], rel=1e-5)


def silent(*who):
    """Return clients of whom some do not answer the question."""

    class Silent(FinetuneClient):
        def evaluate(self, parameters, config):
            if self.client_id in who and config["finetune-epochs"] < 0:
                raise RuntimeError("out of reach")
            return super().evaluate(parameters, config)

    return Silent


def test_a_client_that_fails_before_the_choice_is_scored_with_that_of_the_others():
    _, rounds, seen, _ = run(silent(2), shift=1.0)
    curves, samples = curves_by_hand(rounds, 1.0, [0, 1, 3])
    of_others = FINETUNE_EPOCHS[int((samples @ curves).argmin())]
    a, b, c = choices_by_hand(curves, samples)
    assert [seen[i][2]["finetune-epochs"] for i in range(4)] == [a, b, of_others, c]
    assert rounds[-1].evaluated.clients == [0, 1, 2, 3]
    assert [(failure.client, failure.reason) for failure in rounds[-1].failures] == [
        (2, "RuntimeError: out of reach")
    ]


@pytest.mark.parametrize("deaf", [1, 2])
def test_only_clients_that_never_knew_the_question_are_spared_it(deaf, caplog):
    """Deaf in one of two rounds: after a choice, the question stays."""
    asked = set()

    class Deaf(FinetuneClient):
        def evaluate(self, parameters, config):
            if config["finetune-epochs"] < 0:
                asked.add((config["server-round"], self.client_id))
                if config["server-round"] == deaf:
                    return FedAvgClient.evaluate(self, parameters, config)
            return super().evaluate(parameters, config)

    strategy = run(Deaf, every=1)[0]
    assert asked == {(i + 1, client) for i in range(deaf) for client in range(4)}
    assert strategy.asks == (deaf != 1)
    assert ("epochs=1 spares the question" in caplog.text) == (deaf == 1)


def without_validation(client, shift):
    data = blobs(client)
    return replace(data, validation=data.train)


@pytest.mark.parametrize("how", [{"kind": silent(0, 1, 2, 3)}, {"data": without_validation}])
def test_if_nothing_is_known_clients_take_one_epoch(how, caplog):
    seen = run(**how)[2]
    assert "no client has reported its validation losses" in caplog.text
    fixed = run(options=FinetuneOptions(epochs=1), **how)[2]
    assert {i: reply[0] for i, reply in seen.items()} == {i: r[0] for i, r in fixed.items()}


def test_a_candidate_that_diverges_at_a_client_is_not_its_choice_and_no_failure():
    plain = run()[2]
    hit = next(i for i in plain if plain[i][2]["finetune-epochs"] == 8)

    class Diverging(FinetuneClient):
        def loss_after(self, parameters, epochs, split, config):
            loss = super().loss_after(parameters, epochs, split, config)
            return float("nan") if self.client_id == hit and epochs == 8 else loss

    _, rounds, seen, _ = run(Diverging)
    assert seen[hit][2]["finetune-epochs"] < 8
    assert not rounds[-1].failures


class Liar(FinetuneClient):
    """Client 0 claims that its loss is least at eight epochs, by far."""

    def evaluate(self, parameters, config):
        loss, number, metrics = super().evaluate(parameters, config)
        if self.client_id == 0 and config["finetune-epochs"] < 0:
            metrics = {"candidate-losses": [9e14] * 4 + [0.0], "validation-samples": 9 * 10**14}
        return loss, number, metrics


def test_one_of_twelve_clients_does_not_choose_for_all():
    honest, lied = (run(kind, shift=-1, clients=12)[0] for kind in (FinetuneClient, Liar))
    assert max(honest.choices.of_all, lied.choices.of_all) < 8


def test_the_bytes_of_the_question_are_counted():
    rounds, fixed = run()[1], run(options=FinetuneOptions(epochs=1))[1]
    asked, plain = rounds[-1].evaluated, fixed[-1].evaluated
    assert 1.9 < asked.bytes_down / plain.bytes_down < 2.1
    assert 1.2 < asked.bytes_up / plain.bytes_up < 2
