"""Notes on data and nets, printed on standard error before a run starts, and silence
or colours of other loggers.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class _Once(logging.Filter):
    """Lets each note pass once; notes that differ in their numbers count as one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = re.sub(r"\d+", "", record.getMessage())
        new = text not in self.seen
        self.seen.add(text)
        return new


@contextmanager
def each_once() -> Iterator[None]:
    """Within this context, print each note once: the runs of a sweep share most."""
    once = _Once()
    logger.addFilter(once)
    try:
        yield
    finally:
        logger.removeFilter(once)


@contextmanager
def quiet(level: int, *names: str) -> Iterator[None]:
    """Within this context, leave out what these loggers say below a level."""
    loggers = [logging.getLogger(name) for name in names]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(level)
    try:
        yield
    finally:
        for one, usual in zip(loggers, before, strict=True):
            one.setLevel(usual)


def respect_no_color() -> None:
    """Remove the colours from Flower's log if NO_COLOR is set (no-color.org)."""
    if not os.environ.get("NO_COLOR"):
        return
    import flwr.common  # noqa: F401 - makes the handler

    for handler in logging.getLogger("flwr").handlers:
        if hasattr(handler, "colored"):
            handler.colored = False
