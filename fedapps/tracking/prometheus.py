"""A page of a run's counters for Prometheus, read from its ``rounds.jsonl`` whenever
somebody asks.

The text format is that of https://prometheus.io/docs/instrumenting/exposition_formats/.
The page tells counts, seconds, bytes and mean measures, nothing of single clients, and
listens on the loopback interface unless told otherwise.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedapps.errors import UserError

PREFIX = "fedapps_"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Name, kind and help of what is counted over the rounds.
COUNTERS = {
    "rounds_total": "rounds that have ended",
    "round_seconds_total": "seconds that rounds took",
    "replies_total": "valid replies to training",
    "failures_total": "replies that were left out, and clients that did not answer",
}
BYTES = {
    ("up", "train"): "bytes-up",
    ("down", "train"): "bytes-down",
    ("up", "evaluate"): "evaluate-bytes-up",
}
BYTES |= {("down", "evaluate"): "evaluate-bytes-down"}


class Counts:
    """What the records of a run add up to; :meth:`text` reads what is new in the file,
    and returns the page.
    """

    def __init__(self, folder: Path, labels: Mapping[str, str], num_rounds: int) -> None:
        self.folder, self.labels, self.num_rounds = folder, dict(labels), num_rounds
        self.lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self.place, self.file = 0, -1
        self.totals: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self.bytes: dict[tuple[str, str], float] = dict.fromkeys(BYTES, 0)
        self.last: dict[str, float] = {}
        self.measures: dict[str, float] = {}

    def text(self) -> str:
        """Return the page."""
        with self.lock:
            self._read()
            lines = [
                *self._metric(
                    "rounds_planned",
                    "gauge",
                    "rounds that the run is to have",
                    [({}, self.num_rounds)],
                )
            ]
            for name, text in COUNTERS.items():
                lines += self._metric(name, "counter", text, [({}, self.totals[name])])
            values: list[tuple[dict[str, str], float]] = [
                ({"direction": way, "phase": phase}, value)
                for (way, phase), value in self.bytes.items()
            ]
            lines += self._metric(
                "bytes_total", "counter", "bytes that clients sent (up) and received (down)", values
            )
            for name, value in self.last.items():
                lines += self._metric(name, "gauge", "of the last round", [({}, value)])
            told = [({"name": name}, value) for name, value in self.measures.items()]
            lines += self._metric(
                "measure",
                "gauge",
                "measures of the last evaluation, by their names in rounds.jsonl",
                told,
            )
            return "\n".join(lines) + "\n"

    def _read(self) -> None:
        path = self.folder / "rounds.jsonl"
        try:
            status = path.stat()
            # a resumed run writes it anew
            if status.st_ino != self.file or status.st_size < self.place:
                self._start()
                self.file = status.st_ino
            with path.open("rb") as file:
                file.seek(self.place)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self.place += len(whole)
        for line in whole.splitlines():
            self._count(json.loads(line))

    def _count(self, row: Mapping[str, Any]) -> None:
        told = (1, row["seconds"], len(row["clients"]), len(row["failures"]))
        for name, value in zip(COUNTERS, told, strict=True):
            self.totals[name] += value
        for key, name in BYTES.items():
            self.bytes[key] += row.get(name, 0)
        self.last = {
            "last_round_seconds": row["seconds"],
            "last_round_replies": len(row["clients"]),
        }
        self.last["last_round_failures"] = len(row["failures"])
        if "evaluate" in row:
            self.measures = {
                name: value
                for name, value in row["evaluate"].items()
                if isinstance(value, int | float)
            }

    def _metric(
        self, name: str, kind: str, text: str, values: list[tuple[dict[str, str], float]]
    ) -> list[str]:
        if not values:
            return []
        lines = [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        for labels, value in values:
            shown = ",".join(
                f'{key}="{escaped(word)}"' for key, word in {**self.labels, **labels}.items()
            )
            lines.append(f"{PREFIX}{name}{{{shown}}} {number(value)}")
        return lines


def escaped(text: str) -> str:
    """Return the value of a label as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """Return a number as the format wants it."""
    if value != value:
        return "NaN"
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))


@contextmanager
def served(counts: Counts, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the page at ``/metrics`` meanwhile; 0 stands for a free port, and the one
    it is yielded. Raises ``UserError``.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.partition("?")[0] in ("/", "/metrics")
            content = (counts.text() if known else "see /metrics\n").encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:  # every scrape would be a line on the terminal
            pass

    try:
        server = ThreadingHTTPServer((host, port), Page)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"metrics-port = {port}: {host} cannot be listened on there: {error}"
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
    )
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
