"""Runs, sweeps and comparisons from Python: ``import fedapps; run =
fedapps.run(method="superfed-mm", num_rounds=20)``.

These functions do what the commands `fedapps run`, `sweep` and `compare` do, with the
same settings, checks, engines and folders. ``import fedapps`` does not import this
module; the first use of ``fedapps.run`` or another function does.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from rich.console import Console

from fedapps.algorithms.common.options import kebab
from fedapps.data.in_memory import data_table, is_array, is_frame, is_written
from fedapps.errors import RunFailed, UserError, in_python
from fedapps.extensions.cell_code import reference_to
from fedapps.lab.client_samples import client_samples
from fedapps.lab.contests.page import gains_figure, sections
from fedapps.lab.contests.setup import run_contest
from fedapps.lab.outcomes import Comparison, Partition, Run, Sweep, Verdict
from fedapps.lab.results.compare import compared, write_comparison
from fedapps.lab.results.report import write_report
from fedapps.lab.sweeps.execution import Way, execute_sweep, missing_runs
from fedapps.lab.sweeps.grid import Grid, grid_of
from fedapps.lab.sweeps.plan import plan_of, read_plans
from fedapps.records.reader import run_folder
from fedapps.records.uncertainty import SHARE
from fedapps.runs.launch import Launch, launch
from fedapps.runs.prepare import with_defaults
from fedapps.runs.progress import in_notebook
from fedapps.settings.reading import check_used
from fedapps.toml_text import flatten_toml, toml_text

if TYPE_CHECKING:
    from torch import nn

if in_notebook():  # fedapps shows its own bar and needs no widget
    warnings.filterwarnings("ignore", message="IProgress not found")


@in_python
def run(
    method: str = "fedavg",
    *,
    engine: str = "auto",
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    workers: int | None = None,
    gpus_per_client: float = 0.0,
    deployment: str | Path = "",
    **settings: Any,
) -> "Run":
    """Run a method and return its results.

    ``settings``: the settings of `fedapps run` by name; a table is a dictionary:
    ``num_rounds=20, data={"alpha": 0.1}``. ``data``: also a path, a DataFrame, or
    arrays as ``(x, y)`` or ``{"x": x, "y": y, "client": client}``. ``label``,
    ``client``: short for data.label and data.natural-id. ``model``: also a class or
    function that makes the net. ``out``: the results folder, by default
    results/METHOD-TASK-seedN. ``overwrite`` and ``resume``: the flags of the command.
    ``progress``: whether to show the progress. ``workers``: how many processes run
    clients, with engine "inline" or "ray"; by default one per core where that saves
    time. ``engine``: "auto" is "inline", or "ray" with ``gpus_per_client``, the share
    of a GPU for each client, or "deployment" with its folder, ``deployment``.

    Raises ``UserError`` for bad input, before anything starts; ``RunFailed`` if the run
    fails; and ``KeyboardInterrupt`` if it is interrupted. ``resume=True`` then
    continues it.
    """
    how = Launch(
        engine=engine,
        overwrite=overwrite,
        deployment=Path(deployment) if deployment else None,
        workers=workers,
        gpus_per_client=gpus_per_client,
    )
    given = flat({"method": method, **settings})
    if listed := next((key for key, value in given.items() if isinstance(value, list)), ""):
        raise UserError(
            f"{listed} = {given[listed]!r}: a run takes one value per setting. For lists use "
            "fedapps.sweep."
        )
    if (engine == "deployment" or deployment) and is_written(given.get("data.source")):
        raise UserError("data: sites read their own files: name a file or folder that each has")
    if out is not None:
        given["out"] = str(out)
    wanted = with_defaults({**given, "resume": resume})
    check_used(given, wanted.flat())
    launched, status = launch(wanted, how, write_report, _console(progress))
    if status == "interrupted":
        raise KeyboardInterrupt(f"interrupted; continue with resume=True, out={launched.out!r}")
    return Run(Path(launched.out), trust=True)


@overload
def load(folder: str | Path, *, trust: bool = ...) -> "Run": ...


@overload
def load(folder: str | Path, *, client: int | str, trust: bool = ...) -> "nn.Module": ...


@in_python
def load(
    folder: str | Path, *, client: int | str | None = None, trust: bool = False
) -> "Run | nn.Module":
    """Return the results in a run's folder or, with ``client``, the model that the
    client of this name or number was scored with, as `fedapps export --client` writes
    it. Raises ``UserError`` if there are none.

    ``trust``: whether the code that its settings name, a net of your own for example,
    may be executed to make its models.
    """
    run = Run(run_folder(Path(folder)), trust)
    return run if client is None else run.personal_model(client)


@in_python
def sweep(
    file: str | Path | None = None,
    *,
    out: str | Path | None = None,
    scale: str = "",
    data_folder: str | Path | None = None,
    jobs: int = 0,
    gpus_per_run: float = 1.0,
    progress: bool = True,
    **settings: Any,
) -> Sweep:
    """Run a grid of settings and return its table and its runs. Finished runs are not
    repeated.

    ``file``: the experiment file of `fedapps sweep`. Without a file, the settings
    define the grid: a list is an axis, ``method=["fedavg", "local"], seed=[0, 1, 2]``;
    ``axis``, ``when`` and ``sweep`` are the tables of such a file. ``out``: the results
    folder, by default results/sweep-FILE, or results/sweep. ``jobs``: the number of
    runs at a time, 0 for one per core, and ``gpus_per_run`` the share of a GPU for each
    that uses one. ``data_folder``: the command's --data. The other arguments are the
    flags of the command.

    Raises ``UserError`` for bad input, before anything starts; ``RunFailed`` if runs
    failed, after the tables are written; and ``KeyboardInterrupt`` if it is
    interrupted. Repeat the call to continue.
    """
    way = Way(jobs, gpus_per_run)
    plan_data = None if data_folder is None else Path(data_folder).expanduser()
    folder = None if out is None else Path(out).expanduser().absolute()
    if file is None:
        folder = folder or Path("results", "sweep").absolute()
        plans = [plan_of(_grid(settings, scale), folder, plan_data)]
    else:
        words = [f"{key}={toml_text(value)}" for key, value in flat(settings).items()]
        plans = read_plans(Path(file), words, scale, folder, plan_data)
    if len(plans) != 1:
        raise UserError(f"{file}: holds {len(plans)} sweeps. Name the file of one of them.")
    (plan,) = plans
    results, failed = execute_sweep(plan, missing_runs(plan), way, _console(progress))
    if failed or results is None:
        name, reason = next(iter(failed.items()), ("", ""))
        raise RunFailed(
            f"{len(failed)} of {len(plan.points)} runs failed, the first is {name}: {reason}. "
            "Repeat the call to run them again; finished runs are kept."
        )
    return Sweep(plan.out, results)


@in_python
def contest(
    *,
    out: str | Path = "results/contest",
    budget: float = 1800.0,
    methods: Sequence[str] | None = None,
    delta: float = 0.0,
    price: float = 0.0,
    jobs: int = 0,
    gpus_per_run: float = 1.0,
    progress: bool = True,
    **settings: Any,
) -> Verdict:
    """Compare methods on your data, each at its best rate, and return the verdict:
    whether to federate, and with which method.

    ``settings``: those of all runs, as of :func:`run`. ``budget``: seconds that it may
    take, 0 for no limit. ``methods``: those beside training alone, FedAvg and
    fine-tuning; by default the portfolio of `fedapps contest`. ``delta``: the gain that
    counts, in the measure's units, 0.01 for a point (0: one point, or 2 % of the error
    of each client's mean). ``price``: what federation costs in these units.
    ``jobs``: runs at a time, 0 for one per core. ``gpus_per_run``: the share of a GPU
    for each run that uses one. ``progress``: whether to print what has been decided. An
    interrupted contest goes on when the call is repeated.
    """
    if isinstance(budget, str) or budget < 0:
        raise UserError(f"budget = {budget!r}: give seconds, or 0 for no limit")
    if isinstance(methods, str):
        raise UserError(f"methods = {methods!r}: give a list of names")
    way, say = Way(jobs=jobs, gpus_per_run=gpus_per_run), print if progress else lambda line: None
    contest, result, text = run_contest(
        flat(settings),
        Path(out),
        budget=budget,
        methods=methods,
        delta=delta,
        price=price,
        way=way,
        say=say,
    )
    shown = sections(contest, result), gains_figure(contest, result)
    return Verdict(contest.trials.out, result.kind, result.method, text, *shown)


@in_python
def compare(
    *runs: "Run | Sweep | str | Path | Iterable[Run | str | Path]",
    reference: "Run | str | Path | None" = None,
    worst: float = SHARE,
    out: str | Path | None = None,
) -> Comparison:
    """Return a comparison of runs: their table, the gain of each client, plots.

    ``runs``: runs, sweeps (all their runs) or results folders, also in lists.
    ``reference``: the run that gains are measured against, by default the first run of
    method local. ``worst``: the share of the clients that counts as the worst. ``out``:
    a folder for the files of `fedapps compare`; by default none are written.
    """
    comparison = compared(
        list(_folders(runs)), worst, None if reference is None else next(_folders([reference]))
    )
    if out is not None:
        comparison = write_comparison(comparison, Path(out).expanduser().absolute())
    return Comparison(comparison, None if out is None else comparison.out)


@in_python
def partition(**settings: Any) -> Partition:
    """Return the partition of the data under these settings, without training; `fedapps
    data` shows the same.
    """
    return Partition(*client_samples(with_defaults(flat(settings))))


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
    """Return the grid that settings define. Tables are those of a file, but the names
    of settings are Python's.
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


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as flat keys: ``{"data": {"min_samples": 5}}`` is
    ``{"data.min-samples": 5}``. Data in memory become files.
    """
    named = {kebab(name): value for name, value in flatten_toml(_in_full(settings)).items()}
    return {key: _plain(key, value) for key, value in named.items()}


def _in_full(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their short forms spelled out: data, ``label``, ``client``
    and ``model``.
    """
    out = dict(settings)
    model = out.get("model")
    if model is not None and not isinstance(model, Mapping):
        out["model"] = {"name": model}
    given = {name: out.pop(name) for name in ("label", "client") if name in out}
    data = out.get("data", {})
    if not given and "data" not in out:
        return out
    table = data_table(data)
    for name, value in given.items():
        key = {"label": "label", "client": "natural_id"}[name]
        if key in table or kebab(key) in table:
            raise UserError(f"{name} = {value!r}: is given twice, in data, too: leave one out")
        table[key] = str(value) if isinstance(value, int) else value
    out["data"] = table
    return out


def _plain(key: str, value: Any) -> Any:
    """Return a value as a file of settings would have it: paths as text, NumPy numbers
    as Python numbers, code as its name. Raises ``UserError``.
    """
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in value]
    if key == "model.name" and not isinstance(value, str | Path):
        return reference_to("model", value)
    if callable(value):
        name = getattr(value, "__qualname__", "NAME")
        raise UserError(
            f"{key}: other processes must be able to import this code. Save it in a file, "
            f"my_code.py, and give its name as text: 'my_code:{name}'"
        )
    if is_array(value) or is_frame(value):
        raise UserError(f"{key}: is of type {type(value).__name__}: give a plain value")
    if isinstance(value, Path):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
