"""Intervals of several gains that hold together, and the verdict that they allow.

A gain is a table d[s, k] of seeds s and clients k: the score of a method minus that of
training alone. Each has an interval for these sites, which the verdict uses, and a
crossed one for sites like these (``fedapps.lab.results.seeds``). The max-t intervals of
several gains for sites like these all hold in 95 % of studies: their common level c is
such that the largest of correlated statistics stays below its quantile,
P(min_m p_m < 1 - c) = 5 %, with the correlations of the clients' mean gains.

Source: Hothorn, Bretz, Westfall, "Simultaneous Inference in General Parametric Models",
Biometrical Journal 50, 2008, doi 10.1002/bimj.200810425, section 3.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.lab.results.seeds import (
    Interval,
    crossed_interval,
    same_sites_interval,
    same_sites_variances,
)

Table = NDArray[np.float64]
DRAWS = 20_000
#: Of the bound of a difference between two methods.
LEVEL = 0.05
#: More seeds, or times as many test samples, are not worth naming.
MOST_SEEDS, MOST_TIMES = 50, 20
FEDERATE, ALONE, UNKNOWN = "federate", "alone", "cannot tell"


@dataclass(frozen=True)
class Decision:
    """What the intervals of the gains over training alone allow.

    ``kind``: "federate" (with ``method``), "alone" (nobody gains more than delta) or
    "cannot tell". ``seeds``: about how many more would tell; ``samples``: how many
    times as many for the test; 0: unknown.
    """

    kind: str
    method: str = ""
    seeds: int = 0
    samples: int = 0


def upper_bound(table: Table, level: float) -> float:
    """Return the crossed upper bound of the mean of a table (S, K), which the mean
    exceeds with the probability ``level``; infinite if the table has no interval.
    """
    found = crossed_interval(table, 1 - 2 * level)
    return math.inf if found is None else found.high


def joint_level(tables: Mapping[str, Table], level: float = 0.95) -> float:
    """Return the level of each interval with which all hold together at ``level``:
    ``level`` for one table or equal ones, at most 1 - (1 - level) / m for m.
    """
    m = len(tables)
    if m < 2:
        return level
    from scipy.special import ndtr  # imported here because it is slow to import

    means = np.stack([np.nanmean(table, axis=0) for table in tables.values()])
    means = means[:, np.isfinite(means).all(0)]
    apart = means - means.mean(1, keepdims=True)
    sizes = np.linalg.norm(apart, axis=1)
    unit = apart / np.where(sizes > 0, sizes, 1.0)[:, None]
    correlation = np.where(np.eye(m, dtype=bool), 1.0, unit @ unit.T)
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = generator(0, "max-t").normal(size=(DRAWS, m)) @ root.T
    largest = np.abs(draws).max(1)
    each = 2 * float(ndtr(np.quantile(largest, level))) - 1
    return float(np.clip(each, level, 1 - (1 - level) / m))


def simultaneous(tables: Mapping[str, Table], level: float = 0.95) -> dict[str, Interval]:
    """Return intervals of the mean gains, for sites like these, that hold together.
    Raises ``ValueError`` if a table has too few seeds or clients for an interval.
    """
    each = joint_level(tables, level)
    intervals = {}
    for name, table in tables.items():
        found = crossed_interval(table, each)
        if found is None:
            s, k = table.shape
            raise ValueError(
                f"{name}: {s} seeds and {k} clients give no interval: at least 3 seeds and 2 "
                "clients are needed"
            )
        intervals[name] = found
    return intervals


def at_these_sites(
    tables: Mapping[str, Table], halves: Mapping[str, Table], level: float = 0.95
) -> dict[str, Interval]:
    """Return intervals of the mean gains that hold together, for these sites with other
    seeds and test samples; ``halves``: the gains on half of the test samples.

    Their levels are 1 - (1 - level) / m (Bonferroni). Where half of the test samples
    have no score, all are those of :func:`simultaneous`, for sites like these.
    """
    each = 1 - (1 - level) / len(tables)
    found = {name: same_sites_interval(table, halves[name], each) for name, table in tables.items()}
    intervals = {name: one for name, one in found.items() if one}
    return intervals if len(intervals) == len(tables) else simultaneous(tables, level)


def decide(
    tables: Mapping[str, Table],
    halves: Mapping[str, Table],
    leader: str,
    delta: float,
    near: str = "",
) -> Decision:
    """Return the verdict on gains over training alone, for these sites
    (:func:`at_these_sites`). ``leader``: the method chosen before these gains were
    measured.

    Federate if the leader's lower bound is above ``delta``: with ``near`` (fine-tuning,
    the simpler method) if that is shown to gain, too, and to be within ``delta`` of the
    leader (upper bound of the paired difference, at ``LEVEL``). Alone if no upper
    bound reaches ``delta``.
    """
    intervals = at_these_sites(tables, halves)
    ours = intervals[leader]
    if ours.low > delta:
        other = intervals.get(near)
        simpler = False
        if other is not None and other.low > delta:
            behind = tables[leader] - tables[near], halves[leader] - halves[near]
            most = same_sites_interval(*behind, 1 - 2 * LEVEL)
            simpler = (most.high if most else upper_bound(behind[0], LEVEL)) <= delta
        return Decision(FEDERATE, near if simpler else leader)
    if all(one.high < delta for one in intervals.values()):
        return Decision(ALONE)
    # the gain whose interval must become shorter: the leader's, or the widest one that
    # could still be above
    open_ = max(
        (name for name, one in intervals.items() if one.high >= delta),
        key=lambda name: (name == leader, intervals[name].high),
    )
    return Decision(UNKNOWN, leader, *more_needed(tables[open_], halves[open_], delta))


def more_needed(table: Table, half: Table, delta: float) -> tuple[int, int]:
    """Return about how many more seeds, or how many times as many test samples, would
    tell whether the mean gain is above ``delta``; 0 if it is more than ``MOST_SEEDS``
    or ``MOST_TIMES``.
    """
    one, found = same_sites_interval(table, half), same_sites_variances(table, half)
    if one is None or found is None or one.high == one.low:
        return 0, 0
    (seeds, samples, _), s = found, len(table)
    allowed = (seeds + samples) * (2 * (one.mean - delta) / (one.high - one.low)) ** 2
    more = _first(lambda n: seeds * s / n + samples <= allowed, s, MOST_SEEDS)
    times = _first(lambda n: seeds + samples / n <= allowed, 1, MOST_TIMES)
    return more, times + 1 if times else 0


def _first(enough: Callable[[int], bool], now: int, most: int) -> int:
    """Return how many more than ``now`` are the first that suffice, 0 if none do."""
    return next((n - now for n in range(now + 1, most + 1) if enough(n)), 0)
