"""Calls that take work together: the fits and evaluations of several clients, whose
local steps on a small net are one call (``clients.steps.cohorts``).

    for reply in together([(client, partial(answer, message)), ...]): ...

A call that comes to such work stops there (:class:`Waiting`). When all calls have
stopped, or hold enough in memory, the work of all is done at once, and each call is
made again: it gets the result instead of stopping. A call must therefore be repeatable,
as every client is: the same message and state have the same answer, and what a stopped
call has written is dropped.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")
#: The most calls that wait at a time, and the bytes of their work.
MOST_CALLS, MOST_BYTES = 512, 64 * 2**20


class Work(Protocol):
    """Work that can be done together with that of others."""

    @property
    def nbytes(self) -> int:
        """The bytes that it holds."""

    def undone(self) -> Any:
        """Return what stands for the result until it is known."""

    @staticmethod
    def done(together: Sequence[Any]) -> list[Any]:
        """Return the results of several."""


class Waiting(BaseException):
    """A call stops: its works wait for those of others. No ``except Exception`` of a
    client's may take it for a failure.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works


@dataclass
class Attempt:
    """A call that is being made; ``results``: of its works, and of what it computes
    :func:`once`, up to here. ``alone``: it waits for no other. ``at_once``: the works
    for which it stops at the end of a block.
    """

    alone: bool = False
    results: list[Any] = field(default_factory=list)
    place: int = 0
    at_once: list[Work] | None = None


_attempt: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def is_together() -> bool:
    """Return whether this call is one of several, or counts as one."""
    return _attempt.get() is not None


def known() -> Any:
    """Return the result of the next work, if this call stopped there before; else
    ``None``.
    """
    attempt = _attempt.get()
    if attempt is None or attempt.place == len(attempt.results):
        return None
    attempt.place += 1
    return attempt.results[attempt.place - 1]


def once(function: Callable[[], T]) -> T:
    """Return the result of a function that does no such work. A call that is made again
    does not compute it again.
    """
    attempt = _attempt.get()
    if attempt is None or attempt.alone:
        return function()
    assert not attempt.at_once, "within at_once, what is computed once comes before works"
    if (found := known()) is None:
        attempt.results.append(found := alone(function))
        attempt.place += 1
    return cast(T, found)


def result(work: Work) -> Any:
    """Return the result of the work. In a call that waits for others, raise
    ``Waiting``; made again, the call gets the result from :func:`known`.
    """
    attempt = _attempt.get()
    if attempt is None or attempt.alone:
        return work.done([work])[0]
    if attempt.at_once is None:
        raise Waiting([work])
    attempt.at_once.append(work)
    return work.undone()


@contextmanager
def at_once() -> Iterator[None]:
    """Let the call stop once for all works of the block, of which none needs another's
    result. Until it is made again, the block has what stands for their results, which
    it must not store.
    """
    attempt = _attempt.get()
    if attempt is None or attempt.alone:
        yield
        return
    works = attempt.at_once = list[Work]()
    try:
        yield
    finally:
        attempt.at_once = None
    if works:
        raise Waiting(works)


def one_of_many(function: Callable[..., T]) -> Callable[..., T]:
    """Let the calls of a function give the numbers that they give together with others.
    Within :func:`together`, this changes nothing.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if is_together():
            return function(*args, **kwargs)
        return alone(function, *args, **kwargs)

    return call


def alone(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function that waits for no other: for what must not be done twice."""
    before = _attempt.set(Attempt(alone=True))
    try:
        return function(*args, **kwargs)
    finally:
        _attempt.reset(before)


def together(calls: Iterable[tuple[Hashable, Callable[[], T]]]) -> list[T]:
    """Return the results of the calls, in their order. Of two calls with the same key,
    the second begins when the first has ended.
    """
    results: list[T | None] = []
    waiting: dict[int, tuple[Hashable, Callable[[], T], Attempt, Sequence[Work]]] = {}
    keys, held = set[Hashable](), 0

    def make(place: int, key: Hashable, call: Callable[[], T], attempt: Attempt) -> None:
        attempt.place, before = 0, _attempt.set(attempt)
        try:
            results[place] = call()
        except Waiting as stopped:
            waiting[place] = key, call, attempt, stopped.works
        finally:
            _attempt.reset(before)

    def finish() -> None:
        nonlocal held
        held = 0
        keys.clear()
        while waiting:
            stopped = list(waiting.items())
            waiting.clear()
            all_works = [work for _, (*_, works) in stopped for work in works]
            found = iter(all_works[0].done(all_works))
            for place, (key, call, attempt, works) in stopped:
                attempt.results.extend(islice(found, len(works)))
                make(place, key, call, attempt)

    for place, (key, call) in enumerate(calls):
        if len(waiting) >= MOST_CALLS or held >= MOST_BYTES or key in keys:
            finish()
        results.append(None)
        make(place, key, call, Attempt())
        if place in waiting:
            keys.add(key)
            held += sum(work.nbytes for work in waiting[place][-1])
    finish()
    return results  # type: ignore[return-value]  # all calls have ended
