"""The Grid that polls sooner: every reply once, no wait after the last, the timeout
kept, unsent messages not waited for. In a simulation it waits for no clock.
"""

import threading
import time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from benchmarks import ray_floor
from benchmarks.ray_floor import question
from fedapps.engines import fast_polling
from fedapps.engines.fast_polling import PollingGrid
from fedapps.strategies.base.flower_private import StoredMessages


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now, self.pauses = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


class Slow:
    """A grid whose reply to message ``name`` arrives at second ``arrivals[name]``;
    None: it is never sent.
    """

    def __init__(self, clock, arrivals):
        self.clock, self.arrivals = clock, arrivals

    def push_messages(self, messages):
        return [name if self.arrivals[name] is not None else None for name in messages]

    def pull_messages(self, names):
        there = [name for name in names if self.arrivals[name] <= self.clock.now]
        return [
            SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for name in there
        ]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(fast_polling, "time", clock)
    return clock


def answered(clock, arrivals, timeout=None):
    replies = PollingGrid(Slow(clock, arrivals)).send_and_receive(list(arrivals), timeout=timeout)
    return sorted(reply.metadata.reply_to_message_id for reply in replies)


def test_every_reply_once_and_soon(clock):
    assert answered(clock, {"a": 0.0, "b": 5.0, "c": 100.0}) == ["a", "b", "c"]
    assert 100 <= clock.now <= 103  # never more than three seconds late
    assert len(clock.pauses) < 80  # and not a thousand questions
    assert sum(clock.pauses[:10]) == pytest.approx(1.0)  # ten a second at first


def test_the_timeout_is_kept_and_the_last_moment_counts(clock):
    assert answered(clock, {"a": 1.0, "b": 50.0, "c": 30.0}, timeout=30.0) == ["a", "c"]
    assert clock.now == pytest.approx(30.0)


def test_a_message_that_was_not_sent_is_not_waited_for(clock):
    assert answered(clock, {"a": 0.0, "b": None}) == ["a"]
    assert clock.now == 0.0


# --- in Flower's simulation, whose threads answer instead of Ray ----------------------


class Stop(threading.Event):
    """The event for which Flower sleeps between two hand-outs, with a note of it."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def wait(self, timeout=None):
        self.notes.add("sleeps")
        super().wait(timeout)
        self.notes.add("awake")


class Notes(list):
    """What happened, in its order, by all threads."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def add(self, note):
        with self.changed:
            self.append(note)
            self.changed.notify_all()

    def phases(self):
        """Return the notes after each push."""
        return [phase.split() for phase in " ".join(self).split("pushes")[1:]]


class Backend(ray_floor.Backend):
    """Every message takes longer than Flower's sleep after handing it out."""

    def __init__(self, notes):
        super().__init__(0.0)
        self.notes = notes

    def process_message(self, message, context):
        with self.notes.changed:
            assert self.notes.changed.wait_for(lambda: "awake" in self.notes.phases()[-1], 60)
        return super().process_message(message, context)


@pytest.fixture
def simulation(monkeypatch):
    """Flower's simulation of two nodes; yields its grid and the notes."""
    monkeypatch.setattr(StoredMessages, "IDLE", 60.0)
    monkeypatch.setattr(fast_polling, "LEAST", 1000.0)  # a clock would exceed the timeout
    monkeypatch.setattr(fast_polling, "MOST", 1000.0)
    notes = Notes()
    stop = Stop(notes)
    with ray_floor.simulation(Backend(notes), stop) as plain:
        grid = PollingGrid(plain)
        before = None  # until then Flower slept for 0.1 s at a time: let it end its last sleep
        while notes[-1:] == ["sleeps"] or len(notes) != before:
            before = len(notes)
            time.sleep(0.3)
        yield grid, notes
        stop.set()
        notes.add("pushes")
        plain.push_messages([question(next(iter(plain.get_node_ids())), 99)])  # wakes it up


@pytest.mark.timeout(120)
def test_a_simulation_waits_for_messages_and_replies_and_not_for_a_clock(simulation):
    """Flower hands a message out as soon as it is stored, to both nodes before it
    sleeps; the last reply ends the phase.
    """
    grid, notes = simulation
    for number in range(4):
        notes.add("pushes")
        asked = [question(node, number) for node in grid.get_node_ids()]
        replies = grid.send_and_receive(asked)
        assert [reply.content["config"]["number"] for reply in replies] == [number] * 2
    # Flower was not asleep when the messages came, and slept once after them
    assert notes.phases() == [["sleeps", "awake"]] * 4


@pytest.mark.timeout(120)
def test_a_message_that_the_simulation_rejects_is_not_waited_for(simulation):
    grid, notes = simulation
    lost = Message(RecordDict({"config": ConfigRecord()}), 12345, "train")
    (node, *_) = grid.get_node_ids()
    notes.add("pushes")
    (reply,) = grid.send_and_receive([lost, question(node, 7)])
    assert reply.content["config"]["number"] == 7
    assert grid.send_and_receive([lost]) == []


def test_two_grids_of_a_simulation_share_the_wait(simulation):
    grid, _ = simulation
    assert PollingGrid(grid.grid).stored is grid.stored is not None
    assert PollingGrid(Slow(None, {})).stored is None
