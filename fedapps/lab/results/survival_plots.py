"""How well a model tells apart who has an event early: survival by group of predicted
risk as a picture and as a table.
"""

from itertools import groupby
from typing import Any

from fedapps.algorithms.common.measures import PAIRS
from fedapps.clients.base.scores import SURVIVAL
from fedapps.formats import few, metric_text, one_line
from fedapps.lab.charts.drawing import label_values, legend, one_panel
from fedapps.lab.charts.layout import Figure
from fedapps.lab.charts.theme import Theme
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder, is_number


def survival_section(run: RunFolder) -> Section | None:
    """Return the groups of risk of a run, one per row; ``None`` if its clients report
    no concordance.
    """
    if "concordance-pooled" not in run.numbers and not run.survival:
        return None
    rows = []
    for name, group in _groups(run):
        first, last = group[0], [row for row in group if is_number(row.get("survival"))][-1]
        events = sum(row["events"] for row in group)
        survival = f"{metric_text('survival', last['survival'])}\nat {last['time']:.4g}"
        rows.append((name, str(first["at-risk"]), str(events), survival))
    notes = ["Test samples of all clients; a client's are ranked among themselves, in thirds."]
    if not rows:
        notes = [
            "No curves by group of risk: clients send counts for them if class-counts = true and, "
            "of sites with data of their own, survival.until is set; never with differential "
            "privacy or secure sums."
        ]
    if none := run.left_out(PAIRS):
        notes.append(f"Without a concordance that can be used, and not in its mean: {few(none)}.")
    if wrong := run.left_out(SURVIVAL):
        notes.append(f"Left out, since they cannot be right: counts of client {few(wrong)}.")
    return Section(
        "Risk groups",
        " ".join(notes),
        ("predicted risk", "samples", "events", "survival"),
        (*rows,),
    )


def survival_figure(run: RunFolder, theme: Theme) -> Figure | None:
    """Return the curves of Kaplan and Meier of the groups of risk."""
    if not (groups := _groups(run)):
        return None
    figure, axes = one_panel("Survival by predicted risk", theme)
    for (name, group), colour in zip(groups, theme.series, strict=False):
        known = [row for row in group if is_number(row.get("survival"))]
        x, y = [0.0], [1.0]
        for row in known:  # a step: at the time, not before
            x += [row["time"], row["time"]]
            y += [y[-1], row["survival"]]
        axes.line(x, y, colour, label=f"{name} risk")
    axes.x.label, axes.y.low = "time", 0.0
    label_values(axes, "survival", "all clients' test samples")
    axes.note = "thirds of each client's test samples by predicted risk"
    legend(figure, axes)
    return figure


def _groups(run: RunFolder) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the rows of risk-groups.csv by group that has samples; [] unless it is
    sound.
    """
    numbers = ("time", "at-risk", "events")
    if not all(is_number(row.get(name)) for row in run.survival for name in numbers):
        return []
    groups = [
        (one_line(str(name), 40), list(rows))
        for name, rows in groupby(run.survival, key=lambda row: row["group"])
    ]
    return [(name, rows) for name, rows in groups if is_number(rows[0].get("survival"))]
