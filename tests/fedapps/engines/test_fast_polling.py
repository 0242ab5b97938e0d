"""The Grid that polls sooner: every reply once, no wait after the last, the timeout
kept, unsent messages not waited for.
"""

from types import SimpleNamespace

import pytest

from fedapps.engines import fast_polling
from fedapps.engines.fast_polling import PollingGrid


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
