"""Statistics over seeds and clients: intervals of a mean difference, for these sites
and for sites like these.

Clients of one run are not independent, since they share a model: seeds are the
repetitions. Two settings with the same seed share its draws, so differences are first
taken seed by seed, and client by client.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: With fewer seeds, the noise between them cannot be estimated well enough.
ENOUGH = 3
#: What the intervals are for, by whether clients are the same in every seed.
WHO = {
    True: "These sites: the same clients with other seeds, and with other test samples if each "
    "seed draws its own (data.split-seed=seed). Sites like these: other clients, too.",
    False: "Each seed deals other clients: the interval is for sites like these.",
}


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` values, their sample standard deviation, and the bounds of the
    mean (infinite if n < 2).
    """

    mean: float
    std: float
    low: float
    high: float
    n: int


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return mean ± t · s / √n, t the quantile of Student's distribution with n - 1
    degrees of freedom.
    """
    from scipy.special import stdtrit  # imported here because it is slow to import

    n, mean = len(values), fmean(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return Interval(mean, math.nan, -math.inf, math.inf, n)
    s = stdev(values)
    reach = float(stdtrit(n - 1, (1 + level) / 2)) * s / math.sqrt(n)
    return Interval(mean, s, mean - reach, mean + reach, n)


def paired(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> dict[Any, float]:
    """Return ours - theirs for every key (a seed, a client) that both have, in the
    order of ``ours``.
    """
    return {key: value - theirs[key] for key, value in ours.items() if key in theirs}


@dataclass(frozen=True)
class Measured:
    """A measure of one setting: its value by seed and, if that is a mean over clients,
    the values of the clients by seed and name.

    ``same``: a name stands for the same client in every seed.
    """

    by_seed: Mapping[Any, float]
    clients: Mapping[Any, Mapping[str, float]] = field(default_factory=dict)
    same: bool = False


@dataclass(frozen=True)
class Difference:
    """Differences by seed, with 95 % intervals of their mean for two questions.

    ``these``: these sites with other seeds; ``None`` if every seed has other clients.
    ``like``: other sites like these; ``None`` if seeds have the same clients, but their
    values are unknown. Both are ``None`` with fewer than three seeds.
    """

    by_seed: tuple[float, ...]
    these: Interval | None = None
    like: Interval | None = None

    @property
    def intervals(self) -> dict[str, Interval]:
        """The intervals by the sites that they are for."""
        named = {"these sites": self.these, "sites like these": self.like}
        return {name: interval for name, interval in named.items() if interval}


def difference(ours: Measured, theirs: Measured) -> Difference:
    """Return ours - theirs for the seeds and clients that both have."""
    clients = {
        seed: paired(mine, theirs.clients[seed])
        for seed, mine in ours.clients.items()
        if seed in theirs.clients
    }
    same = ours.same and theirs.same
    return with_intervals(Measured(paired(ours.by_seed, theirs.by_seed), clients, same))


def with_intervals(differences: Measured) -> Difference:
    """Return differences by seed with the intervals of their mean.

    If clients are dealt anew by each seed, the seeds' differences are independent, and
    their t interval covers clients, too. If they are the same in every seed, it covers
    seeds alone, and :func:`crossed_interval` covers both.
    """
    gains = tuple(differences.by_seed.values())
    if len(gains) < ENOUGH:
        return Difference(gains)
    over_seeds = t_interval(gains)
    if not differences.same:
        return Difference(gains, like=over_seeds)
    by_seed = [differences.clients.get(seed, {}) for seed in differences.by_seed]
    names = list(dict.fromkeys(name for own in by_seed for name in own))
    table = np.array([[own.get(name, math.nan) for name in names] for own in by_seed])
    return Difference(gains, over_seeds, crossed_interval(table))


def crossed_interval(table: NDArray[np.float64], level: float = 0.95) -> Interval | None:
    """Return the mean over seeds and clients, with bounds for the mean of all sites
    that these clients could have been drawn from.

    ``table`` (S, K): the value of client k at seed s, NaN where it is missing. The
    model is y_sk = mu + a_s + b_k + e_sk, of seeds, clients and the rest, whose mean
    over both has the variance

        s_a^2 / S + s_b^2 / K + s_e^2 / (S K) = (MS_a + MS_b - MS_e) / (S K)

    by the mean squares of the clients that have a value in every seed. Degrees of
    freedom are Satterthwaite's (1946).

    If MS_b is at most MS_e, clients do not differ by more than the rest, and the t
    interval over seeds is exact. If MS_a is at most MS_e, seeds do not, and V is MS_b.
    Otherwise the interval is not narrower than the t interval over seeds: MS_b adds
    degrees of freedom that the variance of the seeds does not have. Coverage:
    ``benchmarks/contest.py coverage``.

    ``None`` with fewer than three seeds, or fewer than two clients that are in all.
    """
    from scipy.special import stdtrit  # imported here because it is slow to import

    known = np.isfinite(table)
    y = table[:, known.all(0)]
    s, k = y.shape
    if s < ENOUGH or k < 2:
        return None
    over_seeds = t_interval((np.where(known, table, 0.0).sum(1) / known.sum(1)).tolist(), level)
    per_seed, per_client = y.mean(1, keepdims=True), y.mean(0)
    freedom = (k - 1, s - 1, (s - 1) * (k - 1))
    clients = s * k * float(per_client.var()) / freedom[0]
    seeds = s * k * float(per_seed.var()) / freedom[1]
    rest = float(((y - per_seed - per_client + y.mean()) ** 2).sum()) / freedom[2]
    if clients <= rest:
        return over_seeds
    ms = [clients, seeds, -rest] if seeds > rest else [clients]
    df = sum(ms) ** 2 / sum(one**2 / own for one, own in zip(ms, freedom, strict=False))
    reach = float(stdtrit(df, (1 + level) / 2)) * math.sqrt(sum(ms) / (s * k))
    mean = over_seeds.mean
    if seeds > rest:
        reach = max(reach, over_seeds.high - mean)
    return Interval(mean, over_seeds.std, mean - reach, mean + reach, s)


def stands_out(name: Any, rows: Mapping[Any, Measured], smaller: bool = False) -> bool:
    """Return whether a setting is better than every other one for these sites and for
    sites like these.

    The test: with at least three common seeds, all 95 % intervals of the
    :func:`difference` to each other setting lie entirely on the better side of 0. Since
    all of them must do so, no correction for multiple comparisons is needed.
    """
    sign = -1.0 if smaller else 1.0
    found = [
        difference(rows[name], other).intervals.values()
        for key, other in rows.items()
        if key != name
    ]
    return bool(found) and all(
        intervals and all(sign * one.low > 0 and sign * one.high > 0 for one in intervals)
        for intervals in found
    )
