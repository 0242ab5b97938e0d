"""What a run tells its trackers: measures of every round, tables of clients, and at the
end its files.

A tracker that fails is left out from then on, with one line in the log: no run ends
because a tracker does.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.common import log

#: Rows of the clients' table, the names of its columns first.
Table = Sequence[Sequence[Any]]
#: The runs of a sweep lie in this folder of it.
CELLS = "cells"
#: Holds what a tracker calls the run, for a resume.
KEPT = "trackers.json"
#: What is sent at the end, if the run has it.
FILES = ("report.html", "settings.toml", "summary.json", "clients.csv", "groups.csv")
ADAPTERS = {
    "tensorboard": ("fedapps.tracking.tensorboard_events", "TensorBoardEvents"),
    "mlflow": ("fedapps.tracking.mlflow_run", "MlflowRun"),
    "wandb": ("fedapps.tracking.wandb_run", "WandbRun"),
}


@dataclass(frozen=True)
class Tracked:
    """A run as its trackers see it: its folder, its settings, the rounds that were done
    before, the address that ``track-to`` names.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int = 0
    to: str = ""

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.folder.name

    @property
    def sweep(self) -> str:
        """The name of the sweep that the run is of, or ""."""
        return self.folder.parent.parent.name if self.folder.parent.name == CELLS else ""

    @property
    def home(self) -> Path:
        """The folder that runs of one sweep share; the run's own one outside of
        sweeps.
        """
        return self.folder.parent.parent if self.sweep else self.folder

    def kept(self, tracker: str) -> str:
        """Return what a tracker called this run before it was resumed, or ""."""
        path = self.folder / KEPT
        known = json.loads(path.read_text(encoding="utf-8")) if self.done and path.exists() else {}
        return str(known.get(tracker, ""))

    def keep(self, tracker: str, name: str) -> None:
        """Remember what a tracker calls this run."""
        path = self.folder / KEPT
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(known | {tracker: name}) + "\n", encoding="utf-8")


class Tracker(Protocol):
    """Made of a :class:`Tracked`; anything it raises is told once, and it is not called
    again.
    """

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Take in a round; ``clients`` is empty in rounds without evaluation."""

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Take in how the run ended (completed, failed, interrupted) and the files that
        it has.
        """


class Trackers:
    """Callback that tells all trackers of a run. ``recorded()`` returns the round's
    record and table of clients (of the writer).
    """

    def __init__(
        self,
        names: Sequence[str],
        run: Tracked,
        recorded: Callable[[], tuple[Mapping[str, Any], Table]],
    ) -> None:
        self.run = run
        self.recorded = recorded
        self.trackers: dict[str, Tracker] = {}
        for name in names:
            self._try(name, lambda name=name: self.trackers.update({name: self._made(name)}))  # type: ignore[misc]

    def _made(self, name: str) -> Tracker:
        module, kind = ADAPTERS[name]
        made: Tracker = getattr(importlib.import_module(module), kind)(self.run)
        return made

    def __call__(self, _: object) -> None:
        """Tell the round that was just recorded."""
        row, clients = self.recorded()
        measures = measures_of(row)
        for name in list(self.trackers):
            self._try(name, partial(self.trackers[name].round, row["round"], measures, clients))

    def end(self, status: str) -> None:
        """Tell how the run ended, with its files."""
        files = [path for name in FILES if (path := self.run.folder / name).exists()]
        plots = sorted((self.run.folder / "plots").glob("*.png"))
        for name in list(self.trackers):
            self._try(name, lambda name=name: self.trackers[name].end(status, files, plots))  # type: ignore[misc]

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.trackers.pop(name, None)
            reason = " ".join(str(error).split())[:200]
            log(
                WARNING,
                "track = '%s': %s: %s. Nothing more goes there; the run goes on.",
                name,
                type(error).__name__,
                reason,
            )


def measures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a record of ``rounds.jsonl`` by name; of lists of clients
    and failures how many there are.
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
