"""The verdict of a contest: the gains of the finalists, and one paragraph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clients.base.scores import HALF
from fedapps.contests.contest import Contest
from fedapps.contests.trials import FINETUNE, LOCAL, as_table
from fedapps.errors import RunFailed
from fedapps.formats import counts_in_points, metric_name, metric_text
from fedapps.results.seeds import Interval, same_sites_interval
from fedapps.results.simultaneous import ALONE, FEDERATE, Table, Verdict, decide, simultaneous

#: At most this many clients are named.
FEW = 8


@dataclass(frozen=True)
class Outcome:
    """The result of a finished contest. ``scores``: of each finalist, (S, K), at
    ``clients``, NaN where one takes no part with a seed; ``gains``: over training
    alone; ``intervals``: those that hold together, for sites like these; ``here``: for
    these sites with other seeds and test samples, ``None`` where half of the test
    samples have no score. ``diverged``: the clients where a finalist has no score; they
    are in no mean.
    """

    verdict: Verdict
    scores: Mapping[str, Table]
    gains: Mapping[str, Table]
    intervals: Mapping[str, Interval]
    here: Mapping[str, Interval | None]
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
    intervals = simultaneous(gains)
    verdict = decide(gains, intervals, contest.state.leader, contest.state.delta, FINETUNE)
    halves = {m: as_table(runs, clients) for m, runs in contest.final_scores(HALF).items()}
    here = {m: same_sites_interval(gain, halves[m] - halves[LOCAL]) for m, gain in gains.items()}
    return Outcome(verdict, scores, gains, intervals, here, clients, diverged)


def _named(diverged: Mapping[str, str]) -> str:
    return ", ".join([*diverged.values()][:FEW]) + ", ..." * (len(diverged) > FEW)


def verdict_text(contest: Contest, found: Outcome) -> str:
    """Return the verdict as one paragraph of plain words."""
    state, verdict = contest.state, found.verdict
    delta, s, k = size(state.measure, state.delta), *next(iter(found.gains.values())).shape
    name = metric_name(state.measure)
    if verdict.kind == FEDERATE:
        one = found.intervals[verdict.method]
        text = (
            f"Federate, with {verdict.method}. On the test samples it gains "
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
        best = max(found.intervals, key=lambda m: found.intervals[m].high)
        text = (
            f"Train alone. No finalist gains more than {delta} of {name} over training alone: the "
            f"largest upper bound is {size(state.measure, found.intervals[best].high)} ({best})."
        )
    else:
        one = found.intervals[verdict.method]
        more = " or ".join(
            f"{number} more {what}"
            for number, what in ((verdict.seeds, "seeds"), (verdict.sites, "sites"))
            if number
        )
        text = (
            f"Cannot tell. {verdict.method}, the leader of the race, gains "
            f"{size(state.measure, one.mean)} of {name} over training alone "
            f"({between(state.measure, one.low, one.high)}), and {delta} count as a difference. "
            + (f"About {more} would tell." if more else "More seeds would not tell.")
        )
        text += at_these_sites(state.measure, found.here[verdict.method], state.delta)
    text += f" {s} fresh seeds, {k} clients."
    if found.diverged:
        text += f" In no mean, since a finalist diverged there: {_named(found.diverged)}."
    return text


def at_these_sites(measure: str, here: Interval | None, delta: float) -> str:
    """Return what is known of the contest's own sites though others may differ."""
    if here is None or here.low <= delta <= here.high:
        return ""
    known = "more than that" if here.low > delta else "less than that"
    gain = between(measure, here.low, here.high)
    return f" At these sites, whatever holds for others, it gains {known} ({gain})."


def size(measure: str, value: float) -> str:
    """Return a gain as text."""
    return f"{100 * value:.1f} points" if counts_in_points(measure) else metric_text(measure, value)


def between(measure: str, low: float, high: float) -> str:
    """Return the bounds of a gain as text."""
    first = f"{100 * low:.1f}" if counts_in_points(measure) else size(measure, low)
    return f"{first} to {size(measure, high)}"
