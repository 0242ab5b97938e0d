"""The verdict of a contest: the gains of the finalists, and one paragraph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedapps.clients.base.scores import HALF
from fedapps.errors import RunFailed
from fedapps.formats import counts_in_points, metric_name, metric_text
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.trials import FINETUNE, LOCAL, as_table
from fedapps.lab.results.seeds import Interval
from fedapps.lab.results.simultaneous import (
    ALONE,
    FEDERATE,
    Decision,
    Table,
    at_these_sites,
    decide,
    simultaneous,
)

#: At most this many clients are named.
FEW = 8


@dataclass(frozen=True)
class Outcome:
    """The result of a finished contest. ``scores``: of each finalist, (S, K), at
    ``clients``, NaN where one takes no part with a seed; ``gains``: over training
    alone; ``here``: intervals for these sites with other seeds and test samples;
    ``like``: for sites like these. Either hold together for all finalists.
    ``diverged``: the clients where a finalist has no score; they are in no mean.
    """

    verdict: Decision
    scores: Mapping[str, Table]
    gains: Mapping[str, Table]
    here: Mapping[str, Interval]
    like: Mapping[str, Interval]
    clients: Sequence[str]
    diverged: Mapping[str, str]


def outcome(contest: Contest) -> Outcome:
    """Return the result of a contest whose final has ended. Raises ``RunFailed`` if
    fewer than two clients have a score of all finalists.
    """
    by_seed = contest.final_scores()
    new = {t.seed: contest.trials.newcomers(t) for t in contest.final_trials()}
    everyone = sorted({k for runs in by_seed.values() for own in runs.values() for k in own})
    diverged = {}
    for k in everyone:
        lost = {
            m: sum(k not in own and k not in new[s] for s, own in runs.items())
            for m, runs in by_seed.items()
        }
        if any(lost.values()):
            counts = ", ".join(f"{m} {n} of {len(new)} seeds" for m, n in lost.items() if n)
            diverged[k] = f"{k} ({counts})"
    clients = [k for k in everyone if k not in diverged]
    if len(clients) < 2:
        raise RunFailed(
            f"the final has {len(clients)} clients with a score of all finalists, 2 are needed; "
            f"diverged: {_named(diverged)}"
        )
    scores = {m: as_table(runs, clients) for m, runs in by_seed.items()}
    gains = {m: table - scores[LOCAL] for m, table in scores.items() if m != LOCAL}
    half = {m: as_table(runs, clients) for m, runs in contest.final_scores(HALF).items()}
    halves = {m: half[m] - half[LOCAL] for m in gains}
    verdict = decide(gains, halves, contest.state.leader, contest.state.delta, FINETUNE)
    here, like = at_these_sites(gains, halves), simultaneous(gains)
    return Outcome(verdict, scores, gains, here, like, clients, diverged)


def _named(diverged: Mapping[str, str]) -> str:
    return ", ".join([*diverged.values()][:FEW]) + ", ..." * (len(diverged) > FEW)


def verdict_text(contest: Contest, result: Outcome) -> str:
    """Return the verdict as one paragraph of plain words."""
    state, verdict = contest.state, result.verdict
    delta, s, k = size(state.measure, state.delta), *next(iter(result.gains.values())).shape
    name = metric_name(state.measure)
    if verdict.kind == FEDERATE:
        one = result.here[verdict.method]
        text = (
            f"Federate, with {verdict.method}. At these sites it gains "
            f"{size(state.measure, one.mean)} of {name} over training alone "
            f"({between(state.measure, one.low, one.high)}), more than the {delta} that count as a "
            "difference."
        )
        if verdict.method != state.leader:
            text += (
                f" {state.leader} led the race, and {verdict.method} is within {delta} of it and "
                "simpler."
            )
    elif verdict.kind == ALONE:
        best = max(result.here, key=lambda m: result.here[m].high)
        text = (
            f"Train alone. At these sites no finalist gains more than {delta} of {name} over "
            "training alone: the largest upper bound is "
            f"{size(state.measure, result.here[best].high)} ({best})."
        )
    else:
        one = result.here[verdict.method]
        more = " or ".join(
            text
            for number, text in (
                (verdict.seeds, f"{verdict.seeds} more seeds"),
                (verdict.samples, f"{verdict.samples} times the test samples"),
            )
            if number
        )
        text = (
            f"Cannot tell. {verdict.method}, the leader of the race, gains "
            f"{size(state.measure, one.mean)} of {name} over training alone "
            f"({between(state.measure, one.low, one.high)}), and {delta} count as a difference. "
            + (f"About {more} would tell." if more else "More seeds would not tell.")
        )
    text += elsewhere(state.measure, result, state.delta)
    text += f" {s} fresh seeds, {k} clients."
    if result.diverged:
        text += f" In no mean, since a finalist diverged there: {_named(result.diverged)}."
    return text


def elsewhere(measure: str, result: Outcome, delta: float) -> str:
    """Return what a decided verdict means for other sites like these."""
    kind, method = result.verdict.kind, result.verdict.method
    if kind not in (FEDERATE, ALONE):
        return ""
    if kind == ALONE:
        most = max(one.high for one in result.like.values())
        if most < delta:
            return " The same holds for other sites like these."
        return f" Other sites like these could gain up to {size(measure, most)}."
    one = result.like[method]
    gain = between(measure, one.low, one.high)
    if one.low > delta:
        return f" Other sites like these would gain more than that, too ({gain})."
    return f" For other sites like these no such gain is shown ({gain})."


def size(measure: str, value: float) -> str:
    """Return a gain as text."""
    return f"{100 * value:.1f} points" if counts_in_points(measure) else metric_text(measure, value)


def between(measure: str, low: float, high: float) -> str:
    """Return the bounds of a gain as text."""
    first = f"{100 * low:.1f}" if counts_in_points(measure) else size(measure, low)
    return f"{first} to {size(measure, high)}"
