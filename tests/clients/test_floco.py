"""Floco: corners descend by their weights, points go to the clients whose updates they
fit, the centre is the server's model.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch.func import functional_call
from torch.nn import functional

from fedapps.algorithms.contract.sent import FlocoSent
from fedapps.clients import FedAvgClient, FlocoClient
from fedapps.clients.base.training import get_arrays
from fedapps.clients.floco import Simplex
from fedapps.strategies import FedAvg, Floco, FlocoOptions
from tests.clients.federation import federate, headed, initial
from tests.helpers import assert_arrays, blobs, exchanged, refused

HEAD, BIAS = "3.weight", "3.bias"
STEP = {"learning-rate": 0.1, "lr-decay": 1.0, "momentum": 0.0, "weight-decay": 0.0}
ONE = {**STEP, "batch-size": 1000, "local-epochs": 1, "seed": 3, "server-round": 1}
SENT = FlocoSent(3, [2], 0.2)  # corners of the weights only


net = headed()


def client(number=0, kind=FlocoClient):
    return kind(net, blobs(number, shift=0.3 * number), number)


def played(strategy, clients, rounds, config=ONE, kind=FlocoClient, **options):
    return federate(
        strategy, lambda i, _: client(i, kind), clients, initial(), rounds, config, **options
    )


def loss_at(named, data):
    """Return the loss of the net with these arrays."""
    tensors = {name: torch.as_tensor(a, dtype=torch.float32) for name, a in named.items()}
    return functional.cross_entropy(functional_call(net(0), tensors, (data.x,)), data.y)


def corners_of(model, noise=0.3):
    first = get_arrays(model)[2]
    rng = np.random.default_rng(1)
    return [first, *(first + rng.normal(0, noise, first.shape).astype(np.float32) for _ in "ab")]


@pytest.mark.parametrize("weights", [(0.2, 0.3, 0.5), (1.0, 0.0, 0.0)])
def test_a_step_moves_every_corner_by_its_weight(weights, monkeypatch):
    """Against autograd on the mixed head: w_m <- w_m - rate alpha_m g."""
    monkeypatch.setattr(Simplex, "draw", lambda self: torch.tensor(weights))
    own, model = client(), net(5)
    corners = corners_of(model)
    got, *_ = own.fit([*get_arrays(model), *corners[1:]], {**ONE, **SENT.to_config()})
    named = {name: torch.tensor(a) for name, a in initial(seed=5).items()}
    named[HEAD] = sum(a * torch.tensor(w) for a, w in zip(weights, corners, strict=True))
    named = {name: t.requires_grad_() for name, t in named.items()}
    loss_at(named, own.data.train).backward()
    step = {name: 0.1 * t.grad for name, t in named.items()}
    wanted = [a - step[name].numpy() for name, a in initial(seed=5).items()]
    of_head = [a - w * step[HEAD].numpy() for w, a in zip(weights, corners, strict=True)]
    wanted[2:3] = of_head[:1]
    assert_arrays(got, [*wanted, *of_head[1:]], atol=1e-6)


def test_draws_stay_in_the_simplex_and_near_the_point():
    point = [0.7, 0.3, 0.0]
    for sent, mean in ((SENT, [1 / 3] * 3), (FlocoSent(3, [2], 0.2, point), point)):
        simplex = Simplex(net(0), corners_of(net(0))[1:], sent)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            draws = torch.stack([simplex.draw() for _ in range(3000)])
        assert (draws >= 0).all()
        np.testing.assert_allclose(draws.sum(1), 1)
        np.testing.assert_allclose(draws.mean(0), mean, atol=0.06)
        if sent.point:
            assert 0.15 < (draws - torch.tensor(point)).abs().sum(1).max() <= 0.2 + 1e-9
        else:
            np.testing.assert_allclose(draws.var(0), 1 / 18, atol=0.01)  # of Dirichlet(1, 1, 1)


def test_with_equal_corners_the_centre_is_fedavgs_with_a_third_of_the_heads_step(monkeypatch):
    """Since the weights sum to 1, whatever is drawn: one step, everybody alike."""
    equal = {name: np.stack([initial()[name]] * 3) for name in (HEAD, BIAS)}
    monkeypatch.setattr(Floco, "_first", lambda *_: equal)

    def run(strategy, kind, rate):
        return played(strategy, 2, 1, {**ONE, "learning-rate": rate}, kind)[0]

    ours = run(Floco(("3.",), FlocoOptions(corners=3)), FlocoClient, 0.3)
    whole, third = run(FedAvg(), FedAvgClient, 0.3), run(FedAvg(), FedAvgClient, 0.1)
    assert_arrays(ours, {**whole, HEAD: third[HEAD], BIAS: third[BIAS]}, atol=1e-6)


def test_clients_get_points_after_their_share_of_the_rounds_and_are_scored_there(monkeypatch):
    seen = exchanged(monkeypatch)
    strategy = Floco(("3.",), FlocoOptions(corners=3, start=0.5, radius=0.1))
    final, *_ = played(strategy, 4, 4, {**ONE, "batch-size": 8})
    points = [
        list(config.get("floco-point", []))
        for kind, content, *_ in seen
        if kind in ("train", "evaluate")
        for config in content.config_records.values()
    ]
    assert not any(points[:16])  # two rounds of four trainings and four evaluations
    later = points[16:]
    assert len(later) == 16
    assert all(len(point) == 3 and sum(point) == pytest.approx(1) for point in later)
    assert len({tuple(point) for point in later}) == 4
    # the server's model is the centre of the simplex
    np.testing.assert_allclose(final[HEAD], strategy.corners[HEAD].mean(0), atol=1e-6)
    own, point, corners = client(1), strategy.points[1], strategy.corners
    arrays = [corners[name][0] if name in corners else a for name, a in final.items()]
    others = [corners[name][j] for j in (1, 2) for name in (HEAD, BIAS)]
    config = {**ONE, **FlocoSent(3, [2, 3], 0.1, point.tolist()).to_config()}
    loss, _, metrics = own.evaluate([*arrays, *others], config)
    at_point = {**final, **{name: np.tensordot(point, w, 1) for name, w in corners.items()}}
    assert [loss, metrics["global-loss"]] == pytest.approx(
        [loss_at(model, own.data.test).item() for model in (at_point, final)], rel=1e-5
    )


def test_the_first_corners_lie_around_the_initial_head_the_same_for_a_seed():
    record = ArrayRecord({name: Array(a) for name, a in initial().items()})
    one, same, other = (Floco(("3.",), seed=seed)._first(record) for seed in (0, 0, 1))
    np.testing.assert_allclose(one[HEAD].mean(0), initial()[HEAD], atol=1e-6)
    assert_arrays(one, same)
    assert not np.array_equal(one[HEAD], other[HEAD])
    assert np.ptp(one[BIAS], axis=0).max() < 1e-6
    refused(lambda: Floco(("nothing",))._first(record), "no such arrays")


def test_points_follow_the_last_update_before_the_projection_and_of_late_clients_the_first():
    """Two of four clients a round, momentum, partial batches; client 3 fails until the
    clients have points. A resumed run projects late clients alike.
    """
    heard = {}

    class Noting(FlocoClient):
        def fit(self, parameters, config):
            if self.client_id == 3 and config["server-round"] <= 5:
                raise RuntimeError("out of reach")
            before = [a.copy() for a in parameters]
            reply = super().fit(parameters, config)
            heard[config["server-round"], self.client_id] = update(before, reply[0])
            return reply

    def update(before, after):
        moved = [a - b for a, b in zip(after, before, strict=True)]
        corners = [[moved[2 + i], *moved[4 + i :: 2]] for i in (0, 1)]  # weights, biases
        return np.concatenate([np.ravel(w) for w in corners]).astype(np.float64)

    strategy = Floco(("3.",), FlocoOptions(corners=3, start=0.5))
    played(strategy, 4, 10, {**ONE, "momentum": 0.9, "batch-size": 8}, Noting, a_round=2)
    resumed = Floco(("3.",), FlocoOptions(corners=3, start=0.5))
    resumed.load_state_dict(strategy.state_dict())
    for k in range(4):
        rounds = [number for number, who in heard if who == k]
        number = min(rounds) if k == 3 else max(n for n in rounds if n <= 5)
        for one in (strategy, resumed):
            np.testing.assert_allclose(
                one.points[k], one.projection.points(heard[number, k][None])[0], atol=1e-6
            )
