"""FFGB-distill and FedAvg-distill on linear nets, whose ensembles are linear nets known
in closed form, and the weak learners.
"""

import numpy as np
import pytest
import torch

from fedapps.algorithms.boosting.regression import Distiller, FitOptions
from fedapps.clients import ClientData, FFGBDistillClient, Split
from fedapps.strategies import (
    FedAvg,
    FedAvgDistill,
    FedAvgDistillOptions,
    FFGBDistill,
    FFGBDistillOptions,
)
from tests.helpers import (
    EchoClient,
    Trains,
    arrays_of,
    assert_arrays,
    blobs,
    refused,
    simulate,
    small_net,
)

START = {"weight": np.float32([[1, -2, 0.5], [0, 1, 3]]), "bias": np.float32([0.3, -1])}
EXACT = {"distill_epochs": 400, "distill_batch_size": 200, "distill_learning_rate": 0.05}


def distiller():
    return Distiller(
        torch.nn.Linear(3, 2),
        torch.tensor(np.random.default_rng(3).normal(size=(200, 3)), dtype=torch.float32),
    )


def answer(i, size=1):
    """Return a fixed net."""
    rng = np.random.default_rng(i)
    return [size * rng.normal(size=array.shape).astype(np.float32) for array in START.values()]


def learner(i, _=None):
    """Return a client that answers with a fixed net, whatever it receives."""
    return Trains(lambda *sent: answer(i), i + 1)


def test_a_round_of_ffgb_distill_is_the_papers_equation():
    strategy = FFGBDistill(distiller(), FFGBDistillOptions(step=2.0, mu=0.1, **EXACT))
    result = simulate(strategy, learner, 4, START, 1)
    for position, (name, array) in enumerate(arrays_of(result).items()):
        # uniform, whatever num-examples
        mean = np.mean([answer(i)[position] for i in range(4)], axis=0)
        want = (1 - 2.0 * 0.1) * START[name] - 2.0 * mean
        np.testing.assert_allclose(array, want, atol=1e-3)
    assert strategy.models_sent == {"models-up": 4, "models-down": 4}
    assert result.train_metrics_clientapp[1]["distill-loss"] < 1e-6


@pytest.mark.parametrize("start", ["server", "average"])
def test_fedavg_distill_of_linear_nets_is_uniform_fedavg(start):
    options = FedAvgDistillOptions(start=start, **EXACT)
    ours, want = (
        arrays_of(simulate(strategy, learner, 4, START, 1))
        for strategy in (FedAvgDistill(distiller(), options), FedAvg(weights="uniform"))
    )
    assert_arrays(ours, want, atol=1e-3)


@pytest.mark.parametrize("place", [1, 5])
def test_a_liars_outputs_are_three_times_as_long_as_the_references(place):
    """That of ten clients is the second largest (hardened: the lower median)."""
    nets = [answer(i, 1000 if i == 9 else 1) for i in range(10)]
    moves = [[new - old for new, old in zip(net, START.values(), strict=True)] for net in nets]
    x = distiller().inputs.numpy()
    lengths = np.array([np.linalg.norm(x @ w.T + b) for w, b in moves])
    factors = np.minimum(1, 3 * np.sort(lengths)[-1 - place] / lengths)
    assert (factors < 1).sum() == 1
    strategy = FedAvgDistill(distiller(), FedAvgDistillOptions(**EXACT))
    if place == 5:
        strategy.harden()
    got = arrays_of(simulate(strategy, lambda i, _: Trains(lambda *sent: nets[i]), 10, START, 1))
    for position, name in enumerate(START):
        move = np.mean([f * move[position] for f, move in zip(factors, moves, strict=True)], 0)
        np.testing.assert_allclose(got[name], START[name] + move, atol=1e-3)


def test_the_fit_starts_from_the_configured_model():
    """With a rate of nearly 0 the student does not change."""
    for start, want in (("server", START["bias"]), ("average", START["bias"] + np.float32(0.25))):
        options = FedAvgDistillOptions(start=start, distill_epochs=1, distill_learning_rate=1e-12)
        client = lambda i, _: EchoClient(i, 1 + 2 * (i == 0))
        result = simulate(FedAvgDistill(distiller(), options), client, 2, START, 1)
        np.testing.assert_allclose(arrays_of(result)["bias"], want, atol=1e-6)


# --- the client -----------------------------------------------------------------------

CONFIG = {"oracle-epochs": 1500, "oracle-batch-size": 100, "oracle-learning-rate": 0.02}


def separate_points(classes=3):
    """Return samples that are unit vectors: a linear net without bias takes any value
    at each of them, so the oracle is perfect.
    """
    part = Split(torch.eye(12), torch.arange(12) % classes)
    return ClientData(part, part, part)


def unit_net(seed):
    net = torch.nn.Linear(12, 3, bias=False)
    net.weight.data = torch.randn(net.weight.shape, generator=torch.Generator().manual_seed(seed))
    return net


def test_a_perfect_oracle_makes_gradient_descent_on_the_values():
    data = separate_points()
    f = unit_net(7).weight.detach().numpy()
    (h,), num_examples, metrics = FFGBDistillClient(unit_net, data).fit([f], CONFIG)
    p = np.exp(f.T) / np.exp(f.T).sum(1, keepdims=True)
    # softmax - onehot at each point
    np.testing.assert_allclose(h.T, p - np.eye(3)[np.arange(12) % 3], atol=2e-3)
    assert num_examples == 12
    assert metrics["oracle-error"] < 2e-3
    assert metrics["loss"] == pytest.approx(
        -np.log(p[np.arange(12), np.arange(12) % 3]).mean(), rel=1e-5
    )


def test_every_client_and_round_draws_its_own_learner_from_the_seed():
    def learner(client, server_round, seed=0):
        config = {"oracle-epochs": 1, "oracle-batch-size": 12, "oracle-learning-rate": 1e-9}
        config |= {"server-round": server_round, "seed": seed}
        return FFGBDistillClient(unit_net, separate_points(), client).fit(
            [np.zeros((3, 12), np.float32)], config
        )[0][0]

    np.testing.assert_array_equal(learner(0, 1), learner(0, 1))
    for other in (learner(1, 1), learner(0, 2), learner(0, 1, 1)):
        assert not np.allclose(learner(0, 1), other)


def test_labels_beyond_the_nets_classes_are_an_error():
    client, zero = FFGBDistillClient(unit_net, separate_points(5)), np.zeros((3, 12), np.float32)
    refused(lambda: client.fit([zero], CONFIG), r"labels 0\.\.4 .*3 classes")


BLOBS = {k: v.numpy() for k, v in small_net(0).state_dict().items()}


def test_the_options_of_the_fit_reach_it(monkeypatch):
    seen = []

    def fit(module, inputs, targets, options, generator, runner=None):
        seen.append(options)
        return 0.0

    for user in ("clients.ffgb_distill", "algorithms.boosting.regression"):
        monkeypatch.setattr(f"fedapps.{user}.fit_network", fit)
    options = FFGBDistillOptions(
        2, 3, 0.25, "kl", oracle_epochs=4, oracle_batch_size=5, oracle_learning_rate=0.5
    )
    client = lambda i, _: FFGBDistillClient(small_net, blobs(i), i)
    distiller = Distiller(small_net(0), blobs(0).train.x)
    simulate(FFGBDistill(distiller, options), client, 1, BLOBS, 1)
    assert seen == [FitOptions(4, 5, 0.5), FitOptions(2, 3, 0.25, loss="kl")]
