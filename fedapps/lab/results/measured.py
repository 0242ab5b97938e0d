"""A measure of runs that differ only in the seed, with the clients' values that it is
the mean of.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedapps.data.options import BY_CLIENT, FLOWER
from fedapps.lab.results.run_measures import Measure, value_of
from fedapps.lab.results.seeds import Measured
from fedapps.records.reader import RunFolder, is_number

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
