"""Measures of a classifier by group of samples (a sex, an age), from sums over clients.

For every group g a client sends, over its own test samples,

    actual_c, predicted_c, hits_c
        samples of class c, samples that the model assigns to c, samples that are both
    number_b, right_b, confidence_b
        by bin of the top-1 probability: samples, right ones, the sum of that
        probability

These are 3 C + 3 B numbers per group. The rows of all clients are added, and the
measures are computed from the sum: they describe the samples of all clients together,
and every sample counts once. With n = sum_c actual_c,

    accuracy  sum_c hits_c / n
    selected  predicted_c / n                             P(prediction is c | group)
    tpr
        hits_c / actual_c                           P(prediction is c | group, class is
        c)
    fpr
        (predicted_c - hits_c) / (n - actual_c)     P(prediction is c | group, class is
        not c)
    ece  sum_b |right_b - confidence_b| / n

With two classes, c = 1. With more, tpr and fpr are means over the classes, each against
the rest; ``selected`` would have the mean 1 / C in every group and is left out. A gap
is the highest minus the lowest value among the groups that have one; the gap of a rate
is the mean over classes of the gap of each class.

Sources: demographic parity as in Dwork, Hardt, Pitassi, Reingold, Zemel, "Fairness
Through Awareness", ITCS 2012, arXiv 1104.3913; equalised odds from Hardt, Price,
Srebro, "Equality of Opportunity in Supervised Learning", NIPS 2016, arXiv 1610.02413.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.measures import BINS, confidence_bin

Floats = npt.NDArray[np.float64]


class Sums(NamedTuple):
    """The sums of the module docstring: (G, C) three times, then (G, B) three times."""

    actual: Floats
    predicted: Floats
    hits: Floats
    number: Floats
    right: Floats
    confidence: Floats


@dataclass(frozen=True)
class Groups:
    """The layout of the sums in a reply: the names of the groups, and the number of
    classes.
    """

    names: tuple[str, ...]
    classes: int

    @property
    def shape(self) -> tuple[int, int]:
        """Groups, and numbers per group."""
        return len(self.names), 3 * self.classes + 3 * BINS

    def parts(self, sums: Floats) -> Sums:
        """Return the parts of ``sums``, of :attr:`shape` or flattened."""
        c = self.classes
        ends = [c, 2 * c, 3 * c, 3 * c + BINS, 3 * c + 2 * BINS]
        return Sums(*np.split(np.asarray(sums, np.float64).reshape(self.shape), ends, axis=1))

    def fault(self, reported: object) -> str | None:
        """Return why a client's numbers cannot be sums over samples, or ``None``."""
        sums = np.asarray(reported, np.float64)
        if sums.ndim != 1 or sums.size != self.shape[0] * self.shape[1]:
            return f"{sums.size} numbers, but {self.shape[0]} groups need {self.shape[1]} each"
        if not (np.isfinite(sums).all() and (sums >= 0).all()):
            return "a sum is not finite or below 0"
        parts = self.parts(sums)
        if any((part % 1 != 0).any() for part in parts[:-1]):
            return "a number of samples is not whole"
        n = parts.actual.sum(1)
        if (parts.predicted.sum(1) != n).any() or (parts.number.sum(1) != n).any():
            return "classes, predictions and bins have different numbers of samples"
        if (parts.hits > np.minimum(parts.actual, parts.predicted)).any() or (
            parts.right > parts.number
        ).any():
            return "more samples are right than there are"
        if (parts.right.sum(1) != parts.hits.sum(1)).any():
            return "classes and bins have different numbers of right samples"
        if (parts.confidence > parts.number * (1 + 1e-6)).any():
            return "a mean probability is above 1"
        return None


def group_sums(
    labels: npt.NDArray[np.integer],
    predicted: npt.NDArray[np.integer],
    confidence: npt.NDArray[np.floating],
    members: npt.NDArray[np.bool_],
    classes: int,
) -> Floats:
    """Return the sums (G, 3 C + 3 B) of samples with these classes (n,), predicted
    classes (n,) and top-1 probabilities (n,).

    ``members`` (n, G): whether a sample belongs to a group; it may belong to none.
    """
    place, right = confidence_bin(confidence), labels == predicted
    rows = []
    for inside in members.T:
        y, assigned, of, hit = labels[inside], predicted[inside], place[inside], right[inside]
        by_class = [np.bincount(values, minlength=classes) for values in (y, assigned, y[hit])]
        by_bin = [np.bincount(of, weights, BINS) for weights in (None, hit, confidence[inside])]
        rows.append(np.concatenate([*by_class, *by_bin]))
    return np.array(rows, np.float64).reshape(members.shape[1], 3 * classes + 3 * BINS)


def group_measures(sums: Floats, groups: Groups) -> list[dict[str, float]]:
    """Return the measures of every group, without those that are undefined for lack of
    samples.

    ``samples`` and ``right`` are counts, and with two classes ``tp``, ``fp``, ``fn``
    and ``tn``, for groups too small for rates.
    """
    parts = groups.parts(sums)
    rates = _rates(parts)
    ece = np.abs(parts.right - parts.confidence).sum(1)
    out = []
    for g in range(len(groups.names)):
        n, right = parts.actual[g].sum(), parts.hits[g].sum()
        row = {"samples": float(n), "right": float(right)}
        if groups.classes == 2:
            tp, fp, fn = (
                parts.hits[g, 1],
                parts.predicted[g, 1] - parts.hits[g, 1],
                parts.actual[g, 1] - parts.hits[g, 1],
            )
            row |= {
                "tp": float(tp),
                "fp": float(fp),
                "fn": float(fn),
                "tn": float(n - tp - fp - fn),
            }
        if n:
            row |= {"accuracy": float(right / n), "ece": float(ece[g] / n)}
        for name, rate in rates.items():
            known = rate[g][~np.isnan(rate[g])]
            if len(known) and (name != "selected" or groups.classes == 2):
                row[name] = float(known.mean())
        out.append(row)
    return out


def group_gaps(sums: Floats, groups: Groups) -> dict[str, float]:
    """Return the gaps between the groups that are defined: at least two groups have the
    samples.

    ``group-accuracy-worst``, ``group-accuracy-gap``, ``demographic-parity-gap`` (of
    ``selected``), ``group-tpr-gap``, ``group-fpr-gap``, ``equalised-odds-gap`` (by
    class the larger one of these two) and ``group-ece-worst``.
    """
    table = group_measures(sums, groups)
    accuracies = [row["accuracy"] for row in table if "accuracy" in row]
    if len(accuracies) < 2:
        return {}
    out = {
        "group-accuracy-worst": min(accuracies),
        "group-accuracy-gap": max(accuracies) - min(accuracies),
    }
    selected, tpr, fpr = (_gaps(rate) for rate in _rates(groups.parts(sums)).values())
    gaps = {
        "demographic-parity-gap": selected,
        "group-tpr-gap": tpr,
        "group-fpr-gap": fpr,
        "equalised-odds-gap": np.fmax(tpr, fpr),
    }
    out |= {
        name: float(np.nanmean(by_class))
        for name, by_class in gaps.items()
        if not np.isnan(by_class).all()
    }
    return out | {"group-ece-worst": max(row["ece"] for row in table if "ece" in row)}


def add_up(reported: Sequence[object], groups: Groups) -> Floats:
    """Return the sum (G, 3 C + 3 B) of the clients' reports, none of which may have a
    :meth:`Groups.fault`.
    """
    total = np.zeros(groups.shape)
    for sums in reported:
        total += np.asarray(sums, np.float64).reshape(groups.shape)
    return total


def _rates(parts: Sums) -> dict[str, Floats]:
    """Return the rates (G, C), or (G, 1) of class 1 of two; NaN where there is no
    sample to divide by.
    """
    n, c = parts.actual.sum(1, keepdims=True), slice(1 if parts.actual.shape[1] == 2 else 0, None)
    rates = {
        "selected": _ratio(parts.predicted, n),
        "tpr": _ratio(parts.hits, parts.actual),
        "fpr": _ratio(parts.predicted - parts.hits, n - parts.actual),
    }
    return {name: rate[:, c] for name, rate in rates.items()}


def _ratio(upper: Floats, lower: Floats) -> Floats:
    lower = np.broadcast_to(lower, upper.shape)
    out: Floats = np.full(upper.shape, np.nan)
    return np.divide(upper, lower, out=out, where=lower > 0)


def _gaps(rate: Floats) -> Floats:
    """Return the gap (C,) between the groups; NaN for a class where fewer than two
    groups have the rate.
    """
    known = ~np.isnan(rate)
    gap = np.where(known, rate, -np.inf).max(0) - np.where(known, rate, np.inf).min(0)
    return np.asarray(np.where(known.sum(0) > 1, gap, np.nan))
