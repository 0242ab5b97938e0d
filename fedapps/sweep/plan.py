"""The cells of a sweep: all combinations of its axes, except for settings that a cell's method does not have.

For such methods the axis is ignored, so that no cell runs twice: ``superfed.nu = [0, 1, 2]`` gives three cells of superfed-mm and one
of fedavg.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.prepare import completed
from fedapps.settings import default_config, read_settings
from fedapps.sweep.grid import RESERVED, SEED, Axis, Grid, listed, read_grid
from fedapps.sweep.pool import Cell
from fedapps.toml_text import Value

Place = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Point:
    """A cell and its place in the grid: its label on each axis that applies to it."""

    cell: Cell
    place: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the cell's folder."""
        return self.cell.folder.name


@dataclass(frozen=True)
class Plan:
    """A grid and its cells."""

    grid: Grid
    points: Sequence[Point]

    @property
    def title(self) -> str:
        """The title of the report."""
        return self.grid.options.title or self.grid.name


def read_plan(path: Path, assignments: Sequence[str] = (), scale: str = "", out: Path = Path()) -> Plan:
    """Return the plan of a sweep file, with cell folders below ``out``. Raises ``UserError`` if the file is invalid."""
    grid = read_grid(path, assignments, scale)
    try:
        return Plan(grid, _points(grid, out))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _points(grid: Grid, out: Path) -> list[Point]:
    """Return every cell of the grid once."""
    places: dict[Place, dict[str, Value]] = {}
    for labels in product(*(axis.values for axis in grid.axes)):
        whole = list(zip(grid.axes, labels, strict=True))
        try:
            config = _config(grid, whole)
            # Keys of other methods' tables are not in the settings, so an axis with only such keys does not apply to this cell.
            used = read_settings(config).flat()
            place = tuple((axis.name, label) for axis, label in whole if axis.keys & used.keys())
            if place not in places:
                places[place] = {key: value for key, value in completed(config).flat().items() if key not in RESERVED}
        except UserError as error:
            raise UserError(f"{_spoken(whole)}{error}") from None
    for axis in grid.axes:
        if not any(axis.name in dict(place) for place in places):
            raise UserError(f"{axis.name}: no method of this sweep has {listed(sorted(axis.keys), 'it')}: leave the axis out")
    same: dict[str, str] = {}
    points = []
    for (place, settings), name in zip(places.items(), _folder_names(list(places)), strict=True):
        twin = same.setdefault(json.dumps(settings, sort_keys=True), name)
        if twin != name:
            raise UserError(f"the cells {twin} and {name} have the same settings: leave one out")
        points.append(Point(Cell(settings, out / "cells" / name), dict(place)))
    return points


def _config(grid: Grid, place: Sequence[tuple[Axis, str]]) -> dict[str, Any]:
    """Return the settings of a place: the fixed ones, those of its labels, and those of the matching rules."""
    config = dict(grid.fixed)
    for axis, label in place:
        config |= axis.values[label]
    special: dict[str, Any] = {}
    for rule in grid.rules:
        if rule.holds(config):
            for key, value in rule.settings.items():
                if special.setdefault(key, value) != value:
                    raise UserError(f"{key}: one [[when]] says {special[key]}, another {value}")
    return config | special


def _folder_names(places: Sequence[Place]) -> list[str]:
    """Return a folder name for each place: its labels, preceded by the setting's name unless it is the method or a named case."""
    words = ["_".join(short_label(axis, label, "-") for axis, label in place) for place in places]
    names = [re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "run" for text in words]
    folded = [name.lower() for name in names]
    unclear = {name for name in names if len(name) > 120 or folded.count(name.lower()) > 1}
    marks = [hashlib.sha256(repr(place).encode()).hexdigest()[:8] for place in places]
    return [f"{name[:100]}-{mark}" if name in unclear else name for name, mark in zip(names, marks, strict=True)]


def short_label(axis: str, label: str, sign: str = " = ") -> str:
    """Return the display text of a label: methods and named cases as they are, settings with their names, such as nu = 0.5."""
    return f"{axis.rpartition('.')[2]}{sign}{label}" if axis in default_config() and axis != "method" else label


def _spoken(place: Sequence[tuple[Axis, str]]) -> str:
    """Return a prefix for error messages that names the cell; "" if there is only one."""
    words = ", ".join(short_label(axis.name, label) for axis, label in place if len(axis.values) > 1 and axis.name != SEED)
    return f"{words}: " if words else ""
