"""Fine-tuning, FedBN, sharing by name, FedBABU, FedALA, Fed-RoD, Per-FedAvg, Floco:
reductions, references, what is scored.

Momentum, weight decay and partial batches are on; two of three clients are sampled per
round, and one fails in the second round.
"""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch.func import functional_call
from torch.nn import functional

from fedapps.algorithms.contract.sent import FlocoSent
from fedapps.clients import (
    ClientData,
    FedALAClient,
    FedAvgClient,
    FedBABUClient,
    FedBNClient,
    FedRepClient,
    FedRoDClient,
    FilteredClient,
    FinetuneClient,
    FlocoClient,
    PartialClient,
    PerFedAvgClient,
    Split,
)
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.floco import Simplex
from fedapps.strategies import (
    FedALA,
    FedALAOptions,
    FedAvg,
    FedBABU,
    FedBABUOptions,
    FedBN,
    FedRep,
    FedRepOptions,
    Finetune,
    FinetuneOptions,
    Floco,
    FlocoOptions,
    Partial,
    PartialOptions,
    PartialSharing,
    PerFedAvg,
    PerFedAvgOptions,
)
from tests.clients.federation import federate, headed, initial, train_nets
from tests.helpers import arrays_in, assert_arrays, blobs, exchanged, refused, small_net, that_fails
from tests.quadratics import Scalar

TRAIN = {
    "learning-rate": 0.05,
    "lr-decay": 0.9,
    "momentum": 0.9,
    "weight-decay": 1e-3,
    "batch-size": 8,
    "local-epochs": 2,
    "seed": 3,
}
HEAD = ("3.",)


def normalised(seed):
    """Return a net with batch normalisation in it, for ``blobs``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 3),
        )


def run(strategy, kind, rounds=4, head=HEAD, build=small_net):
    """Return the final arrays, the clients' stores and the result."""
    unreliable = that_fails(kind, lambda client, now: (client, now) == (1, 2))
    more = {"a_round": 2, "evaluate_config": ConfigRecord(TRAIN)}
    return train_nets(strategy, unreliable, TRAIN, rounds, headed(build, head), **more)


# --- reductions to FedAvg, to the last bit --------------------------------------------

REDUCTIONS = {
    "finetune": (lambda: Finetune(FinetuneOptions(epochs=3)), FinetuneClient, small_net),
    "finetune, nothing": (lambda: Finetune(FinetuneOptions(epochs=0)), FinetuneClient, small_net),
    "fedbn without normalisation": (lambda: FedBN([]), FedBNClient, small_net),
    "partial, all": (lambda: Partial(PartialOptions("*")), FilteredClient, small_net),
    "partial, all of a normalised net": (
        lambda: Partial(PartialOptions("*")),
        FilteredClient,
        normalised,
    ),
    "fedbabu without a head": (
        lambda: FedBABU(["none."], FedBABUOptions(0)),
        FedBABUClient,
        small_net,
    ),
    "fedper without a head": (
        lambda: PartialSharing(["none."], "body"),
        PartialClient,
        small_net,
    ),
    "fedala with weights of one": (
        lambda: FedALA(FedALAOptions(layers=9, rate=0.0)),
        FedALAClient,
        small_net,
    ),
    "fedala without layers": (lambda: FedALA(FedALAOptions(layers=0)), FedALAClient, normalised),
    "per-fedavg, alpha 0": (
        lambda: PerFedAvg(PerFedAvgOptions(alpha=0.0)),
        PerFedAvgClient,
        small_net,
    ),
    "per-fedavg, alpha 0, with differences": (
        lambda: PerFedAvg(PerFedAvgOptions(alpha=0.0, hessian="differences")),
        PerFedAvgClient,
        small_net,
    ),
}
SAME_SCORE = [name for name in REDUCTIONS if name != "finetune"]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_it_is_fedavg_where_what_differs_is_taken_away(name, monkeypatch):
    # which refuses to share everything
    monkeypatch.setattr(PartialSharing, "check", lambda *_: None)
    make, kind, build = REDUCTIONS[name]
    wanted, _, of_fedavg = run(FedAvg(), FedAvgClient, build=build)
    actual, _, result = run(
        make(), kind, head=("none.",) if "without a head" in name else HEAD, build=build
    )
    assert_arrays(actual, wanted)
    for number, metrics in of_fedavg.evaluate_metrics_clientapp.items():
        assert (result.evaluate_metrics_clientapp[number]["loss"] == metrics["loss"]) == (
            name in SAME_SCORE
        ), number


# --- fine-tuning ----------------------------------------------------------------------


def test_finetune_scores_the_model_that_fedavgs_client_would_send_next():
    data, sent = blobs(1), get_arrays(small_net(5))
    config = {**TRAIN, "server-round": 3}
    trained, _, _ = FedAvgClient(small_net, data, 1).fit(
        sent, {**config, "local-epochs": 4, "learning-rate": 0.01, "lr-decay": 1.0}
    )
    client = FinetuneClient(small_net, data, 1)
    loss, _, metrics = client.evaluate(
        sent, {**config, "finetune-epochs": 4, "finetune-rate": 0.01}
    )
    plain = FedAvgClient(small_net, data, 1)
    assert loss == plain.evaluate(trained, config)[0]
    assert metrics["global-loss"] == plain.evaluate(sent, config)[0] != loss
    decayed, _, _ = FedAvgClient(small_net, data, 1).fit(sent, {**config, "local-epochs": 2})
    assert (
        client.evaluate(sent, {**config, "finetune-epochs": 2, "finetune-rate": 0.0})[0]
        == plain.evaluate(decayed, config)[0]
    )


# --- parts of a model -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "home"),
    [
        (
            lambda: FedBN(
                ["2.weight", "2.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked"]
            ),
            FedBNClient,
            "2.",
        ),
        (lambda: Partial(PartialOptions("*", "3.*")), FilteredClient, "3."),
        (lambda: Partial(PartialOptions("1.*, 2.*")), FilteredClient, "3."),
        (lambda: PartialSharing(HEAD, "body"), PartialClient, "3."),
        (lambda: PartialSharing(HEAD, "head"), PartialClient, ("1.", "2.")),
        (lambda: FedRep(HEAD, FedRepOptions(2, 1)), FedRepClient, "3."),
    ],
)
def test_what_stays_home_is_in_no_message_and_differs_between_clients(
    make, kind, home, monkeypatch
):
    exchanges = exchanged(monkeypatch)
    final, stores, _ = run(make(), kind, build=normalised)
    seen = {name for _, *both in exchanges for name, _ in arrays_in(*both)}
    start = initial(normalised)
    assert seen == {name for name in start if not name.startswith(home)}
    for name, array in final.items():
        assert np.array_equal(array, start[name]) == name.startswith(home), name
    kept = [stores[i].load("private", {}, before=False) for i in range(3)]
    assert [a.shape for a in kept[0]] == [
        a.shape for name, a in start.items() if name.startswith(home)
    ]
    assert not np.array_equal(kept[0][0], kept[2][0])


def test_sharing_all_but_the_head_by_name_is_fedper():
    result, mine, _ = run(Partial(PartialOptions("*", "3.*")), FilteredClient)
    wanted, theirs, _ = run(PartialSharing(HEAD, "body"), PartialClient)
    assert_arrays(result, wanted)
    for i in range(3):
        assert_arrays(mine[i].load("private", {}, False), theirs[i].load("private", {}, False))


def test_fedbabus_body_is_trained_under_the_initial_head_and_the_model_tuned_before_use():
    _, stores, _ = run(FedBABU(HEAD), FedBABUClient)
    client = FedBABUClient(headed(), blobs(1), 1, stores[1])
    head = client.fresh_arrays("model", TRAIN, own=False)[2:]
    assert_arrays(stores[1].load("private", {}, before=False), head)
    body = get_arrays(small_net(4))[:2]
    config = {**TRAIN, "server-round": 2, "share": "body"}
    after = {}
    for part in ("all", "head", "body"):
        client.evaluate(body, {**config, "fedbabu-epochs": 3, "fedbabu-part": part})
        after[part] = get_arrays(client.model)
    plain = FedAvgClient(small_net, blobs(1), 1)
    trained, _, _ = plain.fit([*body, *head], {**config, "local-epochs": 3})
    assert_arrays(after["all"], trained)
    changed = {
        part: [not np.array_equal(a, b) for a, b in zip(now, [*body, *head], strict=True)]
        for part, now in after.items()
    }
    assert changed == {
        "all": [True] * 4,
        "head": [False, False, True, True],
        "body": [True, True, False, False],
    }
    loss, _, metrics = client.evaluate(body, {**config, "fedbabu-epochs": 3, "fedbabu-part": "all"})
    assert [loss, metrics["global-loss"]] == [
        plain.evaluate(arrays, config)[0] for arrays in (trained, [*body, *head])
    ]


# --- FedALA ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "rate"), [(0, 0.5), (2, 0.5), (2, 30.0)])
def test_fedala_learns_weights_along_their_gradient_and_starts_there(count, rate):
    """The reference descends in W by autograd, in the last layer; its start is what
    training starts from, and what is scored.
    """
    client = FedALAClient(small_net, blobs(1), 4)
    old, new = get_arrays(small_net(1)), get_arrays(small_net(2))
    before = [*old, *(np.full(a.shape, 0.7, np.float32) for a in new[2:]), np.array([count])]
    client.store.save("fedala", before, {})
    config = {
        **TRAIN,
        "learning-rate": 1e-12,
        "server-round": 3,
        "fedala-layers": 1,
        "fedala-rate": rate,
        "fedala-samples": 0.5,
        "fedala-start-epochs": 4,
    }
    with_samples = list(client.samples(1 if count else 4, config))
    assert [len(y) for _, y in with_samples] == [18] * (1 if count else 4)
    sent, _, _ = client.fit([a.copy() for a in new], config)

    net = small_net(0).double()
    names = [name for name, _ in net.named_parameters()]
    a, b = ([torch.tensor(array, dtype=torch.float64) for array in arrays] for arrays in (old, new))
    w = [torch.full_like(t, 0.7).requires_grad_() for t in b[2:]]

    def mixed():
        return [*b[:2], *(x + v * (y - x) for x, y, v in zip(a[2:], b[2:], w, strict=True))]

    for xs, ys in with_samples:
        for x, y in zip(xs.split(8), ys.split(8), strict=True):
            loss = functional.cross_entropy(
                functional_call(net, dict(zip(names, mixed(), strict=True)), x.double()), y
            )
            for v, g in zip(w, torch.autograd.grad(loss, w), strict=True):
                v.data.sub_(rate * g).clamp_(0, 1)
    assert_arrays(sent, mixed(), rtol=0.0001, atol=1e-05)
    kept = client.store.load("fedala", {}, before=False)
    assert_arrays(kept[4:6], w, rtol=0.0001, atol=1e-05)
    assert kept[6] == count + 1
    assert max(float(np.abs(v - 0.7).max()) for v in kept[4:6]) > 0.02
    assert (rate == 30.0) == any((v == 0).any() or (v == 1).any() for v in kept[4:6])  # clipped

    client.store.save("fedala", before, {})
    loss, _, metrics = client.evaluate([a.copy() for a in new], config)
    at_mixture = [t.detach().float().numpy() for t in mixed()]
    plain = FedAvgClient(small_net, blobs(1))
    assert [loss, metrics["global-loss"]] == pytest.approx(
        [plain.evaluate(arrays, config)[0] for arrays in (at_mixture, new)], rel=1e-4
    )


def test_learning_fedalas_weights_leaves_running_statistics_as_received():
    client = FedALAClient(normalised, blobs(1), 4)
    config = {
        **TRAIN,
        "fedala-layers": 2,
        "fedala-rate": 1.0,
        "fedala-samples": 0.8,
        "fedala-start-epochs": 2,
    }
    client.fit(get_arrays(normalised(1)), {**config, "server-round": 1})
    sent = get_arrays(normalised(2))
    client.evaluate(sent, {**config, "server-round": 1})
    for name, result, want in zip(
        client.model.state_dict(), get_arrays(client.model), sent, strict=True
    ):
        assert np.array_equal(result, want) == (
            name not in ("2.weight", "2.bias", "3.weight", "3.bias")
        ), name


# --- Fed-RoD --------------------------------------------------------------------------


@pytest.mark.parametrize("build", [small_net, normalised])
def test_fedrods_own_head_learns_the_sum_on_a_body_it_does_not_move(build):
    data = blobs(1)
    # one of three classes is not there: log 0 takes it out of the balanced softmax
    there = data.train.y != 2
    data = ClientData(Split(data.train.x[there], data.train.y[there]), data.validation, data.test)
    config = {**TRAIN, "server-round": 1}
    client = FedRoDClient(headed(build), data, 4)
    got, _, _ = client.fit(get_arrays(build(5)), config)
    net = build(5)
    p = {
        name: t.detach().clone().requires_grad_()
        for name, t in net.named_parameters()
        if name.startswith("3.")
    }
    optimiser = torch.optim.SGD(
        [*net.parameters(), *p.values()], lr=0.05, momentum=0.9, weight_decay=1e-3
    )
    log_counts = torch.bincount(data.train.y, minlength=3).float().log()
    for x, y in client.batches(TrainOptions.from_config(config), config):
        optimiser.zero_grad()
        net.train()
        g = net(x)
        body = net[:3](x).detach() if build is small_net else _with_batch_statistics(net, x)
        (
            functional.cross_entropy(g + log_counts, y)
            + functional.cross_entropy(
                g.detach() + functional.linear(body, p["3.weight"], p["3.bias"]), y
            )
        ).backward()
        optimiser.step()
    kept = client.store.load("fedrod", {}, before=False)
    wanted = [*net.state_dict().values(), *p.values()]
    assert_arrays([*got, *kept], wanted, rtol=0.001, atol=2e-05)
    net.eval()
    outputs = net(data.test.x) + functional.linear(net[:3](data.test.x), p["3.weight"], p["3.bias"])
    wanted = [
        functional.cross_entropy(out, data.test.y).item() for out in (outputs, net(data.test.x))
    ]
    loss, _, metrics = client.evaluate(got, config)
    # the other never trained: the generic model
    other = FedRoDClient(headed(build), data, 5).evaluate(got, config)[0]
    assert [loss, metrics["global-loss"]] == pytest.approx(wanted, rel=1e-3)
    assert other == metrics["global-loss"]


def _with_batch_statistics(net, x):
    return functional.batch_norm(
        net[1](torch.flatten(x, 1)), None, None, net[2].weight, net[2].bias, training=True
    ).detach()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: run(Partial(PartialOptions("lora_*")), FilteredClient),
            r"none of the arrays is shared: share at least one of 1\.weight, 1\.bias, 3",
        ),
        (
            lambda: FedRoDClient(headed(partial(small_net, classes=1)), blobs(1), 4).fit(
                get_arrays(small_net(0, classes=1)), TRAIN
            ),
            "one output per class",
        ),
        (
            lambda: Floco(("nothing",))._first(
                ArrayRecord({name: Array(a) for name, a in initial().items()})
            ),
            "no such arrays",
        ),
    ],
)
def test_nets_without_what_a_method_needs_are_refused(call, message):
    refused(call, message)


# --- Per-FedAvg -----------------------------------------------------------------------


class Quadratic(PerFedAvgClient):
    """The loss ``1/2 (w - t)' H (w - t)`` on all samples: its meta-gradient is ``(I -
    alpha H) H (I - alpha H) (w - t)``.
    """

    H = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    T = torch.tensor([1.0, -1.0])

    def loss(self, x, y):
        way = self.model.w - self.T
        return 0.5 * way @ self.H @ way


@pytest.mark.parametrize("hessian", ["none", "differences"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_per_fedavg_descends_the_meta_gradient(hessian, momentum):
    config = {
        **TRAIN,
        "momentum": momentum,
        "weight-decay": 0.0,
        "per-fedavg-alpha": 0.3,
        "per-fedavg-hessian": hessian,
    }
    (result,), _, _ = Quadratic(lambda seed: Scalar(2), blobs(1), 0).fit(
        [np.float32([4.0, 3.0])], config
    )
    w, velocity = torch.tensor([4.0, 3.0]), torch.zeros(2)
    shrink = torch.eye(2) - 0.3 * Quadratic.H
    for _ in range(10):
        meta = Quadratic.H @ shrink @ (w - Quadratic.T)
        velocity = momentum * velocity + (shrink @ meta if hessian == "differences" else meta)
        w = w - 0.05 * velocity
    np.testing.assert_allclose(result, w, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_per_fedavg_is_scored_after_steps_along_the_full_gradient(steps):
    data, sent = blobs(1), get_arrays(small_net(5))
    loss, _, metrics = PerFedAvgClient(small_net, data, 0).evaluate(
        sent, {**TRAIN, "per-fedavg-alpha": 0.2, "per-fedavg-steps": steps}
    )
    net = small_net(5)
    for _ in range(steps):
        gradients = torch.autograd.grad(
            functional.cross_entropy(net(data.train.x), data.train.y), list(net.parameters())
        )
        for p, g in zip(net.parameters(), gradients, strict=True):
            p.data -= 0.2 * g
    assert loss == pytest.approx(
        functional.cross_entropy(net(data.test.x), data.test.y).item(), rel=1e-4
    )
    assert metrics["global-loss"] == FedAvgClient(small_net, data).evaluate(sent, TRAIN)[0]
    assert (loss == metrics["global-loss"]) == (steps == 0)


def test_per_fedavgs_two_gradients_of_a_step_are_of_different_mini_batches():
    class Watched(PerFedAvgClient):
        def loss(self, x, y):
            batches.append(x.flatten().tolist())
            return super().loss(x, y)

    batches = []
    Watched(small_net, blobs(1), 0).fit(
        get_arrays(small_net(5)), {**TRAIN, "per-fedavg-alpha": 0.1, "per-fedavg-hessian": "none"}
    )
    assert len(batches) == 1 + 2 * 10
    inner, outer = batches[0::2][:-1], batches[1::2]  # the last adapted model is not used
    assert len(outer) == 10
    assert all(a != b for a, b in zip(inner, outer, strict=True))


# --- Floco ----------------------------------------------------------------------------

# Corners descend by their weights, points go to the clients whose updates they fit, the
# centre is the server's model.

WEIGHT, BIAS = "3.weight", "3.bias"
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
    named[WEIGHT] = sum(a * torch.tensor(w) for a, w in zip(weights, corners, strict=True))
    named = {name: t.requires_grad_() for name, t in named.items()}
    loss_at(named, own.data.train).backward()
    step = {name: 0.1 * t.grad for name, t in named.items()}
    wanted = [a - step[name].numpy() for name, a in initial(seed=5).items()]
    of_head = [a - w * step[WEIGHT].numpy() for w, a in zip(weights, corners, strict=True)]
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
    equal = {name: np.stack([initial()[name]] * 3) for name in (WEIGHT, BIAS)}
    monkeypatch.setattr(Floco, "_first", lambda *_: equal)

    def run(strategy, kind, rate):
        return played(strategy, 2, 1, {**ONE, "learning-rate": rate}, kind)[0]

    ours = run(Floco(("3.",), FlocoOptions(corners=3)), FlocoClient, 0.3)
    whole, third = run(FedAvg(), FedAvgClient, 0.3), run(FedAvg(), FedAvgClient, 0.1)
    assert_arrays(ours, {**whole, WEIGHT: third[WEIGHT], BIAS: third[BIAS]}, atol=1e-6)


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
    np.testing.assert_allclose(final[WEIGHT], strategy.corners[WEIGHT].mean(0), atol=1e-6)
    own, point, corners = client(1), strategy.points[1], strategy.corners
    arrays = [corners[name][0] if name in corners else a for name, a in final.items()]
    others = [corners[name][j] for j in (1, 2) for name in (WEIGHT, BIAS)]
    config = {**ONE, **FlocoSent(3, [2, 3], 0.1, point.tolist()).to_config()}
    loss, _, metrics = own.evaluate([*arrays, *others], config)
    at_point = {**final, **{name: np.tensordot(point, w, 1) for name, w in corners.items()}}
    assert [loss, metrics["global-loss"]] == pytest.approx(
        [loss_at(model, own.data.test).item() for model in (at_point, final)], rel=1e-5
    )


def test_the_first_corners_lie_around_the_initial_head_the_same_for_a_seed():
    record = ArrayRecord({name: Array(a) for name, a in initial().items()})
    one, same, other = (Floco(("3.",), seed=seed)._first(record) for seed in (0, 0, 1))
    np.testing.assert_allclose(one[WEIGHT].mean(0), initial()[WEIGHT], atol=1e-6)
    assert_arrays(one, same)
    assert not np.array_equal(one[WEIGHT], other[WEIGHT])
    assert np.ptp(one[BIAS], axis=0).max() < 1e-6


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
