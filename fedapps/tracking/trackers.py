"""Sends a run's results to its trackers: the settings, the measures of every round, and
at the end its files. The library of a tracker is imported when it starts.

If a tracker fails, the run logs one line, continues, and does not use it again.
"""

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.common import log

from fedapps.records.writer import Recorder
from fedapps.strategies.base.rounds import Ending, Observer

#: The folder of a sweep that holds its runs.
CELLS = "cells"
#: MLflow's names of a run's final status.
STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
LONGEST = 6000  # characters of a parameter in MLflow
PROJECT = "fedapps"
#: Files that are sent at the end, if they exist.
FILES = (
    "settings.toml",
    "rounds.jsonl",
    "summary.json",
    "clients.csv",
    "groups.csv",
    "model.safetensors",
)


@dataclass(frozen=True)
class Tracked:
    """What trackers need of a run: its folder, its settings, the address in
    ``track-to``, and the number of rounds before a resume.
    """

    folder: Path
    config: Mapping[str, Any]
    to: str = ""
    done: int = 0

    @property
    def sweep(self) -> str:
        """The name of the run's sweep, or ""."""
        return self.folder.parent.parent.name if self.folder.parent.name == CELLS else ""


class Tracker(Protocol):
    """A tracker, constructed from a :class:`Tracked`. After its first exception, which
    is logged, it is not called again.
    """

    def round(self, number: int, measures: Mapping[str, float]) -> None:
        """Record a round."""

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Record how the run ended (completed, failed, interrupted), and its files."""


class TensorBoardEvents:
    """An events file in the run's folder: measures as scalars, settings as text.
    ``tensorboard --logdir DIR/cells`` shows the runs of a sweep side by side.
    """

    def __init__(self, run: Tracked) -> None:
        folder = run.folder if not run.to else Path(run.to) / run.sweep / run.folder.name
        kind = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        # A resumed run repeats the rounds after the checkpoint.
        self.writer = kind(str(folder / "tensorboard"), purge_step=run.done + 1)
        lines = [f"    {key} = {value}" for key, value in run.config.items()]
        self.writer.add_text("settings", "\n".join(lines), run.done)

    def round(self, number: int, measures: Mapping[str, float]) -> None:
        """Record a round."""
        for name, value in measures.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Record the end of the run; the files are beside the events."""
        self.writer.add_text("status", status)
        self.writer.close()


class MlflowRun:
    """Settings as parameters, measures with the round as step, files as artifacts; the
    runs of a sweep share an experiment.

    Without an address (``track-to``, ``MLFLOW_TRACKING_URI``) the records go to a
    database in the run's folder.
    """

    def __init__(self, run: Tracked) -> None:
        # MLflow's defaults would block rounds for minutes if the server is down.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        mlflow = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")
        address, files = run.to or os.environ.get("MLFLOW_TRACKING_URI", ""), None
        if not address:
            own = run.folder / "mlflow"
            own.mkdir(exist_ok=True)
            address, files = f"sqlite:///{own / 'mlflow.db'}", (own / "artifacts").as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=address)
        name = run.sweep or f"fedapps-{run.config['task']}"
        with suppress(mlflow.MlflowException):  # it exists
            self.client.create_experiment(name, artifact_location=files)
        experiment = self.client.get_experiment_by_name(name).experiment_id
        self.id = self.client.create_run(experiment, run_name=run.folder.name).info.run_id
        params = [
            self.entities.Param(key, str(value)[:LONGEST]) for key, value in run.config.items()
        ]
        self.client.log_batch(self.id, params=params)

    def round(self, number: int, measures: Mapping[str, float]) -> None:
        """Record a round."""
        now = int(1000 * time.time())
        metrics = [
            self.entities.Metric(name, value, now, number) for name, value in measures.items()
        ]
        self.client.log_batch(self.id, metrics=metrics)

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Record the end of the run."""
        for path in files:
            self.client.log_artifact(self.id, str(path))
        self.client.set_terminated(self.id, STATUS.get(status, "FAILED"))


class WandbRun:
    """Settings as the run's config, measures with the round as step, files as an
    artifact, in the run's folder; the runs of a sweep are a group.

    Data leaves the machine only with ``WANDB_MODE=online``, or when you run ``wandb
    sync DIR/wandb/offline-run-*``.
    """

    def __init__(self, run: Tracked) -> None:
        self.wandb = importlib.import_module("wandb")
        # Log only the fields listed below. wandb would otherwise also record the
        # console output, the code and the machine.
        quiet = self.wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self.run: Any = self.wandb.init(
            project=run.to or os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.folder.name,
            group=run.sweep or None,
            dir=str(run.folder),
            config=dict(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=quiet,
        )

    def round(self, number: int, measures: Mapping[str, float]) -> None:
        """Record a round."""
        self.run.log(dict(measures), step=number)

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Record the end of the run."""
        artifact = self.wandb.Artifact(f"results-{self.run.id}", type="results")
        for path in files:
            artifact.add_file(str(path))
        self.run.log_artifact(artifact)
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "completed" else 1)


ADAPTERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoardEvents,
    "mlflow": MlflowRun,
    "wandb": WandbRun,
}


class Trackers(Observer):
    """Sends each round that ``recorder`` recorded to all trackers of a run."""

    def __init__(self, names: Sequence[str], run: Tracked, recorder: Recorder) -> None:
        self.folder, self.recorder = run.folder, recorder
        self.trackers: dict[str, Tracker] = {}
        for name in names:
            if tracker := self._try(name, partial(ADAPTERS[name], run)):
                self.trackers[name] = tracker

    def __call__(self, _: object) -> None:
        """Send the round that was just recorded."""
        row = self.recorder.row
        for name, tracker in list(self.trackers.items()):
            self._try(name, partial(tracker.round, row["round"], measures_of(row)))

    def end(self, ending: Ending) -> None:
        """Send how the run ended, with its files."""
        files = [path for name in FILES if (path := self.folder / name).exists()]
        for name, tracker in list(self.trackers.items()):
            self._try(name, partial(tracker.end, ending.status, files))

    def _try(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
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
