"""The page of a sweep while it runs: the state of its runs, and the curves of the
unfinished ones.

A sweep may have hundreds of runs. The page therefore stores only what it shows of each,
and reads a run again only when its files have changed.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedapps.errors import UserError
from fedapps.formats import LEADING_MEANS, metric_name, metric_text, one_line
from fedapps.lab.charts import html
from fedapps.lab.charts.axes import extremes
from fedapps.lab.charts.charts import chart
from fedapps.lab.charts.drawing import label_rounds, label_values, legend, line, one_panel
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.layout import Figure
from fedapps.lab.charts.theme import THEME
from fedapps.lab.live.files import last_written, patience, runs_of, stamp_of
from fedapps.lab.results.grid_plots import look
from fedapps.records.reader import read_run

LINES = 14  # runs with a line of their own: seven colours in two styles
_POINTS = 160  # points per line, about three pixels each
_ORDER = ("failed", "quiet", "running", "interrupted", "completed")

Curve = tuple[list[int], list[float]]  # rounds, values


@dataclass(frozen=True)
class Glance:
    """What the page shows of one run. ``written``: its last change (Unix).
    ``patience``: seconds after that until it counts as quiet.
    """

    name: str
    state: str
    rounds: int
    planned: int | None
    failures: int
    key: str
    value: float
    curves: Mapping[str, Curve]  # by name: the measure's, and "training loss"
    patience: float
    written: float

    def state_at(self, now: float) -> str:
        """Return the state; "quiet" for a run that has written nothing for longer than
        its rounds usually take.
        """
        quiet = self.state == "running" and now - self.written > self.patience
        return "quiet" if quiet else self.state


LOSS = "training loss"


def glance(path: Path) -> Glance | None:
    """Return what the page shows of the run in a folder; ``None`` if it has only
    begun.
    """
    try:
        run = read_run(path)
    except UserError:
        return None
    key = next((k for k in (*LEADING_MEANS, *run.evaluation) if k in run.evaluation), "")
    series = {key: run.series("evaluate").get(key), LOSS: run.series("train").get("loss")}
    curves = {name: _thinned(curve) for name, curve in series.items() if curve}
    value = run.evaluation.get(key, float("nan"))
    counts = (run.rounds_completed, run.num_rounds, len(run.failures))
    return Glance(
        path.name, run.state, *counts, key, value, curves, patience(run), last_written(path)
    )


def _thinned(curve: Curve) -> Curve:
    kept = extremes(np.asarray(curve[1], float), _POINTS).tolist()
    return [curve[0][place] for place in kept], [curve[1][place] for place in kept]


@dataclass
class Sweep:
    """The runs of a sweep as last read, and the place of each unfinished run among the
    lines of the charts.
    """

    folder: Path
    _seen: dict[str, tuple[str, Glance | None]] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)

    def body(self, now: float) -> list[Html]:
        """Return the content of the page at ``now`` (seconds, Unix)."""
        runs = self._glances()
        states = {run.name: run.state_at(now) for run in runs}
        counts = Counter(states.values())
        states_text = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
        if waiting := max(0, self._planned() - len(runs)):
            states_text += f"{', ' if states_text else ''}{waiting} waiting"
        done = not waiting and counts and set(counts) == {"completed"}
        style = "failed" if counts["failed"] else "completed" if done else "running"
        return [
            html.header(self.folder.name, "", "", style, states_text or "no run has begun yet"),
            *self._charts(runs, states),
            html.panel(_table(runs, states)),
        ]

    def _glances(self) -> list[Glance]:
        folders = runs_of(self.folder)
        before, self._seen = self._seen, {}
        for name, path in folders.items():
            stamp = stamp_of(path)
            self._seen[name] = (
                before[name]
                if name in before and before[name][0] == stamp
                else (stamp, glance(path))
            )
        return [seen for _, seen in self._seen.values() if seen is not None]

    def _planned(self) -> int:
        try:
            record = json.loads((self.folder / "sweep.json").read_text(encoding="utf-8"))
            return int(record["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _charts(self, runs: Sequence[Glance], states: Mapping[str, str]) -> list[Html]:
        """Return a chart of the measure and one of the training loss, for the runs that
        have them.
        """
        unfinished = [run for run in runs if states[run.name] in ("running", "quiet")]
        alone = list(runs) if len(runs) <= LINES else unfinished
        self._give_places([run.name for run in alone])
        charts = []
        for key in dict.fromkeys([*(run.key for run in runs if run.key), LOSS]):
            with_it = [run for run in runs if key in run.curves]
            drawn = [run for run in alone if run in with_it and self._places[run.name] < LINES]
            rest = [run for run in with_it if run not in drawn and states[run.name] == "completed"]
            if drawn or rest:
                name = metric_name(key) if key != LOSS else LOSS
                words = f"{self.folder.name}: {name} of its runs over rounds"
                charts.append(chart(f"sweep-{key}", words, self._figure(key, drawn, rest)))
        return [html.panel(Html("".join(charts)), "plots")] if charts else []

    def _give_places(self, names: Sequence[str]) -> None:
        """Give every run a place among the lines. An unfinished run keeps its place,
        and so its colour.
        """
        self._places = {name: place for name, place in self._places.items() if name in names}
        for name in names:
            taken = set(self._places.values())
            self._places.setdefault(
                name, next(place for place in range(len(names) + len(taken)) if place not in taken)
            )

    def _figure(self, key: str, drawn: Sequence[Glance], rest: Sequence[Glance]) -> Figure:
        name = metric_name(key) if key != LOSS else LOSS
        figure, axes = one_panel(f"{name[0].upper()}{name[1:]} over rounds")
        if rest:
            values: dict[int, list[float]] = {}
            for run in rest:
                for number, value in zip(*run.curves[key], strict=True):
                    values.setdefault(number, []).append(value)
            rounds = sorted(values)
            low, high = ([end(values[number]) for number in rounds] for end in (min, max))
            axes.band(
                rounds, low, high, THEME.muted, label=f"the {len(rest)} finished: lowest to highest"
            )
        for run in sorted(drawn, key=lambda one: self._places[one.name]):
            line(
                axes,
                *run.curves[key],
                *look(self._places[run.name], THEME),
                one_line(run.name, 40),
                1.6,
            )
        label_rounds(axes)
        label_values(axes, "" if key == LOSS else key, "")
        axes.y.label = axes.y.label or LOSS
        legend(figure, axes)
        return figure


def _table(runs: Sequence[Glance], states: Mapping[str, str]) -> Html:
    keys = {run.key for run in runs if run.key}
    words, rows = {key: "" if len(keys) == 1 else f"{metric_name(key)} " for key in keys}, []
    for run in sorted(
        runs,
        key=lambda one: (
            _ORDER.index(states[one.name]) if states[one.name] in _ORDER else 0,
            one.name,
        ),
    ):
        link = Html(f'<a href="{html.text(run.name)}/">{html.text(run.name)}</a>')
        tag = Html(f'<span class="tag {html.text(run.state)}">{html.text(states[run.name])}</span>')
        measure = f"{words[run.key]}{metric_text(run.key, run.value)}" if run.key else "-"
        rows.append((link, tag, f"{run.rounds} of {run.planned or '?'}", measure, run.failures))
    last = metric_name(*keys) if len(keys) == 1 else "last measure"
    return html.table(["run", "state", "rounds", last, "failed replies"], rows, 2)
