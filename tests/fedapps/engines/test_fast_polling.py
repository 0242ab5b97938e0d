"""The Grid that polls sooner: every reply once, no wait after the last, the timeout
kept; messages that are not sent, whose node left, or whose reply broke off not waited
for. In a simulation it waits for no clock.
"""

import logging
import threading
import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from benchmarks import ray_floor
from benchmarks.ray_floor import question
from fedapps.engines import fast_polling
from fedapps.engines.fast_polling import PollingGrid
from fedapps.strategies.base.flower_private import (
    LEFT_OUT,
    ErrorCode,
    StoredMessages,
    identify_process,
    number_message,
)
from tests.helpers import Clock
from tests.superlink_of_a_grid import http_grid


class Slow:
    """A grid whose reply to message ``name`` arrives at second ``arrivals[name]``;
    None: it is never sent. Node n, of message n, leaves at second ``leaves[n]``; the
    reply to ``name`` has broken off by second ``breaks[name]``.
    """

    def __init__(self, clock, arrivals, leaves=None, breaks=None):
        self.clock, self.arrivals = clock, arrivals
        self.leaves, self.breaks = leaves or {}, breaks or {}
        self.sent, self.polls = {}, 0

    def get_node_ids(self):
        return [n for n in range(len(self.arrivals)) if self.leaves.get(n, 1e9) > self.clock.now]

    def messages(self, *names):
        """Return the messages to the nodes of the names."""
        return [
            Message(RecordDict({"name": ConfigRecord({"name": name})}), node, "train")
            for node, name in enumerate(self.arrivals)
            if name in names
        ]

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = message.content["name"]["name"]
            self.sent[name] = message
            names.append(number_message(message, name) if self.arrivals[name] is not None else "")
        return names

    def pull_messages(self, names):
        self.polls += 1
        for name in names:
            if self.breaks.get(name, 1e9) <= self.clock.now:
                logging.getLogger("flwr").error(LEFT_OUT, "reply to " + name, "expired")
                self.breaks[name] = 1e9  # a SuperLink says it once
        there = [name for name in names if self.arrivals[name] <= self.clock.now]
        replies = [Message(RecordDict(), reply_to=self.sent[name]) for name in there]
        for name, reply in zip(there, replies, strict=True):
            number_message(reply, "reply to " + name)
        return replies


NEVER = 1e9


@pytest.fixture
def clock(monkeypatch):
    identify_process(1)
    clock = Clock()
    monkeypatch.setattr(fast_polling, "time", clock)
    return clock


def answered(clock, arrivals, timeout=None, **more):
    """Return what is answered; "!" marks errors."""
    slow = Slow(clock, arrivals, **more)
    return told(PollingGrid(slow).send_and_receive(slow.messages(*arrivals), timeout=timeout))


def told(replies):
    errors = {ErrorCode.NODE_UNAVAILABLE: "!left", ErrorCode.MESSAGE_UNAVAILABLE: "!broken"}
    return sorted(
        reply.metadata.reply_to_message_id + (errors[reply.error.code] if reply.has_error() else "")
        for reply in replies
    )


def test_every_reply_once_and_soon(clock):
    assert answered(clock, {"a": 0.0, "b": 5.0, "c": 100.0}) == ["a", "b", "c"]
    assert 100 <= clock.now <= 103  # never more than three seconds late
    assert len(clock.pauses) < 80  # and not a thousand questions
    assert sum(clock.pauses[:10]) == pytest.approx(1.0)  # ten a second at first


@pytest.mark.parametrize(
    ("arrivals", "more", "replies", "ends"),
    [
        # the last moment counts
        ({"a": 1.0, "b": 50.0, "c": 30.0}, {"timeout": 30.0}, ["a", "c"], (30.0, 30.01)),
        ({"a": 0.0, "b": None}, {}, ["a"], (0.0, 0.0)),  # not sent
        # what a SuperLink does not say: a node leaves, before its reply or after it
        ({"a": 1.0, "b": NEVER, "c": 20.0}, {"leaves": {1: 7.0}}, ["a", "b!left", "c"], (20, 24)),
        ({"a": 1.0, "b": 5.0}, {"leaves": {0: 1.0, 1: 5.0}}, ["a", "b"], (5, 8)),
        # a reply breaks off: it is clear whose it was once all others have answered
        (
            {"a": 1.0, "b": NEVER, "c": 20.0, "d": NEVER},
            {"breaks": {"b": 3.0, "d": 9.0}},
            ["a", "b!broken", "c", "d!broken"],
            (20, 24),
        ),
        ({"a": 5.0, "b": 30.0}, {"breaks": {"a": 1.0}}, ["a", "b"], (30, 34)),  # comes after all
    ],
)
def test_nothing_is_waited_for_that_will_not_come(arrivals, more, replies, ends, clock):
    assert answered(clock, arrivals, **{"timeout": 600.0, **more}) == replies
    assert ends[0] <= clock.now <= ends[1]


def test_a_broken_reply_is_not_taken_for_that_of_another_phase(clock):
    """Of the training "t" or "u" a reply broke off, while "e" evaluates."""
    slow = Slow(clock, {"t": NEVER, "u": 10.0, "e": 4.0}, breaks={"t": 0.0})
    grid = PollingGrid(slow)
    flying = grid.push_messages(slow.messages("t", "u"))
    assert grid.pull_messages(flying) == []
    assert told(grid.send_and_receive(slow.messages("e"), timeout=600.0)) == ["e"]
    clock.now = 10.0
    assert told(grid.pull_messages(flying)) == ["t!broken", "u"]
    assert grid.pull_messages(flying[:1]) == []  # once


@pytest.mark.parametrize(("what", "said"), [("left", "!left"), ("broken", "!broken")])
def test_flowers_grid_for_superlinks_is_not_waited_for(clock, what, said):
    """Whether this Flower sends an error reply or not, there is one."""
    grid = PollingGrid(http_grid(what))
    messages = [Message(RecordDict(), node, "train") for node in (11, 12)]
    replies = grid.send_and_receive(messages, timeout=600.0)
    numbers = [message.metadata.message_id for message in messages]
    assert told(replies) == sorted([numbers[0], numbers[1] + said])
    assert clock.now < 10.0


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
        replies = grid.send_and_receive([question(node, number) for node in grid.get_node_ids()])
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
    assert (reply.content["config"]["number"], grid.send_and_receive([lost])) == (7, [])


def test_two_grids_of_a_simulation_share_the_wait(simulation):
    grid, _ = simulation
    assert PollingGrid(grid.grid).stored is grid.stored is not None
    assert PollingGrid(Slow(None, {})).stored is None
