"""FedMDFG: what its direction promises, and its step, which clients decide."""

import numpy as np
import pytest

from fedapps.algorithms.fairness.common_descent import away_from_equal, common_descent
from fedapps.clients import FedMDFGClient
from fedapps.clients.base.training import get_arrays
from fedapps.strategies import FedAvg, FedMDFG, FedMDFGOptions, FedMGDA, FedMGDAOptions
from tests.helpers import EchoClient, arrays_of, blobs, refused, simulate, small_net, that_fails

ALWAYS, NEVER = 0.0, 90.0


@pytest.mark.parametrize("theta", [ALWAYS, NEVER])
def test_no_loss_rises_to_first_order_and_guided_losses_come_closer(theta):
    """The derivatives of the losses along d are -<u_k, d>; that of the cosine of losses
    and ones by central differences.
    """
    rng = np.random.default_rng(0)
    for _ in range(30):
        u, losses = rng.normal(size=(4, 9)) * rng.uniform(0.1, 5, (4, 1)), rng.uniform(0.1, 3, 4)
        d, guided = common_descent(u, losses, theta)
        falls = u @ d
        assert (falls > 0).all()
        assert guided == (theta == ALWAYS)
        scaled = u / np.linalg.norm(u, axis=1)[:, None] * np.linalg.norm(u, axis=1).mean()
        assert np.linalg.norm(d) == pytest.approx(np.linalg.norm(scaled.mean(0)))
        cosine = lambda t: (one := losses - t * falls).sum() / np.linalg.norm(one)
        if guided:
            assert cosine(1e-6) > cosine(-1e-6)


def test_by_hand():
    """Losses (3, 4): the cosine with ones is 7 / 5 / sqrt(2), 8.13 degrees. Updates
    (2, 0) and (0, 4) of mean length 3; the shortest mixture of (3, 0) and (0, 3) is
    their mean.
    """
    np.testing.assert_array_equal(away_from_equal([3, 4], 8.2), 0)
    h = away_from_equal([3, 4], 8.0)
    np.testing.assert_allclose(h, np.array([0.84, 1.12]) / 2**0.5 - 2**-0.5)
    assert not away_from_equal([0, 0], ALWAYS).any()
    d, guided = common_descent([[2.0, 0.0], [0.0, 4.0]], [3, 4], 8.2)
    np.testing.assert_allclose(d, [1.5, 1.5], atol=1e-6)
    assert not guided
    # s_0 = -0.113 (2, 0) + 0.085 (0, 4), scaled to 3: (-1.66, 2.50)
    d, guided = common_descent([[2.0, 0.0], [0.0, 4.0]], [3, 4], 8.0)
    assert guided
    s = np.array([h @ [[2, 0], [0, 4]], [1, 0]])
    s /= np.linalg.norm(s, axis=1)[:, None]
    shortest = s.sum(0)  # of two unit vectors; the third is farther out
    np.testing.assert_allclose(d, shortest / np.linalg.norm(shortest) * 4.5**0.5, atol=1e-5)


def test_losses_that_cannot_come_closer_still_fall():
    """With equal updates they fall by the same."""
    d, guided = common_descent([[2.0, 0.0], [2.0, 0.0]], [1.0, 4.0], ALWAYS)
    np.testing.assert_allclose(d, [2.0, 0.0], atol=1e-6)
    assert not guided


def test_opposite_or_no_updates_give_no_direction():
    for rows in ([[1.0, 2.0], [-2.0, -4.0]], [[0.0, 0.0]] * 2):
        d, _ = common_descent(rows, [1.0, 1.0], ALWAYS)
        np.testing.assert_array_equal(d, 0)


def test_without_guidance_and_trials_it_is_the_direction_of_fedmgda():
    moves = [[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 3.0, 0.0]]
    start = {"w": np.zeros(3)}
    ours = FedMDFG(FedMDFGOptions(angle=NEVER, trials=0))
    theirs = FedMGDA(FedAvg(), FedMGDAOptions(1.0))
    found, wanted = (
        arrays_of(simulate(strategy, lambda i, _: Bowl(moves[i]), 3, start, 1))["w"]
        for strategy in (ours, theirs)
    )
    np.testing.assert_allclose(
        found / np.linalg.norm(found), wanted / np.linalg.norm(wanted), atol=1e-5
    )


class Bowl(EchoClient):
    """Loss ``|w - bottom|^2``, and an update of a given length towards it."""

    def __init__(self, bottom, length=None, lies=False):
        self.bottom, self.length, self.lies = np.asarray(bottom, float), length, lies
        super().__init__(0.0)

    def loss(self, w):
        return float(((w - self.bottom) ** 2).sum())

    def fit(self, parameters, config):
        way = self.bottom - parameters[0]
        if self.length:
            way *= self.length / np.linalg.norm(way)
        return [parameters[0] + way], 1, {"loss-before": self.loss(parameters[0])}

    def evaluate(self, parameters, config):
        steps = config.get("fedmdfg-steps")
        if not steps:
            return 1.0, 1, {"accuracy": 0.5}
        assert "loss-before" not in config  # asked for in training only
        w, end = parameters
        losses = [self.loss(w + t * (end - w)) for t in steps]
        told = [1.0 + t for t in steps] if self.lies else losses
        return 1.0, 1, {"trial-losses": told}


def steps_of(clients, options=None, rounds=1, **more):
    seen, start = [], {"w": np.zeros(2)}
    result = simulate(
        FedMDFG(options),
        lambda i, _: clients[i],
        len(clients),
        start,
        rounds,
        callbacks=[lambda now: seen.append(now)],
        evaluate_every=0,
        **more,
    )
    return arrays_of(result)["w"], seen


def test_each_clients_loss_goes_with_its_update():
    bottoms = [[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]]
    wanted, guided = common_descent(bottoms, [1, 9, 8], 11.25)
    assert guided
    w, _ = steps_of([Bowl(bottom) for bottom in bottoms], FedMDFGOptions(trials=0))
    np.testing.assert_allclose(w, wanted, rtol=1e-6)


def test_the_step_is_the_longest_after_which_no_loss_has_risen():
    """Bottoms at (1, 0) and (4, 0), updates of length 12: after the whole step the
    losses are 121 and 64, after half of it 25 and 4, after a quarter 4 and 1; they were
    1 and 16. After an eighth: 1/4 and 25/4.
    """
    clients = [Bowl([1.0, 0.0], 12.0), Bowl([4.0, 0.0], 12.0)]
    w, (now,) = steps_of(clients)
    np.testing.assert_allclose(w, [1.5, 0.0], atol=1e-6)
    assert (now.train_metrics["step"], now.train_metrics["hurt"]) == (0.125, 0)
    # with three trials only the first client's loss rises after the last of them
    w, (now,) = steps_of(clients, FedMDFGOptions(trials=3))
    np.testing.assert_array_equal(w, 0)  # which is half of the clients
    clients.append(Bowl([4.0, 0.0], 12.0))
    w, (now,) = steps_of(clients, FedMDFGOptions(trials=3))
    np.testing.assert_allclose(w, [6.0, 0.0], atol=1e-6)
    assert (now.train_metrics["step"], now.train_metrics["hurt"]) == (0.5, 1)


def test_a_client_that_lies_or_fails_does_not_stop_the_others():
    clients = [Bowl([1.0, 1.0]), Bowl([2.0, 1.0]), Bowl([1.0, 2.0], lies=True)]
    w, seen = steps_of([*clients, that_fails(Bowl)([0.0, 0.0])], rounds=8)
    assert ((w > 0.9) & (w < 2.1)).all()
    assert seen[0].train_metrics["hurt"] == 1


def test_a_rounds_bytes_count_the_question():
    """Down: a model of 16 bytes, then two; up: a model, then six losses."""
    clients = [Bowl([1.0, 0.0]), Bowl([0.0, 1.0])]
    (_, (asked,)), (_, (whole,)) = steps_of(clients), steps_of(clients, FedMDFGOptions(trials=0))
    assert asked.trained.bytes_down - whole.trained.bytes_down > 2 * 2 * 16
    assert asked.trained.bytes_up - whole.trained.bytes_up > 2 * 6 * 8
    assert asked.evaluated.bytes_down == whole.evaluated.bytes_down  # it is counted once
    assert asked.trained.clients == whole.trained.clients == [0, 1]


def test_clients_that_do_not_tell_their_losses_end_the_run():
    class Silent(Bowl):
        evaluate = EchoClient.evaluate

    class Failing(Bowl):
        def evaluate(self, parameters, config):
            raise RuntimeError("the disk of this site is full")

    refused(lambda: steps_of([Silent([1.0, 0.0])] * 2), "use fedapps.clients.FedMDFGClient")
    refused(lambda: steps_of([EchoClient(1.0)] * 2), "no number 'loss-before'")
    clients = [Silent([1.0, 0.0]), Failing([1.0, 0.0]), Bowl([1.0, 0.0])]
    np.testing.assert_allclose(steps_of(clients)[0], [1.0, 0.0], atol=1e-6)


def test_the_suites_client_tells_the_losses_between_the_models():
    """It tells the same losses before training. A model with NaN has the largest."""
    client, config = FedMDFGClient(small_net, blobs(0, 40), 0), {"local-epochs": 1, "seed": 3}
    w, end = (get_arrays(small_net(seed)) for seed in (1, 2))
    end[0][0] = np.nan
    steps = [0.0, 0.25, 1.0]
    _, n, metrics = client.evaluate([*w, *end], {**config, "fedmdfg-steps": steps})
    assert (n, metrics["trial-losses"][2]) == (len(client.data.train), 1e30)
    end[0][0] = 1.0
    *_, metrics = client.evaluate([*w, *end], {**config, "fedmdfg-steps": steps})
    for step, told in zip(steps, metrics["trial-losses"], strict=True):
        model = [np.float32(a + step * (b - a)) for a, b in zip(w, end, strict=True)]
        *_, trained = client.fit(model, {**config, "server-round": 1, "loss-before": True})
        assert told == pytest.approx(trained["loss-before"], rel=1e-6)
    assert "accuracy" in client.evaluate(w, config)[2]
