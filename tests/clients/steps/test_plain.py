"""Local steps are those of the plain loop: to the last bit in double precision. What a
step adds to the gradient, what a client draws, and what a part of a round is.
"""

import itertools

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient
from torch import nn
from torch.nn import functional

from fedapps import clients, strategies
from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.schedule import effective_steps
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.common.steps import Eager
from fedapps.algorithms.contract.sent import PartialWork, Sent
from fedapps.clients import (
    ClientData,
    FedAvgClient,
    LocalClient,
    MessageStore,
    PFedMeClient,
    Split,
    TrainOptions,
    WarmStartClient,
    to_client_app,
)
from fedapps.clients.base.options import OPTIMIZERS
from fedapps.clients.base.training import get_arrays, set_arrays
from fedapps.clients.steps import partial_work, plain
from fedapps.clients.steps.batches import mini_batches
from fedapps.clients.steps.sgd import SGD
from fedapps.clients.steps.trained_net import why_all_steps
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import Local
from fedapps.testing import exams
from fedapps.testing.problems import Blobs
from tests.clients.federation import TRAIN, federate, initial
from tests.clients.steps.traced import Traced
from tests.helpers import Clock, assert_arrays, blobs, refused, small_net, that_fails


class Unused(nn.Module):
    """``other`` is never used or, ``sometimes``, in some of the steps."""

    def __init__(self, sometimes):
        super().__init__()
        self.last, self.other, self.sometimes = nn.Linear(16, 3), nn.Linear(16, 3), sometimes

    def forward(self, x):
        z = x.flatten(1)
        return self.last(z) + (self.other(z) if self.sometimes and z[0, 0] > 0 else 0)


def normed(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), *layers, nn.Linear(6, 3))


NETS = {
    "unused": (lambda: Unused(False), 33, [10, 10, 10, 3]),
    "unused in some steps": (lambda: Unused(True), 33, [10, 10, 10, 3]),
    "batch norm": (lambda: normed(nn.BatchNorm1d(6)), 31, [10, 10, 11]),
    "batch norm, two at the end": (lambda: normed(nn.BatchNorm1d(6)), 32, [10, 10, 10, 2]),
    "group norm of one": (lambda: normed(nn.GroupNorm(6, 6)), 31, [10, 10, 11]),
    "layer norm": (lambda: normed(nn.LayerNorm(6)), 31, [10, 10, 10, 1]),
    "dropout": (lambda: normed(nn.Dropout(0.5)), 31, [10, 10, 10, 1]),
    "batch norm of images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)
        ),
        31,
        [10, 10, 10, 1],
    ),
}


@pytest.mark.parametrize(
    ("name", "optimizer", "momentum", "decay"),
    # torch's Adam counts the steps of each parameter apart
    [
        (name, optimizer, 0.9, 0.01)
        for name in NETS
        for optimizer in OPTIMIZERS
        if optimizer == "sgd" or name != "unused in some steps"
    ]
    + [("layer norm", optimizer, 0.0, 0.0) for optimizer in OPTIMIZERS]
    + [("layer norm", "sgd", 0.9, 0.0), ("layer norm", "sgd", 0.0, 0.01)],
)
def test_nets_of_all_sorts_train_as_in_a_loop_by_hand(name, optimizer, momentum, decay):
    make, count, sizes = NETS[name]
    options = TrainOptions(0.1, 1.0, momentum, decay, 2, 10, optimizer=optimizer)
    x = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train = Split(x, torch.arange(count) % 3)
    with torch_seeded(0):
        net, work = make().double(), make().double()
    client = FedAvgClient(lambda _: work, ClientData(train, train, train), model=work)
    result, _, metrics = client.fit(
        get_arrays(net), {**options.to_config(), "seed": 7, "server-round": 2}
    )

    def by_hand():
        rng = generator(7, "batches", 0, 2)
        for _ in range(2):
            order = torch.from_numpy(rng.permutation(count))
            yield from zip(train.x[order].split(sizes), train.y[order].split(sizes), strict=True)

    with torch_seeded(derived_seed(7, "dropout", 0, 2)):
        loss = plain.train(
            net.train(), functional.cross_entropy, by_hand(), 0.1, momentum, decay, optimizer
        )
    for array, (key, tensor) in zip(result, net.state_dict().items(), strict=True):
        assert torch.equal(torch.from_numpy(array), tensor), key
    assert metrics["loss"] == loss / (2 * count)
    assert client.steps_of(options) == 2 * len(sizes)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
@pytest.mark.parametrize(("more", "term", "scale"), [(0.0, 0.0, 1.0), (0.2, -0.7, 0.3)])
def test_sgd_equals_torch(momentum, decay, more, term, scale, fused, monkeypatch):
    """Alone, and with everything that a method adds: a decay of its own, terms, a
    scale of the gradients.
    """
    if not fused:  # a PyTorch without the fused operation
        monkeypatch.delattr(torch, "_fused_sgd_", raising=False)
    torch.manual_seed(0)
    ours = [torch.randn(3, 2), torch.randn(4)]
    theirs = [t.clone().requires_grad_() for t in ours]
    optimiser = SGD(momentum, decay)
    velocity = optimiser.velocity(ours)
    reference = torch.optim.SGD(theirs, 0.1, momentum=momentum, weight_decay=decay + more)
    for _ in range(10):
        gradients, extra = ([torch.randn_like(t) for t in ours] for _ in range(2))
        for tensor, gradient, other in zip(theirs, gradients, extra, strict=True):
            tensor.grad = scale * gradient + term * other
        optimiser(ours, gradients, velocity, 0.1, more, [(extra, term)] if term else [], scale)
        reference.step()
    assert_arrays(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "wanted"), [(100.0, 1.0), (0.01, 0.01)])
def test_a_bound_shortens_long_gradients_and_no_others(size, wanted):
    tensors = [torch.zeros(2), torch.zeros(1)]
    direction = [torch.tensor([2.0, 1.0]) / 3, torch.tensor([2.0]) / 3]  # of norm 1
    SGD(0.0, 0.0, max_norm=1.0)(tensors, [size * d for d in direction], [], 0.1)
    assert_arrays(tensors, [-0.1 * wanted * d for d in direction], rtol=1e-5)


def test_a_client_repeats_its_round_and_no_other():
    def fit(client_id, config):
        return FedAvgClient(small_net, blobs(), client_id).fit(get_arrays(small_net(1)), config)[0]

    base = fit(0, {"seed": 1, "server-round": 2})
    assert_arrays(base, fit(0, {"seed": 1, "server-round": 2}))
    for client, config in [
        (1, {"seed": 1, "server-round": 2}),
        (0, {"seed": 2, "server-round": 2}),
        (0, {"seed": 1, "server-round": 3}),
    ]:
        assert not np.array_equal(base[0], fit(client, config)[0])


def test_learning_rate_decays_once_a_round():
    options = TrainOptions(learning_rate=1.0, lr_decay=0.5)
    assert [options.rate(t) for t in (1, 2, 4)] == [1.0, 0.5, 0.125]
    options = TrainOptions(learning_rate=1.0, lr_decay=0.5, lr_decay_every=3)
    assert [options.rate(t) for t in (1, 3, 4, 6, 7)] == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own[:3], "3 arrays received, but the model has 4"),
        (
            lambda own: [np.zeros((8, 5), np.float32), *own[1:]],
            r"array '1.weight' has shape \(8, 5\), but the client's model has \(8, 4\)",
        ),
    ],
)
def test_arrays_of_another_model_are_refused(change, message):
    refused(lambda: set_arrays(small_net(0), change(get_arrays(small_net(0)))), message)


def test_dropout_repeats_and_leaves_the_process_alone():
    net = lambda seed: torch.nn.Sequential(small_net(seed), torch.nn.Dropout(0.5))
    config = {"server-round": 2, "local-epochs": 1, "batch-size": 100}
    trained = []
    for client, seed in ((0, 1), (0, 1), (1, 1), (0, 2)):
        torch.rand(3)  # whatever else a process draws
        state = torch.get_rng_state()
        one = FedAvgClient(net, blobs(), client)
        trained.append(one.fit(get_arrays(net(0)), {**config, "seed": seed})[0][0])
        assert torch.equal(torch.get_rng_state(), state)
    assert [np.allclose(trained[0], other) for other in trained] == [True, True, False, False]


class Spoilt(torch.nn.Module):
    """A layer that fails at its second mini-batch."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        if self.seen == 2:
            raise RuntimeError("no memory")
        return x


@pytest.mark.parametrize("kind", [FedAvgClient, PFedMeClient])
def test_an_error_in_training_leaves_the_process_alone_too(kind):
    """Also while the error object is alive: otherwise the generator would be reset when
    it is freed, between another client's draws.
    """
    net = torch.nn.Sequential(small_net(0), Spoilt())
    config = {
        "seed": 1,
        "local-epochs": 1,
        "pfedme-lambda": 1.0,
        "pfedme-inner-steps": 2,
        "pfedme-rate": 0.0,
        "pfedme-batches": "same",
    }
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no memory") as kept:
        kind(small_net, blobs(), 0, model=net).fit(get_arrays(net), config)
    assert torch.equal(torch.get_rng_state(), state)
    assert kept.value


# --- a part of a round's steps --------------------------------------------------------

# The first ones of the whole training, no others.

OPTIONS = TrainOptions(0.1, 1.0, 0.9, 0.01, local_epochs=2, batch_size=10)
TOLD = {**OPTIONS.to_config(), "seed": 7, "server-round": 2}
#: Samples of a client after each of its six steps: 25 are 10 + 10 + 5.
ENDS = [10, 20, 25, 35, 45, 50]


def samples(n=25):
    data = blobs(n=60).train
    return Split(data.x[:n].double(), data.y[:n])


def client(kind=FedAvgClient, net=lambda seed: small_net(seed).double()):
    train = samples()
    return kind(net, ClientData(train, train, train))


def start():
    return get_arrays(small_net(5).double())


def after(steps, options=OPTIONS):
    """Return the model after some steps of the plain loop, and the mean loss."""
    net, data = small_net(0).double(), samples()
    set_arrays(net, start())
    batches = mini_batches(data, options, generator(7, "batches", 0, 2), net)
    loss = plain.train(
        net, functional.cross_entropy, itertools.islice(batches, steps), 0.1, 0.9, 0.01
    )
    return get_arrays(net), loss / ENDS[steps - 1]


@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("extra", [0.0, 0.05])
def test_a_share_is_the_first_steps_of_the_whole_training(steps, extra):
    one, share = client(), ENDS[steps - 1] / 50
    arrays, number, metrics = one.fit(start(), {**TOLD, "work-share": min(share + extra, 1.0)})
    wanted, loss = after(steps)
    assert_arrays(arrays, wanted)
    # the loss is that of the samples that were seen, the weight the usual one
    assert (metrics["loss"], number, one.came.share, one.came.seconds) == (loss, 25, share, None)


def test_at_least_one_step_is_taken():
    arrays, *_ = client().fit(start(), {**TOLD, "work-share": 0.01})
    assert_arrays(arrays, after(1)[0])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("epochs", "steps"), [(0.01, 1), (0.9, 2), (1.0, 3), (1.4, 4), (1.9, 5)])
def test_epochs_in_part_are_the_first_steps_of_whole_ones(epochs, steps, half):
    told = {**TOLD, "local-epochs": epochs}
    arrays, _, metrics = client().fit(start(), told | ({"work-share": 1.0} if half else {}))
    wanted, loss = after(steps)
    assert_arrays(arrays, wanted)
    options = TrainOptions.from_config(told)
    assert (metrics["loss"], client().steps_of(options)) == (loss, steps)
    assert options.effective_steps(25) == effective_steps(steps, 0.9)
    assert type(options.local_epochs) is (int if epochs == 1 else float)  # for range(...)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(0.0, 1), (2.5, 1), (3.9, 1), (4.0, 3), (4.5, 3), (5.0, 4), (6.99, 5), (7.0, 6), (99.0, 6)],
)
def test_a_client_with_seconds_stops_before_the_step_that_would_pass_them(
    monkeypatch, seconds, steps
):
    # the first step takes 2 s, each of the others 1 s; a step is taken to be as long as
    # the one before: after the first, 2 s
    hands, step = Clock(50.0), Eager.step
    monkeypatch.setattr(partial_work, "time", hands)

    def takes_time(self, *args):
        hands.now += 2.0 if hands.now == 50.0 else 1.0
        return step(self, *args)

    monkeypatch.setattr(Eager, "step", takes_time)
    one = client()
    arrays, _, metrics = one.fit(start(), {**TOLD, "work-seconds": seconds})
    wanted, loss = after(steps)
    assert_arrays(arrays, wanted)
    assert (metrics["loss"], one.came.share) == (loss, ENDS[steps - 1] / 50)
    assert one.came.seconds == hands.now - 50.0 <= max(seconds, 2.0)


@pytest.mark.parametrize("key", ["work-share", "work-seconds"])
def test_what_is_left_out_draws_nothing_from_others(key):
    # dropout draws from torch's own generator, which training sets back
    net = lambda seed: torch.nn.Sequential(small_net(seed), torch.nn.Dropout()).double()
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    client(net=net).fit(get_arrays(net(5)), {**TOLD, key: 0.5 if key.endswith("share") else 0.0})
    assert torch.equal(torch.rand(3), wanted)


def test_a_client_without_a_request_says_nothing_even_if_it_was_asked_before():
    one = client()
    one.fit(start(), {**TOLD, "work-share": 0.5})
    arrays, *_ = one.fit(start(), TOLD)
    assert one.came is None
    assert_arrays(arrays, after(6)[0])


def test_compiled_steps_end_at_the_same_place(tmp_path):
    # of 72 samples 36 + 20, in a graph of four steps, + 5
    for key, value, share in (("work-share", 0.9, 61 / 72), ("work-seconds", 1e9, 1.0)):
        results = []
        for compiler in (None, Traced(tmp_path)):
            one = FedAvgClient(small_net, blobs())
            one.compiler = compiler
            arrays, _, metrics = one.fit(
                get_arrays(small_net(0)),
                {**exams.CONFIG, "compile": "on", "batch-size": 5, key: value},
            )
            results.append([*arrays, np.array(metrics["loss"])])
            assert one.came.share == share
        assert_arrays(*results, rtol=2e-4, atol=2e-5)


def test_a_class_with_its_own_training_declares_that_it_may_end_early():
    own = type("Own", (FedAvgClient,), {"train": lambda self, config: 0.0})
    assert why_all_steps(own).startswith("Own has its own training")
    assert not why_all_steps(type("Declares", (own,), {"needs_all_steps": ""}))


def count_steps(method, monkeypatch, more):
    """Return how many steps a client takes in a first round, and how far it came."""
    problem, both, counts = Blobs((60, 25)), exams.pair(method), []
    step = Eager.step
    monkeypatch.setattr(Eager, "step", lambda self, *args: counts.append(1) or step(self, *args))
    options = getattr(both.strategy(problem), "train_options", lambda *_: {})(1, 1)
    of_wrapped = {"propfair-m": 5.0} if method == "propfair" else {}
    of_wrapped = {"ifca-sent": [0], "ifca-clusters": 1} if method == "ifca" else of_wrapped
    config = {**exams.CONFIG, **options, **of_wrapped, **more, "server-round": 1}
    one = both.client(problem, 0, 2, MessageStore(RecordDict()))
    sent = [np.asarray(a) for a in problem.initial_arrays().values()]
    shared = one.shared(config) if hasattr(one, "shared") else [True] * len(sent)
    one.fit([a for a, goes in zip(sent, shared, strict=True) if goes], config)
    monkeypatch.undo()
    return len(counts), one.came


HEEDING = """fedavg fedprox fedper lg-fedavg fedbn partial fedbabu apfl superfed-mm superfed-lm
fedala ifca floco fedrod per-fedavg finetune propfair"""


@pytest.mark.parametrize("method", [*HEEDING.split(), "ditto", "fedrep", "pfedme", "feddyn"])
def test_a_method_s_client_takes_so_many_steps_or_does_not_say_so(method, monkeypatch):
    whole, came = count_steps(method, monkeypatch, {})
    assert came is None
    part, came = count_steps(method, monkeypatch, {"work-share": 0.5})
    heeds = method in HEEDING.split()
    assert (part, came and came.share) == ((whole / 2, 0.5) if heeds else (whole, None))


def test_the_reply_says_how_far_it_came_also_of_a_half_of_a_warm_start():
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.asarray(a) for a in start()]),
            "config": ConfigRecord({**TOLD, "work-share": 0.5, "warm-start-half": "then"}),
        }
    )
    halves = {"first": NumPyClient, "then": client}
    for answers in (client, lambda: WarmStartClient(halves)):
        grid = InlineGrid(to_client_app(lambda context, answers=answers: answers()), 1)
        (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "train")])
        assert reply.content["metrics"]["work-share"] == 0.5


def test_no_method_sends_something_else_under_these_names():
    """They are added to the messages of any method."""
    for package in (clients, strategies):
        for name in package.__all__:
            getattr(package, name)
    kinds = [Sent]
    for kind in kinds:
        kinds += kind.__subclasses__()
    others = set(itertools.chain(*(k.keys() for k in kinds if k is not PartialWork)))
    assert len(others) > 50
    assert others.isdisjoint(PartialWork.keys())


# --- local, under sampling ------------------------------------------------------------

# Every client trains, and takes as many steps as a client of a sampled method on
# average.

STEPS = 12  # 36 samples in batches of 7, the last of one sample, twice


def run(rounds, a_round, clients=5, fails=lambda i, server_round: False, **config):
    """Return the stores of the clients after ``rounds`` rounds in which another method
    would train ``a_round`` of them, the result, and the steps of each client by round.
    """
    stores, taken = {}, []

    def make(i, store):
        stores[i] = store
        return that_fails(LocalClient, fails)(small_net, blobs(i), i, store)

    def note(_):
        kept = [store.load("progress", {}, before=False) for store in stores.values()]
        taken.append([int(progress[0][1]) for progress in kept])

    asked = {"callbacks": [note], "evaluate_every": 0}
    _, _, result = federate(
        Local(), make, clients, initial(), rounds, {**TRAIN, **config}, a_round, **asked
    )
    return stores, result, taken


def alone(i, visits, **config):
    """Return the model of a client that trains alone for this many rounds of a
    federated client.
    """
    client = FedAvgClient(small_net, blobs(i), i)
    arrays = client.fresh_arrays("model", TRAIN, own=False)
    for visit in range(1, visits + 1):
        arrays, _, _ = client.fit(arrays, {**TRAIN, **config, "server-round": visit})
    return arrays


@pytest.mark.parametrize(
    ("rounds", "a_round", "visits"), [(10, 1, 2), (5, 2, 2), (3, 5, 3), (3, 0, 3)]
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_in_shares_is_the_same_as_whole_rounds_of_training(
    rounds, a_round, visits, optimizer
):
    """Ten fifths of a round of 12 steps (2, 2, 3, ... at a time), momentum and partial
    batches included, are two rounds.
    """
    stores, *_ = run(rounds, a_round, optimizer=optimizer)
    for i in range(5):
        assert_arrays(
            stores[i].load("model", {}, before=False),
            alone(i, visits, optimizer=optimizer),
            rtol=1e-05,
            # Adam divides by roots that may be small: processors differ more
            atol=1e-05 if optimizer == "sgd" else 1e-04,
        )


@pytest.mark.parametrize(
    ("a_round", "after"),
    [(1, [2, 4, 7, 9, 12, 14]), (2, [4, 9, 14, 19, 24, 28]), (5, [12, 24, 36, 48, 60, 72])],
)
def test_after_t_rounds_every_client_has_taken_its_share_of_the_steps(a_round, after):
    assert run(len(after), a_round)[2] == [[steps] * 5 for steps in after]


def test_what_counts_as_a_step_is_a_step(monkeypatch):
    taken, step = [], Eager.step
    monkeypatch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
    monkeypatch.setattr(Eager, "step", lambda self, *args: taken.append(1) or step(self, *args))
    run(7, 1)
    assert len(taken) == 5 * int(7 * STEPS / 5)


def test_a_share_of_less_than_a_step_is_carried_over():
    # two steps a visit
    _, result, taken = run(8, 1, clients=15, **{"local-epochs": 1, "batch-size": 18})
    assert taken == [[0] * 15] * 7 + [[1] * 15]
    assert ["loss" in metrics for metrics in result.train_metrics_clientapp.values()] == [
        False
    ] * 7 + [True]


def test_a_client_that_is_out_of_reach_misses_its_share_of_that_round_only():
    away = lambda i, server_round: i == 3 and server_round in (2, 3)
    assert run(5, 2, fails=away)[2][-1] == [24, 24, 24, 14, 24]
