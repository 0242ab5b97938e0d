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
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")
#: The most calls that wait at a time, and the bytes of their work.
MOST_CALLS, MOST_BYTES = 512, 64 * 2**20
#: In place of a result: the call does the work without others, and has its error.
FAILED = "failed"


class Work(Protocol):
    """Work that can be done together with that of others."""

    @property
    def nbytes(self) -> int:
        """The bytes that it holds."""

    @staticmethod
    def done(together: Sequence[Any]) -> list[Any]:
        """Return the results of several."""


class Waiting(BaseException):
    """A call stops: its works, each with the attempt that gets the result, wait for
    those of others. No ``except Exception`` of a client's may take it for a failure.
    """

    def __init__(self, works: "Sequence[tuple[Attempt, Work]]") -> None:
        self.works = works


@dataclass
class Attempt:
    """A call that is being made; ``results``: of its works, and of what it computes
    :func:`once`, up to here. ``alone``: it waits for no other.
    """

    alone: bool = False
    results: list[Any] = field(default_factory=list)
    place: int = 0


_attempt: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


@contextmanager
def _made(attempt: Attempt) -> Iterator[None]:
    """Make an attempt, from its beginning."""
    attempt.place, before = 0, _attempt.set(attempt)
    try:
        yield
    finally:
        _attempt.reset(before)


def is_together() -> bool:
    """Return whether this call is one of several, or counts as one."""
    return _attempt.get() is not None


def known() -> Any:
    """Return the result of the next work, or ``FAILED``, if this call stopped there
    before; else ``None``.
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
    raise Waiting([(attempt, work)])


def branches(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of functions of which none needs another's, nor the state in
    which it leaves what they share: the call stops for the works of all at once.
    """
    attempt = _attempt.get()
    if attempt is None or attempt.alone:
        return [function() for function in functions]
    if (attempts := known()) is None:
        attempt.results.append(attempts := [Attempt() for _ in functions])
        attempt.place += 1
    results, works = list[T](), list[tuple[Attempt, Work]]()
    for function, own in zip(functions, attempts, strict=True):
        try:
            with _made(own):
                results.append(function())
        except Waiting as stopped:
            works.extend(stopped.works)
    if works:
        raise Waiting(works)
    return results


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
    with _made(Attempt(alone=True)):
        return function(*args, **kwargs)


def _done(works: Sequence[Work]) -> list[Any]:
    """Return the results of all works; if one fails, of each alone, or ``FAILED``."""
    try:
        return works[0].done(works)
    except Exception:
        if len(works) == 1:
            return [FAILED]
        return [result for work in works for result in _done([work])]


def together(calls: Iterable[tuple[Hashable, Callable[[], T]]]) -> list[T]:
    """Return the results of the calls, in their order. Of two calls with the same key,
    the second begins when the first has ended.
    """
    results: list[T | None] = []
    waiting: dict[int, tuple[Hashable, Callable[[], T], Attempt, Waiting]] = {}
    keys, held = set[Hashable](), 0

    def make(place: int, key: Hashable, call: Callable[[], T], attempt: Attempt) -> None:
        try:
            with _made(attempt):
                results[place] = call()
        except Waiting as stopped:
            waiting[place] = key, call, attempt, stopped

    def finish() -> None:
        nonlocal held
        held = 0
        keys.clear()
        while waiting:
            stopped = list(waiting.items())
            waiting.clear()
            pairs = [pair for _, (*_, one) in stopped for pair in one.works]
            for (attempt, _), found in zip(pairs, _done([w for _, w in pairs]), strict=True):
                attempt.results.append(found)
            for place, (key, call, attempt, _) in stopped:
                make(place, key, call, attempt)

    for place, (key, call) in enumerate(calls):
        if len(waiting) >= MOST_CALLS or held >= MOST_BYTES or key in keys:
            finish()
        results.append(None)
        make(place, key, call, Attempt())
        if place in waiting:
            keys.add(key)
            held += sum(work.nbytes for _, work in waiting[place][-1].works)
    finish()
    return results  # type: ignore[return-value]  # all calls have ended
