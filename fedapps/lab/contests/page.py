"""The page of a contest: the sentence, one picture, the clients, tables, and the
winner's settings.
"""

from statistics import fmean
from typing import Any

import numpy as np

from fedapps.formats import (
    bytes_text,
    counts_in_points,
    metric_name,
    metric_text,
    seconds_text,
)
from fedapps.lab.charts import html
from fedapps.lab.charts.charts import chart
from fedapps.lab.charts.drawing import Figure, legend, panels, title
from fedapps.lab.charts.theme import Colour
from fedapps.lab.contests.contest import CHOICE, DECIDED, Contest
from fedapps.lab.contests.rows import Gain
from fedapps.lab.contests.trials import UNFEDERATED, Contestant, Trial, score_on
from fedapps.lab.contests.verdict import (
    FEW,
    Outcome,
    between,
    outcome,
    rate_of,
    size,
    verdict_text,
)
from fedapps.lab.results.sections import Section
from fedapps.records.files import write_text
from fedapps.toml_text import to_toml

WINNER = "winner.toml"
#: Settings of a trial that are not the winner's.
OF_TRIALS = (
    *("out", "resume", "until", "seed", "evaluate-every", "checkpoint-every"),
    *("data.folds", "data.fold", "data.test-rows"),
)
#: Points of height for each row of a picture.
ROW = 15
#: At most this many clients have their names in the picture.
MOST_NAMED = 40


def sections(contest: Contest, result: Outcome) -> list[Section]:
    """Return the tables of the page."""
    return [ranking(contest, result), clients_section(contest, result), choices(contest)]


def ranking(contest: Contest, result: Outcome) -> Section:
    """Return the finalists by their measures, with both intervals and their costs."""
    m = contest.state.measure
    rows = []
    for method, score in sorted(result.scores.items(), key=lambda pair: -pair[1]):
        cells = [called(contest, method), metric_text(m, abs(score), unit=False)]
        if one := result.gains.get(method):
            signs = np.sign([value for value, _ in one.clients.values()])
            cells += [size(m, one.mean), between(m, one.here.low, one.here.high)]
            cells += [between(m, one.like.low, one.like.high)]
            cells += [f"{(signs > 0).sum()} / {(signs < 0).sum()}"]
        else:
            cells += ["-"] * 4
        rows.append((*cells, *_costs(contest, method)))
    header = (
        *("method", metric_name(m), "gain over training alone", "these sites", "sites like these"),
        *("clients that gain / lose", "bytes", "seconds"),
    )
    note = (
        "Means over clients, on test rows of all folds, each scored by a model that has not seen "
        "them. These sites: intervals for the same clients with other rows, which the verdict "
        "uses. Sites like these: for other clients, too, and never narrower. "
        f"{CHOICE.capitalize()}: what each fold chose. Trivial: always the most frequent class, or "
        "the mean, in the other folds of the client or of all, whichever is better."
    )
    return Section("Gains", note, header, tuple(rows))


def called(contest: Contest, method: str) -> str:
    """Return a candidate's name: of what folds decide, the method, if all have the same
    one.
    """
    chosen = methods_of(contest, method)
    return f"{chosen[0]} ({method})" if method in DECIDED and len({*chosen}) == 1 else method


def methods_of(contest: Contest, method: str) -> list[str]:
    """Return the method of a candidate in each fold."""
    return [one[DECIDED[method]] if method in DECIDED else method for one in contest.state.ended]


def _costs(contest: Contest, method: str) -> tuple[str, str]:
    """Return mean bytes and seconds of a method's runs on test rows."""
    folds = zip(methods_of(contest, method), contest.state.ended, strict=True)
    runs = [
        contest.trials.read(contest.final_trials(number, one["finalists"])[name]).numbers
        for number, (name, one) in enumerate(folds)
        if name in one["finalists"]
    ]
    if not runs:
        return "-", "-"
    traffic = fmean(n.get("bytes-up", 0) + n.get("bytes-down", 0) for n in runs)
    return bytes_text(traffic), seconds_text(fmean(n["seconds"] for n in runs))


def clients_section(contest: Contest, result: Outcome) -> Section:
    """Return who gains and who loses by the choice, by name."""
    gain = result.gains[CHOICE]
    m, own = contest.state.measure, estimates(gain)
    rows = []
    for k, (value, low, high) in own.items():
        word = "gains" if low > 0 else "loses" if high < 0 else "either"
        rows.append((k, size(m, gain.clients[k][0]), size(m, value), between(m, low, high), word))
    note = (
        "Estimate: drawn towards the mean, the more the less a client's rows tell, since the "
        "largest of many measured gains is too large; with two standard errors."
    )
    if len(rows) > 2 * FEW:
        note += f" The {FEW} clients that gain most and the {FEW} that gain least, of {len(rows)}."
        rows[FEW:-FEW] = []
    header = ("client", "measured", "estimate", "interval", "")
    return Section("Who gains by the choice, and who loses", note, header, tuple(rows))


def estimates(gain: Gain) -> dict[str, tuple[float, float, float]]:
    """Return the estimated gains of clients, the largest first, with two standard
    errors below and above.
    """
    order = sorted(gain.shrunk().items(), key=lambda pair: -pair[1][0])
    return {k: (value, value - 2 * error, value + 2 * error) for k, (value, error) in order}


def choices(contest: Contest) -> Section:
    """Return what each fold chose, and by which gains."""
    state, rows = contest.state, []
    for number, one in enumerate(state.ended):
        best = sorted(one["gains"].items(), key=lambda pair: -pair[1])[:3]
        text = ", ".join(f"{name} {size(state.measure, value)}" for name, value in best)
        rows.append((str(number + 1), one["choice"], str(len(one["methods"])), text))
    rows += [("-", "-", "-", f"left out: {text}") for text in state.why_left_out()]
    note = (
        "Gains over training alone at its best rate, on held-out samples: the largest of many, so "
        "they are too large. The gains above are of rows that no choice has seen."
    )
    header = ("fold", "choice", "methods", "largest gains in the fold")
    return Section("Choices", note, header, tuple(rows))


def gains_figure(contest: Contest, result: Outcome) -> Figure:
    """Return the gains of the candidates with both intervals, and the clients' from the
    largest to the smallest.
    """
    state = contest.state
    unit = 100.0 if counts_in_points(state.measure) else 1.0
    gains, own = result.gains, estimates(result.gains[CHOICE])
    few = len(own) <= MOST_NAMED
    step = 0.7 if few else 24 / len(own)
    bottom = [-0.8, len(gains) + 0.2 + step * len(own)]
    figure, (axes,) = panels(1, 1, (6.8, (ROW * (bottom[1] + 0.8) + 120) / 72))
    theme = axes.theme
    title(axes, f"Gain over training alone, {metric_name(state.measure)}")

    def line(y: float, low: float, high: float, colour: Colour, width: float, label: str) -> None:
        shown = "" if label in dict(axes.legend) else label
        axes.line([unit * low, unit * high], [y, y], colour, width, label=shown, readable=False)

    for y, one in enumerate(gains.values()):
        here, like = one.here, one.like
        line(y, like.low, like.high, theme.series[5], 2.0, "sites like these, 95 %")
        line(y, here.low, here.high, theme.series[0], 5.0, "these sites, 95 %")
        axes.dots([unit * one.mean], [y], theme.ink, 7.0)
    places = {k: len(gains) + 0.2 + step * j for j, k in enumerate(own)}
    for k, (value, low, high) in own.items():
        label = "a client, by the choice, two standard errors"
        line(places[k], low, high, theme.series[1], 1.5 if few else 0.6, label)
        axes.dots([unit * value], [places[k]], theme.series[1], 5.0 if few else 3.0)
    axes.line([0, 0], bottom, theme.muted, 1.2, readable=False)
    delta = unit * (state.price + state.delta)
    axes.line([delta] * 2, bottom, theme.muted, 1.2, ":", label="what counts", readable=False)
    axes.y.down, axes.y.grid, axes.y.low, axes.y.high = True, False, *bottom
    names = [called(contest, m) for m in gains] + [k[:24] for k in own] * few
    axes.y.ticks = [*map(float, range(len(gains))), *places.values()][: len(names)], names
    axes.x.label = "points" if unit > 1 else metric_name(state.measure)
    legend(figure, axes)
    return figure


def winners_settings(contest: Contest, result: Outcome) -> dict[str, Any]:
    """Return the settings of the recommended method."""
    who = Contestant(result.method, rate_of(contest, result.method))
    trial = Trial(who, 0, contest.trials.rounds, final=True)
    config = {**contest.trials.full(who.method), **contest.trials.config(trial)}
    left_out = (*OF_TRIALS, score_on(contest.trials.base))
    return {key: value for key, value in config.items() if key not in left_out}


def commands(contest: Contest, result: Outcome) -> list[tuple[str, str]]:
    """Return the commands that use the winner's settings."""
    run = f"fedapps run {contest.trials.out / WINNER} --engine"
    sites = "run it on sites (docs/deployment.md)", f"{run} deployment --deployment DIR"
    return [("repeat it here", f"{run} inline"), *[sites] * (result.method not in UNFEDERATED)]


def write_verdict(contest: Contest) -> tuple[Outcome, str]:
    """Write verdict.html and the winner's settings; return the result and its text."""
    result = outcome(contest)
    text, out, state = verdict_text(contest, result), contest.trials.out, contest.state
    shared = {k: v for k, v in state.given.items() if k != "method"} | {"num-rounds": state.rounds}
    write_text(out / WINNER, to_toml(winners_settings(contest, result)))
    tried = [
        (f"fold {number + 1}, {method}", ", ".join(f"{r}: {s:.4g}" for r, s in rates.items()))
        for number, one in enumerate(state.ended)
        for method, rates in one["tried"].items()
    ]
    picture = chart("gains", "Gains over training alone", gains_figure(contest, result))
    body = [
        html.header("Which method?", str(state.given.get("data.source", "")), "", "", ""),
        html.paragraph(text),
        picture,
        *(section.as_html() for section in sections(contest, result)),
        html.heading("Use it"),
        html.pairs(commands(contest, result)),
        html.heading("Details"),
        html.collapsible("Settings of all runs", "", html.pairs(sorted(shared.items()))),
        html.collapsible("Rates tried, with their held-out scores", "", html.pairs(tried)),
    ]
    write_text(out / "verdict.html", html.page("Which method?", body))
    write_text(out / "verdict.txt", text + "\n")
    return result, text
