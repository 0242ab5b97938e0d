"""Runs, sweeps and comparisons from Python: ``import fedapps; run =
fedapps.run(method="superfed-mm", num_rounds=20)``.

What `fedapps run`, `sweep` and `compare` do, with their settings, checks, engines and
folders; the commands stand on the same parts. Importing fedapps imports none of this:
``fedapps.run`` and the others are found when they are first used.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from algorithms.common.options import kebab
from fedapps.errors import RunFailed, UserError
from fedapps.outcomes import Comparison, Partition, Run, Sweep
from fedapps.records.reader import run_folder
from fedapps.records.uncertainty import SHARE
from fedapps.results.compare import compared, write_comparison
from fedapps.results.notebook import in_notebook
from fedapps.runs.deal import deal_for
from fedapps.runs.launch import Launch, launch
from fedapps.runs.prepare import with_defaults
from fedapps.settings.settings import check_used
from fedapps.sweeps.execution import Way, execute_sweep, missing_runs
from fedapps.sweeps.grid import Grid, grid_of
from fedapps.sweeps.plan import plan_of, read_plans
from fedapps.toml_text import toml_text

if in_notebook():  # a bar of its own is shown: the widget that a library would like is not needed
    warnings.filterwarnings("ignore", message="IProgress not found")


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

    ``settings``: those of `fedapps run` by name; a table is a dictionary:
    ``num_rounds=20, data={"alpha": 0.1}``. ``out``: the results folder, by default
    results/METHOD-TASK-seedN; ``overwrite`` and ``resume`` as the flags of the command.
    ``progress``: whether to show it. ``workers``, ``gpus_per_client``: for engine
    "ray"; ``deployment``: the folder of one, for engine "deployment".

    Raises ``UserError`` for a mistake, before anything starts; ``RunFailed``; and
    ``KeyboardInterrupt``, after which ``resume=True`` goes on.
    """
    how = Launch(
        engine=engine,
        overwrite=overwrite,
        deployment=Path(deployment),
        workers=workers,
        gpus_per_client=gpus_per_client,
    )
    given = flat({"method": method, **settings})
    if several := next((key for key, value in given.items() if isinstance(value, list)), ""):
        raise UserError(
            f"{several} = {given[several]!r}: a run has one value of each setting: fedapps.sweep "
            "takes lists"
        )
    if out is not None:
        given["out"] = str(out)
    if gpus_per_client:
        given.setdefault("device", "cuda")
    wanted = with_defaults({**given, "resume": resume})
    check_used(given, wanted.flat())
    done, status = launch(wanted, how, _console(progress))
    if status == "interrupted":
        raise KeyboardInterrupt(f"interrupted; go on with resume=True, out={done.out!r}")
    return Run(Path(done.out))


def load(folder: str | Path) -> "Run":
    """Return the results in the folder of a run. Raises ``UserError`` if it holds
    none.
    """
    return Run(run_folder(Path(folder)))


def sweep(
    file: str | Path | None = None,
    *,
    out: str | Path | None = None,
    scale: str = "",
    data_folder: str | Path | None = None,
    jobs: int = 0,
    engine: str = "inline",
    gpus_per_client: float = 0.0,
    progress: bool = True,
    **settings: Any,
) -> Sweep:
    """Run a grid of settings and return its table and its runs; what is finished
    already is not run again.

    ``file``: the experiment file of `fedapps sweep`; without one the settings alone say
    what varies: a list is an axis, ``method=["fedavg", "local"], seed=[0, 1, 2]``;
    ``axis``, ``when`` and ``sweep`` are the tables of such a file. ``out``: the results
    folder, by default results/sweep-FILE, or results/sweep. ``jobs``: runs at a time, 0
    for as many as there are cores. The others are the flags of the command;
    ``data_folder`` is its --data.

    Raises ``UserError`` for a mistake, before anything starts; ``RunFailed`` if runs
    failed, after the tables are written; and ``KeyboardInterrupt``, after which the
    same call goes on.
    """
    if engine not in ("inline", "ray"):
        raise UserError(f"engine = {engine!r}: choose one of inline, ray")
    way = Way(engine, jobs, gpus_per_client)
    plan_data = None if data_folder is None else Path(data_folder).expanduser()
    folder = None if out is None else Path(out).expanduser().absolute()
    if file is None:
        folder = folder or Path("results", "sweep").absolute()
        plans = [plan_of(_grid(settings, scale), folder, plan_data)]
    else:
        words = [f"{key}={toml_text(value)}" for key, value in flat(settings).items()]
        plans = read_plans(Path(file), words, scale, folder, plan_data)
    if len(plans) != 1:
        raise UserError(f"{file}: holds {len(plans)} sweeps: name the file of one")
    (plan,) = plans
    results, failed = execute_sweep(plan, missing_runs(plan), way, _console(progress))
    if failed or results is None:
        name, reason = next(iter(failed.items()), ("", ""))
        raise RunFailed(
            f"{len(failed)} of {len(plan.points)} runs, the first {name}: {reason}; the same call "
            "goes on with them"
        )
    return Sweep(plan.out, results)


def compare(
    *runs: "Run | Sweep | str | Path | Iterable[Run | str | Path]",
    reference: "Run | str | Path | None" = None,
    worst: float = SHARE,
    out: str | Path | None = None,
) -> Comparison:
    """Return runs beside each other: their table, what each client gains, plots.

    ``runs``: runs, sweeps (all their runs) or results folders, also in lists.
    ``reference``: the run over which gains are measured, by default the first of method
    local. ``worst``: the share of the clients that are the worst. ``out``: a folder for
    the files that `fedapps compare` writes, by default none.
    """
    if not 0 < worst <= 1:
        raise UserError(f"worst = {worst!r}: must be above 0 and at most 1")
    found = compared(
        list(_folders(runs)), worst, None if reference is None else next(_folders([reference]))
    )
    return Comparison(
        found,
        None if out is None else write_comparison(found, Path(out).expanduser()).out.absolute(),
    )


def partition(**settings: Any) -> Partition:
    """Return who gets what under these settings, before anything trains: what `fedapps
    data` shows.
    """
    return Partition(*deal_for(with_defaults(flat(settings))))


def _folders(runs: Iterable[Any]) -> Iterator[Path]:
    for run in runs:
        if isinstance(run, Sweep):
            yield from _folders(run.runs.values())
        elif isinstance(run, Run):
            yield run.folder
        elif isinstance(run, str | Path):
            yield Path(run).expanduser()
        else:
            yield from _folders(run)


def _console(shown: bool) -> Console | None:
    return None if shown else Console(file=io.StringIO())


def _grid(settings: Mapping[str, Any], scale: str) -> Grid:
    """Return the grid that settings mean: tables as a file has them, except that
    settings are named as from Python.
    """
    tables = {name: settings[name] for name in ("axis", "when", "sweep") if name in settings}
    given: dict[str, Any] = dict(
        flat({name: value for name, value in settings.items() if name not in tables})
    )
    for name, cases in tables.get("axis", {}).items():
        given.setdefault("axis", {})[name] = {label: flat(case) for label, case in cases.items()}
    for rule in tables.get("when", ()):
        given.setdefault("when", []).append(
            {
                **flat({k: v for k, v in rule.items() if k != "set"}),
                "set": flat(rule.get("set", {})),
            }
        )
    if "sweep" in tables:
        given["sweep"] = {kebab(name): value for name, value in tables["sweep"].items()}
    try:
        return grid_of("sweep", given, {}, scale)
    except ValueError as error:
        raise UserError(str(error)) from None


def flat(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """Return settings as flat keys: ``{"data": {"min_samples": 5}}`` is
    ``{"data.min-samples": 5}``.
    """
    out: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{table}{kebab(name)}"
        out |= flat(value, f"{key}.") if isinstance(value, Mapping) else {key: _plain(key, value)}
    return out


def _plain(key: str, value: Any) -> Any:
    """Return paths as text and numbers of numpy as Python's. Raises ``UserError`` for
    code, which other processes know by name.
    """
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in value]
    if callable(value):
        module, name = (
            getattr(value, "__module__", "MODULE"),
            getattr(value, "__qualname__", "NAME"),
        )
        place = "write it to a file, my_code.py, and name it" if module == "__main__" else "name it"
        module = "my_code" if module == "__main__" else module
        raise UserError(
            f"{key}: is code, which other processes must find, too: {place} as text, "
            f"'{module}:{name}'"
        )
    if isinstance(value, Path):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
