"""Measures of a run: a number of its summary, the value in a round, the rounds needed
to reach a target, an extreme over clients.

A measure is written

    accuracy-mean                 the number of that name in the summary
    accuracy-mean@20              its value in the last evaluation up to round 20
    accuracy-mean@200-models      its value in the last evaluation before a client had
                                  sent and received more than 200 models
    best(accuracy-mean)           the highest value of all evaluations; for a loss or an
                                  error the lowest
    rounds-to(accuracy-mean,0.85) the first round whose evaluation reaches the target (a
                                  loss: falls to it); infinite if none does
    seconds-to(accuracy-mean,0.85) the seconds of the run, by its clock, at the end of
                                  that round
    train.loss, train.loss@20     a metric of training, in the last round or in round 20
    sum(train.objective)          a metric of training, summed over the rounds
    max(clients.loss)             the maximum of a column of clients.csv; also min and
                                  mean

Of runs that differ only in the seed, a measure has its value by seed, and the clients'
values that it is the mean of. Statistics over seeds and clients are intervals of a mean
difference, for these sites and for sites like these.

Clients of one run are not independent, since they share a model: seeds are the
repetitions. Two settings with the same seed share its draws, so differences are first
taken seed by seed, and client by client.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.data.options import BY_CLIENT, FLOWER
from fedapps.formats import metric_name
from fedapps.records.reader import RunFolder, is_number

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


_OVER_CLIENTS: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "mean": fmean}
#: The forms with a target, and the units of their values.
_TO = {"rounds-to": "rounds", "seconds-to": "seconds"}
_FORMS = re.compile(
    r"(?:(best|rounds-to|seconds-to|sum|max|min|mean)\()?((?:train\.|clients\.)?[\w-]+)(?:,([\d.eE+-]+)\)|\))?(?:@(\d+)(-models)?)?"
)


@dataclass(frozen=True)
class Measure:
    """A parsed measure: the ``key`` in a ``part`` (evaluate, train, clients), and the
    value that is taken from it.

    ``form``: "" for the last value, or, with ``place``, for the value at a round (at a
    number of models if ``models``); ``target``: the value to reach.
    """

    text: str
    key: str
    part: str = "evaluate"
    form: str = ""
    place: int | None = None
    models: bool = False
    target: float = math.nan

    @property
    def unit(self) -> str:
        """The key that determines the format of values: ``accuracy-mean``, or
        ``rounds`` or ``seconds``.
        """
        return _TO.get(self.form, self.key)

    @property
    def name(self) -> str:
        """The name in headings."""
        name = metric_name(self.key)
        if self.part == "train":
            name = f"training {name}"
        if self.form in _TO:
            return f"{self.unit} to {name} {self.target:g}"
        if self.part == "clients":
            return (
                f"{name}, {({'max': 'largest', 'min': 'least', 'mean': 'mean'})[self.form]} of "
                "a client"
            )
        if self.form:
            name = {"best": f"best {name}", "sum": f"sum of {name}"}[self.form]
        if self.place is None:
            return name
        return (
            f"{name} with {self.place:,} models"
            if self.models
            else f"{name} after round {self.place}"
        )


def read_measure(text: str) -> Measure:
    """Return the measure that a text describes. Raises ``ValueError`` with the allowed
    forms.
    """
    match = _FORMS.fullmatch(text.replace(" ", ""))
    form, key, target, place, models = match.groups() if match else ("", "", None, None, None)
    part, dot, rest = (key or "").partition(".")
    part, key = (part, rest) if dot else ("evaluate", key or "")
    closed = text.rstrip().endswith(")")
    fits = {
        "": part != "clients" and not closed,
        "best": part != "clients" and place is None,
        **dict.fromkeys(_TO, part != "clients" and place is None),
        "sum": part == "train" and place is None,
        **dict.fromkeys(("max", "min", "mean"), part == "clients" and place is None),
    }
    form = form or ""
    if (
        not match
        or not fits[form]
        or (form in _TO) != (target is not None)
        or (form != "") != closed
    ):
        raise ValueError(
            f"{text!r}: write NAME, NAME@ROUND, NAME@N-models, best(NAME), rounds-to(NAME,VALUE), "
            "seconds-to(NAME,VALUE), train.NAME, sum(train.NAME) or "
            "max(clients.NAME)"
        )
    return Measure(
        text,
        key,
        part,
        form,
        None if place is None else int(place),
        bool(models),
        float(target) if target else math.nan,
    )


def curve_of(run: RunFolder, measure: Measure) -> tuple[list[int], list[float]]:
    """Return the rounds and the measure's value in each (for ``sum`` the sum so far);
    empty lists if there are none.
    """
    rounds, values = run.series("train" if measure.part == "train" else "evaluate").get(
        measure.key, ([], [])
    )
    if measure.form == "sum":
        values = list(accumulate(values))
    return rounds, values


def value_of(run: RunFolder, measure: Measure) -> float | None:
    """Return the measure of a run; ``None`` if the run has no value of that name."""
    if measure.part == "clients":
        column = run.column(measure.key)
        return float(_OVER_CLIENTS[measure.form](column)) if column else None
    if not measure.form and measure.place is None and measure.part == "evaluate":
        value = run.numbers.get(measure.key)
        return None if value is None else float(value)
    rounds, values = curve_of(run, measure)
    if not values:
        return None
    if measure.form == "best":
        return min(values) if lower_is_better(measure.key) else max(values)
    if measure.form in _TO:
        sign = -1 if lower_is_better(measure.key) else 1
        reached = (
            r for r, v in zip(rounds, values, strict=True) if sign * v >= sign * measure.target
        )
        number = next(reached, None)
        if measure.form == "seconds-to" and not run.clock:
            return None
        if number is None:
            return math.inf
        return float(number) if measure.form == "rounds-to" else run.clock.get(number, math.inf)
    if measure.place is None:
        return values[-1]
    known = run.models if measure.models else {number: float(number) for number in rounds}
    early = [
        v for r, v in zip(rounds, values, strict=True) if known.get(r, math.inf) <= measure.place
    ]
    return early[-1] if early else None


#: Tasks that draw the problem itself with the seed, and those whose data have clients.
_DRAWN = ("lasso", "qap", "matrix-completion", "sparse-logistic")
_NATURAL = ("text", "unigram", "point-mass")
#: Tasks on tables, whose clients are natural ones unless the settings choose.
_TABLES = ("tabular", "regression", "survival")


def same_clients(run: RunFolder) -> bool:
    """Return whether other seeds have the same clients: those of the data, of the sites
    or of a split that stays, not clients that each seed deals anew.
    """
    settings = run.settings
    if run.task in _DRAWN:
        return False
    # Runs of earlier versions have no such key: their seed dealt the samples.
    if settings.get("data.split-seed", "seed") != "seed":
        return True
    partition = str(settings.get("data.partition", ""))
    if partition == "auto":
        natural = bool(settings.get("data.natural-id")) or run.task in _TABLES
    else:
        natural = partition == "natural" or (
            partition.startswith(FLOWER) and partition.removeprefix(FLOWER) in BY_CLIENT
        )
    sites = settings.get("sites.labels") or settings.get("sites.columns")
    return natural or bool(sites) or run.task in _NATURAL


def measured(runs: Mapping[Any, RunFolder], measure: Measure) -> Measured:
    """Return the values of a measure, and those of the clients if it is their mean,
    from runs by seed. Runs without a value are left out.
    """
    by_seed, clients = {}, {}
    column = measure.key
    if not measure.form and measure.place is None and measure.part == "evaluate":
        column = measure.key.removesuffix("-mean")
    elif measure.form != "mean":
        column = ""
    for seed, run in runs.items():
        value = value_of(run, measure)
        if value is None:
            continue
        by_seed[seed] = value
        own = {str(row["client"]): row[column] for row in run.clients if is_number(row.get(column))}
        # A mean of other clients, or with weights, is no mean of these.
        if own and math.isclose(math.fsum(own.values()) / len(own), value, rel_tol=1e-6):
            clients[seed] = own
    return Measured(by_seed, clients, all(map(same_clients, runs.values())))
