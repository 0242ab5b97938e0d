"""Floco: corners descend by their weights, points go to the clients whose updates they
fit, the centre is the server's model.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch.func import functional_call
from torch.nn import functional

from fedapps.algorithms.contract.personal import FlocoSent
from fedapps.clients import FedAvgClient, FlocoClient, to_client_app
from fedapps.clients.base.training import get_arrays
from fedapps.clients.floco import Simplex
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, FedAvg, Floco, FlocoOptions
from fedapps.strategies.floco import CORNER
from tests.helpers import arrays_of, assert_arrays, blobs, exchanged, simulate, small_net

HEAD, BIAS = "3.weight", "3.bias"
STEP = {"learning-rate": 0.1, "lr-decay": 1.0, "momentum": 0.0, "weight-decay": 0.0}
ONE = {**STEP, "batch-size": 1000, "local-epochs": 1, "seed": 3, "server-round": 1}
SENT = FlocoSent(3, [2], 0.2)  # corners of the weights only


def net(seed=0):
    model = small_net(seed)
    model.head = ("3.",)
    return model


def client(number=0, kind=FlocoClient):
    return kind(net, blobs(number, shift=0.3 * number), number)


def corners_of(model, noise=0.3):
    first = get_arrays(model)[2]
    rng = np.random.default_rng(1)
    return [first, *(first + rng.normal(0, noise, first.shape).astype(np.float32) for _ in "ab")]


def test_the_fixture_has_one_matrix_in_its_head():
    names = list(net().state_dict())
    assert names[2] == HEAD


@pytest.mark.parametrize("weights", [(0.2, 0.3, 0.5), (1.0, 0.0, 0.0)])
def test_a_step_moves_every_corner_by_its_weight(weights, monkeypatch):
    """Against autograd on the mixed head: w_m <- w_m - rate alpha_m g."""
    monkeypatch.setattr(Simplex, "draw", lambda self: torch.tensor(weights))
    own, model = client(), net(5)
    corners = corners_of(model)
    arrays = [*get_arrays(model), *corners[1:]]
    got, number, _ = own.fit([a.copy() for a in arrays], {**ONE, **SENT.to_config()})
    named = {name: torch.tensor(a) for name, a in zip(model.state_dict(), arrays, strict=False)}
    named[HEAD] = sum(a * torch.tensor(w) for a, w in zip(weights, corners, strict=True))
    named = {name: t.requires_grad_() for name, t in named.items()}
    data = own.data.train
    functional.cross_entropy(functional_call(net(), named, (data.x,)), data.y).backward()
    assert number == len(data)
    for place, name in enumerate(named):
        if name != HEAD:
            expected = arrays[place] - 0.1 * named[name].grad.numpy()
            np.testing.assert_allclose(got[place], expected, atol=1e-6)
    trained = [got[2], *got[len(named) :]]
    for weight, before, after in zip(weights, corners, trained, strict=True):
        np.testing.assert_allclose(
            after, before - 0.1 * weight * named[HEAD].grad.numpy(), atol=1e-6
        )


def test_draws_stay_in_the_simplex_and_near_the_point():
    point = [0.7, 0.3, 0.0]
    for sent, mean in ((SENT, [1 / 3] * 3), (FlocoSent(3, [2], 0.2, point), point)):
        simplex = Simplex(net(), corners_of(net())[1:], sent)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            draws = torch.stack([simplex.draw() for _ in range(3000)])
        assert (draws >= 0).all()
        np.testing.assert_allclose(draws.sum(1), 1)
        np.testing.assert_allclose(draws.mean(0), mean, atol=0.06)
        if sent.point:
            far = (draws - torch.tensor(point)).abs().sum(1)
            assert 0.15 < far.max() <= 0.2 + 1e-9
        else:
            np.testing.assert_allclose(draws.var(0), 1 / 18, atol=0.01)  # of Dirichlet(1, 1, 1)


def test_with_equal_corners_the_centre_is_fedavgs_with_a_third_of_the_heads_step(monkeypatch):
    """Since the weights sum to 1, whatever is drawn: one step, everybody alike."""
    monkeypatch.setattr(Floco, "_first", lambda self, arrays: equal(arrays))
    initial = {name: t.numpy() for name, t in net(11).state_dict().items()}

    def equal(arrays):
        return {name: np.stack([arrays[name].numpy()] * 3) for name in (HEAD, BIAS)}

    def run(strategy, kind, rate):
        config = {**ONE, "learning-rate": rate}
        return arrays_of(simulate(strategy, lambda i, _: client(i, kind), 2, initial, 1, config))

    ours = run(Floco(("3.",), FlocoOptions(corners=3)), FlocoClient, 0.3)
    whole, third = run(FedAvg(), FedAvgClient, 0.3), run(FedAvg(), FedAvgClient, 0.1)
    for name, array in ours.items():
        np.testing.assert_allclose(
            array, (third if name in (HEAD, BIAS) else whole)[name], atol=1e-6
        )


def test_clients_get_points_after_their_share_of_the_rounds_and_are_scored_there(monkeypatch):
    seen = exchanged(monkeypatch)
    initial = {name: t.numpy() for name, t in net(11).state_dict().items()}
    strategy = Floco(("3.",), FlocoOptions(corners=3, start=0.5, radius=0.1))
    result = simulate(strategy, lambda i, _: client(i), 4, initial, 4, {**ONE, "batch-size": 8})
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
    final = arrays_of(result)
    np.testing.assert_allclose(final[HEAD], strategy.corners[HEAD].mean(0), atol=1e-6)
    own, point, corners = client(1), strategy.points[1], strategy.corners
    arrays = [corners[name][0] if name in corners else a for name, a in final.items()]
    others = [corners[name][j] for j in (1, 2) for name in (HEAD, BIAS)]
    config = {**ONE, **FlocoSent(3, [2, 3], 0.1, point.tolist()).to_config()}
    loss, _, metrics = own.evaluate([*arrays, *others], config)
    model = {name: torch.tensor(a) for name, a in final.items()}
    for name, w in corners.items():
        model[name] = torch.tensor(np.tensordot(point, w, 1), dtype=torch.float32)
    test = own.data.test
    wanted = functional.cross_entropy(functional_call(net().eval(), model, (test.x,)), test.y)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    centre = {name: torch.tensor(a) for name, a in final.items()}
    wanted = functional.cross_entropy(functional_call(net().eval(), centre, (test.x,)), test.y)
    assert metrics["global-loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_the_first_corners_lie_around_the_initial_head_the_same_for_a_seed():
    record = ArrayRecord({n: Array(t.numpy()) for n, t in net(11).state_dict().items()})
    one, same, other = (Floco(("3.",), seed=seed)._first(record) for seed in (0, 0, 1))
    np.testing.assert_allclose(one[HEAD].mean(0), record[HEAD].numpy(), atol=1e-6)
    assert_arrays([one[HEAD]], [same[HEAD]])
    assert not np.array_equal(one[HEAD], other[HEAD])
    assert list(one) == [HEAD, BIAS]
    assert np.ptp(one[BIAS], axis=0).max() < 1e-6
    with pytest.raises(ValueError, match="no such arrays"):
        Floco(("nothing",))._first(record)
    assert CORNER.format(2, HEAD) == "corner-2.3.weight"


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
        size = len(net().state_dict())
        moved = [a - b for a, b in zip(after, before, strict=True)]
        corners = [[moved[2 + i], *moved[size + i :: 2]] for i in (0, 1)]  # weights, biases
        return np.concatenate([np.ravel(w) for w in corners]).astype(np.float64)

    app = to_client_app(lambda c: client(int(c.node_config["partition-id"]), Noting))
    grid = ClientGrid(InlineGrid(app, 4), seed=1, clients_per_round=2)
    strategy = Floco(("3.",), FlocoOptions(corners=3, start=0.5))
    initial = {name: t.numpy() for name, t in net(11).state_dict().items()}
    simulate(strategy, None, 4, initial, 10, {**ONE, "momentum": 0.9, "batch-size": 8}, grid=grid)
    resumed = Floco(("3.",), FlocoOptions(corners=3, start=0.5))
    resumed.load_state_dict(strategy.state_dict())
    for k in range(4):
        rounds = [number for number, who in heard if who == k]
        number = min(rounds) if k == 3 else max(n for n in rounds if n <= 5)
        for one in (strategy, resumed):
            wanted = one.projection.points(heard[number, k][None])[0]
            np.testing.assert_allclose(one.points[k], wanted, atol=1e-6)
