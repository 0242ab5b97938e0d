"""Records a run for Weights & Biases in the run's folder; the runs of a sweep are a
group.

Data leaves the machine only with ``WANDB_MODE=online``, or when you run ``wandb sync
DIR/wandb/offline-run-*``.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.tracking.callback import Table, Tracked

PROJECT = "fedapps"


class WandbRun:
    """Settings as the run's config, measures with the round as step, the clients as a
    table, files as an artifact.
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
