"""Clients by position, and who is connected, where there are very many."""

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import AAggFFD, ClientGrid, FedAvg, run_rounds
from fedapps.strategies.base.roster import Numbered
from fedapps.strategies.base.slots import Slots, pack_ids, unpack_ids
from tests.helpers import LossyClient

KINDS = {
    "numbers": range(6),
    "a list": [3, 1, 2],
    "names": ["b", "a", 3, "3"],
    "none": [],
    "from 4": range(4, 9),
}


@pytest.mark.parametrize("clients", KINDS.values(), ids=KINDS)
def test_positions_and_ids_belong_together_and_are_saved(clients):
    slots = Slots(clients)
    assert list(slots) == list(clients)
    assert slots == list(clients)
    assert slots.at(clients).tolist() == list(range(len(slots)))
    assert list(Slots.unpacked(pack_ids(slots))) == unpack_ids(pack_ids(slots)) == list(clients)
    assert all(client in slots for client in clients)
    for stranger in (99, "x"):
        assert stranger not in slots
        with pytest.raises(KeyError):
            slots.at([stranger])


def test_those_who_leave_close_the_gaps_and_those_who_come_are_last():
    slots = Slots(range(5))
    assert slots.newcomers({1: 4, 2: "new", 3: 5}) == ["new", 5]
    changed = slots.changed([1, 3], ["new", 5])
    assert changed == [0, 2, 4, "new", 5]
    assert changed.at(["new", 4]).tolist() == [3, 2]


def test_only_the_same_numbers_are_everyone():
    assert Slots.of(Numbered(1000, 5)).has_all(Numbered(1000, 5))
    assert not Slots.of(Numbered(1000, 5)).has_all(Numbered(1000, 6))
    assert Slots.of(Numbered(1000, 5)) == Slots(Numbered(1000, 5).values())
    assert not Slots([0, 1]).has_all({7: 0, 8: 1})  # has to be looked at


def lossy(count, **options):
    app = to_client_app(lambda c: LossyClient(1.0, 1.0 + c.node_config["partition-id"] % 7, 3))
    return InlineGrid(app, count, **options)


def run(grid, rounds=4):
    strategy, seen = AAggFFD(FedAvg(fraction_evaluate=0.0)), []
    note = lambda now: seen.append((now.trained.clients, dict(strategy.last_weights)))
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    client_grid = ClientGrid(grid, seed=4, clients_per_round=10)
    run_rounds(
        strategy,
        client_grid,
        start,
        rounds,
        train_config=ConfigRecord(),
        callbacks=[note],
        log_result=False,
    )
    return strategy, seen


def test_clients_that_are_known_by_number_are_sampled_and_weighed_like_others():
    assert run(lossy(60, numbered=True))[1] == run(lossy(60))[1]


def test_what_the_server_keeps_is_a_hundred_bytes_a_client_at_most():
    count = 300_000
    tracemalloc.start()
    strategy, _ = run(lossy(count, numbered=True), rounds=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(strategy.clients) == count
    assert peak < 100 * count
