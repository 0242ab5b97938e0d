"""Sweep files: which settings vary and which are fixed.

A setting whose value is a list is an axis; ``[axis.NAME]`` is an axis of named cases,
each a small table of settings. ``[[when]]`` changes settings of some runs: its keys are
conditions, its table ``set`` holds the settings of runs that satisfy them.
``[scale.NAME]`` replaces settings, axes and options, or selects cases (``axis.NAME =
["one", "two"]``). ``[[claim]]`` is read by the index of results (``tools.claims``) and
does not affect the runs.

The table ``[sweep]`` says what the report shows of the runs, and what is kept of them.
The numbers of a run are always kept: settings, rounds, clients, weights, curves,
summary. With personal models, a run stores one model per client. A finished run does
not need them any more, so they are deleted unless ``sweep.keep`` names them. Nothing is
deleted from an unfinished run, which continues from its checkpoint.
"""

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.algorithms.common.options import nearest
from fedapps.errors import UserError
from fedapps.lab.results.grid_plots import PlotSpec, read_fields, read_plot
from fedapps.lab.results.run_measures import read_measure
from fedapps.lab.sweeps.pool import finished
from fedapps.settings.reading import OF_SWEEPS, default_config, read_settings, unknown
from fedapps.tasks.registry import find_task
from fedapps.toml_text import flatten_toml, load_toml, parse_assignment, toml_text

#: The parts that ``sweep.keep`` can name, and their files and folders in a run.
PARTS = {
    "model": ("model.safetensors",),
    "clients": ("clients",),
    "checkpoint": ("checkpoint",),
    "synthetic": ("synthetic",),
}
#: A paper's text for a row: one text, or one for each column of the table.
Beside = Mapping[str, str | Mapping[str, str]]


@dataclass(frozen=True)
class SweepOptions:
    """The table ``[sweep]``.

    ``title``: title of the report. ``measures``: columns of the table, () for the usual
    ones of the task; see ``results.run_measures``. ``rows``: the axes of the rows, ()
    for the first axis. ``against``: the row that the other rows are compared with, seed
    by seed, or a table with one such row per row. ``paired``: the measures that are
    compared so, () for the first. ``printed``: the values that a paper prints, by
    measure and row. ``keep``: what is kept of a finished run besides its numbers.
    ``minutes``: the duration of the sweep on two cores, 0 if unknown. ``plot``: the
    plots, () for the usual ones.
    """

    title: str = ""
    measures: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    against: str | Mapping[str, str] = ""
    paired: tuple[str, ...] = ()
    printed: Mapping[str, Beside] | None = None
    keep: tuple[str, ...] = ("model", "synthetic")
    minutes: float = 0.0
    plot: tuple[PlotSpec, ...] = ()

    def __post_init__(self) -> None:
        for name in ("measures", "rows", "paired", "keep"):
            names = getattr(self, name)
            if (
                not isinstance(names, tuple)
                or not all(isinstance(value, str) for value in names)
                or len(set(names)) < len(names)
            ):
                raise ValueError(f"{name} = {names!r}: must be a list of different names")
        for part in self.keep:
            if part not in PARTS:
                raise ValueError(f"keep = {list(self.keep)}: choose from {', '.join(PARTS)}")
        for text in (*self.measures, *self.paired, *(self.printed or {})):
            read_measure(text)
        if (
            isinstance(self.minutes, bool)
            or not isinstance(self.minutes, int | float)
            or self.minutes < 0
        ):
            raise ValueError(f"minutes = {self.minutes!r}: must be a number from 0")
        if not isinstance(self.against, str) and not _is_table(self.against, str):
            raise ValueError(
                f"against = {self.against!r}: must be the name of a row, or a table with one such "
                "name per row"
            )
        if not _is_table(self.printed or {}, dict):
            raise ValueError(
                f"printed = {self.printed!r}: must be tables, for example "
                "[sweep.printed.accuracy-mean]"
            )
        if len({plot.file for plot in self.plot}) < len(self.plot):
            raise ValueError("plot: two plots have the same kind: give each a name")

    def partner(self, row: str) -> str:
        """Return the row that ``row`` is compared with, "" for none."""
        partner = self.against if isinstance(self.against, str) else self.against.get(row, "")
        return "" if partner == row else partner


def _is_table(value: Any, of: type) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(entry, of) for key, entry in value.items()
    )


def read_options(given: Mapping[str, Any]) -> SweepOptions:
    """Return the options of a table ``[sweep]``. Raises ``UserError``."""
    try:
        plots = given.get("plot", [])
        plot = list(map(read_plot, plots if isinstance(plots, list) else [plots]))
        return SweepOptions(**read_fields(SweepOptions, {**given, "plot": plot}, "[sweep]"))
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.startswith("[sweep]") else f"sweep.{text}") from None


def prune(folder: Path, keep: Collection[str]) -> None:
    """Delete the parts of a finished run that ``keep`` does not name. Other folders are
    left as they are.
    """
    if not finished(folder):
        return
    for part, names in PARTS.items():
        for name in () if part in keep else names:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


SEED = "seed"
#: The scale of the file without changes, unless it has a ``[scale.full]``.
FULL = "full"
MAX_RUNS = 10_000
#: Settings that the sweep sets itself.
RESERVED = {
    "out": "a sweep names the folders of its runs: choose the sweep's folder with --out",
    "resume": "leave it out: a sweep always continues where it stopped",
    "until": "leave it out: a sweep finishes its runs",
}


@dataclass(frozen=True)
class Axis:
    """One axis: the settings of each of its values, by label. ``name``: the key of a
    list, or NAME of ``[axis.NAME]``.
    """

    name: str
    values: Mapping[str, Mapping[str, Any]]

    @property
    def keys(self) -> set[str]:
        """The settings that at least one of its values sets."""
        return {key for settings in self.values.values() for key in settings}


@dataclass(frozen=True)
class Rule:
    """One ``[[when]]``: a run gets ``settings`` if it matches every condition. A
    condition matches if the run has one of its values.
    """

    conditions: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any]

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings matches; missing settings have their
        defaults.
        """
        # a key of another method's table has no value here, so its condition is false
        known = default_config(config)
        return all(
            config.get(key, known.get(key)) in values for key, values in self.conditions.items()
        )


@dataclass(frozen=True)
class Grid:
    """Content of a sweep file at one scale. ``fixed``: settings that do not vary."""

    name: str
    axes: Sequence[Axis]
    fixed: Mapping[str, Any]
    rules: Sequence[Rule]
    options: SweepOptions
    scale: str = ""


def read_grid(path: Path, assignments: Sequence[str] = (), scale: str = "") -> Grid:
    """Return the grid of a file at the scale ``scale``; ``assignments`` (``key=value``)
    take precedence. Raises ``UserError``.
    """
    tables = load_toml(path)
    try:
        return grid_of(path.stem, tables, dict(map(parse_assignment, assignments)), scale)
    except (UserError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def grid_of(
    name: str, tables: Mapping[str, Any], given: Mapping[str, Any], scale: str = ""
) -> Grid:
    """Return the grid of a file's tables; the flat settings ``given`` take precedence.
    Raises ``UserError``, ``ValueError``.
    """
    tables = dict(tables)
    scales = tables.pop("scale", {})
    if not isinstance(scales, dict) or not all(
        isinstance(table, dict) for table in scales.values()
    ):
        raise UserError("scale: must hold tables, for example [scale.small]")
    if scale == FULL and FULL not in scales:
        scale = ""
    if scale and scale not in scales:
        raise UserError(
            f"--scale {scale}: {nearest(scale, scales)}the file has {listed([*scales, FULL], '')}"
        )
    when = tables.pop("when", [])
    settings, axes, options = _parts(tables)
    picked: set[str] = set()
    for more in ([scales[scale]] if scale else []) + [_nested(given)]:
        new_settings, new_axes, new_options = _parts(more)
        settings |= new_settings
        axes |= {axis: _picked(axis, cases, axes) for axis, cases in new_axes.items()}
        picked |= {axis for axis, cases in new_axes.items() if isinstance(cases, list)}
        options |= new_options
    named = [Axis(axis, _cases(axis, cases)) for axis, cases in axes.items()]
    lists = [_list_axis(key, value) for key, value in settings.items() if isinstance(value, list)]
    fixed = {key: value for key, value in settings.items() if not isinstance(value, list)}
    known = default_config(
        _named([settings, *(case for axis in named for case in axis.values.values())])
    )
    rules = [_rule(table, known) for table in (when if isinstance(when, list) else [when])]
    _check_keys(
        known,
        [
            *settings,
            *(key for axis in named for key in axis.keys),
            *(key for rule in rules for key in rule.settings),
        ],
    )
    grid = Grid(
        f"{name}-{scale}" if scale else name,
        [*lists, *named],
        fixed,
        rules,
        read_options(options),
        scale or FULL,
    )
    _check_axes(grid, given, picked)
    return grid


def _parts(tables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the flat settings, the axes and the options of the tables."""
    for name in ("axis", "sweep"):
        if not isinstance(tables.get(name, {}), dict):
            raise UserError(f"{name} = {tables[name]!r}: must be a table")
    if misplaced := [name for name in ("scale", "when") if name in tables]:
        raise UserError(
            f"{misplaced[0]}: move it to the top of the file: it cannot be part of a scale or of "
            "the command line"
        )
    settings = flatten_toml({key: value for key, value in tables.items() if key not in OF_SWEEPS})
    return settings, dict(tables.get("axis", {})), dict(tables.get("sweep", {}))


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assignments of the command line, with ``axis.NAME`` and ``sweep.KEY``
    as nested tables.
    """
    out: dict[str, Any] = {}
    for key, value in given.items():
        table, _, name = key.partition(".")
        if table in OF_SWEEPS:
            out.setdefault(table, {})[name] = value
        else:
            out[key] = value
    return out


def _named(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return all values that the tables give to each setting."""
    values: dict[str, list[Any]] = {}
    for key, value in (pair for table in tables for pair in table.items()):
        values.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return values


def _rule(table: Any, known: Mapping[str, Any]) -> Rule:
    table = dict(table) if isinstance(table, dict) else table
    settings = table.pop("set", None) if isinstance(table, dict) else None
    if not isinstance(settings, dict) or not settings or not table:
        raise UserError(
            "when: needs conditions and a table `set` of settings, for example method = "
            "'superfed-lm', set = {superfed.nu = 2.0}"
        )
    conditions = {
        key: value if isinstance(value, list) else [value]
        for key, value in flatten_toml(table).items()
    }
    for key, values in conditions.items():
        for value in values:
            if key == "task":  # which methods it suits is for each run to say
                find_task(str(value))
            elif key not in known or key in default_config():
                read_settings({key: value})  # validates key and value
    return Rule(conditions, flatten_toml(settings))


def _picked(name: str, cases: Any, axes: Mapping[str, Any]) -> Any:
    """Return the new cases of an axis, or the cases selected from it."""
    if not isinstance(cases, list):
        return cases
    if name not in axes:
        raise UserError(
            f"axis.{name}: {nearest(name, axes)}the file has {listed(axes, 'no [axis.NAME]')}"
        )
    for case in cases:
        if case not in axes[name]:
            raise UserError(
                f"axis.{name} = {cases!r}: {nearest(str(case), axes[name])}the axis has "
                f"{listed(axes[name], 'no cases')}"
            )
    return {case: axes[name][case] for case in cases}


def _cases(name: str, cases: Any) -> dict[str, dict[str, Any]]:
    if (
        not isinstance(cases, dict)
        or not cases
        or not all(isinstance(case, dict) for case in cases.values())
    ):
        raise UserError(
            f"axis.{name}: must be a table of cases, each with a table of settings, for example "
            "'some name' = {num-rounds = 10}"
        )
    table = {label: flatten_toml(case) for label, case in cases.items()}
    for label, case in table.items():
        if lists := [key for key, value in case.items() if isinstance(value, list)]:
            raise UserError(
                f"axis.{name}.{label}: {lists[0]} is a list: give it one value, or make it a "
                "separate axis"
            )
    return table


def _list_axis(key: str, values: list[Any]) -> Axis:
    if not values:
        raise UserError(f"{key} = []: the list is empty: give at least one value")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise UserError(
                f"{key} = {toml_text(values)}: {toml_text(value)} is given twice: leave one out"
            )
    return Axis(
        key,
        {value if isinstance(value, str) else toml_text(value): {key: value} for value in values},
    )


def _check_keys(known: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if key in RESERVED:
            raise UserError(f"{key}: {RESERVED[key]}")
        if key not in known:
            raise UserError(unknown(key, known))


def _check_axes(grid: Grid, given: Mapping[str, Any], picked: set[str]) -> None:
    """Raise ``UserError`` if a setting is set twice, a row is not an axis, or there are
    too many runs.

    ``given``: settings of the command line. ``picked``: axes with selected cases. For
    these, a fixed setting may be meant for the cases that do not set it.
    """
    owner: dict[str, str] = {}
    names: list[str] = []
    for axis in grid.axes:
        if axis.name in names:
            raise UserError(
                f"{axis.name}: is both a list and the name of [axis.{axis.name}]: rename the axis"
            )
        names.append(axis.name)
        for key in sorted(axis.keys):
            if key in owner:
                raise UserError(
                    f"{key}: is set by two axes, {owner[key]} and {axis.name}: set it in one"
                )
            owner[key] = axis.name
            everywhere = axis.name not in picked and all(
                key in settings for settings in axis.values.values()
            )
            if key in grid.fixed and (key in given or everywhere):
                raise UserError(
                    f"{key} = {toml_text(grid.fixed[key])}: axis.{axis.name} sets it, too: "
                    f"leave one out, or select cases with axis.{axis.name}=[...]"
                )
    for rule in grid.rules:
        for key in rule.settings:
            if key in owner or key in given:
                setter = f"the axis {owner[key]}" if key in owner else "the command line"
                raise UserError(
                    f"{key}: is set by {setter} and by a [[when]]: set it in one of them"
                )
    names = [name for name in names if name != SEED]
    for row in grid.options.rows:
        if row not in names:
            raise UserError(
                f"sweep.rows = {row!r}: {nearest(row, names)}choose of {listed(names, 'no axes')}"
            )
    if (count := math.prod(len(axis.values) for axis in grid.axes)) > MAX_RUNS:
        raise UserError(
            f"{count} combinations of settings: remove values until there are at most {MAX_RUNS}"
        )


def listed(names: Any, none: str) -> str:
    """Return the names separated by commas, or ``none`` if there are none."""
    return ", ".join(map(str, names)) or none
