"""How well the worst clients do, and how far clients are apart, without the bias of
extremes.

The model classifies right_k of the n_k test samples of client k correctly. The worst of
many equally good clients looks bad by chance alone, and the fewer samples, the worse.
So the clients' rates t_k are estimated together:

    right_k ~ Binomial(n_k, t_k),    t_k ~ Beta(mu s, (1 - mu) s),    s = 1 / rho - 1

rho is the correlation of a client's samples; 0: all clients have the rate mu. Given mu
and rho,

    t_k ~ Beta(right_k + mu s, n_k - right_k + (1 - mu) s):

few samples are shrunk towards mu, many speak for themselves. The prior is uniform for
mu; rho is 0 or near one of 39 values (i / 40)^2 0.9, the 0 being four times as likely
as each. Every draw of (mu, rho, t) has its mean over clients, mean of the worst tenth,
minimum, and maximum minus minimum; ``estimate`` is the mean over draws and the interval
their quantiles. The clients are fixed: the interval is about other test samples of the
*same* clients. The mean is not biased, so its interval is moved to the measured value.

Source: Gelman, Carlin, Stern, Dunson, Vehtari, Rubin, "Bayesian Data Analysis", 3rd
edition, 2013, Section 5.3 (the rats; there the prior of s has no mass at infinity).
Coverage: ``benchmarks/contest.py worst``.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.measures import tail_size

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

#: Number of draws. It falls, down to a tenth, when draws times clients exceed the
#: second value: many clients make up for fewer draws.
DRAWS, NUMBERS = 1000, 2_000_000
LEVEL = 0.95
#: Numbers drawn at a time.
BLOCK = 1_000_000
#: Values of mu, as shares of its range, and of rho above 0.
MEANS = (np.arange(64) + 0.5) / 64
RHOS = (np.arange(1, 40) / 40) ** 2 * 0.9
#: How many times as likely as another rho equal clients are.
EQUAL = 4
#: As many clients, drawn at random, tell mu and rho.
ENOUGH = 200


@dataclass(frozen=True)
class Uncertain:
    """A statistic as measured, and its estimate with an interval."""

    value: float
    estimate: float
    low: float
    high: float


def statistics(accuracies: Floats, share: float = 0.1) -> dict[str, Floats]:
    """Return mean, mean of the worst ``share``, ``worst`` and ``gap`` of accuracies (K,
    B) over the K clients, (B,) each.
    """
    count = tail_size(len(accuracies), share)
    low = accuracies.min(0)
    tail = np.partition(accuracies, count - 1, axis=0)[:count].mean(0)
    return {"mean": accuracies.mean(0), "tail": tail, "worst": low, "gap": accuracies.max(0) - low}


def uncertainty(
    right: Counts,
    samples: Counts,
    rng: np.random.Generator,
    share: float = 0.1,
    draws: int = 0,
    level: float = LEVEL,
) -> dict[str, Uncertain]:
    """Return the :func:`statistics` with their uncertainty, given the clients' right
    and all test samples (K,).

    ``draws``: 0 for ``DRAWS`` or, of more than 2,000 clients, fewer.

    Raises ``ValueError`` unless 0 <= right <= samples and samples > 0.
    """
    if (
        not len(right)
        or right.shape != samples.shape
        or (samples < 1).any()
        or (right < 0).any()
        or (right > samples).any()
    ):
        raise ValueError("every client needs a test sample, and right ones from 0 to all of them")
    draws = draws or min(DRAWS, max(DRAWS // 10, NUMBERS // len(right)))
    means, rhos = spread(right, samples, rng, draws)
    block = max(1, BLOCK // len(right))
    again = []
    for start in range(0, draws, block):
        mu, rho = means[start : start + block], rhos[start : start + block]
        again.append(statistics(rates(right, samples, mu, rho, rng), share))
    out = {}
    for name, (value,) in statistics((right / samples)[:, None], share).items():
        drawn = np.concatenate([part[name] for part in again])
        if name == "mean":
            drawn = np.clip(drawn + value - drawn.mean(), 0, 1)
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        out[name] = Uncertain(float(value), float(drawn.mean()), float(low), float(high))
    return out


def spread(
    right: Counts, samples: Counts, rng: np.random.Generator, draws: int
) -> tuple[Floats, Floats]:
    """Return draws of mu and rho, (draws,) each, from what is known after counts."""
    total, n = int(right.sum()), int(samples.sum())
    centre = float((right / samples).mean())
    reach = 6 * math.sqrt((centre * (1 - centre) + 1 / (n + 2)) / len(right))
    low, high = max(centre - reach, 0.0), min(centre + reach, 1.0)
    few = rng.choice(len(right), min(len(right), ENOUGH), replace=False)
    pairs, times = np.unique(np.stack([right[few], samples[few]]), axis=1, return_counts=True)
    s, mu = 1 / RHOS - 1, low + (high - low) * MEANS
    a, b = (m[:, None] * s for m in (mu, 1 - mu))
    log = len(few) * (log_gamma(s) - log_gamma(a) - log_gamma(b))
    for (r, m), count in zip(pairs.T.tolist(), times.tolist(), strict=True):
        log += count * (log_gamma(r + a) + log_gamma(m - r + b) - log_gamma(m + s))
    log = log * (len(right) / len(few)) + math.log((high - low) / len(mu))
    equal = math.lgamma(total + 1) + math.lgamma(n - total + 1) - math.lgamma(n + 2)
    logs = np.append(log, math.log(EQUAL) + equal)
    weights = np.exp(logs - logs.max())
    place = rng.choice(len(logs), draws, p=weights / weights.sum())
    same = place == len(logs) - 1
    # between the values, too
    i, j = (k + rng.uniform(-0.5, 0.5, draws) for k in divmod(np.where(same, 0, place), len(s)))
    means = low + (high - low) * np.interp(i, np.arange(len(mu)), MEANS)
    return (
        np.where(same, rng.beta(total + 1, n - total + 1, draws), means),
        np.where(same, 0.0, np.interp(j, np.arange(len(s)), RHOS)),
    )


def rates(
    right: Counts, samples: Counts, mu: Floats, rho: Floats, rng: np.random.Generator
) -> Floats:
    """Return a draw of the clients' rates for each mu and rho (K, B)."""
    s = 1 / np.where(rho > 0, rho, 0.5) - 1
    drawn = rng.beta(right[:, None] + mu * s, (samples - right)[:, None] + (1 - mu) * s)
    return np.where(rho > 0, drawn, mu)


def log_gamma(x: Floats) -> Floats:
    """Return the logarithm of the gamma function at x > 0, to 1e-9: Stirling's series
    at x + 7. NumPy has none, and reports are made without SciPy and PyTorch.
    """
    z = x + 7
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5)
    below = np.log(np.prod([x + j for j in range(7)], axis=0))
    return np.asarray((z - 0.5) * np.log(z) - z + math.log(2 * math.pi) / 2 + series - below)
