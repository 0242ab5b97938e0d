"""Concordance of predicted risks of an event, from counts that clients add up.

A subject has a time t, an event e (1: it happened at t; 0: censored, not until t) and a
predicted risk f. A pair (i, j) is comparable if i is known to come first: e_i = 1, and
t_i < t_j or t_i = t_j with e_j = 0. It is concordant if f_i > f_j, discordant if f_i <
f_j, else tied. Harrell's C = (concordant + tied / 2) / comparable. Counts of several
clients add up to C over the pairs within clients: nobody compares patients of two
sites, whose risks are relative to two baselines.

Source: Harrell, Lee, Mark, "Multivariable Prognostic Models", Statistics in Medicine
15(4), 1996, section 5.5.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def fault(counts: object, total: float) -> str | None:
    """Return why a client's list cannot count pairs of ``total`` subjects; else
    ``None``.
    """
    if not isinstance(counts, list) or len(counts) != 3:
        return "not 3 numbers"
    values = np.asarray(counts, np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all() and (values % 1 == 0).all()):
        return "a count is below 0 or not whole"
    if values.sum() > total * (total - 1) / 2:
        return f"{values.sum():g} pairs of {total:g} test samples"
    return None
