"""What the test rows of clients say of a gain: its size, and intervals.

In fold f a method scores every client on rows that neither training nor any choice has
seen. A measure of a client is taken over its rows of all folds: a mean (accuracy), the
root of a mean (RMSE), a mean over classes (balanced accuracy), or the share of pairs in
the right order, pairs within a fold, since two folds have two models (AUROC,
concordance). Each is, to first order, a mean of influences phi_i of the rows (for AUROC
DeLong's components), so that the gain of client k has the variance sum_i (phi_i' -
phi_i'' - its mean)^2 / (n (n - 1)), paired row by row.

These sites: the mean gain of these clients, by the models of these folds. Its variance
is the mean of the clients' variances over K. Test rows of one fold are training rows of
the others, so that this alone is too small where methods differ little; Nadeau and
Bengio multiply it by 1 + F n_test / n_train = 1 + F / (F - 1) (coverage of both:
docs/which-method.md). Sites like these: Student's over the clients, never narrower than
that for these sites.

Sources: DeLong, DeLong, Clarke-Pearson, "Comparing the Areas under Two or More
Correlated Receiver Operating Characteristic Curves", Biometrics 44(3), 1988, doi
10.2307/2531595; Nadeau, Bengio, "Inference for the Generalization Error", Machine
Learning 52, 2003, doi 10.1023/A:1024068626366, section 4.1.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapps.lab.results.seeds import Interval, t_interval

Floats = NDArray[np.float64]
#: The rows of each client in a fold (n, 3): label, right, value
#: (``fedapps.clients.base.scores.row_results``).
Rows = Mapping[str, Floats]
#: Quantile of the normal law for 95 %.
Z = 1.959964
#: Measures of which less is better.
ERRORS = ("rmse",)
#: Measures of pairs in the right order.
RANKED = ("auroc", "concordance")


def read_rows(path: Path) -> dict[str, Floats]:
    """Return the rows of each client in a run's test-rows.csv; {} without one."""
    found: dict[str, list[list[float]]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for client, *numbers in list(csv.reader(file))[1:]:
                found.setdefault(client, []).append([float(number) for number in numbers])
    return {client: np.array(rows) for client, rows in found.items()}


def measured(folds: Sequence[Floats], measure: str) -> tuple[float, list[Floats]]:
    """Return a client's measure over its rows of all folds, higher is better, and the
    influences of the rows of each fold; NaN if it is undefined.
    """
    ends = np.cumsum([len(rows) for rows in folds])[:-1]
    rows = np.concatenate(folds)
    if measure in RANKED:
        counts = [ordered_pairs(one, measure) for one in folds]
        right, pairs = (np.concatenate([c[i] for c in counts]) for i in (0, 1))
        if not pairs.sum():
            return math.nan, np.split(np.full(len(rows), np.nan), ends)
        # each pair counts at both of its rows
        value = float(right.sum() / pairs.sum())
        phi = value + len(rows) * 2 * (right - value * pairs) / pairs.sum()
    elif measure in ERRORS:
        error = math.sqrt(rows[:, 2].mean())
        value = -error
        phi = -(error + (rows[:, 2] - error**2) / (2 * error or 1.0))
    elif measure == "macro-recall":
        classes, place, n = np.unique(rows[:, 0], return_inverse=True, return_counts=True)
        recall = np.bincount(place, rows[:, 1]) / n
        value = float(recall.mean())
        phi = value + len(rows) / (len(classes) * n[place]) * (rows[:, 1] - recall[place])
    else:
        value, phi = float(rows[:, 1].mean()), rows[:, 1]
    return value, np.split(phi, ends)


def score_of(client: str, folds: Sequence[Rows], measure: str) -> float:
    """Return a client's measure over the folds in which it has rows; NaN without."""
    own = [fold[client] for fold in folds if client in fold]
    return measured(own, measure)[0] if own else math.nan


def in_all(client: str, folds: Sequence[Rows], others: Sequence[Rows]) -> bool:
    """Return whether a client has as many rows in each fold as with others."""
    return all(
        len(one.get(client, ())) == len(two.get(client, ()))
        for one, two in zip(folds, others, strict=True)
    )


def ordered_pairs(rows: Floats, measure: str) -> tuple[Floats, Floats]:
    """Return of each row in how many of its comparable pairs the order is right (a tie
    is half of one), and how many these are. Comparable: of two classes; of times, if
    the earlier one is an event's.
    """
    label, right, value = rows.T
    above = label[:, None] > label if measure == "auroc" else label[:, None] < label
    if measure == "concordance":  # the earlier row should have the larger risk
        above &= right[:, None] == 1
    order = (np.sign(value[:, None] - value) + 1) / 2 * above
    return order.sum(1) + order.sum(0), (above.sum(1) + above.sum(0)).astype(float)


@dataclass(frozen=True)
class Gain:
    """A gain over training alone. ``clients``: the gain and its standard error of each
    client. ``here``: the interval for these sites; ``like``: for sites like these.
    """

    clients: Mapping[str, tuple[float, float]]
    here: Interval
    like: Interval

    @property
    def mean(self) -> float:
        """The mean over clients."""
        return self.here.mean

    @property
    def deviation(self) -> float:
        """The standard error of which a normal law has the interval for these sites."""
        return (self.here.high - self.here.low) / (2 * Z)

    def shrunk(self) -> dict[str, tuple[float, float]]:
        """Return the gain of each client, drawn towards the mean the more, the less its
        rows tell, and its standard error: the largest of many gains is too large.
        Measured x_k ~ N(g_k, v_k), g_k ~ N(m, t^2), m and t uniform: Gelman et al.,
        "Bayesian Data Analysis", 3rd edition, 2013, Section 5.4.
        """
        x, v = np.array([(value, error**2) for value, error in self.clients.values()]).T
        v = np.where(np.isfinite(v), v, np.nanmean(v)) + 1e-18
        t = np.linspace(0, 3 * x.std(), 60)[:, None]
        precision = 1 / (v + t**2)
        of_mean = 1 / precision.sum(1, keepdims=True)
        m = of_mean * (precision * x).sum(1, keepdims=True)
        log = (np.log(precision) - precision * (x - m) ** 2).sum(1) + np.log(of_mean[:, 0])
        weights = np.exp((log - log.max()) / 2)
        own = t**2 * precision
        values = m + own * (x - m)
        squares = own * v + (1 - own) ** 2 * of_mean + values**2
        means, squares = (np.average(each, 0, weights) for each in (values, squares))
        errors = np.sqrt(np.maximum(squares - means**2, 0))
        pairs = zip(means.tolist(), errors.tolist(), strict=True)
        return dict(zip(self.clients, pairs, strict=True))


def below(mean: float, deviation: float) -> tuple[float, float]:
    """Return P(x < 0) and E(-x | x < 0) of a normal x."""
    if not deviation:
        return float(mean < 0), max(-mean, 0.0)
    z = mean / deviation
    chance = math.erfc(z / math.sqrt(2)) / 2
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return chance, (deviation * density / chance - mean) if chance else 0.0


def gain(
    ours: Sequence[Rows], alone: Sequence[Rows], clients: Sequence[str], measure: str, same: bool
) -> Gain:
    """Return the gain of a method over training alone at these clients, each of which
    has a defined measure. ``ours``, ``alone``: their rows by fold, the same ones.
    ``same``: every fold is tested on the same rows, with another seed; the influences
    of a row are then averaged. Two clients and two folds are the fewest.
    """
    found: dict[str, tuple[float, float]] = {}
    seeds = np.zeros(len(ours))
    for client in clients:
        there = [f for f, rows in enumerate(ours) if client in rows]
        both = [[runs[f][client] for f in there] for runs in (ours, alone)]
        (value, phi), (value_alone, phi_alone) = (measured(rows, measure) for rows in both)
        apart = [a - b for a, b in zip(phi, phi_alone, strict=True)]
        each = np.mean(apart, axis=0) if same else np.concatenate(apart)
        deviation = float(each.std(ddof=1)) if len(each) > 1 else math.nan
        found[client] = value - value_alone, deviation / math.sqrt(len(each))
        if same:
            seeds[there] += [float(one.mean()) for one in apart]
    gains = np.array([one for one, _ in found.values()])
    variances = np.array([error**2 for _, error in found.values()])
    # a client with one row has the variance of the others
    variances = np.where(np.isfinite(variances), variances, np.nanmean(variances))
    mean, n = float(gains.mean()), len(ours)
    error = math.sqrt(float(variances.sum())) / len(gains)
    if same:  # rows and seeds are two sources
        between = t_interval((seeds / len(gains)).tolist())
        of_rows = math.hypot(Z * error, (between.high - between.low) / 2)
    else:
        of_rows = Z * error * math.sqrt(1 + n / (n - 1))
    here = Interval(mean, error, mean - of_rows, mean + of_rows, len(gains))
    sites = t_interval(gains.tolist())
    reach = max((sites.high - sites.low) / 2, of_rows)
    return Gain(found, here, Interval(mean, sites.std, mean - reach, mean + reach, len(gains)))
