"""Tables that need no file: three generated ones, and the diabetes data that
scikit-learn brings, whose 442 patients are dealt to the clients at random.

Source of the diabetes data: Efron, Hastie, Johnstone, Tibshirani, "Least Angle
Regression", The Annals of Statistics 32(2), 2004, arXiv math/0406456.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.data.columns import Floats
from fedapps.data.frame import Frame, some
from fedapps.data.images import decode
from fedapps.data.options import DataOptions
from fedapps.data.source import TRAIN, Indices, Samples, Source
from fedapps.data.sources import bundled
from fedapps.errors import UserError

Columns = dict[str, NDArray[Any]]
DIABETES = "diabetes"


def samples_of(
    columns: Columns, options: DataOptions, category: str, label: str, targets: bool = False
) -> Samples:
    """Return the rows of a table that needs no file, read as any other. Raises
    ``UserError``.
    """
    import pyarrow as pa  # late: it takes a while, and runs on images do without

    source = Source.of(options)
    if options.label and options.label not in (*columns, label):
        raise UserError(
            f"data.label = {options.label!r}: {source} has the columns {some(columns)}: name your "
            "table in data.source, or the columns of sites in sites.columns"
        )
    options = replace(
        options,
        natural_id="client",
        label=options.label or label,
        categorical=options.categorical or category,
    )
    data = Frame({name: pa.chunked_array([column]) for name, column in columns.items()})
    parts = np.full(len(data), TRAIN)
    samples = Samples.of(*decode(data, parts, source, options, targets))
    assert samples.numbers is not None
    # the categories are known to all
    return replace(samples, numbers=replace(samples.numbers, categories=()))


def _columns(
    num_clients: int,
    purpose: str,
    count: int,
    sizes: tuple[int, int],
    outcome: Callable[[Floats, Indices, np.random.Generator], Columns],
) -> Columns:
    """Return a generated table: ``count`` numbers, shifted for each client, some of
    them missing, and a category ``kind``; client k does not depend on the number of
    clients.

    ``sizes``: the fewest and the most rows of a client. ``outcome`` returns what is to
    be predicted, given numbers (n, count) and category (n,).
    """
    parts: list[Columns] = []
    for client in range(num_clients):
        rng = generator(0, purpose, client + 1)
        n = int(rng.integers(sizes[0], sizes[1] + 1))
        x = rng.normal(size=(n, count)) + rng.normal(scale=0.5, size=count)
        kind = rng.integers(3, size=n)
        predicted = outcome(x, kind, rng)
        x[rng.random(x.shape) < 0.05] = np.nan
        one: Columns = {f"feature{i}": 10.0**i * x[:, i] for i in range(count)}
        one["kind"] = np.array(["a", "b", "c"], object)[kind]
        one["client"] = np.full(n, f"client{client:05d}")
        parts.append(one | predicted)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def classes(num_clients: int) -> Columns:
    """Return a small generated table: 40 to 120 rows per client, with feature shift and
    slightly different labels.
    """
    weights = generator(0, "generated table").normal(size=7)

    def label(x: Floats, kind: Indices, rng: np.random.Generator) -> Columns:
        logits = x @ (weights[:6] + rng.normal(scale=0.3, size=6)) + weights[6] * (kind == 2)
        noisy = logits - np.median(logits) + rng.logistic(size=len(x))
        return {"label": (noisy > 0).astype(np.int64)}

    return _columns(num_clients, "generated table", 6, (40, 120), label)


def numbers(num_clients: int) -> Columns:
    """Return a small generated table: 20 to 80 rows per client; each client's slopes
    differ from common ones (deviation 1) by its own (deviation 0.4).
    """
    common = generator(0, "generated regression").normal(size=5)

    def target(x: Floats, kind: Indices, rng: np.random.Generator) -> Columns:
        slopes = common[:4] + rng.normal(scale=0.4, size=4)
        value = x @ slopes + common[4] * (kind == 2) + rng.normal(scale=0.4)
        return {"target": 250.0 + 40.0 * (value + rng.normal(size=len(x)))}

    return _columns(num_clients, "generated regression", 4, (20, 80), target)


def lifetimes(num_clients: int) -> Columns:
    """Return a small generated table: 20 to 80 rows per client, with proportional
    hazards whose baseline differs between clients; a third is censored.
    """
    common = generator(0, "generated survival").normal(size=5)

    def outcome(x: Floats, kind: Indices, rng: np.random.Generator) -> Columns:
        slopes = common[:4] + rng.normal(scale=0.2, size=4)
        hazard = np.exp((x - x.mean(0)) @ slopes + common[4] * (kind == 2)) * rng.uniform(0.5, 2)
        happens, ends = rng.exponential(1 / hazard), rng.exponential(2.0, size=len(x))
        time = np.ceil(1000 * np.minimum(happens, ends))
        return {"time": time, "event": (happens <= ends).astype(np.float64)}

    return _columns(num_clients, "generated survival", 4, (20, 80), outcome)


def diabetes(num_clients: int) -> Columns:
    """Return the 442 patients, dealt at random to ``num_clients`` clients: ten
    measurements, and how far the disease has gone in a year.
    """
    # (442, 11), the target last
    rows = np.column_stack([bundled(f"diabetes_{one}.csv.gz") for one in ("data_raw", "target")])
    if not 1 <= num_clients <= (most := len(rows) // 5):
        raise UserError(
            f"num-clients = {num_clients}: a client needs 5 of the {len(rows)} rows of diabetes: "
            f"choose 1..{most}"
        )
    order = generator(0, "diabetes").permutation(len(rows))
    owner = np.argsort(order) % num_clients
    names = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "target")
    columns: Columns = {name: rows[:, place] for place, name in enumerate(names)}
    return columns | {"client": np.array([f"client{number:05d}" for number in owner])}
