"""Intervals of several gains that hold together, and the verdict that they allow.

A gain is a table d[s, k] of seeds s and clients k: the score of a method minus that of
training alone. Each has a crossed interval (``fedapps.results.seeds``). The max-t
intervals of several gains all hold in 95 % of studies: their common level c is such
that the largest of correlated statistics stays below its quantile, P(min_m p_m < 1 - c)
= 5 %, with the correlations of the clients' mean gains.

Source: Hothorn, Bretz, Westfall, "Simultaneous Inference in General Parametric Models",
Biometrical Journal 50, 2008, doi 10.1002/bimj.200810425, section 3.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.common.seeds import generator
from fedapps.results.seeds import Interval, crossed_interval, variance_components

Table = NDArray[np.float64]
DRAWS = 20_000
#: Of the bound of a difference between two methods.
LEVEL = 0.05
#: More seeds, or sites for each one there is, are not worth naming.
MOST_SEEDS, MOST_SITES = 50, 20
FEDERATE, ALONE, UNKNOWN = "federate", "alone", "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """What the intervals of the gains over training alone allow.

    ``kind``: "federate" (with ``method``), "alone" (nobody gains more than delta) or
    "cannot tell". ``seeds``, ``sites``: about how many more would tell, 0: unknown.
    """

    kind: str
    method: str = ""
    seeds: int = 0
    sites: int = 0


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


def decide(
    tables: Mapping[str, Table],
    intervals: Mapping[str, Interval],
    leader: str,
    delta: float,
    near: str = "",
) -> Verdict:
    """Return the verdict on gains over training alone, given their simultaneous
    intervals. ``leader``: the method chosen before these gains were measured.

    Federate if the leader's lower bound is above ``delta``: with ``near`` (fine-tuning,
    the simpler method) if that is shown to gain, too, and to be within ``delta`` of the
    leader (upper bound of the paired difference, at ``LEVEL``). Alone if no upper
    bound reaches ``delta``.
    """
    ours = intervals[leader]
    if ours.low > delta:
        other = intervals.get(near)
        gains = other is not None and other.low > delta
        simpler = gains and upper_bound(tables[leader] - tables[near], LEVEL) <= delta
        return Verdict(FEDERATE, near if simpler else leader)
    if all(one.high < delta for one in intervals.values()):
        return Verdict(ALONE)
    # the gain whose interval must become shorter: the leader's, or the widest one that
    # could still be above
    open_ = max(
        (name for name, one in intervals.items() if one.high >= delta),
        key=lambda name: (name == leader, intervals[name].high),
    )
    one = intervals[open_]
    return Verdict(UNKNOWN, leader, *more_needed(tables[open_], one, abs(one.mean - delta)))


def more_needed(table: Table, interval: Interval, distance: float) -> tuple[int, int]:
    """Return about how many more seeds, or more sites, would shorten the interval to
    ``distance`` on each side; 0 if that many are not worth naming.
    """
    table = table[:, np.isfinite(table).all(0)]
    s, k = table.shape
    if s < 2 or k < 2 or distance <= 0:
        return 0, 0
    found = variance_components(table - table.mean(), np.ones_like(table, bool))
    if found is None:
        return 0, 0
    a, b, e = (max(part, 0.0) for part in found)
    now = a / s + b / k + e / (s * k)
    allowed = now * (distance / ((interval.high - interval.low) / 2)) ** 2
    seeds = _first(lambda n: a / n + b / k + e / (n * k) <= allowed, s, MOST_SEEDS)
    sites = _first(lambda n: a / s + b / n + e / (s * n) <= allowed, k, MOST_SITES * k)
    return seeds, sites


def _first(enough: Callable[[int], bool], now: int, most: int) -> int:
    """Return how many more than ``now`` are the first that suffice, 0 if none do."""
    return next((n - now for n in range(now + 1, most + 1) if enough(n)), 0)
