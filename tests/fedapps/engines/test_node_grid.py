"""Many clients behind one node: code that uses the grid must not notice, and
less must travel.
"""

import inspect
import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedapps.clients import to_client_app
from fedapps.engines.fast_polling import PollingGrid
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import MANY, Part, answer_for_many, pack, unpack
from fedapps.engines.node_grid import GatewayGrid, NodeGrid, deal, shared
from fedapps.engines.workers import WorkerGrid
from fedapps.records.audit import AuditedGrid
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import ClientGrid, FedAvg
from fedapps.strategies.base.messages import content_bytes
from fedapps.strategies.base.named_grid import WrappedGrid
from fedapps.strategies.base.newcomers import NewcomerGrid
from fedapps.strategies.base.secure_sessions import SecureCalls
from tests.helpers import EchoClient, arrays_of, exchanged, outcome_of, play, refused, simulate

START = {"w": np.zeros(200, np.float32)}
JOB = {
    "num-clients": 7,
    "clients-per-round": 4,
    "num-rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "seed": 5,
}
SMALL = {"train.local-epochs": 1, "train.batch-size": 32}


def settings_of(out, **config):
    return with_defaults({**JOB, **config, "out": str(out)})


def behind(nodes, settings, **options):
    """Return a grid of the settings' clients behind ``nodes`` nodes."""
    inner = InlineGrid(app, nodes, settings.flat())
    return NodeGrid(inner, settings.num_clients, inner.get_node_ids(), **options)


METHODS = {
    "fedavg": SMALL,
    "scaffold": SMALL,
    "scaffold-in-messages": {
        **SMALL,
        "method": "scaffold",
        "client-store": "message",
        "checkpoint-every": 0,
    },
    "superfed-mm": {**SMALL, "superfed.start": 0.3, "num-rounds": 2},
    "aaggff-d": SMALL,
    "new-clients": {
        **SMALL,
        "method": "scaffold",
        "num-new-clients": 2,
        "client-store": "message",
        "checkpoint-every": 0,
    },
    "fedboost": {
        "task": "unigram",
        "fedboost.library": "clients",
        "fedboost.cache": 3,
        "fedboost.budget": 2,
    },
    "fens": {**SMALL, "ensemble.epochs": 2},
    "fedfw-plus": {"task": "sparse-logistic", "clients-per-round": 0},
    "ffgb": {"ffgb.local-steps": 2, "ffgb.fit-steps": 2},
    "histogram-boosting": {"num-rounds": 5},
    "secure sums": {**SMALL, "method": "fedavg", "secure.on": True, "clients-per-round": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("job", METHODS)
def test_the_same_bits_with_clients_that_share_nodes(job, tmp_path):
    config = {"method": job, **METHODS[job]}
    alone = settings_of(tmp_path / "inline", **config)
    execute(alone, InlineGrid(app, alone.num_clients, alone.flat()))
    together = settings_of(tmp_path / "nodes", **config)
    execute(together, behind(3, together))
    assert outcome_of(tmp_path / "nodes") == outcome_of(tmp_path / "inline")


@pytest.mark.slow
def test_a_run_that_stops_goes_on_with_other_nodes(tmp_path):
    whole = settings_of(tmp_path / "whole", method="scaffold", **SMALL)
    execute(whole, behind(2, whole))
    first = settings_of(tmp_path / "parts", method="scaffold", **SMALL)
    # its checkpoint is that of round 2
    execute(first, behind(3, first), callbacks=[lambda now: now.number == 3])
    again = settings_of(tmp_path / "parts", method="scaffold", **SMALL, resume=True)
    execute(again, behind(1, again))
    assert outcome_of(tmp_path / "parts") == outcome_of(tmp_path / "whole")


class Counting(EchoClient):
    """Counts its messages in its context; client 1 fails in round 2, after it has
    counted.
    """

    def __init__(self, i, context):
        super().__init__(1.0, num_examples=i + 1)
        self.i, self.context = i, context

    def fit(self, parameters, config):
        seen = self.context.state.setdefault("seen", ConfigRecord({"count": 0}))
        self.context.state["seen"] = ConfigRecord({"count": seen["count"] + 1})
        if self.i == 1 and config["server-round"] == 2:
            raise RuntimeError("the disk of site 1 is full")
        arrays, n, metrics = super().fit(parameters, config)
        return arrays, n, {**metrics, "seen": self.context.state["seen"]["count"]}


def counting_grid(nodes, clients, **options):
    inner = InlineGrid(
        answer_for_many(to_client_app(lambda c: Counting(c.node_config["partition-id"], c))), nodes
    )
    return NodeGrid(inner, clients, inner.get_node_ids(), **options)


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_what_one_client_raises_is_its_own_failure_and_its_state_stays_the_one_before(nodes):
    grid = counting_grid(nodes, 5)
    result = play(FedAvg(), None, 5, START, 3, inner=lambda *_: grid)
    rounds = result.seen
    np.testing.assert_array_equal(arrays_of(result)["w"], 3.0)
    assert [r.trained.clients for r in rounds] == [[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4]]
    (failure,) = [f for r in rounds for f in r.failures]
    assert (failure.client, failure.reason) == (1, "RuntimeError: the disk of site 1 is full")
    assert {c: values["seen"] for c, values in rounds[2].trained.metrics.items()} == {
        0: 3,
        1: 2,
        2: 3,
        3: 3,
        4: 3,
    }


def test_the_shared_model_travels_once_a_node_and_both_counts_are_told():
    grid = counting_grid(2, 50)
    result = play(FedAvg(), None, 50, START, inner=lambda *_: grid)
    trained, model = result.seen[0].trained, 4 * 200
    assert trained.bytes_down > 50 * model
    assert trained.travel.messages == 2
    assert 2 * model < trained.travel.down < 2 * model + 50 * 200
    assert trained.travel.up > trained.bytes_up  # every client's own model, and who it is from


def echo_grid(nodes, clients, **options):
    inner = InlineGrid(answer_for_many(to_client_app(lambda c: EchoClient(1.0))), nodes)
    return NodeGrid(inner, clients, inner.get_node_ids(), **options)


def test_clients_are_not_asked_who_they_are(monkeypatch):
    seen = exchanged(monkeypatch)
    simulate(FedAvg(), None, 100, START, 2, grid=ClientGrid(echo_grid(2, 100)))
    # two nodes, two rounds, two phases
    assert [kind for kind, *_ in seen] == [MANY] * 8


@pytest.mark.parametrize("most", [1000, 2500, 10_000])
def test_no_message_and_no_expected_answer_is_larger_than_the_bound(most, monkeypatch):
    seen, grid = exchanged(monkeypatch), echo_grid(2, 20, most_bytes=most)
    result = simulate(FedAvg(), None, 20, START, 1, grid=ClientGrid(grid))
    np.testing.assert_allclose(arrays_of(result)["w"], 1.0, rtol=1e-6)

    def size(content):
        return content_bytes(RecordDict({n: r for n, r in content.items() if n != "index"}))

    # the evaluation needs one message a node: its answers are small
    trained = [(len(unpack(sent)[1]), size(sent), size(reply)) for _, sent, reply in seen[:-2]]
    assert sum(count for count, *_ in trained) == 20
    assert all(count == 1 or max(down, up) <= most for count, down, up in trained)
    assert max(count for count, *_ in trained) == max(1, min(10, most // 950))


def test_what_a_node_garbles_costs_its_clients_and_no_others():
    def garbled(message, context):
        reply = genuine(message, context)
        if context.node_id == 1001 and "train" in json.dumps(unpack(message.content)[1][0].facts):
            reply.content = RecordDict({"index": ConfigRecord({"json": b"[]"})})
        return reply

    genuine = answer_for_many(to_client_app(lambda c: EchoClient(1.0)))
    client_app = ClientApp()
    client_app.query("many")(garbled)
    inner = InlineGrid(client_app, 2)
    grid = NodeGrid(inner, 6, inner.get_node_ids())
    (only,) = play(FedAvg(), None, 6, START, inner=lambda *_: grid).seen
    assert len(only.trained.clients) == 3
    assert all("cannot be read" in failure.reason for failure in only.failures)


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{}",
        b'{"facts":{},"layouts":[[["a","7"]]],"parts":[{"facts":{},"content":0}]}',
        b"\xff",
        b"[1]",
    ],
)
def test_a_malformed_package_is_a_value_error(index):
    refused(
        lambda: unpack(
            RecordDict({"index": ConfigRecord({"json": index}), "0": MetricRecord({"a": 1})})
        ),
        "cannot be read",
    )


def test_parts_come_back_as_they_were_and_share_nothing_that_can_change():
    model = ArrayRecord({"w": Array(np.array([1.0, 2.0], np.float32))})
    one, two = (
        RecordDict({"arrays": model, "config": ConfigRecord({"rate": rate})}) for rate in (0.1, 0.2)
    )
    kept = RecordDict({"m": MetricRecord({"x": 1})})
    packed = pack(
        [Part({"client": 1}, one), Part({"client": "two"}, two, kept), Part({})], {"n": 3}
    )
    assert len(packed) == 5  # the model once, two configurations, a state, the index
    facts, parts = unpack(packed)
    assert (facts, [part.facts for part in parts]) == (
        {"n": 3},
        [{"client": 1}, {"client": "two"}, {}],
    )
    assert ([part.content for part in parts], parts[1].state) == ([one, two, None], kept)
    del parts[0].content["arrays"]["w"]  # as mods and clients may
    assert "w" in parts[1].content["arrays"]
    assert "w" in packed["0"]


def test_the_largest_clients_are_dealt_first_and_loads_are_even():
    costs = [100.0, 1, 1, 1, 60, 40, 1, 1]
    hands = deal(range(8), costs, 2)
    assert sorted(place for hand in hands for place in hand) == list(range(8))
    assert {sum(costs[place] for place in hand) for hand in hands} <= {102.0, 103.0}
    # what goes to one client stays together, in its order
    assert deal([5, 6, 5, 7], [1.0] * 4, 3)[0] == [0, 2]


def test_samples_that_replies_tell_even_the_loads(monkeypatch):
    """Client i has i + 1 samples: 55 in all, for two nodes."""
    seen, grid = exchanged(monkeypatch), ClientGrid(counting_grid(2, 10))
    simulate(FedAvg(), None, 10, START, 2, grid=grid, evaluate_every=0)
    loads = [sum(part.facts["client"] + 1 for part in unpack(sent)[1]) for _, sent, _ in seen[2:4]]
    assert sorted(loads) == [27, 28]


def test_a_simulation_with_fewer_nodes_than_clients_is_shared_and_another_is_not():
    inner = echo_grid(3, 3).grid
    grid = shared(inner, 12)
    assert isinstance(grid, NodeGrid)
    assert (len(grid.nodes), len(list(grid.get_node_ids()))) == (3, 12)
    assert [shared(inner, clients) is inner for clients in (0, 2, 3)] == [True] * 3


def test_a_simulation_whose_workers_never_start_is_an_error_and_no_wait_for_more_nodes():
    grid = echo_grid(3, 3).grid
    grid.send_and_receive = lambda messages, timeout: []
    refused(
        lambda: shared(grid, 12, patience=7),
        "no node of the simulation answered within 7 s",
        TimeoutError,
    )


def test_a_part_without_a_client_is_not_run():
    grid = echo_grid(1, 1)  # which numbers the message
    bad = Message(pack([Part({})], {"num-clients": 1}), 1000, MANY)
    (answer,) = grid.grid.send_and_receive([bad])
    assert answer.has_error()


def test_two_messages_to_one_client_run_in_their_order_on_its_state():
    grid, content = (
        counting_grid(3, 5),
        RecordDict({"arrays": ArrayRecord({"w": Array(START["w"])})}),
    )
    asked = []
    for number in (1, 2, 3):  # client 1 fails in the second
        sent = RecordDict({**content, "config": ConfigRecord({"server-round": number})})
        asked.append(Message(sent, 1001, "train", group_id=str(number)))
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(asked)}
    first, second, third = (replies[message.metadata.message_id] for message in asked)
    assert second.has_error()
    assert (first.content["metrics"]["seen"], third.content["metrics"]["seen"]) == (1, 2)
    assert grid.travel.messages == 1


# --- every grid is called as Flower's -------------------------------------------------


KINDS = [
    AuditedGrid,
    ClientGrid,
    GatewayGrid,
    InlineGrid,
    NewcomerGrid,
    NodeGrid,
    PollingGrid,
    SecureCalls,
    WorkerGrid,
    WrappedGrid,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_called_as_flowers_are(kind):
    for name in ("push_messages", "pull_messages", "send_and_receive", "create_message"):
        flowers = inspect.signature(getattr(Grid, name)).parameters
        assert flowers.keys() <= inspect.signature(getattr(kind, name)).parameters.keys(), name


@pytest.mark.parametrize("name", ["reply_to_message_ids", "message_ids", None])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda grid: grid,
        ClientGrid,
        PollingGrid,
        lambda grid: AuditedGrid(grid, lambda *_, **__: None),
    ],
)
def test_replies_are_pulled_by_either_name(wrapped, name):
    grid = wrapped(InlineGrid(to_client_app(lambda context: EchoClient(0.0)), 2))
    ids = grid.push_messages([Message(RecordDict(), node, "query.no") for node in (1000, 1001)])
    replies = grid.pull_messages(**{name: ids}) if name else grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids


@pytest.mark.parametrize("given", [{}, {"reply_to_message_ids": [], "message_ids": []}])
def test_replies_to_whatever_are_not_pulled(given):
    refused(
        lambda: InlineGrid(to_client_app(lambda context: EchoClient(0.0)), 2).pull_messages(
            **given
        ),
        "reply_to_message_ids",
        TypeError,
    )
