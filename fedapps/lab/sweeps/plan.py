"""The points of a sweep: all combinations of its axes.

An axis is ignored for methods that do not have its setting, so that nothing runs twice:
``superfed.nu = [0, 1, 2]`` gives three runs of superfed-mm and one of fedavg.
"""

import hashlib
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.formats import one_line
from fedapps.lab.sweeps.grid import FULL, RESERVED, SEED, Axis, Grid, listed, read_grid
from fedapps.lab.sweeps.pool import PlannedRun
from fedapps.records.reader import subject_of
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import check_used, default_config, read_settings
from fedapps.settings.settings import Settings
from fedapps.toml_text import Value, parse_assignment, read_toml

#: A folder with this file holds the studies of one paper. Their results folders carry
#: the folder's name, too.
PAPER = "paper.toml"
#: A title lists at most this many names.
FEW = 5
AxisLabels = tuple[tuple[str, str], ...]  # (axis, label) of each axis that applies


@dataclass(frozen=True)
class Point:
    """A point of the grid: its run, and its label on each axis that applies to it."""

    run: PlannedRun
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.run.folder.name


@dataclass(frozen=True)
class Plan:
    """A grid and its points. ``out``: the results folder. ``given``: the settings from
    the command line.
    """

    grid: Grid
    points: Sequence[Point]
    out: Path = Path()
    given: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The title of the report."""
        title = self.grid.options.title or self._described()
        return title if self.grid.scale == FULL else f"{title} (scale {self.grid.scale})"

    def _described(self) -> str:
        """Return data sets and methods."""
        configs = [point.run.config for point in self.points]
        subjects, methods = (
            list(dict.fromkeys(names))
            for names in (
                [subject_of(str(config["task"]), config.get("data.source")) for config in configs],
                [one_line(str(config["method"]), 40) for config in configs],
            )
        )
        shown = ", ".join(methods) if len(methods) <= FEW else f"{len(methods)} methods"
        data = ", ".join(subjects) if len(subjects) <= FEW else f"{len(subjects)} data sets"
        return f"{data}: {shown}"


def read_plan(
    path: Path,
    assignments: Sequence[str] = (),
    scale: str = "",
    out: Path = Path(),
    data: Path | None = None,
) -> Plan:
    """Return the plan of a sweep file, with the folders of its runs below ``out``.
    Raises ``UserError`` if the file is invalid.

    ``data``: a folder of data sets. A source is read from the subfolder with its last
    name: ``ylecun/mnist`` from ``data``/mnist.
    """
    grid = read_grid(path, assignments, scale)
    try:
        return plan_of(grid, out, data, assignments, read_toml(path).keys())
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def plan_of(
    grid: Grid,
    out: Path,
    data: Path | None = None,
    assignments: Sequence[str] = (),
    own: Container[str] = (),
) -> Plan:
    """Return the plan of a grid; the arguments are those of ``read_plan``. ``own``: the
    keys of the file, which an assignment may replace although no chosen method has
    them.
    """
    points = _points(grid, out, data)
    given = {k: v for k, v in map(parse_assignment, assignments) if k not in own}
    if not assignments and grid.scale == FULL:  # the file as it is, with all its methods
        given = {**grid.fixed, **{k: v for rule in grid.rules for k, v in rule.settings.items()}}
    check_used(given, {key for point in points for key in point.run.config})
    return Plan(grid, points, out, assignments)


def _points(grid: Grid, out: Path, data: Path | None) -> list[Point]:
    """Return every point of the grid once."""
    configs: dict[AxisLabels, dict[str, Value]] = {}
    for values in product(*(axis.values for axis in grid.axes)):
        combination = list(zip(grid.axes, values, strict=True))
        try:
            config = _with_data(_config(grid, combination), data)
            # leave out the tables of the user's own methods that only other points use
            known = default_config(config)
            config = {key: value for key, value in config.items() if key in known}
            # Keys of other methods' tables are not in the settings, so an axis with
            # only such keys does not apply to this point.
            used = read_settings(config).flat()
            labels = tuple(
                (axis.name, label) for axis, label in combination if axis.keys & used.keys()
            )
            if labels not in configs:
                configs[labels] = without_reserved(with_defaults(config))
        except UserError as error:
            raise UserError(f"{_prefix(combination)}{error}") from None
    for axis in grid.axes:
        if not any(axis.name in dict(labels) for labels in configs):
            raise UserError(
                f"{axis.name}: no method of this sweep has {listed(sorted(axis.keys), 'it')}: "
                "remove the axis"
            )
    same: dict[str, str] = {}
    points = []
    for (labels, settings), name in zip(configs.items(), _folder_names(list(configs)), strict=True):
        twin = same.setdefault(json.dumps(settings, sort_keys=True), name)
        if twin != name:
            raise UserError(f"the runs {twin} and {name} have the same settings: leave one out")
        points.append(Point(PlannedRun(settings, out / "cells" / name), dict(labels)))
    return points


def without_reserved(settings: Settings) -> dict[str, Value]:
    """Return the settings of a run without those that the sweep sets."""
    return {key: value for key, value in settings.flat().items() if key not in RESERVED}


def _config(grid: Grid, combination: Sequence[tuple[Axis, str]]) -> dict[str, Any]:
    """Return the settings of a combination: the fixed ones, those of its labels, and
    those of the matching rules.
    """
    config = dict(grid.fixed)
    for axis, label in combination:
        config |= axis.values[label]
    special: dict[str, Any] = {}
    for rule in grid.rules:
        if rule.holds(config):
            for key, value in rule.settings.items():
                if special.setdefault(key, value) != value:
                    raise UserError(
                        f"{key}: one [[when]] sets {special[key]}, another {value}: make their "
                        "conditions exclude each other"
                    )
    return config | special


def _with_data(config: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """Return the settings; sources that have a folder in ``data`` are read from
    there.
    """
    if data is None:
        return config
    sources = {
        key: value
        for key, value in config.items()
        if key.endswith(".source") and isinstance(value, str) and value
    }
    folders = {
        key: data.expanduser().absolute() / Path(value).name for key, value in sources.items()
    }
    return config | {key: str(folder) for key, folder in folders.items() if folder.exists()}


def _folder_names(points: Sequence[AxisLabels]) -> list[str]:
    """Return a folder name for each point, made of its labels. A label follows its
    setting's name, except for methods and named cases.
    """
    words = ["_".join(short_label(axis, label, "-") for axis, label in labels) for labels in points]
    names = [re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "run" for text in words]
    folded = [name.lower() for name in names]
    unclear = {name for name in names if len(name) > 120 or folded.count(name.lower()) > 1}
    marks = [hashlib.sha256(repr(labels).encode()).hexdigest()[:8] for labels in points]
    return [
        f"{name[:100]}-{mark}" if name in unclear else name
        for name, mark in zip(names, marks, strict=True)
    ]


def short_label(axis: str, label: str, sign: str = " = ") -> str:
    """Return the display text of a label: methods and named cases unchanged, settings
    with their names, such as nu = 0.5.
    """
    setting = axis in default_config() or "." in axis  # the user's own tables have a dot, too
    return f"{axis.rpartition('.')[2]}{sign}{label}" if setting and axis != "method" else label


def _prefix(combination: Sequence[tuple[Axis, str]]) -> str:
    """Return a prefix that names the point in error messages, "" for a single
    point.
    """
    words = ", ".join(
        short_label(axis.name, label)
        for axis, label in combination
        if len(axis.values) > 1 and axis.name != SEED
    )
    return f"{words}: " if words else ""


def read_plans(
    path: Path,
    settings: Sequence[str] = (),
    scale: str = "",
    to: Path | None = None,
    data: Path | None = None,
) -> list[Plan]:
    """Return the plan of the file, or of each sweep of a folder. Raises
    ``UserError``.

    ``to``: the results folder; each sweep of a folder gets a subfolder. The other
    arguments are those of ``read_plan``.
    """
    plans = []
    for file in sweeps_in(path) if path.is_dir() else [path]:
        of_paper = path.is_dir() or (file.parent / PAPER).exists()
        words = (
            "sweep",
            file.parent.name if of_paper else "",
            file.stem,
            "" if scale == FULL else scale,
        )
        folder = (to or Path("results") / "-".join(filter(None, words))).expanduser().absolute()
        if path.is_dir() and to:
            folder /= file.stem
        plans.append(read_plan(file, settings, scale, folder, data))
    return plans


def sweeps_in(folder: Path) -> list[Path]:
    """Return the files of a folder that have a table ``[sweep]``, sorted. Raises
    ``UserError`` if there are none.
    """
    files = [
        path
        for path in sorted(folder.glob("*.toml"))
        if any(key.startswith("sweep.") for key in read_toml(path))
    ]
    if not files:
        raise UserError(f"{folder}: has no sweep file: a sweep file has a table [sweep]")
    return files
