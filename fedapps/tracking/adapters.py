"""The trackers: TensorBoard, MLflow, Weights & Biases. The library of each is imported
when it starts.
"""

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedapps.clients.base.locks import locked
from fedapps.records.files import write_text
from fedapps.records.reader import read_json

#: Rows of the clients' table; the first holds the column names.
Table = Sequence[Sequence[Any]]
#: The folder of a sweep that holds its runs.
CELLS = "cells"
#: The file with the trackers' ids of the run, for a resume.
IDS = "trackers.json"
#: MLflow's names of a run's final status.
STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
#: Maximum numbers of parameters and measures per request.
PARAMETERS, MEASURES = 100, 1000
LONGEST = 6000
PROJECT = "fedapps"


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
        return str(read_json(self.folder / IDS).get(tracker, "")) if self.done else ""

    def store_id(self, tracker: str, name: str) -> None:
        """Store a tracker's id of this run."""
        path = self.folder / IDS
        write_text(path, json.dumps(read_json(path) | {tracker: name}) + "\n")


class Tracker(Protocol):
    """A tracker, constructed from a :class:`Tracked`. After its first exception, which
    is logged, it is not called again.
    """

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round; ``clients`` is empty in rounds without evaluation."""

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record how the run ended (completed, failed, interrupted), and its files."""


def columns_of(clients: Table) -> dict[str, list[Any]]:
    """Return the clients' table by columns; empty cells are ``None``."""
    names, *rows = clients
    return {
        str(name): [None if row[place] == "" else row[place] for row in rows]
        for place, name in enumerate(names)
    }


class TensorBoardEvents:
    """An events file in the run's folder: measures as scalars, the clients' values as
    histograms and a table, settings as text, plots as images. ``tensorboard --logdir
    DIR/cells`` shows the runs of a sweep side by side.
    """

    def __init__(self, run: Tracked) -> None:
        folder = run.folder if not run.to else Path(run.to) / run.sweep / run.name
        kind = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        # A resumed run repeats the rounds after the checkpoint; purge their first
        # records.
        self.writer = kind(
            str(folder / "tensorboard"), purge_step=run.done + 1 if run.done else None
        )
        rows = [
            ("setting", "value"),
            *((key, str(value) or "``") for key, value in run.config.items()),
        ]
        self.writer.add_text("settings", markdown(rows), run.done)

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round."""
        for name, value in measures.items():
            self.writer.add_scalar(name, value, number)
        if clients:
            for name, values in columns_of(clients).items():
                known = [
                    value
                    for value in values
                    if isinstance(value, int | float) and np.isfinite(value)
                ]
                if name != "client" and known:
                    self.writer.add_histogram(f"clients/{name}", np.asarray(known), number)
            self.writer.add_text("clients", markdown(clients), number)
        self.writer.flush()

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record the end of the run."""
        from PIL import Image

        self.writer.add_text("status", status)
        for path in plots:
            with Image.open(path) as picture:
                self.writer.add_image(
                    f"plots/{path.stem}", np.asarray(picture.convert("RGB")), dataformats="HWC"
                )
        self.writer.close()


def markdown(rows: Table) -> str:
    """Return rows as a Markdown table; the first row is its header."""
    lines = [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


class MlflowRun:
    """Settings as parameters, measures with the round as step, tables of clients and
    files as artifacts; the runs of a sweep share an experiment.

    Without an address (``track-to``, ``MLFLOW_TRACKING_URI``) the records go to a
    database in the folder of the run, or of the sweep.
    """

    def __init__(self, run: Tracked) -> None:
        for key, value in (
            ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
            ("MLFLOW_HTTP_REQUEST_TIMEOUT", "10"),
        ):
            # MLflow's defaults would block rounds for minutes if the server is down.
            os.environ.setdefault(key, value)
        mlflow = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")
        address, artifacts = run.to or os.environ.get("MLFLOW_TRACKING_URI", ""), None
        folder = run.home / "mlflow"
        if not address:
            folder.mkdir(exist_ok=True)
            # Runs of a sweep write at the same time, so each waits for the lock.
            address, artifacts = (
                f"sqlite:///{folder / 'mlflow.db'}?timeout=60",
                (folder / "artifacts").as_uri(),
            )
        # one run at a time creates tables and experiment
        with locked(run.home / "trackers.lock"):
            self.client = mlflow.MlflowClient(tracking_uri=address)
            name = run.sweep or f"fedapps-{run.config.get('task', '')}"
            experiment = self.client.get_experiment_by_name(name)
            number = (
                experiment.experiment_id
                if experiment
                else self.client.create_experiment(name, artifact_location=artifacts)
            )
            self.id = run.stored_id("mlflow") or self._created(run, number)
        self.client.update_run(self.id, "RUNNING")
        run.store_id("mlflow", self.id)

    def _created(self, run: Tracked, experiment: str) -> str:
        tags = {"sweep": run.sweep} if run.sweep else {}
        run_id: str = self.client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        parameters = [
            self.entities.Param(key, str(value)[:LONGEST]) for key, value in run.config.items()
        ]
        for start in range(0, len(parameters), PARAMETERS):
            self.client.log_batch(run_id, params=parameters[start : start + PARAMETERS])
        return run_id

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round."""
        now = int(1000 * time.time())
        metrics: list[Any] = [
            self.entities.Metric(name, value, now, number) for name, value in measures.items()
        ]
        for start in range(0, len(metrics), MEASURES):
            self.client.log_batch(self.id, metrics=metrics[start : start + MEASURES])
        if clients:
            self.client.log_table(self.id, columns_of(clients), f"clients/round-{number:05d}.json")

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record the end of the run."""
        for path in files:
            self.client.log_artifact(self.id, str(path))
        for path in plots:
            self.client.log_artifact(self.id, str(path), "plots")
        self.client.set_terminated(self.id, STATUS.get(status, "FAILED"))


class WandbRun:
    """Settings as the run's config, measures with the round as step, the clients as a
    table, files as an artifact, in the run's folder; the runs of a sweep are a group.

    Data leaves the machine only with ``WANDB_MODE=online``, or when you run ``wandb
    sync DIR/wandb/offline-run-*``.
    """

    def __init__(self, run: Tracked) -> None:
        self.wandb = importlib.import_module("wandb")
        self.name = run.name
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
            name=run.name,
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

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round."""
        entries: dict[str, Any] = dict(measures)
        if clients:
            names, *rows = clients
            cells = [
                [str(row[0]), *(None if cell == "" else float(cell) for cell in row[1:])]
                for row in rows
            ]
            entries["clients"] = self.wandb.Table(columns=list(names), data=cells)
        self.run.log(entries, step=number)

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record the end of the run."""
        self.run.log({f"plots/{path.stem}": self.wandb.Image(str(path)) for path in plots})
        artifact = self.wandb.Artifact(f"results-{self.run.id}", type="results")
        for path in [*files, *plots]:
            artifact.add_file(str(path), name=f"plots/{path.name}" if path in plots else path.name)
        self.run.log_artifact(artifact)
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "completed" else 1)


ADAPTERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoardEvents,
    "mlflow": MlflowRun,
    "wandb": WandbRun,
}
