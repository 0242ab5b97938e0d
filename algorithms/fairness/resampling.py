"""How much of the worst client's score and of the gap between clients is due to chance,
by resampling the clients' test samples.

The model classifies right_k of the n_k test samples of client k correctly, a_k =
right_k / n_k. Resampling them with replacement (the bootstrap) gives

    Binomial(n_k, a_k)

correct ones. Only this number matters, so the samples themselves are not needed. The
percentile interval of a statistic of the a_k (mean, mean of the worst tenth, minimum,
maximum minus minimum) is taken over many draws. The clients are fixed: the interval is
about other test samples of the *same* clients, not about other clients.

An extreme of noisy numbers is biased: the worst of many equally good clients looks bad
and the best one looks good, more so with fewer samples. A draw adds noise a second
time. So the intervals of ``worst`` and ``gap`` lie too far out where clients are about
equal, and never contain a true gap of 0. Hence the comparison with chance: if all
clients had the same accuracy p = sum right / sum n, their accuracies would be

    Binomial(n_k, p) / n_k,

whose mean statistic over the draws is ``chance``. ``p`` is the share of such draws that
are at least as extreme as the measured value, (1 + number) / (1 + draws). If it is
small, the clients differ; otherwise the samples do not show a difference.

Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics
7(1), 1979; the p-value's 1 + is that of Davison and Hinkley, "Bootstrap Methods and
their Application", 1997, Section 4.2.
"""

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


@dataclass(frozen=True)
class Uncertain:
    """A statistic as measured, its percentile interval, and what equal clients would
    show (not for the mean, which has no bias).
    """

    value: float
    low: float
    high: float
    chance: float | None = None
    p: float | None = None


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
    if right.ndim != 1 or not len(right) or right.shape != samples.shape:
        raise ValueError(f"need two numbers per client, got {right.shape} and {samples.shape}")
    if (samples < 1).any() or (right < 0).any() or (right > samples).any():
        raise ValueError("every client needs a test sample, and right ones from 0 to all of them")
    draws = draws or min(DRAWS, max(DRAWS // 10, NUMBERS // len(right)))
    measured = {
        name: float(value[0])
        for name, value in statistics((right / samples)[:, None], share).items()
    }
    again = _drawn(right / samples, samples, rng, share, draws)
    equal = _drawn(np.full(len(right), right.sum() / samples.sum()), samples, rng, share, draws)
    out = {}
    for name, value in measured.items():
        low, high = np.quantile(again[name], [(1 - level) / 2, (1 + level) / 2])
        if name == "mean":
            out[name] = Uncertain(value, float(low), float(high))
            continue
        # Means and quotients of the same counts may differ in the last bit.
        extreme = equal[name] >= value - 1e-12 if name == "gap" else equal[name] <= value + 1e-12
        p = (1 + int(extreme.sum())) / (1 + draws)
        out[name] = Uncertain(value, float(low), float(high), float(equal[name].mean()), p)
    return out


def _drawn(
    accuracies: Floats, samples: Counts, rng: np.random.Generator, share: float, draws: int
) -> dict[str, Floats]:
    block = max(1, BLOCK // len(samples))
    parts = []
    for start in range(0, draws, block):
        # client by client, so that NumPy prepares each distribution once
        size = (len(samples), min(block, draws - start))
        parts.append(
            statistics(
                rng.binomial(samples[:, None], accuracies[:, None], size) / samples[:, None], share
            )
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
