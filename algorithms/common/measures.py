"""Metrics of a classifier, and of fairness across clients.

Accuracy and calibration are computed over a client's whole test set, never as a mean
over mini-batches: the calibration error of a batch of ten is larger. Fairness metrics
take one number per client (higher is better, as for accuracy) and count every client
once, whatever its number of samples.

Source of the calibration errors: Guo, Pleiss, Sun, Weinberger, "On Calibration of
Modern Neural Networks", ICML 2017, arXiv 1706.04599, equations (3) and (5). Source of
the parity gap: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III (Tables 3.8,
3.9).
"""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]
#: The leading score of each kind of task: of classes, of numbers, of times.
LEADING = ("accuracy", "rmse", "concordance")
#: The list of ``algorithms.common.survival.pair_counts``; without a comparable pair
#: there is no concordance.
PAIRS = "pair-counts"
#: Bins of the top-1 probability, in which calibration is measured.
BINS = 15
#: A measure is better when lower if its name contains one of these words.
_LOWER = frozenset({"loss", "rmse", "mae", "mse"})


def leading_of(scores: Iterable[str]) -> str:
    """Return which of a model's scores is the leading one; the loss where no pair of
    times is comparable. Raises ``KeyError`` if there is none.
    """
    names = set(scores)
    for name in LEADING:
        if name in names:
            return name
    if PAIRS in names:
        return "loss"
    raise KeyError(
        f"no leading score among {', '.join(sorted(names))}: a task has one of {', '.join(LEADING)}"
    )


def lower_is_better(name: str) -> bool:
    """Return whether a measure of this name (``rmse-mean``, ``global-loss``) is better
    when lower.
    """
    return not _LOWER.isdisjoint(name.split("-"))


def topk_accuracy(scores: FloatArray, labels: IntArray, k: int = 1) -> float:
    """Return the fraction of samples whose label is among their ``k`` highest scores.

    ``scores`` is (n, C), ``labels`` (n,). Ties rank in class order, as in argmax, so a
    constant classifier gains nothing from them. A row with NaN counts as wrong. With
    ``k >= C`` every other row counts as correct.
    """
    scores, labels = _checked(scores, labels)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    hit = (best == labels[:, None]).any(axis=1) & ~np.isnan(scores).any(axis=1)
    return float(hit.mean())


def auroc(scores: FloatArray, labels: IntArray) -> float:
    """Return the area under the ROC curve of ``scores`` (n,) for ``labels`` (n,) in {0,
    1}.

    This is the fraction of (1, 0) pairs in which the 1 has the higher score, ties
    counting half: (R - p (p + 1) / 2) / (p q) with R the rank sum of the p ones among
    all p + q samples (Mann-Whitney), equal scores sharing their mean rank. Raises
    ``ValueError`` for NaN, and if all labels are equal, where the area is undefined.
    """
    s, y = np.asarray(scores, np.float64), np.asarray(labels)
    if s.ndim != 1 or y.shape != s.shape or not np.isin(y, (0, 1)).all() or np.isnan(s).any():
        raise ValueError(
            f"need scores (n,) without NaN and labels (n,) of 0 and 1, got {s.shape} and {y.shape}"
        )
    positives = int(y.sum())
    negatives = len(y) - positives
    if not positives or not negatives:
        raise ValueError(f"need both labels, got {positives} ones and {negatives} zeros")
    _, place, count = np.unique(s, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    ranks = mean_rank[place][y == 1].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def calibration_errors(probabilities: FloatArray, labels: IntArray) -> tuple[float, float]:
    """Return the expected and the maximum calibration error (ECE, MCE) of
    ``probabilities`` (n, C).

    Samples fall into :data:`BINS` equally wide intervals (lo, hi] of their top-1
    probability. A bin's error is |accuracy - mean confidence|; ECE weights bins by
    their number of samples, MCE is the maximum over non-empty bins.
    """
    probabilities, labels = _checked(probabilities, labels)
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    index = confidence_bin(confidence)
    count = np.bincount(index, minlength=BINS)
    # count * |accuracy - confidence| of every bin, in one difference of sums
    gap = np.abs(np.bincount(index, correct, BINS) - np.bincount(index, confidence, BINS))
    filled = count > 0
    return float(gap.sum() / len(labels)), float((gap[filled] / count[filled]).max())


def confidence_bin(confidence: FloatArray) -> IntArray:
    """Return the bin 0..BINS-1 of each top-1 probability (n,): equally wide intervals
    (lo, hi].
    """
    edges = np.linspace(0.0, 1.0, BINS + 1)
    # Rounding may lift a probability just above 1: it belongs to the last bin.
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)


def tail_size(n: int, share: float) -> int:
    """Return the number of clients in a tail: ceil(share n) of ``n``, at least one."""
    if not 0 < share <= 1:
        raise ValueError(f"share = {share}: must be above 0 and at most 1")
    # 0.07 * 100 is slightly more than 7 in floating point: subtract possible rounding
    # error before ceil.
    return max(1, math.ceil(share * n - 1e-9))


def gini(values: FloatArray) -> float:
    """Return the Gini coefficient of non-negative ``values`` (n,).

    Half the mean absolute difference over all ordered pairs, divided by the mean: 0 if
    all values are equal (also if all are zero), 1 - 1/n if one client has everything.
    """
    values = _clients(values)
    if (values < 0).any():
        raise ValueError(
            f"the Gini coefficient needs values of at least 0, the least is {values.min():g}"
        )
    total = values.sum()
    if total == 0:
        return 0.0
    n = len(values)
    # sum_ij |x_i - x_j| = 2 sum_i (2i - n - 1) x_(i) for sorted x, i = 1..n
    rank = 2 * np.arange(1, n + 1) - n - 1
    return float((rank * np.sort(values)).sum() / (n * total))


def worst_share(values: FloatArray, share: float = 0.1) -> float:
    """Return the mean of the lowest ``share`` of ``values`` (n,): of ceil(share n)
    values, at least one.
    """
    values = _clients(values)
    return float(np.sort(values)[: tail_size(len(values), share)].mean())


def best_share(values: FloatArray, share: float = 0.1) -> float:
    """Return the mean of the highest ``share`` of ``values`` (n,): of ceil(share n)
    values, at least one.
    """
    values = _clients(values)
    return float(np.sort(values)[-tail_size(len(values), share) :].mean())


def parity_gap(values: FloatArray) -> float:
    """Return the accuracy parity gap of ``values`` (n,): best minus worst client, each
    client being a group of its own.
    """
    values = _clients(values)
    return float(values.max() - values.min())


def describe_clients(values: FloatArray, name: str, loss: bool = False) -> dict[str, float]:
    """Summarise one value per client as ``name-mean``, ``-std`` (population),
    ``-worst10`` and ``-best10`` (the tenths of the clients) and ``-worst``.

    ``loss``: the highest values are the worst.
    """
    values = _clients(values)
    sign = -1.0 if loss else 1.0
    return {
        f"{name}-mean": float(values.mean()),
        f"{name}-std": float(values.std()),
        f"{name}-worst10": sign * worst_share(sign * values),
        f"{name}-best10": sign * best_share(sign * values),
        f"{name}-worst": float((sign * values).min() * sign),
    }


def _checked(
    scores: FloatArray, labels: IntArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    s, y = np.asarray(scores, np.float64), np.asarray(labels, np.int64)
    if s.ndim != 2 or y.shape != s.shape[:1] or len(y) == 0:
        raise ValueError(
            f"need scores (n, C) and labels (n,) with n > 0, got {s.shape} and {y.shape}"
        )
    return s, y


def _clients(values: FloatArray) -> npt.NDArray[np.float64]:
    v = np.asarray(values, np.float64)
    if v.ndim != 1 or len(v) == 0:
        raise ValueError(f"need one value per client, shape (n,) with n > 0, got {v.shape}")
    return v
