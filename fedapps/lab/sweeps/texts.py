"""Text of a sweep's numbers: with the decimals of the measure, differences with their
interval, tables as Markdown.
"""

import math
from collections.abc import Callable, Sequence

from fedapps.formats import bytes_text, is_percent, sentence
from fedapps.lab.results.comparison_table import AUROC_COLUMNS, COLUMNS
from fedapps.lab.results.run_measures import read_measure
from fedapps.lab.results.seeds import Difference

#: Words in the names of measures that show whether larger or smaller is better.
_MORE = ("mean", "worst", "worst10", "best10", "weighted")
_LESS = (
    "loss",
    "ece",
    "mce",
    "gini",
    "std",
    "gap",
    "bytes",
    "seconds",
    "error",
    "rmse",
    "mae",
    "mse",
)


def best_of(text: str) -> Callable[[list[float]], float] | None:
    """Return ``max`` or ``min``, whichever is better for a measure, or ``None`` if
    unknown.
    """
    measure = read_measure(text).unit
    if measure == "rounds":
        return min
    for column in (*COLUMNS, *AUROC_COLUMNS):
        if column.key == measure:
            return column.best
    words = measure.split("-")
    if any(word in _LESS for word in words):
        return min
    return max if is_percent(measure) and words[-1] in _MORE else None


def number(text: str, value: float) -> str:
    """Return a mean or standard deviation as text with the usual number of decimals."""
    measure = read_measure(text).unit
    if measure in ("rounds", "seconds") and not math.isfinite(value):
        return "never"
    if measure == "rounds":
        return f"{value:.0f}"
    if "bytes" in measure.split("-"):
        return bytes_text(value)
    if is_percent(measure):
        return f"{100 * value:.2f}"
    if measure == "seconds":
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def heading(text: str) -> str:
    """Return the heading of a measure: its name with its unit."""
    measure = read_measure(text)
    unit = ", %" if is_percent(measure.unit) else ", s" if measure.key == "seconds" else ""
    return sentence(measure.name + unit)


def difference_text(measure: str, gains: Difference) -> str:
    """Return a paired difference as text: its mean and, from three seeds on, its 95 %
    intervals and the number of seeds in which it is positive.
    """
    if not gains.by_seed:
        return ""
    scale = 100 if is_percent(read_measure(measure).unit) else 1
    n = len(gains.by_seed)
    text = _signed(scale * math.fsum(gains.by_seed) / n)
    for name, one in gains.intervals.items():
        if math.isfinite(one.low):
            text += f", {name} [{_signed(scale * one.low)}, {_signed(scale * one.high)}]"
    if not gains.intervals:
        return text
    return f"{text}, {sum(gain > 0 for gain in gains.by_seed)} of {n}"


def _signed(value: float) -> str:
    text = f"{value:+.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:+.2g}"
    return text.replace("-", "\N{MINUS SIGN}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown, columns aligned."""
    lines = [[text.replace("|", "\\|") for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[index]) for row in lines)) for index in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [
            row[0].ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])
