"""The trackers: TensorBoard, MLflow, Weights & Biases. Each gets the settings, the
measures of every round and the final files. Its library is imported when it starts.
"""

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedapps.records.files import write_text
from fedapps.records.reader import read_json

#: The folder of a sweep that holds its runs.
CELLS = "cells"
#: The file with the trackers' ids of the run, for a resume.
IDS = "trackers.json"
#: MLflow's names of a run's final status.
STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
LONGEST = 6000  # characters of a parameter in MLflow
PROJECT = "fedapps"


@dataclass(frozen=True)
class Tracked:
    """What trackers need of a run: its folder, its settings, the number of rounds
    before a resume, the address in ``track-to``.
    """

    folder: Path
    config: Mapping[str, Any]
    done: int
    to: str

    @property
    def sweep(self) -> str:
        """The name of the run's sweep, or ""."""
        return self.folder.parent.parent.name if self.folder.parent.name == CELLS else ""

    def stored_id(self, tracker: str) -> str:
        """Return a tracker's id of this run from before a resume, or ""."""
        return str(read_json(self.folder / IDS).get(tracker, "")) if self.done else ""

    def store_id(self, tracker: str, name: str) -> None:
        """Store a tracker's id of this run."""
        path = self.folder / IDS
        write_text(path, json.dumps(read_json(path) | {tracker: name}) + "\n")


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
        # A resumed run repeats the rounds after the checkpoint; purge their first
        # records.
        self.writer = kind(
            str(folder / "tensorboard"), purge_step=run.done + 1 if run.done else None
        )
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
        if not (experiment := self.client.get_experiment_by_name(name)):
            # another run of the sweep may be quicker
            with suppress(mlflow.MlflowException):
                self.client.create_experiment(name, artifact_location=files)
            experiment = self.client.get_experiment_by_name(name)
        self.id = run.stored_id("mlflow")
        if not self.id:
            created = self.client.create_run(experiment.experiment_id, run_name=run.folder.name)
            self.id = created.info.run_id
            parameters = [
                self.entities.Param(key, str(value)[:LONGEST]) for key, value in run.config.items()
            ]
            self.client.log_batch(self.id, params=parameters)
            run.store_id("mlflow", self.id)
        self.client.update_run(self.id, "RUNNING")

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
            id=run.stored_id("wandb") or None,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=quiet,
        )
        run.store_id("wandb", str(self.run.id))

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
