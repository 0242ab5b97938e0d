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
values that it is the mean of.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.data.options import BY_CLIENT, FLOWER
from fedapps.formats import metric_name
from fedapps.lab.results.seeds import Measured
from fedapps.records.reader import RunFolder, is_number

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
