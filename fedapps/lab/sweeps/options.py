"""The table ``[sweep]`` of a sweep file: what the report shows of the runs, and what is
kept of them.

The numbers of a run are always kept: settings, rounds, clients, weights, curves,
summary. With personal models, a run stores one model per client. A finished run does
not need them any more, so they are deleted unless ``sweep.keep`` names them. Nothing is
deleted from an unfinished run, which continues from its checkpoint.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.lab.results.grid_plots import PlotSpec, read_fields, read_plot
from fedapps.lab.results.run_measures import read_measure
from fedapps.lab.sweeps.pool import finished

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
