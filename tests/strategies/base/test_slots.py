"""Clients by position, and who is connected, where there are very many."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from fedapps.engines.inline import InlineGrid
from fedapps.strategies import AAggFFD, FedAvg
from fedapps.strategies.base.named_grid import Numbered
from fedapps.strategies.base.slots import Slots, pack_ids, unpack_ids
from tests.helpers import LossyClient, play

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


def run(count, rounds, numbered=True):
    strategy, seen = AAggFFD(FedAvg(fraction_evaluate=0.0)), []
    note = lambda now: seen.append((now.trained.clients, dict(strategy.last_weights)))
    client, start = lambda i: LossyClient(1.0, 1.0 + i % 7, 3), {"w": np.zeros(2, np.float32)}
    options = {"on": {"seed": 4, "clients_per_round": 10}, "callbacks": [note], "log_result": False}
    inner = partial(InlineGrid, numbered=numbered)
    play(strategy, client, count, start, rounds, inner=inner, **options)
    return strategy, seen


def test_clients_that_are_known_by_number_are_sampled_and_weighed_like_others():
    assert run(60, 4)[1] == run(60, 4, numbered=False)[1]


def test_what_the_server_keeps_is_a_hundred_bytes_a_client_at_most():
    count = 300_000
    tracemalloc.start()
    strategy, _ = run(count, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(strategy.clients) == count
    assert peak < 100 * count
