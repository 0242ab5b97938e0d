"""Sends a run's results to its trackers: the measures of every round, and at the end
its files.

If a tracker fails, the run logs one line, continues, and does not use it again.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import Any

from flwr.common import log

from fedapps.records.writer import Recorder
from fedapps.strategies.base.rounds import Ending, Observer
from fedapps.tracking.adapters import ADAPTERS, Tracked, Tracker

#: Files that are sent at the end, if they exist.
FILES = (
    "settings.toml",
    "rounds.jsonl",
    "summary.json",
    "clients.csv",
    "groups.csv",
    "model.safetensors",
)


class Trackers(Observer):
    """Sends each round that ``recorder`` recorded to all trackers of a run."""

    def __init__(self, names: Sequence[str], run: Tracked, recorder: Recorder) -> None:
        self.run, self.recorder = run, recorder
        self.trackers: dict[str, Tracker] = {}
        for name in names:
            self._try(name, partial(self._start, name))

    def __call__(self, _: object) -> None:
        """Send the round that was just recorded."""
        row = self.recorder.row
        for name in list(self.trackers):
            self._try(name, partial(self.trackers[name].round, row["round"], measures_of(row)))

    def end(self, ending: Ending) -> None:
        """Send how the run ended, with its files."""
        files = [path for name in FILES if (path := self.run.folder / name).exists()]
        for name in list(self.trackers):
            self._try(name, partial(self.trackers[name].end, ending.status, files))

    def _start(self, name: str) -> None:
        self.trackers[name] = ADAPTERS[name](self.run)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.trackers.pop(name, None)
            reason = " ".join(str(error).split())[:200]
            log(
                WARNING,
                "track = '%s' failed (%s: %s). The run continues without this tracker.",
                name,
                type(error).__name__,
                reason,
            )


def measures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a record of ``rounds.jsonl`` by name, and the numbers of
    clients and failures.
    """
    out: dict[str, float] = {
        "replies": len(row.get("clients", ())),
        "failures": len(row.get("failures", ())),
    }
    for key, value in row.items():
        for name, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            if key != "round" and isinstance(number, int | float) and not isinstance(number, bool):
                out[f"{key}/{name}" if name else key] = float(number)
    return out
