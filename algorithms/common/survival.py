"""Measures of predicted risks of an event: concordance, and survival by group of risk,
both from counts that clients add up.

A subject has a time t, an event e (1: it happened at t; 0: censored, not until t) and a
predicted risk f. A pair (i, j) is comparable if i is known to come first: e_i = 1, and
t_i < t_j or t_i = t_j with e_j = 0. It is concordant if f_i > f_j, discordant if f_i <
f_j, else tied. Harrell's C = (concordant + tied / 2) / comparable. Counts of several
clients add up to C over the pairs within clients: nobody compares patients of two
sites, whose risks are relative to two baselines.

Kaplan and Meier's estimate over a grid of times is that of times rounded up to the
grid: S_k = prod_{j <= k} (1 - d_j / n_j), d_j events and n_j subjects at risk.

Sources: Harrell, Lee, Mark, "Multivariable Prognostic Models", Statistics in Medicine
15(4), 1996, section 5.5. Kaplan, Meier, "Nonparametric Estimation from Incomplete
Observations", JASA 53(282), 1958, equation (2b).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: The groups of risk, and the times of the grid.
GROUPS, GRID = ("low", "middle", "high"), 25


def pair_counts(times: Floats, events: Floats, risks: Floats) -> tuple[int, int, int]:
    """Return the numbers of concordant, discordant and tied pairs of n subjects; all
    arrays are (n,). Takes n log n comparisons.
    """
    concordant = discordant = tied = 0
    later: list[float] = []  # sorted risks of those who are known to come later
    rows = sorted(zip(times.tolist(), events.tolist(), risks.tolist(), strict=True), reverse=True)
    for _, group in groupby(rows, key=lambda row: row[0]):
        same = list(group)
        for _, event, risk in same:
            if not event:
                insort(later, risk)
        failed = [risk for _, event, risk in same if event]
        for risk in failed:
            low, high = bisect_left(later, risk), bisect_right(later, risk)
            concordant, tied = concordant + low, tied + high - low
            discordant += len(later) - high
        for risk in failed:
            insort(later, risk)
    return concordant, discordant, tied


def concordance(counts: Sequence[float]) -> float | None:
    """Return Harrell's C of the numbers of concordant, discordant and tied pairs;
    ``None`` if no pair is comparable.
    """
    total = sum(counts)
    return (counts[0] + counts[2] / 2) / total if total else None


def risk_counts(times: Floats, events: Floats, risks: Floats, grid: Sequence[float]) -> Ints:
    """Return the subjects (3, 2, K + 1) by third of their risks, whether they were
    censored or had the event, and the cell of their times: up to each of K ``grid``
    times, or later.

    Equal risks are in one group. All other arrays are (n,).
    """
    group = np.searchsorted(np.quantile(risks, (1 / 3, 2 / 3)), risks)
    counts = np.zeros((len(GROUPS), 2, len(grid) + 1), np.int64)
    np.add.at(counts, (group, events.astype(np.int64), np.searchsorted(grid, times)), 1)
    return counts


def kaplan_meier(censored: Ints, failed: Ints) -> tuple[Ints, Floats]:
    """Return the subjects at risk n_k and the survival S_k (K,), given the numbers of
    the censored and of the events (K + 1,) in each cell of a grid of K times.

    S_k is NaN where nobody is at risk any more.
    """
    gone = np.cumsum(censored + failed)
    at_risk = gone[-1] - np.concatenate([[0], gone[:-1]])
    factors = 1 - np.divide(failed, at_risk, out=np.full(len(failed), np.nan), where=at_risk > 0)
    return at_risk[:-1], np.cumprod(factors)[:-1]


def fault(counts: object, size: int, total: float) -> str | None:
    """Return why a client's list cannot be ``size`` counts of ``total`` subjects (if
    ``size`` is 3, of their pairs); else ``None``.
    """
    if not isinstance(counts, list) or len(counts) != size:
        return f"not {size} numbers"
    values = np.asarray(counts, np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all() and (values % 1 == 0).all()):
        return "a count is below 0 or not whole"
    if size == 3 and values.sum() > total * (total - 1) / 2:
        return f"{values.sum():g} pairs of {total:g} test samples"
    if size > 3 and values.sum() != total:
        return f"{values.sum():g} counts for {total:g} test samples"
    return None
