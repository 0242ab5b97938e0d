"""A part of a round's local steps: the first ones of the whole training, no others."""

import itertools

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient
from torch.nn import functional

from fedapps import clients, strategies
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Eager
from fedapps.algorithms.contract.sent import PartialWork, Sent
from fedapps.clients import (
    ClientData,
    FedAvgClient,
    MessageStore,
    Split,
    TrainOptions,
    WarmStartClient,
    to_client_app,
)
from fedapps.clients.base.training import get_arrays, set_arrays
from fedapps.clients.steps import partial_work, plain
from fedapps.clients.steps.batches import mini_batches
from fedapps.clients.steps.trained_net import why_all_steps
from fedapps.engines.inline import InlineGrid
from fedapps.testing import exams
from fedapps.testing.problems import Blobs
from tests.clients.steps.traced import Traced
from tests.helpers import assert_arrays, blobs, small_net

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
    assert (metrics["loss"], number) == (loss, 25)
    assert (one.came.share, one.came.seconds) == (share, None)


def test_at_least_one_step_is_taken():
    arrays, *_ = client().fit(start(), {**TOLD, "work-share": 0.01})
    assert_arrays(arrays, after(1)[0])


class Hands:
    """Time that the steps take: 2 s the first one, 1 s each of the others."""

    now = 50.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(0.0, 1), (2.5, 1), (3.9, 1), (4.0, 3), (4.5, 3), (5.0, 4), (6.99, 5), (7.0, 6), (99.0, 6)],
)
def test_a_client_with_seconds_stops_before_the_step_that_would_pass_them(
    monkeypatch, seconds, steps
):
    # a step is taken to be as long as the one before: after the first, 2 s
    hands, step = Hands(), Eager.step
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
