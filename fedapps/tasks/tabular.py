"""Task ``tabular``: binary classification of the rows of a table with natural clients (a hospital, a bank's region).

The model has one logit (``clients.base.evaluation.BINARY``); ``logistic`` with 15 features has the 16 parameters of the AAggFF chapter,
whose two tables, Heart (4 hospitals) and Berka (7 bank regions), are recognised by their columns.

Only the layout (columns and the values of categories) is shared by all clients. All preprocessing is local, based on the client's own
training rows: missing values are replaced by the column mean, and numeric columns are standardised to mean 0 and standard deviation 1.
A column that is missing or constant in a client's training rows is set to 0.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter III. Heart as in Ogier du Terrail, Ayed, Cyffers, Grimberg, He, Loeb, ..., Andreux (24 authors), "FLamby:
Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare Settings", NeurIPS 2022, arXiv 2210.04620.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.partitioners import stratified
from algorithms.common.seeds import generator
from algorithms.fairness.groups import Groups
from clients.base.data import ArrayData, ArraySplit, ClientData
from fedapps.data.sample_groups import Grouping, grouping_of, members
from fedapps.data.sources import open_split
from fedapps.errors import UserError
from fedapps.tasks.base import TorchTask, dealt
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import TabularOptions

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from torch import nn

    from clients.base.evaluation import Objective

Columns = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
MAX_LEVELS = 100
NO_GROUPS = Grouping()


@dataclass(frozen=True)
class Preset:
    """Column roles of a known table. ``features``: the columns used; () for all that are not dropped."""

    client: str = "client"
    label: str = "label"
    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    drop_clients: tuple[str, ...] = ()


PRESETS = {
    "none": Preset(),
    # 8 numeric features, and 4 + 3 dummies of cp and restecg. The dropped columns are missing at most hospitals.
    "heart": Preset(
        "hospital",
        features=("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
        categorical=("cp", "restecg"),
        drop=("slope", "ca", "thal"),
    ),
    # 13 numeric features and 2 dummies; north Bohemia has a single default.
    "berka": Preset(
        "region",
        features=(
            *("amount", "duration", "payments", "account_months_at_loan", "owner_age_at_loan", "gender", "ownership_count"),
            *(
                "num_inhabitants",
                "average_salary",
                "num_entrepreneurs_per_1000_inhabitants",
                "unemployment_rate_96",
                "num_crimes_96",
            ),
            *("operation_count", "amount_mean", "balance_mean"),
        ),
        categorical=("gender", "ownership_count"),
        drop_clients=("north Bohemia",),
    ),
}


@dataclass(frozen=True)
class Table:
    """Rows by client. ``x[k]`` (n_k, F): NaN if missing; ``y[k]`` (n_k,): 0 or 1; ``scaled`` (F,): which features are numeric.

    ``group[k]`` (n_k,), if asked for: the group of each row, as an index into ``group_names``, -1 for none.
    """

    clients: tuple[str, ...]
    features: tuple[str, ...]
    scaled: NDArray[np.bool_]
    x: tuple[Floats, ...]
    y: tuple[NDArray[np.int64], ...]
    group: tuple[NDArray[np.int64], ...] = ()
    group_names: tuple[str, ...] = ()


class Tabular(TorchTask):
    """Binary classification with natural clients, in sorted order; if ``num-clients`` is smaller, the first ones are used."""

    name = "tabular"
    num_outputs = 1

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: TabularOptions = options
        self.grouping = grouping_of(context.data)
        self._arrays: dict[tuple[int, bool], ArrayData] = {}

    @property
    def objective(self) -> "Objective":
        """The loss and the scores of one logit."""
        from clients.base.evaluation import BINARY

        return BINARY

    @property
    def from_clients(self) -> str:
        """The values found in categorical columns become features; those of the presets are published with the data sets."""
        asked = self.options.source and self.options.categorical
        return "the values of the columns tabular.categorical, found in the rows of all clients" if asked else ""

    def table(self, num_clients: int) -> Table:
        """Return the table; a generated one has ``num_clients`` clients."""
        o = self.options
        return read_table(o, self.grouping) if o.source else generated_table(o, num_clients, self.grouping)

    @property
    def groups(self) -> Groups | None:
        """The groups of the column ``data.group``."""
        return Groups(self.table(self.context.num_clients or 1).group_names, 2) if self.grouping.column else None

    def natural_clients(self) -> int:
        """Return the number of clients in the table; 0 for a generated one, which has any number."""
        return len(read_table(self.options, self.grouping).clients) if self.options.source else 0

    def check(self, num_clients: int) -> None:
        """Read the table, split and scale all clients' rows and build the model."""
        table = self.table(num_clients)
        if num_clients > len(table.clients):
            where = self.options.source or "the generated table"
            raise UserError(
                f"num-clients = {num_clients}, but {where} has {len(table.clients)} clients ({_some(table.clients)}): "
                f"choose at most {len(table.clients)} (--nodes)"
            )
        for client in range(num_clients):
            self.client_data(client, num_clients)
        self.initial_arrays()

    @property
    def num_features(self) -> int:
        """The number of features, dummies counted one by one."""
        return len(self.table(1).features)

    def model_fn(self, seed: int) -> "nn.Module":
        """Return a newly initialised model with one logit."""
        from fedapps.models.image_nets import build_model

        chosen = self.context.model
        return build_model(chosen.name, (1, 1, self.num_features), 1, seed).to(self.device)

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return the rows of a client as tensors."""
        return self.arrays(client, num_clients).tensors()

    def arrays(self, client_id: int | str, num_clients: int, scale: bool = True) -> ArrayData:
        """Return the rows of a client, split and scaled, for a method that needs no tensors.

        Without ``scale`` values are as they are in the table, NaN where one is missing.
        """
        client = dealt(client_id, num_clients)
        table, o = self.table(num_clients), self.options
        if client >= len(table.clients):
            raise UserError(f"client {client}: {o.source} has {len(table.clients)} clients: choose at most so many nodes")
        if (client, scale) not in self._arrays:
            self._arrays[client, scale] = split_rows(table, client, o, generator(self.context.seed, "split", client), scale)
        return self._arrays[client, scale]


def split_rows(table: Table, place: int, options: TabularOptions, rng: np.random.Generator, scale: bool = True) -> ArrayData:
    """Return the rows of the client at position ``place``, split at random and, unless not ``scale``, filled and scaled.

    Raises ``UserError`` if they are too few.
    """
    x, y = table.x[place], table.y[place]
    needed = 3 if options.validation else 2
    ones = int(y.sum())
    if min(ones, len(y) - ones) < needed:
        raise UserError(
            f"client {table.clients[place]!r} has {len(y) - ones} rows of label 0 and {ones} of label 1, but each part of its "
            f"data needs one of both: name it in tabular.drop-clients"
        )
    rows = stratified(y, rng, options.test, options.validation)
    with np.errstate(over="ignore"):  # numbers beyond float32
        inputs = (standardised(x, table.scaled, rows[0]) if scale else x).astype(np.float32)
    group = members(table.group[place] if table.group else None, len(table.group_names))
    train, validation, test = (ArraySplit(inputs[part], y[part], None if group is None else group[part]) for part in rows)
    return ArrayData(train, validation if options.validation else train, test)


def standardised(x: Floats, scaled: NDArray[np.bool_], train: NDArray[np.int64]) -> Floats:
    """Return all rows of a client, with missing values filled and numeric columns standardised by the statistics of the rows ``train``.

    The (population) standard deviation is computed after filling. Columns without two different values in those rows are 0.
    """
    seen = x[train]
    known = ~np.isnan(seen)
    mean = np.where(known, seen, 0).sum(0) / np.maximum(known.sum(0), 1)
    varies = np.where(known, seen, -np.inf).max(0) > np.where(known, seen, np.inf).min(0)
    deviation = np.where(known, seen - mean, 0).std(0)  # the filled values are at the mean
    filled = np.where(np.isnan(x), mean, x)
    out: Floats = np.where(scaled, (filled - mean) / np.where(varies, deviation, 1), filled)
    return np.where(varies, out, 0.0)


# --- reading ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def read_table(options: TabularOptions, grouping: Grouping = NO_GROUPS) -> Table:
    """Return a table from a folder or the hub. Raises ``UserError`` if it is invalid."""
    frame = open_split(options.source, options.split, setting="tabular.split").to_pandas()
    return encode({str(name): frame[name].to_numpy() for name in frame.columns}, options, grouping)


@lru_cache(maxsize=4)
def generated_table(options: TabularOptions, num_clients: int, grouping: Grouping = NO_GROUPS) -> Table:
    """Return a generated table, in which client k does not depend on the number of clients."""
    return encode(generate(num_clients), replace(options, categorical=options.categorical or "kind"), grouping)


def encode(columns: Mapping[str, NDArray[Any]], options: TabularOptions, grouping: Grouping = NO_GROUPS) -> Table:
    """Return the columns encoded as features by client. Raises ``UserError`` if they are invalid.

    Numeric columns come first, then the dummies of categorical columns: a column with two values gives one feature (is it the second?),
    a column with more values one feature per value.
    """
    preset = find_preset(columns, options)
    client, label = options.client or preset.client, options.label or preset.label
    drop = _names(options.drop) or preset.drop
    if options.features:
        features = _names(options.features)
    else:
        features = tuple(name for name in preset.features or columns if name not in (client, label))
    categorical = _names(options.categorical) or preset.categorical
    asked = {"client": [client], "label": [label], "features": features, "categorical": categorical, "drop": _names(options.drop)}
    where = options.source or "the generated table"
    for key, wanted in asked.items():
        for name in wanted:
            if name not in columns:
                raise UserError(f"tabular.{key}: no column {name!r} in {where}: it has {_some(columns)}")
    features = tuple(name for name in features if name not in drop)
    if not features:
        raise UserError("tabular.features: no column is left to learn from")

    numeric = {name: _numbers(name, columns[name]) for name in features if name not in categorical}
    dummies: dict[str, Floats] = {}
    for name in features:
        if name in categorical:
            dummies |= _dummies(name, columns[name])
    values = numeric | dummies
    x, y = np.stack(list(values.values()), 1), _labels(label, columns[label])
    clients, place = _clients(client, columns[client])
    gone = _names(options.drop_clients) or preset.drop_clients
    for name in _names(options.drop_clients):
        if name not in clients:
            raise UserError(f"tabular.drop-clients: no client {name!r}: there are {_some(clients)}")
    kept = [number for number, name in enumerate(clients) if name not in gone]
    rows = [np.flatnonzero(place == number) for number in kept]
    scaled = np.array([name in numeric for name in values])
    table = Table(tuple(clients[k] for k in kept), tuple(values), scaled, tuple(x[r] for r in rows), tuple(y[r] for r in rows))
    if not grouping.column:
        return table
    if grouping.column not in columns:
        raise UserError(f"data.group: no column {grouping.column!r} in {where}: it has {_some(columns)}")
    group, names = grouping.number(columns[grouping.column].tolist())
    return replace(table, group=tuple(group[r] for r in rows), group_names=names)


def find_preset(columns: Mapping[str, Any], options: TabularOptions) -> Preset:
    """Return the preset of the options or, with ``auto``, the one whose columns are all present."""
    if options.preset != "auto":
        return PRESETS[options.preset]
    for name, preset in PRESETS.items():
        if name != "none" and {preset.client, preset.label, *preset.features, *preset.drop} <= set(columns):
            return preset
    return PRESETS["none"]


def generate(num_clients: int) -> Columns:
    """Return a small synthetic table: 40 to 120 rows per client, with feature shift and slightly different labels."""
    weights = generator(0, "generated table").normal(size=7)
    parts: list[Columns] = []
    for client in range(num_clients):
        rng = generator(0, "generated table", client + 1)
        n = int(rng.integers(40, 121))
        x = rng.normal(size=(n, 6)) + rng.normal(scale=0.5, size=6)
        kind = rng.integers(3, size=n)
        logits = x @ (weights[:6] + rng.normal(scale=0.3, size=6)) + weights[6] * (kind == 2)
        label = (logits - np.median(logits) + rng.logistic(size=n) > 0).astype(np.int64)
        x[rng.random(x.shape) < 0.05] = np.nan
        one: Columns = {f"feature{i}": 10.0**i * x[:, i] for i in range(6)}
        parts.append(one | {"kind": np.array(["a", "b", "c"])[kind], "label": label, "client": np.full(n, f"client{client:05d}")})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _some(names: Any) -> str:
    """Return the first names as text, for an error message."""
    listed = list(names)
    return ", ".join(listed[:30]) + (f" and {len(listed) - 30} more" if len(listed) > 30 else "")


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of missing values: None or NaN."""
    return np.array([value is None or (isinstance(value, float) and np.isnan(value)) for value in values.tolist()], bool)


def _numbers(name: str, values: NDArray[Any]) -> Floats:
    absent = _missing(values)
    given = values[~absent]
    kinds = {type(value) for value in given.tolist()} if values.dtype.kind not in "M" else {object}
    if not kinds <= {int, float, bool}:
        strange = [type(value).__name__ for value in given.tolist() if not isinstance(value, int | float)]
        kind = "date" if values.dtype.kind == "M" else strange[0]
        raise UserError(  # it tells the type, never a sample's value
            f"tabular: column {name!r} holds a {kind} value, which is no number: "
            "name it in tabular.categorical or in tabular.drop"
        )
    out = np.full(len(values), np.nan)
    out[~absent] = given.astype(np.float64)
    if np.isinf(out).any():
        raise UserError(f"tabular: column {name!r} holds infinite numbers: mend them, or name it in tabular.drop")
    return out


def _dummies(name: str, values: NDArray[Any]) -> dict[str, Floats]:
    absent = _missing(values)
    given = values[~absent]
    levels = sorted(set(given.tolist()), key=lambda value: (str(type(value)), value))
    if len(levels) > MAX_LEVELS:
        raise UserError(
            f"tabular.categorical: {name!r} has {len(levels)} values, more than {MAX_LEVELS}: name it in tabular.drop"
        )
    out = {}
    for level in levels[1:] if len(levels) <= 2 else levels:
        column = np.full(len(values), np.nan)
        column[~absent] = [value == level for value in given.tolist()]
        out[f"{name}={level:g}" if isinstance(level, float) else f"{name}={level}"] = column
    return out


def _labels(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    found = set(values.tolist())
    if not found <= {0, 1}:
        shown = ", ".join(sorted(map(str, found))[:8])
        raise UserError(f"tabular.label = {name!r}: the column holds {shown}: a label is 0 or 1, in every row")
    return values.astype(np.int64)


def _clients(name: str, values: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    absent = int(_missing(values).sum())
    if absent:
        raise UserError(f"tabular.client = {name!r}: {absent} rows have no client: fill the column, or leave these rows out")
    order = sorted(set(values.tolist()), key=lambda value: (str(type(value)), value))
    place = {value: number for number, value in enumerate(order)}
    return [str(value) for value in order], np.array([place[value] for value in values.tolist()])
