"""Sends a run's results to its trackers: the measures of every round, tables of
clients, and at the end its files.

If a tracker fails, the run logs one line, continues, and does not use it again.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.common import log

from fedapps.strategies.base.observer import Ending, Observer

#: Rows of the clients' table; the first holds the column names.
Table = Sequence[Sequence[Any]]
#: The folder of a sweep that holds its runs.
CELLS = "cells"
#: The file with the trackers' ids of the run, for a resume.
IDS = "trackers.json"
#: Files that are sent at the end, if they exist.
FILES = (
    "report.html",
    "settings.toml",
    "summary.json",
    "clients.csv",
    "groups.csv",
    "model.safetensors",
)
ADAPTERS = {
    "tensorboard": ("fedapps.tracking.tensorboard_events", "TensorBoardEvents"),
    "mlflow": ("fedapps.tracking.mlflow_run", "MlflowRun"),
    "wandb": ("fedapps.tracking.wandb_run", "WandbRun"),
}


@dataclass(frozen=True)
class Tracked:
    """What trackers need of a run: its folder, its settings, the number of rounds
    before a resume, the address in ``track-to``.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int = 0
    to: str = ""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.folder.name

    @property
    def sweep(self) -> str:
        """The name of the run's sweep, or ""."""
        return self.folder.parent.parent.name if self.folder.parent.name == CELLS else ""

    @property
    def home(self) -> Path:
        """The sweep's folder, or the run's own folder if it belongs to no sweep."""
        return self.folder.parent.parent if self.sweep else self.folder

    def stored_id(self, tracker: str) -> str:
        """Return a tracker's id of this run from before a resume, or ""."""
        path = self.folder / IDS
        known = json.loads(path.read_text(encoding="utf-8")) if self.done and path.exists() else {}
        return str(known.get(tracker, ""))

    def store_id(self, tracker: str, name: str) -> None:
        """Store a tracker's id of this run."""
        path = self.folder / IDS
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(known | {tracker: name}) + "\n", encoding="utf-8")


class Tracker(Protocol):
    """A tracker, constructed from a :class:`Tracked`. After its first exception, which
    is logged, it is not called again.
    """

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round; ``clients`` is empty in rounds without evaluation."""

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record how the run ended (completed, failed, interrupted), and its files."""


class Trackers(Observer):
    """Sends each round to all trackers of a run. ``recorded()`` returns the writer's
    record of the round and its table of clients; ``report()`` writes the files that are
    sent at the end.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: Tracked,
        recorded: Callable[[], tuple[Mapping[str, Any], Table]],
        report: Callable[[], object],
    ) -> None:
        self.run, self.recorded, self.report = run, recorded, report
        self.trackers: dict[str, Tracker] = {}
        for name in names:
            self._try(name, lambda name=name: self.trackers.update({name: self._made(name)}))  # type: ignore[misc]

    def _made(self, name: str) -> Tracker:
        module, kind = ADAPTERS[name]
        made: Tracker = getattr(importlib.import_module(module), kind)(self.run)
        return made

    def __call__(self, _: object) -> None:
        """Send the round that was just recorded."""
        row, clients = self.recorded()
        measures = measures_of(row)
        for name in list(self.trackers):
            self._try(name, partial(self.trackers[name].round, row["round"], measures, clients))

    def end(self, ending: Ending) -> None:
        """Send how the run ended, with its files."""
        if not ending.error:
            with suppress(OSError):
                self.report()
        files = [path for name in FILES if (path := self.run.folder / name).exists()]
        plots = sorted((self.run.folder / "plots").glob("*.png"))
        for name in list(self.trackers):
            self._try(name, lambda name=name: self.trackers[name].end(ending.status, files, plots))  # type: ignore[misc]

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


def columns_of(clients: Table) -> dict[str, list[Any]]:
    """Return the clients' table by columns; empty cells are ``None``."""
    names, *rows = clients
    return {
        str(name): [None if row[place] == "" else row[place] for row in rows]
        for place, name in enumerate(names)
    }
