"""Statistics over seeds: t intervals of a mean, differences paired by seed, and a
bootstrap of seeds and, within them, of clients.

A seed determines the partition, the initial model and the sampling of clients. Seeds
are therefore the independent repetitions of a study; clients of one run are not
independent, since they share a model. Two settings with the same seed share all of
this, so differences are first taken seed by seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

#: With fewer seeds, the noise between them cannot be estimated well enough.
ENOUGH = 3


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

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval is on one side of 0."""
        return self.low > 0 or self.high < 0


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return mean ± t · s / √n, t the quantile of Student's distribution with n - 1
    degrees of freedom.
    """
    from scipy.stats import t  # imported here because it is slow to import

    n, mean = len(values), fmean(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return Interval(mean, math.nan, -math.inf, math.inf, n)
    s = stdev(values)
    reach = float(t.ppf((1 + level) / 2, n - 1)) * s / math.sqrt(n)
    return Interval(mean, s, mean - reach, mean + reach, n)


def paired(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> list[float]:
    """Return ours - theirs for every seed that both have, in the order of ``ours``."""
    return [value - theirs[seed] for seed, value in ours.items() if seed in theirs]


def stands_out(
    name: Any,
    by_seed: Mapping[Any, Mapping[Any, float]],
    smaller: bool = False,
    level: float = 0.95,
) -> bool:
    """Return whether a setting is better than every other one beyond the noise between
    seeds.

    ``by_seed``: the values of each setting by seed. The test: with at least three
    common seeds, the t interval of the paired difference to each other setting lies
    entirely on the better side of 0. Since all intervals must do so, no correction for
    multiple comparisons is needed.
    """
    sign = -1.0 if smaller else 1.0
    for other, values in by_seed.items():
        if other != name:
            gains = [sign * gain for gain in paired(by_seed[name], values)]
            if len(gains) < ENOUGH or not t_interval(gains, level).low > 0:
                return False
    return len(by_seed) > 1


def nested_bootstrap(
    differences: Sequence[NDArray[np.float64]],
    rng: Generator,
    draws: int = 10_000,
    level: float = 0.95,
) -> Interval:
    """Return the mean over seeds of the clients' mean difference, with bounds that
    cover the choice of seeds and of clients.

    ``differences``: for each of the S seeds, the differences of its clients (K_s,). A
    draw takes S seeds with replacement and, for each, K_s clients with replacement; the
    bounds are quantiles of the draws' means. ``std``: the deviation of the seeds'
    means.
    """
    means = np.array([part.mean() for part in differences])
    # Of shape (S, draws).
    drawn = np.array(
        [
            [part[rng.integers(len(part), size=len(part))].mean() for _ in range(draws)]
            for part in differences
        ]
    )
    # A seed that is drawn twice uses other clients the second time: another column of
    # its draws.
    seeds = rng.integers(len(means), size=(len(means), draws))
    columns = rng.permuted(np.broadcast_to(np.arange(draws), (len(means), draws)), axis=1)
    low, high = np.quantile(drawn[seeds, columns].mean(0), [(1 - level) / 2, (1 + level) / 2])
    spread = float(means.std(ddof=1)) if len(means) > 1 else math.nan
    return Interval(float(means.mean()), spread, float(low), float(high), len(means))
