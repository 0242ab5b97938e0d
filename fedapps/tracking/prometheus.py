"""A page of a run's counters for Prometheus, read from its ``rounds.jsonl`` at every
request.

The page shows counts, seconds, bytes and mean measures, and nothing about single
clients. By default it listens on the loopback interface.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.engines.processes import try_port
from fedapps.errors import UserError
from fedapps.records.rounds import RoundReader

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "fedapps_"
#: Counters over the rounds: names and help texts.
COUNTERS = {
    "rounds_total": "rounds that have ended",
    "round_seconds_total": "seconds that rounds took",
    "replies_total": "valid replies to training",
    "failures_total": "replies that were skipped, and clients that did not answer",
}
BYTES = {
    ("up", "train"): "bytes-up",
    ("down", "train"): "bytes-down",
    ("up", "evaluate"): "evaluate-bytes-up",
    ("down", "evaluate"): "evaluate-bytes-down",
}


class Counts:
    """A collector for ``prometheus_client``: totals over the records of a run. Each
    call reads the new lines of the file.
    """

    def __init__(self, folder: Path, labels: Mapping[str, str], num_rounds: int) -> None:
        self.folder, self.labels, self.num_rounds = folder, dict(labels), num_rounds
        self.lock, self.reader = threading.Lock(), RoundReader()
        self._start()

    def _start(self) -> None:
        self.totals: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self.bytes: dict[tuple[str, str], float] = dict.fromkeys(BYTES, 0)
        self.last: dict[str, float] = {}
        self.measures: dict[str, float] = {}

    def collect(self) -> "Iterator[Metric]":
        """Yield the counters and gauges of the page."""
        # imported here because only runs with a page need it
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def one(kind: type, name: str, text: str, *values: tuple[Mapping[str, str], float]) -> Any:
            family = kind(PREFIX + name, text)
            for labels, value in values:
                family.add_sample(PREFIX + name, {**self.labels, **labels}, value)
            return family

        with self.lock:
            rows = self.reader.read(self.folder / "rounds.jsonl")
            if self.reader.restarted:  # a resumed run replaces the file
                self._start()
            for row in rows:
                self._count(row)
            gauge, counter = GaugeMetricFamily, CounterMetricFamily
            yield one(gauge, "rounds_planned", "planned number of rounds", ({}, self.num_rounds))
            for name, text in COUNTERS.items():
                yield one(counter, name, text, ({}, self.totals[name]))
            text = "bytes that clients sent (up) and received (down)"
            bytes_ = [
                ({"direction": way, "phase": phase}, value)
                for (way, phase), value in self.bytes.items()
            ]
            yield one(counter, "bytes_total", text, *bytes_)
            for name, value in self.last.items():
                yield one(gauge, name, "of the last round", ({}, value))
            text = "measures of the last evaluation, by their names in rounds.jsonl"
            measures = [({"name": name}, value) for name, value in self.measures.items()]
            if measures:
                yield one(gauge, "measure", text, *measures)

    def _count(self, row: Mapping[str, Any]) -> None:
        counts = (1, row["seconds"], len(row["clients"]), len(row["failures"]))
        for name, value in zip(COUNTERS, counts, strict=True):
            self.totals[name] += value
        for key, name in BYTES.items():
            self.bytes[key] += row.get(name, 0)
        names = ("last_round_seconds", "last_round_replies", "last_round_failures")
        self.last = dict(zip(names, counts[1:], strict=True))
        if "evaluate" in row:
            self.measures = {
                name: value
                for name, value in row["evaluate"].items()
                if isinstance(value, int | float)
            }


@contextmanager
def served(counts: Counts, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the page at ``/metrics`` inside the ``with`` block, and yield its port.
    ``port``: 0 for a free one. Raises ``UserError``.
    """
    from prometheus_client import CollectorRegistry, start_http_server  # here, as above

    registry = CollectorRegistry()
    registry.register(counts)
    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise _refused(port, host, error) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


def check_port(port: int, host: str) -> None:
    """Raise ``UserError`` if the page cannot be served there."""
    try:
        try_port(host, port)
    except (OSError, OverflowError) as error:
        raise _refused(port, host, error) from None


def _refused(port: int, host: str, error: Exception) -> UserError:
    return UserError(
        f"metrics-port = {port}: cannot listen on {host} ({error}). Choose another port, or 0 "
        "for a free one."
    )
