"""What a user should know of samples and clients before a run: what is read in which
way, filled, left out, or looks like a mistake.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.algorithms.common.options import names_in
from fedapps.data.frame import some
from fedapps.data.options import DataOptions
from fedapps.data.source import FILE, PART_NAMES, Columns, Samples

#: More whole numbers than this are rarely meant as classes.
FEW = 20


def _gaps(samples: Samples, columns: Columns) -> list[str]:
    """Return a line for the columns with missing values."""
    missing = np.isnan(samples.x).mean((0, 1, 2)) if columns.used else []
    shares = {
        name if scaled else name.rpartition("=")[0]: share
        for name, scaled, share in zip(columns.used, columns.scaled, missing, strict=True)
        if share
    }
    shown = ", ".join(f"{name} ({max(100 * share, 1):.0f} %)" for name, share in shares.items())
    line = f"data.features: missing values are filled with means and shares: {shown}"
    return [line] if shares else []


def _alike(setting: str, names: Sequence[str], what: str) -> list[str]:
    """Return a line for names that differ in case or blanks only."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    return [
        f"{setting}: {' and '.join(map(repr, same))} are different {what}: write them alike if "
        "they are one"
        for same in alike.values()
        if len(same) > 1
    ]


def looks_by_client(folder: Path) -> bool:
    """Return whether the folders in a folder look like one per client: two hold folders
    of the same names, the classes.
    """
    classes = [
        {one.name for one in entry.iterdir() if one.is_dir()}
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name.lower() not in PART_NAMES
    ]
    return any(one and one == other for one, other in itertools.combinations(classes, 2))


def remarks_on(samples: Samples, options: DataOptions) -> list[str]:
    """Return a line for each thing that a user should know of the samples and the
    clients: what and who is left out.
    """
    lines = [f"data.source: {line}" for line in samples.account]
    if columns := samples.numbers:
        lines += [
            f"data.features: {some(names)}: {text}"
            for names, text in (
                (columns.left_out, "left out (neither numbers nor categories)"),
                (columns.categories, "read as categories"),
            )
            if names
        ]
        lines += [f"data.features: {line}" for line in columns.written]
        lines += _gaps(samples, columns)
        if len(samples.classes) > FEW and all(map(str.isdecimal, samples.classes)):
            lines.append(
                f"data.label: its {len(samples.classes)} whole numbers are classes here: to "
                "predict the number choose task=regression"
            )
    lines += _alike("data.label", samples.classes, "classes")
    path = Path(options.source).expanduser()
    folder = path if options.source != "digits" and path.is_dir() else None
    if folder and samples.clients is None and looks_by_client(folder):
        lines.append(
            f"data.natural-id: {folder.name} looks like one folder per client: choose "
            f"{FILE} to have these in place of random ones"
        )
    if samples.clients is None:
        if columns and columns.suggested and options.partition == "pathological":
            lines.append(
                f"data.natural-id: {columns.suggested} looks like one of clients: name it to have "
                "these in place of random ones"
            )
        return lines
    lines += _alike("data.natural-id", samples.clients.names, "clients")
    counts = np.bincount(samples.clients.codes[samples.dealt], minlength=len(samples.clients.names))
    gone = names_in(options.drop_clients)
    small = [
        samples.clients.names[place]
        for place in np.flatnonzero((counts > 0) & (counts < options.min_samples))
        if samples.clients.names[place] not in gone
    ]
    if not small:
        return lines
    shown = ", ".join(small[:5]) + (", ..." if len(small) > 5 else "")
    have, are = ("have", "are") if len(small) > 1 else ("has", "is")
    return [
        *lines,
        f"data.natural-id = {options.natural_id!r}: {len(small)} of {int((counts > 0).sum())} "
        f"clients {have} fewer than {options.min_samples} samples (data.min-samples) and {are} "
        f"left out: {shown}",
    ]
