"""Tables whose rows belong to clients: which column is what, numbers and categories as
features, and a table that needs no file.

Numeric features come first, then the dummies of categories. A category with two values
is one feature, one with more is one feature per value.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.seeds import generator
from fedapps.data.sample_groups import Grouping
from fedapps.data.samples import Categorical, Indices
from fedapps.data.source import Source
from fedapps.data.sources import open_split
from fedapps.data.table_columns import (
    Column,
    Floats,
    cells,
    classes,
    dummies,
    is_missing,
    numbers,
    ordered,
)
from fedapps.errors import UserError
from fedapps.tasks.options import TableOptions, TabularOptions

Columns = dict[str, NDArray[Any]]
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

    ``groups[k]``: the group of each row, if asked for.
    """

    clients: tuple[str, ...]
    features: tuple[str, ...]
    scaled: NDArray[np.bool_]
    x: tuple[Floats, ...]
    y: tuple[NDArray[Any], ...]
    groups: tuple[Categorical, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Mapping[Any, Indices],
        features: Mapping[str, Floats],
        numeric: Collection[str],
        y: NDArray[Any],
    ) -> "Table":
        """Return the table of ``features`` (N,) and ``y`` (N, ...), given the ``rows``
        of each client and which features are ``numeric``.
        """
        x = np.stack(list(features.values()), 1)
        return cls(
            tuple(map(str, rows)),
            tuple(features),
            np.array([name in numeric for name in features]),
            tuple(x[mine] for mine in rows.values()),
            tuple(y[mine] for mine in rows.values()),
        )


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
                    f"{options.table}.{key}: no column {name!r} in {where}: it has {some(columns)}"
                )
    features = tuple(name for name in features if name not in drop)
    if not features:
        raise UserError(f"{options.table}.features: no column is left to learn from")

    numeric = {
        name: numbers(
            columns[name],
            f"{options.table}: column {name!r}",
            f"name it in {options.table}.categorical or in {options.table}.drop",
        )
        for name in features
        if name not in categorical
    }
    values = dict(numeric)
    for name in features:
        if name in categorical:
            values |= _dummies(name, columns[name], options.table)
    rows = _rows_of(client, columns[client], options.table)
    gone = _names(options.drop_clients) or preset.drop_clients
    for name in _names(options.drop_clients):
        if name not in map(str, rows):
            raise UserError(
                f"{options.table}.drop-clients: no client {name!r}: there are {some(rows)}"
            )
    kept = {value: mine for value, mine in rows.items() if str(value) not in gone}
    table = Table.of(
        kept,
        values,
        set(numeric),
        read([columns[name] for name in labels], labels, options),
    )
    if not grouping.column:
        return table
    if grouping.column not in columns:
        raise UserError(
            f"data.group: no column {grouping.column!r} in {where}: it has {some(columns)}"
        )
    groups = grouping.number(cells(columns[grouping.column]))
    return replace(table, groups=tuple(groups[mine] for mine in kept.values()))


def find_preset(columns: Collection[str], options: TableOptions) -> Preset:
    """Return the preset of the options or, with ``auto``, the one whose columns are all
    present.
    """
    chosen = options.preset if isinstance(options, TabularOptions) else "none"
    if chosen != "auto":
        return PRESETS[chosen]
    for name, preset in PRESETS.items():
        needed = {preset.client, preset.label, *preset.features, *preset.drop}
        if name != "none" and needed <= set(columns):
            return preset
    return PRESETS["none"]


def read_classes(
    columns: Sequence[Column], names: Sequence[str], options: TableOptions
) -> NDArray[np.int64]:
    """Return the labels (n,), 0 or 1, of the only column. Raises ``UserError``."""
    if len(names) > 1:
        raise UserError(f"{options.table}.label = {options.label!r}: must be one column")
    return classes(columns[0], f"{options.table}.label = {names[0]!r}: the column", names[0])


def some(names: Collection[Any]) -> str:
    """Return the first names as text, for an error message."""
    rest = len(names) - 30
    return ", ".join(map(str, islice(names, 30))) + (f" and {rest} more" if rest > 0 else "")


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _dummies(name: str, column: Column, table: str) -> dict[str, Floats]:
    levels = ordered(value for value in cells(column) if not is_missing(value))
    if len(levels) > MAX_LEVELS:
        raise UserError(
            f"{table}.categorical: {name!r} has {len(levels)} values, more than {MAX_LEVELS}: name "
            f"it in {table}.drop"
        )
    kept = levels[1:] if len(levels) <= 2 else levels
    called = [f"{level:g}" if isinstance(level, float) else str(level) for level in kept]
    return {
        f"{name}={level}": values
        for level, values in zip(called, dummies(column, kept), strict=True)
    }


def _rows_of(name: str, column: Column, table: str) -> dict[Any, Indices]:
    """Return the rows of each client, in sorted order."""
    listed = cells(column)
    if absent := sum(map(is_missing, listed)):
        raise UserError(
            f"{table}.client = {name!r}: {absent} rows have no client: fill the column, or leave "
            "these rows out"
        )
    rows: dict[Any, list[int]] = {value: [] for value in ordered(listed)}
    for row, value in enumerate(listed):
        rows[value].append(row)
    return {value: np.array(mine) for value, mine in rows.items()}


# --- a table that needs no file -------------------------------------------------------


def generated_columns(
    num_clients: int,
    purpose: str,
    count: int,
    sizes: tuple[int, int],
    outcome: Callable[[Floats, Indices, np.random.Generator], Columns],
) -> Columns:
    """Return a synthetic table: ``count`` numbers, shifted for each client, some of
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
        one["kind"] = np.array(["a", "b", "c"])[kind]
        one["client"] = np.full(n, f"client{client:05d}")
        parts.append(one | predicted)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def generate(num_clients: int) -> Columns:
    """Return a small synthetic table: 40 to 120 rows per client, with feature shift and
    slightly different labels.
    """
    weights = generator(0, "generated table").normal(size=7)

    def label(x: Floats, kind: Indices, rng: np.random.Generator) -> Columns:
        logits = x @ (weights[:6] + rng.normal(scale=0.3, size=6)) + weights[6] * (kind == 2)
        noisy = logits - np.median(logits) + rng.logistic(size=len(x))
        return {"label": (noisy > 0).astype(np.int64)}

    return generated_columns(num_clients, "generated table", 6, (40, 120), label)
