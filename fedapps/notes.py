"""Notes on data and nets, printed on standard error before a run starts."""

import logging
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
