"""Runs from Python: ``import fedapps; run = fedapps.run(method="superfed-mm", data={"alpha": 0.1}, num_rounds=20)``.

What `fedapps run` does, with its settings, checks, engines and results folder; the command stands on the same parts. Importing fedapps
imports none of this: ``fedapps.run`` and ``fedapps.load`` are found when they are first used.
"""

import argparse
import io
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from algorithms.common.options import kebab
from fedapps.errors import UserError
from fedapps.export_command import exported, net_arrays, settings_in
from fedapps.prepare import completed
from fedapps.results.reader import RunFolder, read_run
from fedapps.run_command import carry_out

if TYPE_CHECKING:
    from torch import nn

ENGINES = ("inline", "ray", "deployment")


def run(
    method: str = "fedavg",
    *,
    engine: str = "inline",
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    workers: int | None = None,
    gpus_per_client: float = 0.0,
    deployment: str | Path = "deployment",
    **settings: Any,
) -> "Run":
    """Run a method and return its results.

    ``settings``: those of `fedapps run` by name; a table is a dictionary: ``num_rounds=20, data={"alpha": 0.1}``. ``out``: the
    results folder, by default results/METHOD-TASK-seedN; ``overwrite`` and ``resume`` as the flags of the command. ``progress``:
    whether to show it. ``workers``, ``gpus_per_client``: for engine "ray"; ``deployment``: the folder of one, for engine "deployment".

    Raises ``UserError`` for a mistake, before anything starts; ``RunFailed``; and ``KeyboardInterrupt``, after which ``resume=True``
    goes on.
    """
    if engine not in ENGINES:
        raise UserError(f"engine = {engine!r}: choose one of {', '.join(ENGINES)}")
    arguments = argparse.Namespace(
        engine=engine, out=None if out is None else Path(out), overwrite=overwrite, resume=resume, workers=workers,
        gpus_per_client=gpus_per_client, deployment=Path(deployment), ray_address=None, node_per_client=False, port=None, no_wall=False,
    )  # fmt: skip
    given = flat({"method": method, **settings})
    if out is not None:
        given["out"] = str(out)
    if gpus_per_client:
        given.setdefault("device", "cuda")
    console = None if progress else Console(file=io.StringIO())
    done, status = carry_out(completed({**given, "resume": resume}), arguments, console)
    if status == "interrupted":
        raise KeyboardInterrupt(f"interrupted; go on with resume=True, out={done.out!r}")
    return Run(Path(done.out))


def load(folder: str | Path) -> "Run":
    """Return the results in the folder of a run. Raises ``UserError`` if it holds none."""
    if not (Path(folder) / "settings.toml").is_file():
        raise UserError(f"{folder} holds no run: it has no settings.toml")
    return Run(Path(folder))


def flat(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """Return settings as flat keys: ``{"data": {"min_samples": 5}}`` is ``{"data.min-samples": 5}``."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{table}{kebab(name)}"
        out |= flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return out


class Run:
    """The results of a run, as its folder holds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def __repr__(self) -> str:
        return f"<fedapps.Run {self.read.method} on {self.read.task}, {self.summary.get('status', 'unfinished')}: {self.folder}>"

    @cached_property
    def read(self) -> RunFolder:
        """Everything that the folder holds, as read once."""
        return read_run(self.folder)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, by their flat keys."""
        return dict(self.read.settings)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: status, rounds, mean and spread of every metric."""
        return dict(self.read.summary)

    @property
    def rounds(self) -> Any:
        """One row a round, nested values with dotted names: a DataFrame where pandas is installed, else a list of dictionaries."""
        return frame([_flat_row(row) for row in self.read.rounds])

    @property
    def clients(self) -> Any:
        """One row a client of the last evaluation: a DataFrame where pandas is installed, else a list of dictionaries."""
        return frame(self.read.clients)

    def model(self) -> "nn.Module":
        """Return the global model, to evaluate. Raises ``UserError`` if what the run trained is not the task's net."""
        from fedapps.assembly import build_task

        settings = settings_in(self.folder, own=True)
        task: Any = build_task(settings)
        return _loaded(task, net_arrays(settings, task, self.read).to_torch_state_dict())

    def personal_model(self, client: int) -> "nn.Module":
        """Return the model that a client was scored with, to evaluate. Raises ``UserError`` if the folder does not keep it."""
        from fedapps.assembly import build_task

        _, _, tensors = exported(self.folder, client)
        return _loaded(build_task(settings_in(self.folder)), tensors)


def frame(rows: list[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame where pandas is installed, else as they are."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _flat_row(row: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in row.items():
        out |= _flat_row(value, f"{table}{name}.") if isinstance(value, Mapping) else {f"{table}{name}": value}
    return out


def _loaded(task: Any, tensors: Mapping[str, Any]) -> "nn.Module":
    net: nn.Module = task.model_fn(0)
    net.load_state_dict(dict(tensors))
    return net.eval()
