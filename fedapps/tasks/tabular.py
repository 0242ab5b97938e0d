"""Task ``tabular``: binary classification of the rows of a table with natural clients
(a hospital, a bank's region).

The model has one logit (``clients.base.evaluation.BINARY``); ``logistic`` with 15
features has the 16 parameters of the AAggFF chapter, whose two tables, Heart (4
hospitals) and Berka (7 bank regions), are recognised by their columns.

Only the layout (columns and the values of categories) is shared by all clients. All
preprocessing is local, based on the client's own training rows: missing values are
replaced by the column mean, and numeric columns are standardised to mean 0 and standard
deviation 1. A column that is missing or constant in a client's training rows is set to
0.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. Heart as in
Ogier du Terrail, Ayed, Cyffers, Grimberg, He, Loeb, ..., Andreux (24 authors), "FLamby:
Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022, arXiv 2210.04620.
"""

from collections.abc import Callable, Mapping, Sequence
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
from fedapps.data.source import Source
from fedapps.data.sources import open_split
from fedapps.errors import UserError
from fedapps.tasks.base import TorchTask, dealt
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import TableOptions

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from torch import nn

    from clients.base.evaluation import Objective

Columns = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
#: The columns to predict, their names, options -> (n,) or (n, targets).
Reader = Callable[[Sequence[NDArray[Any]], Sequence[str], TableOptions], NDArray[Any]]
MAX_LEVELS = 100
NO_GROUPS = Grouping()


@dataclass(frozen=True)
class Preset:
    """Column roles of a known table. ``features``: the columns used; () for all that
    are not dropped.
    """

    client: str = "client"
    label: str = "label"
    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    drop_clients: tuple[str, ...] = ()


PRESETS = {
    "none": Preset(),
    # 8 numeric features, and 4 + 3 dummies of cp and restecg. The dropped columns are
    # missing at most hospitals.
    "heart": Preset(
        "hospital",
        features=(
            "age",
            "sex",
            "cp",
            "trestbps",
            "chol",
            "fbs",
            "restecg",
            "thalach",
            "exang",
            "oldpeak",
        ),
        categorical=("cp", "restecg"),
        drop=("slope", "ca", "thal"),
    ),
    # 13 numeric features and 2 dummies; north Bohemia has a single default.
    "berka": Preset(
        "region",
        features=(
            *(
                "amount",
                "duration",
                "payments",
                "account_months_at_loan",
                "owner_age_at_loan",
                "gender",
                "ownership_count",
            ),
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
    """Rows by client. ``x[k]`` (n_k, F): NaN if missing; ``y[k]`` (n_k,): 0 or 1;
    ``scaled`` (F,): which features are numeric.

    Where numbers are predicted, ``y[k]`` is (n_k, targets).

    ``group[k]`` (n_k,), if asked for: the group of each row, as an index into
    ``group_names``, -1 for none.
    """

    clients: tuple[str, ...]
    features: tuple[str, ...]
    scaled: NDArray[np.bool_]
    x: tuple[Floats, ...]
    y: tuple[NDArray[Any], ...]
    group: tuple[NDArray[np.int64], ...] = ()
    group_names: tuple[str, ...] = ()


class Tabular(TorchTask):
    """Binary classification with natural clients, in sorted order; if ``num-clients``
    is smaller, the first ones are used.
    """

    name = "tabular"

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: TableOptions = options
        self.grouping = grouping_of(context.data)
        self._arrays: dict[tuple[int, bool], ArrayData] = {}

    @property
    def num_outputs(self) -> int:
        """The number of model outputs: one logit."""
        return 1

    @property
    def objective(self) -> "Objective":
        """The loss and the scores of one logit."""
        from clients.base.evaluation import BINARY

        return BINARY

    @property
    def from_clients(self) -> str:
        """The values found in categorical columns become features; those of the presets
        are published with the data sets.
        """
        asked, table = self.options.source and self.options.categorical, self.options.table
        return (
            f"the values of the columns {table}.categorical, found in the rows of all clients"
            if asked
            else ""
        )

    def table(self, num_clients: int) -> Table:
        """Return the table; a generated one has ``num_clients`` clients."""
        o = self.options
        return (
            read_table(o, self.grouping)
            if o.source
            else generated_table(o, num_clients, self.grouping)
        )

    @property
    def groups(self) -> Groups | None:
        """The groups of the column ``data.group``."""
        return (
            Groups(self.table(self.context.num_clients or 1).group_names, 2)
            if self.grouping.column
            else None
        )

    def natural_clients(self) -> int:
        """Return the number of clients in the table; 0 for a generated one, which has
        any number.
        """
        return len(read_table(self.options, self.grouping).clients) if self.options.source else 0

    def check(self, num_clients: int) -> None:
        """Read the table, split and scale all clients' rows and build the model."""
        table = self.table(num_clients)
        if num_clients > len(table.clients):
            where = self.options.source or "the generated table"
            raise UserError(
                f"num-clients = {num_clients}, but {where} has {len(table.clients)} clients "
                f"({_some(table.clients)}): "
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
        """Return the rows of a client, split and scaled, for a method that needs no
        tensors.

        Without ``scale`` values are as they are in the table, NaN where one is missing.
        """
        client = dealt(client_id, num_clients)
        table, o = self.table(num_clients), self.options
        if client >= len(table.clients):
            raise UserError(
                f"client {client}: {o.source} has {len(table.clients)} clients: choose at most so "
                "many nodes"
            )
        if (client, scale) not in self._arrays:
            common = self.common(num_clients) if scale else None
            rng = generator(self.context.seed, "split", client)
            self._arrays[client, scale] = split_rows(table, client, o, rng, scale, common)
        return self._arrays[client, scale]

    def common(self, num_clients: int) -> "Numeric | None":
        """Return what all clients' numbers are scaled by; None where each one's own
        training rows say so.
        """
        return None


def split_rows(
    table: Table,
    place: int,
    options: TableOptions,
    rng: np.random.Generator,
    scale: bool = True,
    common: "Numeric | None" = None,
) -> ArrayData:
    """Return the rows of the client at position ``place``, split at random and, unless
    not ``scale``, filled and scaled.

    ``common``: by what all clients are, instead of by its own training rows. Raises
    ``UserError`` if they are too few.
    """
    x, y = table.x[place], table.y[place]
    needed = 3 if options.validation else 2
    who, remedy = f"client {table.clients[place]!r} has", f"name it in {options.table}.drop-clients"
    if y.ndim > 1:  # numbers: a row is like any other
        if len(y) < needed:
            raise UserError(
                f"{who} {len(y)} rows, but each of the {needed} parts of its data needs one: "
                f"{remedy}"
            )
        rows = stratified(np.zeros(len(y), np.int64), rng, options.test, options.validation)
    else:
        ones = int(y.sum())
        if min(ones, len(y) - ones) < needed:
            raise UserError(
                f"{who} {len(y) - ones} rows of label 0 and {ones} of label 1, but each part of "
                f"its data needs one of both: {remedy}"
            )
        rows = stratified(y, rng, options.test, options.validation)
    with np.errstate(over="ignore"):  # numbers beyond float32
        inputs = (filled(x, table.scaled, common or columns_of(x[rows[0]])) if scale else x).astype(
            np.float32
        )
    group = members(table.group[place] if table.group else None, len(table.group_names))
    train, validation, test = (
        ArraySplit(inputs[part], y[part], None if group is None else group[part]) for part in rows
    )
    return ArrayData(train, validation if options.validation else train, test)


def standardised(x: Floats, scaled: NDArray[np.bool_], train: NDArray[np.int64]) -> Floats:
    """Return all rows of a client, with missing values filled and numeric columns
    standardised by the statistics of the rows ``train``.

    The (population) standard deviation is computed after filling. Columns without two
    different values in those rows are 0.
    """
    return filled(x, scaled, columns_of(x[train]))


@dataclass(frozen=True)
class Numeric:
    """What is known of each column: mean and deviation (F,), and whether it has two
    different values.
    """

    mean: Floats
    deviation: Floats
    varies: NDArray[np.bool_]


def columns_of(seen: Floats) -> Numeric:
    """Return mean, deviation and whether they vary of the columns of rows (n, F), NaN
    where a value is missing.
    """
    known = ~np.isnan(seen)
    mean = np.where(known, seen, 0).sum(0) / np.maximum(known.sum(0), 1)
    varies = np.where(known, seen, -np.inf).max(0) > np.where(known, seen, np.inf).min(0)
    # the filled values are at the mean
    return Numeric(mean, np.where(known, seen - mean, 0).std(0), varies)


def filled(x: Floats, scaled: NDArray[np.bool_], by: Numeric) -> Floats:
    """Return rows (n, F) with missing values at the mean, numeric columns standardised,
    and those that do not vary at 0.
    """
    whole = np.where(np.isnan(x), by.mean, x)
    out: Floats = np.where(scaled, (whole - by.mean) / np.where(by.varies, by.deviation, 1), whole)
    return np.where(by.varies, out, 0.0)


# --- reading --------------------------------------------------------------------------


@lru_cache(maxsize=4)
def read_table(
    options: TableOptions, grouping: Grouping = NO_GROUPS, read: Reader | None = None
) -> Table:
    """Return a table from a folder, a file or the hub. Raises ``UserError`` if it is
    invalid.
    """
    frame = open_split(Source(options.source, options.split, table=options.table)).to_pandas()
    return encode(
        {str(name): frame[name].to_numpy() for name in frame.columns}, options, grouping, read
    )


@lru_cache(maxsize=4)
def generated_table(
    options: TableOptions, num_clients: int, grouping: Grouping = NO_GROUPS
) -> Table:
    """Return a generated table, in which client k does not depend on the number of
    clients.
    """
    return encode(
        generate(num_clients), replace(options, categorical=options.categorical or "kind"), grouping
    )


def encode(
    columns: Mapping[str, NDArray[Any]],
    options: TableOptions,
    grouping: Grouping = NO_GROUPS,
    read: Reader | None = None,
) -> Table:
    """Return the columns encoded as features by client. Raises ``UserError`` if they
    are invalid.

    ``read``: of what is to be predicted, by default a class, 0 or 1.

    Numeric columns come first, then the dummies of categorical columns: a column with
    two values gives one feature (is it the second?), a column with more values one
    feature per value.
    """
    preset, read = find_preset(columns, options), read or read_classes
    client, given = options.client or preset.client, options.label
    labels = (
        (given,)
        if given in columns
        else _names(given) or (preset.label if preset.label in columns else options.usual,)
    )
    drop = _names(options.drop) or preset.drop
    if options.features:
        features = _names(options.features)
    else:
        features = tuple(
            name for name in preset.features or columns if name not in (client, *labels)
        )
    categorical = _names(options.categorical) or preset.categorical
    asked = {
        "client": [client],
        "label": labels,
        "features": features,
        "categorical": categorical,
        "drop": _names(options.drop),
    }
    where = options.source or "the generated table"
    for key, wanted in asked.items():
        for name in wanted:
            if name not in columns:
                raise UserError(
                    f"{options.table}.{key}: no column {name!r} in {where}: it has {_some(columns)}"
                )
    features = tuple(name for name in features if name not in drop)
    if not features:
        raise UserError(f"{options.table}.features: no column is left to learn from")

    numeric = {
        name: numbers_of(name, columns[name], options.table)
        for name in features
        if name not in categorical
    }
    dummies: dict[str, Floats] = {}
    for name in features:
        if name in categorical:
            dummies |= _dummies(name, columns[name], options.table)
    values = numeric | dummies
    x, y = (
        np.stack(list(values.values()), 1),
        read([columns[name] for name in labels], labels, options),
    )
    clients, place = _clients(client, columns[client], options.table)
    gone = _names(options.drop_clients) or preset.drop_clients
    for name in _names(options.drop_clients):
        if name not in clients:
            raise UserError(
                f"{options.table}.drop-clients: no client {name!r}: there are {_some(clients)}"
            )
    kept = [number for number, name in enumerate(clients) if name not in gone]
    rows = [np.flatnonzero(place == number) for number in kept]
    scaled = np.array([name in numeric for name in values])
    table = Table(
        tuple(clients[k] for k in kept),
        tuple(values),
        scaled,
        tuple(x[r] for r in rows),
        tuple(y[r] for r in rows),
    )
    if not grouping.column:
        return table
    if grouping.column not in columns:
        raise UserError(
            f"data.group: no column {grouping.column!r} in {where}: it has {_some(columns)}"
        )
    group, names = grouping.number(columns[grouping.column].tolist())
    return replace(table, group=tuple(group[r] for r in rows), group_names=names)


def find_preset(columns: Mapping[str, Any], options: TableOptions) -> Preset:
    """Return the preset of the options or, with ``auto``, the one whose columns are all
    present.
    """
    if (chosen := getattr(options, "preset", "none")) != "auto":
        return PRESETS[chosen]
    for name, preset in PRESETS.items():
        if name != "none" and {preset.client, preset.label, *preset.features, *preset.drop} <= set(
            columns
        ):
            return preset
    return PRESETS["none"]


def generate(num_clients: int) -> Columns:
    """Return a small synthetic table: 40 to 120 rows per client, with feature shift and
    slightly different labels.
    """
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
        parts.append(
            one
            | {
                "kind": np.array(["a", "b", "c"])[kind],
                "label": label,
                "client": np.full(n, f"client{client:05d}"),
            }
        )
    return joined(parts)


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the rows of several tables with the same columns as one."""
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
    return np.array(
        [
            value is None or (isinstance(value, float) and np.isnan(value))
            for value in values.tolist()
        ],
        bool,
    )


def numbers_of(name: str, values: NDArray[Any], table: str) -> Floats:
    """Return a column of numbers, NaN where one is missing. Raises ``UserError``;
    ``table``: of the settings.
    """
    absent = _missing(values)
    given = values[~absent]
    kinds = {type(value) for value in given.tolist()} if values.dtype.kind not in "M" else {object}
    if not kinds <= {int, float, bool}:
        strange = [
            type(value).__name__ for value in given.tolist() if not isinstance(value, int | float)
        ]
        kind = "date" if values.dtype.kind == "M" else strange[0]
        raise UserError(  # it tells the type, never a sample's value
            f"{table}: column {name!r} holds a {kind} value, which is no number: "
            f"name it in {table}.categorical or in {table}.drop"
        )
    out = np.full(len(values), np.nan)
    out[~absent] = given.astype(np.float64)
    if np.isinf(out).any():
        raise UserError(
            f"{table}: column {name!r} holds infinite numbers: mend them, or name it in "
            f"{table}.drop"
        )
    return out


def _dummies(name: str, values: NDArray[Any], table: str) -> dict[str, Floats]:
    absent = _missing(values)
    given = values[~absent]
    levels = sorted(set(given.tolist()), key=lambda value: (str(type(value)), value))
    if len(levels) > MAX_LEVELS:
        raise UserError(
            f"{table}.categorical: {name!r} has {len(levels)} values, more than {MAX_LEVELS}: name "
            f"it in {table}.drop"
        )
    out = {}
    for level in levels[1:] if len(levels) <= 2 else levels:
        column = np.full(len(values), np.nan)
        column[~absent] = [value == level for value in given.tolist()]
        out[f"{name}={level:g}" if isinstance(level, float) else f"{name}={level}"] = column
    return out


def read_classes(
    columns: Sequence[NDArray[Any]], names: Sequence[str], options: TableOptions
) -> NDArray[np.int64]:
    """Return the labels (n,), 0 or 1, of the only column. Raises ``UserError``."""
    if len(names) > 1:
        raise UserError(f"{options.table}.label = {options.label!r}: must be one column")
    (name,), (values,) = names, columns
    found = set(values.tolist())
    if not found <= {0, 1}:
        shown = ", ".join(sorted(map(str, found))[:8])
        numbers = values.dtype.kind in "iuf" and len(found) > 2
        hint = (
            f"; to predict a number: task = 'regression' (regression.label = {name!r})"
            if numbers
            else ""
        )
        raise UserError(
            f"{options.table}.label = {name!r}: the column holds {shown}: a label is 0 or 1, in "
            f"every row{hint}"
        )
    return values.astype(np.int64)


def _clients(name: str, values: NDArray[Any], table: str) -> tuple[list[str], NDArray[np.int64]]:
    absent = int(_missing(values).sum())
    if absent:
        raise UserError(
            f"{table}.client = {name!r}: {absent} rows have no client: fill the column, or leave "
            "these rows out"
        )
    order = sorted(set(values.tolist()), key=lambda value: (str(type(value)), value))
    place = {value: number for number, value in enumerate(order)}
    return [str(value) for value in order], np.array([place[value] for value in values.tolist()])
