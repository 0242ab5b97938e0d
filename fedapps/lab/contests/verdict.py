"""The verdict of a contest: gains over training alone, a recommendation with its price,
and one paragraph of plain words.

With the expected gain g of the choice (an interval for these sites), delta (the gain
that counts) and the price c of federation, both in the measure's units:

    use          the lower bound is above c: "worth it" above c + delta, else "small"
    alone        every upper bound is below c + delta
    either       otherwise: the method if g is above c, else training alone, with the
                 chance that it is the wrong one, and by how much then

The expected regret of the method is E max(c - g, 0), that of training alone
E max(g - c, 0), of a normal law with the interval. Their difference is c - g, so the
sign says whose is smaller.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, mode

import numpy as np

from fedapps.errors import RunFailed
from fedapps.formats import counts_in_points, few, metric_name, metric_text
from fedapps.lab.contests.contest import CHOICE, REFERENCE, Contest
from fedapps.lab.contests.plan import DEAR, FOLDS
from fedapps.lab.contests.rows import (
    ERRORS,
    RANKED,
    Gain,
    Rows,
    below,
    gain,
    in_all,
    score_of,
)
from fedapps.lab.contests.state import by_reason
from fedapps.lab.contests.trials import TREES_ALONE, UNFEDERATED

USE, ALONE, EITHER = "use", "alone", "either"
#: At most this many clients are named.
FEW = 8
#: More rows than this many times are not worth naming.
MOST_TIMES = 20


@dataclass(frozen=True)
class Outcome:
    """The result of a finished contest. ``kind``: "use", "alone" or "either";
    ``method``: the recommended one, of ``UNFEDERATED`` or a federated one; ``leader``:
    the federated one that most folds chose. ``gains``: of the choice and of each method
    that was tested in all folds. ``scores``: their measures, of training alone and of
    the trivial predictor, means over clients. ``missing``: clients in no mean, with the
    reason. ``useless``: nothing is surely better than the trivial predictor.
    """

    kind: str
    method: str
    leader: str
    gains: Mapping[str, Gain]
    scores: Mapping[str, float]
    missing: Mapping[str, str]
    useless: bool = False


def outcome(contest: Contest) -> Outcome:
    """Return the result of a contest whose folds have ended. Raises ``RunFailed`` if
    fewer than two clients have a score of all finalists.
    """
    state, tested = contest.state, dict[str, Sequence[Rows]](contest.tested())
    alone = tested[REFERENCE]
    everyone = sorted({k for folds in tested.values() for rows in folds for k in rows})
    missing = {}
    for k in everyone:
        lost = [m for m, folds in tested.items() if not in_all(k, folds, alone)]
        if lost:
            missing[k] = f"{', '.join(m for m in lost if m != CHOICE) or CHOICE} diverged"
        elif not np.isfinite(score_of(k, alone, state.measure)):
            missing[k] = f"no {metric_name(state.measure)}: its rows cannot be ranked"
    clients = [k for k in everyone if k not in missing]
    if len(clients) < 2:
        raise RunFailed(
            f"{len(clients)} clients have a score of all finalists, 2 are needed; not: "
            f"{named(missing)}"
        )
    gains = {
        m: gain(folds, alone, clients, state.measure, state.same_rows)
        for m, folds in tested.items()
        if m not in (*UNFEDERATED, REFERENCE)
    }
    useless = False
    if not state.same_rows:
        same = trivial(alone, clients, state.measure)
        over = [gain(folds, same, clients, state.measure, False) for folds in tested.values()]
        useless, tested["trivial"] = all(one.here.low <= 0 for one in over), same
    scores = {
        m: float(np.mean([score_of(k, folds, state.measure) for k in clients]))
        for m, folds in tested.items()
    }
    kind, better = decided(gains, state.delta, state.price)
    best = leader(contest)
    method = best if better else mode(one["alone"] for one in state.ended)
    return Outcome(kind, method, best, gains, scores, missing, useless)


def decided(gains: Mapping[str, Gain], delta: float, price: float = 0.0) -> tuple[str, bool]:
    """Return the kind of the verdict, and whether it recommends the choice."""
    ours = gains[CHOICE]
    if all(one.here.high < price + delta for one in gains.values()):
        return ALONE, False
    if ours.here.low > price:
        return USE, True
    return EITHER, ours.mean > price


def leader(contest: Contest) -> str:
    """Return the method that most folds chose; of several the one with the larger gains
    on the samples that it was chosen by.
    """
    ended = contest.state.ended
    chosen: list[str] = [one["choice"] for one in ended]
    return max(
        chosen,
        key=lambda m: (
            chosen.count(m),
            sum(one["gain"] for one in ended if one["choice"] == m),
        ),
    )


def rate_of(contest: Contest, method: str) -> float:
    """Return the middle one of the rates that folds chose for a method."""
    folds = [one["finalists"] for one in contest.state.ended]
    return float(median_high(rates[method] for rates in folds if method in rates))


def trivial(folds: Sequence[Rows], clients: Sequence[str], measure: str) -> Sequence[Rows]:
    """Return the rows by fold of a predictor that knows labels of other folds only: it
    always answers the most frequent class, or the mean, of the client or of all
    clients, whichever is better; where rows are ranked, the same of all.
    """
    if measure in RANKED:
        return [{k: rows * [1, 1, 0] for k, rows in fold.items()} for fold in folds]
    guess = fmean if measure in ERRORS else mode

    def answers(of: Sequence[str]) -> list[float]:
        labels = [
            np.concatenate([np.empty(0), *(fold[k][:, 0] for k in of if k in fold)])
            for fold in folds
        ]
        rest = [np.sort(np.concatenate(labels[:f] + labels[f + 1 :])) for f in range(len(folds))]
        return [guess(other if len(other) else labels[f]) for f, other in enumerate(rest)]

    def rows(said: Mapping[str, list[float]]) -> list[Rows]:
        labels = [{k: fold[k][:, 0] for k in clients if k in fold} for fold in folds]
        return [
            {k: np.stack([y, y == said[k][f], (y - said[k][f]) ** 2], 1) for k, y in own.items()}
            for f, own in enumerate(labels)
        ]

    both = rows(dict.fromkeys(clients, answers(clients))), rows({k: answers([k]) for k in clients})
    return max(both, key=lambda found: sum(score_of(k, found, measure) for k in clients))


def named(missing: Mapping[str, str]) -> str:
    """Return clients by reason, the first ones of each."""
    return "; ".join(f"{few(names, FEW)} ({why})" for why, names in by_reason(missing).items())


def verdict_text(contest: Contest, result: Outcome) -> str:
    """Return the verdict as one paragraph of plain words."""
    state, ours = contest.state, result.gains[CHOICE]
    m, name, delta = state.measure, metric_name(state.measure), state.delta
    alone = "train alone" + f" with {TREES_ALONE}" * (result.method == TREES_ALONE)
    bounds = f"{size(m, ours.mean)} of {name} ({between(m, ours.here.low, ours.here.high)})"
    chosen = [one["choice"] for one in state.ended]
    many = len(set(chosen)) > 1  # the gain is that of what each fold chose
    whole = int(state.given.get("num-rounds", state.rounds))
    few_rounds, dear = state.rounds < whole // 2, [*state.left_out.values()].count(DEAR)
    cut = [
        *[f"{state.rounds} of {whole} rounds"] * (state.rounds < whole),
        *[f"{state.folds} of {FOLDS} folds"] * (state.folds < FOLDS),
        *[f"{len(state.methods)} of {len(state.methods) + dear} methods"] * (dear > 0),
    ]
    if result.kind == USE:
        worth = ours.here.low > state.price + delta
        text = (
            f"Use {result.method}. At these sites {CHOICE if many else 'it'} gains {bounds} over "
            "training alone: "
            + (
                f"worth it, more than the {size(m, delta)} that count."
                if worth
                else f"a gain, but perhaps a small one: {size(m, delta)} count."
            )
        )
    elif result.kind == ALONE:
        best = max(result.gains, key=lambda one: result.gains[one].here.high)
        bound, counts = size(m, result.gains[best].here.high), size(m, state.price + delta)
        bound = "just below" if bound == counts else bound
        text = (
            f"{alone.capitalize()}. At these sites no method gains {counts} of {name} over "
            f"training alone: the largest upper bound is {bound} ({best})."
        )
    else:
        sign = -1 if result.method in UNFEDERATED else 1
        chance, cost = below(sign * (ours.mean - state.price), ours.deviation)
        text = (
            f"Either will do. The expected gain of {CHOICE if many else chosen[0]} over training "
            f"alone is {bounds}: "
            f"{alone if result.method in UNFEDERATED else 'use it'}, which is wrong with a "
            f"chance of {100 * chance:.0f} %, and then by {size(m, cost)}."
        )
        reach = (ours.here.high - ours.here.low) / 2
        times = (reach / abs(ours.mean)) ** 2 if ours.mean else MOST_TIMES + 1
        if times <= MOST_TIMES and not result.useless and not few_rounds:
            text += f" About {int(np.ceil(times))} times the rows would tell."
    often = Counter(chosen).most_common()
    folds = f"{len(chosen)} of {state.folds} {'seeds' if state.same_rows else 'folds'}"
    folds += ", then the time was over" * (len(chosen) < state.folds)
    sentences = [
        "Nothing that was tried is surely better than the trivial predictor, which always "
        f"answers the same ({name} {metric_text(m, abs(result.scores.get('trivial', 0)))})."
        * result.useless,
        text,
        f"Federation has a price of {size(m, state.price)}." * (state.price > 0),
        f"Chosen by folds: {', '.join(f'{method} ({n})' for method, n in often)}." * many,
        f"Other sites like these: {between(m, ours.like.low, ours.like.high)}.",
        f"{folds}, {len(ours.clients)} clients; {name}, {state.why}.",
        f"The budget left {few(cut, FEW)}: with a larger one another method may lead." * bool(cut),
        "Fewer folds train on fewer rows, with which gains are larger." * (state.folds < FOLDS),
        f"In no mean: {named(result.missing)}." * bool(result.missing),
    ]
    return " ".join(filter(None, sentences))


def size(measure: str, value: float) -> str:
    """Return a gain as text."""
    return f"{100 * value:.1f} points" if counts_in_points(measure) else metric_text(measure, value)


def between(measure: str, low: float, high: float) -> str:
    """Return the bounds of a gain as text."""
    first = f"{100 * low:.1f}" if counts_in_points(measure) else size(measure, low)
    return f"{first} to {size(measure, high)}"
