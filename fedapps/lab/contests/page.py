"""The verdict of a contest: its text, tables and page, and the winner's settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.formats import bytes_text, metric_name, metric_text, seconds_text
from fedapps.lab.charts import html
from fedapps.lab.contests.contest import Contest, mean_of
from fedapps.lab.contests.trials import LOCAL, Contestant, Trial, score_on
from fedapps.lab.contests.verdict import FEW, Outcome, between, outcome, size, verdict_text
from fedapps.lab.results.compare import compared
from fedapps.lab.results.newcomers import newcomer_means
from fedapps.lab.results.parts import COMPARISON, charts, plots
from fedapps.lab.results.sections import Section
from fedapps.lab.results.simultaneous import ALONE
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder
from fedapps.toml_text import to_toml

WINNER = "winner.toml"
#: Settings of a trial that are not the winner's.
OF_TRIALS = ("out", "resume", "until", "seed", "evaluate-every", "checkpoint-every")


def sections(contest: Contest, result: Outcome) -> list[Section]:
    """Return the tables of the page."""
    return [
        ranking(contest, result),
        clients_section(contest, result),
        curse(contest, result),
        race_section(contest),
    ]


def ranking(contest: Contest, result: Outcome) -> Section:
    """Return the finalists by their gains, with both intervals and their costs."""
    state = contest.state
    sign = -1.0 if lower_is_better(state.measure) else 1.0
    runs = finalists_runs(contest)
    new = newcomer_means(next(iter(runs.values()))[0].evaluation)
    rows = []
    for method, scores in sorted(result.scores.items(), key=lambda pair: -mean_of(pair[1])):
        cells = [method, metric_text(state.measure, sign * mean_of(scores), unit=False)]
        if method == LOCAL:
            cells += ["-", "-", "-", "-"]
        else:
            table, these, like = result.gains[method], result.here[method], result.like[method]
            share = np.nanmean(table, 0)
            cells += [
                size(state.measure, like.mean),
                between(state.measure, these.low, these.high),
                between(state.measure, like.low, like.high),
                f"{(share > 0).sum()} / {(share < 0).sum()}",
            ]
        cells += [_average(runs[method], f"{state.measure}-worst10", state.measure)]
        cells += [_average(runs[method], key, key) for key in ("ece-mean", *new)]
        numbers = [run.numbers for run in runs[method]]
        traffic = [n.get("bytes-up", 0) + n.get("bytes-down", 0) for n in numbers]
        cells += [bytes_text(float(np.mean(traffic)))]
        cells += [seconds_text(float(np.mean([n["seconds"] for n in numbers])))]
        rows.append(tuple(cells))
    header = (
        "method",
        metric_name(state.measure),
        "gain over local",
        "these sites",
        "sites like these",
        "clients that gain / lose",
        "worst 10 %",
        "ECE",
        *new.values(),
        "bytes",
        "seconds",
    )
    note = (
        "Means over the fresh seeds, on test samples. These sites: intervals for the same clients "
        "with other seeds and test samples, which the verdict uses. Sites like these: for other "
        "clients, too. Both hold together for all finalists in 95 % of contests."
    )
    for method, own in runs.items():
        names = dict.fromkeys(k for run in own for k in run.diverged if k not in result.diverged)
        if names:
            shown = ", ".join(list(names)[:FEW]) + ", ..." * (len(names) > FEW)
            note += f" {method} diverged in training at {shown}, whose scores count."
    return Section("Final", note, header, tuple(rows))


def clients_section(contest: Contest, result: Outcome) -> Section:
    """Return who gains and who loses, by name, under the verdict's method or the
    leader.
    """
    measure = contest.state.measure
    method = result.verdict.method or contest.state.leader
    table = result.gains[method]
    gains = np.nanmean(table, 0)
    order = np.argsort(-gains)
    shown = list(order) if len(order) <= 2 * FEW else [*order[:FEW], *order[-FEW:]]
    rows = []
    for k in shown:
        low, high = np.nanmin(table[:, k]), np.nanmax(table[:, k])
        word = "gains" if low > 0 else "loses" if high < 0 else "either"
        cells = size(measure, float(gains[k])), between(measure, low, high)
        rows.append((result.clients[k], *cells, word))
    note = (
        "From the lowest to the highest seed, on the same test samples: other samples may give a "
        "client another sign. Gains, loses: with every seed."
    )
    if len(order) > 2 * FEW:
        note += f" The {FEW} clients that gain most and the {FEW} that gain least, of {len(order)}."
    header = ("client", "gain", "seeds", "")
    return Section(f"Who gains by {method}, and who loses", note, header, tuple(rows))


def curse(contest: Contest, result: Outcome) -> Section:
    """Return the finalists' gains in the race beside those in the final."""
    state = contest.state
    rows = []
    for method, rate in state.finalists.items():
        if method != LOCAL:
            race = state.race_gains[str(Contestant(method, rate))]
            final = result.here[method].mean
            change = size(state.measure, final - race)
            rows.append((method, *(size(state.measure, v) for v in (race, final)), change))
    note = (
        "The leader was chosen by its gain in the race, so that gain is likely too high. Fresh "
        "seeds and test samples do not know of the choice."
    )
    header = ("method", "gain in the race", "in the final", "change")
    return Section("Race and final", note, header, tuple(rows))


def race_section(contest: Contest) -> Section:
    """Return what became of every contestant."""
    state = contest.state
    gains = sorted(state.race_gains.items(), key=lambda pair: -pair[1])
    rows = [(name, size(state.measure, gain), "until the end") for name, gain in gains]
    rows += [(name, "-", reason) for name, reason in state.dropped.items()]
    rows += [(name, "-", f"left out: {reason}") for name, reason in state.left_out.items()]
    note = (
        f"Gains over local on half of the validation samples, with {len(state.race_seeds)} seeds; "
        "methods choose by the other half. Rates were chosen with one seed more."
    )
    if state.unscored:
        named = [f"{client} ({why})" for client, why in state.unscored.items()]
        note += f" Not in these scores: {', '.join(named)}."
    return Section("Race", note, ("contestant", "gain in the race", "in the race"), tuple(rows))


def finalists_runs(contest: Contest) -> dict[str, list[RunFolder]]:
    """Return the runs of the final by method."""
    runs: dict[str, list[RunFolder]] = {}
    for trial in contest.final_trials():
        runs.setdefault(trial.who.method, []).append(contest.trials.read(trial))
    return runs


def _average(runs: Sequence[RunFolder], key: str, unit: str) -> str:
    values = [run.numbers[key] for run in runs if key in run.numbers]
    return metric_text(unit, float(np.mean(values)), unit=False) if values else "-"


def winners_settings(contest: Contest, result: Outcome) -> dict[str, Any]:
    """Return the settings of the verdict's method, of training alone if that is the
    verdict.
    """
    method = LOCAL if result.verdict.kind == ALONE else result.verdict.method
    who = Contestant(method, contest.state.finalists[method])
    trial = Trial(who, contest.seed, contest.trials.rounds, final=True)
    config = {**contest.trials.full(method), **contest.trials.config(trial)}
    left_out = (*OF_TRIALS, score_on(contest.trials.base))
    return {key: value for key, value in config.items() if key not in left_out}


def commands(contest: Contest, result: Outcome) -> list[tuple[str, str]]:
    """Return the commands that use the winner's settings."""
    file = contest.trials.out / WINNER
    lines = [("repeat it here", f"fedapps run {file} --engine inline")]
    if result.verdict.kind != ALONE:
        deploy = f"fedapps run {file} --engine deployment --deployment DIR"
        lines.append(("run it on sites (docs/deployment.md)", deploy))
    return lines


def write_verdict(contest: Contest) -> tuple[Outcome, str]:
    """Write verdict.html and the winner's settings; return the result and its text."""
    result = outcome(contest)
    text, out = verdict_text(contest, result), contest.trials.out
    write_text(out / WINNER, to_toml(winners_settings(contest, result)))
    folders = [run.path for runs in finalists_runs(contest).values() for run in runs]
    pictures = charts(plots(COMPARISON), compared(folders).shown.groups)
    state = contest.state
    body = [
        html.header("Which method?", str(state.given.get("data.source", "")), "", "", ""),
        html.paragraph(text),
        *(section.as_html() for section in sections(contest, result)),
        html.heading("Use it"),
        html.pairs(commands(contest, result)),
        *([html.heading("Plots"), *pictures.values()] if pictures else []),
        html.heading("Details"),
        html.collapsible("Settings of all runs", "", html.pairs(sorted(state.given.items()))),
        html.collapsible(
            "Rates tried, with their scores on validation samples",
            "",
            html.pairs(
                (method, ", ".join(f"{rate}: {score:.4g}" for rate, score in tried.items()))
                for method, tried in state.tried.items()
            ),
        ),
    ]
    write_text(out / "verdict.html", html.page("Which method?", body))
    write_text(out / "verdict.txt", text + "\n")
    return result, text
