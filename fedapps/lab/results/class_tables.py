"""Which classes a model confuses: precision, recall and F1 of each class as a table,
and the confusion matrix as a picture.
"""

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.confusion import MOST_CLASSES, class_measures, margins
from fedapps.clients.base.scores import CONFUSION
from fedapps.formats import few, metric_text, one_line, percent_text
from fedapps.lab.charts.drawing import Figure, heat, heat_key, name_cells, panels, title
from fedapps.lab.charts.theme import Theme
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder, is_number

#: The picture shows at most this many classes.
_MAX_CLASSES = 40


def classes_section(run: RunFolder) -> Section | None:
    """Return the classes of a run, one per row; ``None`` if no client reported them."""
    if (found := _matrix(run)) is None:
        if "macro-f1-mean" not in run.numbers:
            return None
        note = (
            f"No counts by class: clients send them for at most {MOST_CLASSES} classes, if "
            "class-counts = true, and never with differential privacy or secure sums."
        )
        return Section("Classes", note, ("class",), ())
    names, counts = found
    actual, predicted, hits = margins(counts)
    measures = class_measures(actual, predicted, hits)
    rows = [
        (name, str(n), *(percent_text(v) if np.isfinite(v) else "-" for v in values))
        for name, n, *values in zip(names, actual, *measures.values(), strict=True)
    ]
    keys = [f"macro-{name}-pooled" for name in measures]
    means = ", ".join(
        f"{key.split('-')[1].replace('f1', 'F1')} {metric_text(key, run.numbers[key])}"
        for key in keys
        if key in run.numbers
    )
    notes = ["Test samples of all clients together.", *([f"Macro means: {means}."] * bool(means))]
    if left_out := run.left_out(CONFUSION):
        notes.append(f"Left out, since it cannot be right: counts of client {few(left_out)}.")
    header = ("class", "samples", "precision", "recall", "F1")
    return Section("Classes", " ".join(notes), header, tuple(rows))


def trivial_sentence(run: RunFolder) -> str:
    """Return that a run is below the trivial predictor, which knows the test samples of
    all clients and always answers the same; "" if it is not.
    """
    if (found := _matrix(run)) is not None and found[1].sum():
        names, counts = found
        actual, total = counts.sum(1), counts.sum()
        shares = [percent_text(float(n / total)) for n in (counts.trace(), actual.max())]
        return (
            f"Below the trivial predictor: right for {shares[0]} of all test samples, always "
            f"answering {names[actual.argmax()]!r} for {shares[1]}."
            if counts.trace() < actual.max()
            else ""
        )
    if (r2 := run.evaluation.get("r2-pooled", 0.0)) < 0:
        return (
            "Below the trivial predictor: always answering the mean of all test samples has a "
            f"smaller error (R² {r2:.2f})."
        )
    return ""


def confusion_figure(run: RunFolder, theme: Theme) -> Figure | None:
    """Return the confusion matrix as a heat map, each row in shares of its class; of
    many classes those with the most errors.
    """
    if (found := _matrix(run)) is None:
        return None
    names, counts = found
    actual, predicted, hits = margins(counts)
    most = np.argsort(2 * hits - actual - predicted, kind="stable")[:_MAX_CLASSES]
    shown = np.sort(most)
    number = len(shown)
    side = min(6.2, 3.2 + 0.25 * number)
    figure, (axes,) = panels(1, 1, (side + 0.6, side), theme)
    title(axes, "Confusion matrix")
    if number < len(names):
        axes.note = f"the {number} of {len(names)} classes with the most errors"
    sums = np.broadcast_to(actual[:, None], counts.shape)
    shares = np.divide(counts, sums, out=np.full(counts.shape, np.nan), where=sums > 0)
    shares, names = shares[np.ix_(shown, shown)], [names[place] for place in shown]
    heat(axes, shares, (0.0, 1.0))
    short = [name[:8] for name in names]
    for axis in (axes.x, axes.y):
        name_cells(axis, names, short)
    axes.x.upright = sum(map(len, short)) > 40
    axes.x.label, axes.y.label, axes.y.down = "predicted", "actual", True
    heat_key(axes, (0.0, 1.0), "share of the actual class's samples")
    return figure


def _matrix(run: RunFolder) -> tuple[list[str], NDArray[np.int64]] | None:
    """Return the names of the classes and the counts, ``None`` without a sound
    confusion.csv.
    """
    names = [one_line(str(row["actual"]), 40) for row in run.confusion]
    cells = [[v for k, v in row.items() if k != "actual"] for row in run.confusion]
    sound = all(
        len(row) == len(names) and all(is_number(v) and 0 <= v < 2**53 for v in row)
        for row in cells
    )
    return (names, np.array(cells).astype(np.int64)) if names and sound else None
