"""Records a run in MLflow. The runs of a sweep share an experiment.

Without an address (``track-to``, ``MLFLOW_TRACKING_URI``) the records go to a database
in the folder of the run, or of the sweep.
"""

import fcntl
import importlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.tracking.callback import Table, Tracked, columns_of

FOLDER = "mlflow"
#: MLflow's names of a run's final status.
STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
#: Maximum numbers of parameters and measures per request.
PARAMETERS, MEASURES = 100, 1000
LONGEST = 6000


class MlflowRun:
    """Settings as parameters, measures with the round as step, tables of clients and
    files as artifacts.
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
        folder = run.home / FOLDER
        if not address:
            folder.mkdir(exist_ok=True)
            # Runs of a sweep write at the same time, so each waits for the lock.
            address, artifacts = (
                f"sqlite:///{folder / 'mlflow.db'}?timeout=60",
                (folder / "artifacts").as_uri(),
            )
        with (run.home / "trackers.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one run at a time creates tables and experiment
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
