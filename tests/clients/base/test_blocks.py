"""The steps of several clients taken at once are those of each alone: every method,
unequal clients, partial mini-batches, failures.
"""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import nn

from algorithms.common.turns import in_turns
from clients import ClientData, FedAvgClient, Split, to_client_app
from clients.base.adapter import client_id
from clients.base.blocks import Block, Blocks
from clients.base.evaluation import CLASSIFICATION, Objective
from clients.base.regression import regression
from clients.base.store import MessageStore
from clients.base.training import get_arrays
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import FIRST_NODE, answer_for_many
from fedapps.engines.node_grid import NodeGrid
from fedapps.testing import exams
from fedapps.testing.problems import Blobs
from strategies.apfl import APFLOptions
from strategies.base.client_grid import ClientGrid
from strategies.base.rounds import Patience, run_rounds
from strategies.per_fedavg import PerFedAvgOptions
from tests.helpers import blobs, small_net

# Momentum, weight decay, a rate that falls, and mini-batches that do not divide any
# client's samples; one client has fewer than one.
SIZES = (60, 25, 40, 33, 6, 90)
TOLD = {
    **exams.CONFIG,
    "local-epochs": 3,
    "weight-decay": 1e-2,
    "lr-decay": 0.8,
    "batch-size": 5,
    "block": 4,
}
METHODS = [
    "fedavg",
    "fedprox",
    "propfair",
    "scaffold",
    "feddyn",
    "local",
    "finetune",
    "fedper",
    "fedrep",
    "fedbabu",
    "ditto",
    "pfedme",
    "apfl",
    "apfl, adaptive",
    "fedala",
    "per-fedavg",
    "per-fedavg, differences",
    "superfed-mm",
    "superfed-lm",
]
OPTIONS = {
    "apfl, adaptive": APFLOptions(adaptive=True),
    "per-fedavg, differences": PerFedAvgOptions(hessian="differences"),
}
DOUBLE, SINGLE = {"rtol": 1e-9, "atol": 1e-11}, {"rtol": 1e-4, "atol": 2e-5}


class Doubles(Blobs):
    """The same in double precision, where only rounding is as small as this."""

    def model_fn(self, seed):
        return super().model_fn(seed).double()

    def client_data(self, client_id, num_clients):
        data = super().client_data(client_id, num_clients)
        return ClientData(
            *(Split(part.x.double(), part.y) for part in (data.train, data.validation, data.test))
        )


def play(method, choice, *, packed=False, problem=None, blocks=None, changed=None):
    """Return the model, the metrics of both rounds and what every client keeps."""
    problem, both = (
        problem or Doubles(SIZES),
        exams.pair(method.partition(",")[0], OPTIONS.get(method)),
    )
    clients = len(problem.sizes)

    def client_fn(context):
        made = both.client(problem, client_id(context), clients, MessageStore(context.state))
        made.blocks = blocks
        if changed:
            changed(made)
        return made

    app = to_client_app(client_fn)
    grid = InlineGrid(answer_for_many(app), 2) if packed else InlineGrid(app, clients)
    whole = NodeGrid(grid, clients, grid.get_node_ids()) if packed else grid
    config = {**TOLD, "compile": choice}
    result = run_rounds(
        both.strategy(problem),
        ClientGrid(whole, seed=3, clients_per_round=0),
        ArrayRecord({name: Array(array) for name, array in problem.initial_arrays().items()}),
        2,
        60.0,
        ConfigRecord(dict(config)),
        ConfigRecord(dict(config)),
        patience=Patience(1, 2),
        log_result=False,
    )
    states = (
        whole.states if packed else {i: grid.contexts[FIRST_NODE + i].state for i in range(clients)}
    )
    kept = {
        f"{i} {name} {key}": array.numpy()
        for i, state in states.items()
        for name, record in state.items()
        for key, array in record.items()
    }
    metrics = [
        {r: dict(m) for r, m in of.items()}
        for of in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp)
    ]
    return {name: array.numpy() for name, array in result.arrays.items()}, metrics, kept


def assert_close(found, wanted, **tolerance):
    model, metrics, kept = wanted
    for ours, theirs in ((found[0], model), (found[2], kept)):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_allclose(ours[name], array, **tolerance, err_msg=name)
    for ours, theirs in zip(found[1], metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for number, of_round in theirs.items():
            for name in {"loss", "global-loss", "personal-loss"} & of_round.keys():
                np.testing.assert_allclose(
                    ours[number][name], of_round[name], **tolerance, err_msg=name
                )


@pytest.mark.parametrize("packed", [False, True], ids=["inline", "packed"])
@pytest.mark.parametrize("method", METHODS)
def test_blocks_take_the_eager_steps(method, packed):
    blocks = Blocks()
    assert_close(
        play(method, "blocks", packed=packed, blocks=blocks), play(method, "off"), **DOUBLE
    )
    assert not blocks.told
    # of six clients: three behind each node; four, then two
    assert max(blocks.taken) == (3 if packed else 4)


@pytest.mark.parametrize("method", ["fedavg", "superfed-mm"])
def test_so_do_they_in_single_precision(method):
    problem, blocks = Blobs(SIZES), Blocks()
    found = play(method, "blocks", problem=problem, blocks=blocks)
    assert_close(found, play(method, "off", problem=problem), **SINGLE)
    assert blocks.taken
    again = play(method, "blocks", problem=problem, blocks=Blocks())
    for name, array in found[0].items():
        np.testing.assert_array_equal(again[0][name], array)


@pytest.mark.parametrize("method", ["fedavg", "apfl, adaptive", "ditto", "superfed-lm"])
def test_traced_steps_are_those_of_the_block_to_the_last_bit(method, monkeypatch):
    wanted = play(method, "blocks", blocks=Blocks())
    monkeypatch.setattr("clients.base.blocks.TRACED_AFTER", 2)
    blocks = Blocks()
    found = play(method, "blocks", blocks=blocks)
    graphs = blocks.traces.graphs.values()
    assert graphs
    assert all(isinstance(graph, torch.fx.GraphModule) for graph in graphs)
    for part in (0, 2):
        for name, array in wanted[part].items():
            np.testing.assert_array_equal(found[part][name], array)


def test_rates_that_differ_from_client_to_client_stay_with_their_clients():
    def own_rate(client):
        client.fit = lambda arrays, config, fit=client.fit: fit(
            arrays, {**config, "learning-rate": 0.02 * (1 + int(client.client_id))}
        )

    blocks = Blocks()
    assert_close(
        play("fedavg", "blocks", blocks=blocks, changed=own_rate),
        play("fedavg", "off", changed=own_rate),
        **DOUBLE,
    )
    assert max(blocks.taken) == 4


# --- failures -------------------------------------------------------------------------


def clients_of(number, blocks, spoilt=None, net=small_net):
    """Return clients, and what each replies or raises, when they train in turns."""
    made = []
    for i in range(number):
        data = blobs(n=60 + 15 * i, seed=i)
        if i == spoilt:
            y = data.train.y.clone()
            # a class of which the net knows nothing: in some mini-batch of the first
            # epoch
            y[7] = 9
            data = ClientData(Split(data.train.x, y), data.validation, data.test)
        made.append(FedAvgClient(net, data, i, model=net(0)))
        made[-1].blocks = blocks
    return made


def replies(clients, choice="blocks"):
    def reply(client):
        try:
            arrays, _, metrics = client.fit(
                get_arrays(client.model_fn(5)), {**TOLD, "batch-size": 8, "compile": choice}
            )
        except Exception as error:
            return error
        return [*arrays, metrics["loss"]]

    return in_turns([lambda client=client: reply(client) for client in clients])


def assert_same_replies(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        assert type(ours) is type(theirs)
        if isinstance(theirs, Exception):
            assert str(ours) == str(theirs)
            continue
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spoilt", [0, 2])
def test_a_client_with_wrong_labels_fails_alone_and_the_block_goes_on(spoilt):
    blocks = Blocks()
    found = replies(clients_of(4, blocks, spoilt))
    assert_same_replies(found, replies(clients_of(4, None, spoilt)))
    assert [isinstance(reply, Exception) for reply in found] == [i == spoilt for i in range(4)]
    assert blocks.taken == [4]


def test_a_client_whose_samples_end_in_an_error_fails_alone():
    class Failing(FedAvgClient):
        def epochs(self, options, config):
            yield next(iter(super().epochs(options, config)))
            if self.client_id == 1:
                raise OSError("its disk is gone")

    def made(blocks):
        found = clients_of(3, blocks)
        found[1].__class__ = Failing
        return found

    found = replies(made(Blocks()))
    assert_same_replies(found, replies(made(None)))
    assert str(found[1]) == "its disk is gone"


def test_clients_that_share_a_module_are_refused():
    blocks, net = Blocks(), small_net(0)
    made = clients_of(2, blocks)
    for client in made:
        client.model = net
    assert all("same module" in str(reply) for reply in replies(made))


def test_random_numbers_are_as_they_were():
    torch.manual_seed(4)
    before = torch.get_rng_state()
    replies(clients_of(3, Blocks(), spoilt=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_where_a_block_does_not_fit_each_trains_alone(monkeypatch, caplog):
    def full(block, read=Block._read):
        if len(block.lanes) > 2:
            raise RuntimeError("out of memory")
        read(block)

    monkeypatch.setattr(Block, "_read", full)
    with caplog.at_level(logging.WARNING, "flwr"):
        found = replies(clients_of(4, Blocks(), spoilt=3))
    assert_same_replies(found, replies(clients_of(4, None, spoilt=3)))
    assert "out of memory" in caplog.text


def test_blocks_compute_on_as_many_threads_as_their_clients(monkeypatch):
    seen, before = [], torch.get_num_threads()
    steps = Block.steps
    monkeypatch.setattr(
        Block,
        "steps",
        lambda block, count: (seen.append(torch.get_num_threads()), steps(block, count)),
    )

    def alone(client):
        torch.set_num_threads(1)
        return client.fit(get_arrays(small_net(5)), {**TOLD, "compile": "blocks"})

    try:
        torch.set_num_threads(2)
        in_turns([lambda client=client: alone(client) for client in clients_of(2, Blocks())])
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


# --- what is not taken in blocks ------------------------------------------------------


def net_with(*layers):
    def net_fn(seed):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(4, 8), *(layer() for layer in layers), nn.Linear(8, 3)
        )

    return net_fn


class OwnDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return x


class Hidden(nn.Module):
    """A layer with a tensor that is no parameter and no buffer, which may be another
    for every client.
    """

    def __init__(self):
        super().__init__()
        self.scale = torch.rand(8)

    def forward(self, x):
        return x * self.scale


class Coupled(nn.Module):
    """A layer that looks at all of the mini-batch, and does not say so."""

    def forward(self, x):
        return x - x.mean(0)


LEFT = {
    "dropout": ([lambda: nn.Dropout(0.5)], "dropout"),
    "batch normalisation": ([lambda: nn.BatchNorm1d(8)], "batch normalisation"),
    "dropout of its own": ([OwnDropout], "random"),
    "a counter": ([Counter], "buffers"),
    "a hidden tensor": ([Hidden], "neither parameters nor buffers"),
    "a coupled layer": ([Coupled], "do not agree"),
}


@pytest.mark.parametrize("case", LEFT)
def test_other_nets_train_as_they_do_without_with_one_line(case, caplog):
    layers, word = LEFT[case]
    blocks = Blocks()
    with caplog.at_level(logging.WARNING, "flwr"):
        # the line is said once
        found, _ = (replies(clients_of(3, blocks, net=net_with(*layers))) for _ in range(2))
    wanted = replies(clients_of(3, None, net=net_with(*layers)), "off")
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not blocks.taken
    assert len(caplog.records) == 1
    assert word in caplog.text


def test_a_weighted_loss_is_not_the_mean_of_single_samples_and_is_left_alone(caplog):
    weighted = Objective(nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.1])), CLASSIFICATION.score)
    blocks = Blocks()
    made = clients_of(2, blocks)
    for client in made:
        client.objective = weighted
    with caplog.at_level(logging.WARNING, "flwr"):
        replies(made)
    assert "by_sample" in caplog.text
    assert not blocks.taken


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_numbers_are_predicted_in_blocks_too(loss):
    def made(blocks):
        clients = clients_of(3, blocks)
        for client in clients:
            parts = (client.data.train, client.data.validation, client.data.test)
            client.data = ClientData(
                *(
                    Split(part.x, part.x[:, :3].flatten(1)[:, :3] - 0.5 * part.y[:, None])
                    for part in parts
                )
            )
            client.objective = regression(loss)
        return clients

    blocks = Blocks()
    assert_same_replies(replies(made(blocks)), replies(made(None)))
    assert blocks.taken == [3]


def test_clients_without_company_train_eagerly():
    blocks, client = Blocks(), clients_of(1, None)[0]
    wanted = client.fit(get_arrays(small_net(5)), {**TOLD, "compile": "off"})
    client.blocks = blocks
    found = client.fit(get_arrays(small_net(5)), {**TOLD, "compile": "blocks"})
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert not blocks.taken


def test_different_steps_are_different_blocks():
    blocks = Blocks()
    made = clients_of(4, blocks)
    for client in made[:2]:
        client.fit = lambda arrays, config, fit=client.fit: fit(arrays, {**config, "momentum": 0.0})
    replies(made)
    assert blocks.taken == [2, 2]
