"""Tables: which column is what, and their numbers and categories as features.

Columns of numbers come first, then those of categories: a category with two values is
one feature (is it the second?), one with more is one feature per value. A column of
text is a category, unless it has more than ``MAX_LEVELS`` values; numbers with a
decimal comma are numbers. Missing values are NaN until inputs are scaled.

Messages name the type of a value, never a sample's value: the server reads those of a
site's own table.
"""

import fnmatch
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import names_in
from fedapps.data.columns import (
    FEW_VALUES,
    Floats,
    coded,
    dummies,
    finite,
    label_column,
    numbers_in,
)
from fedapps.data.frame import Column, Frame, is_number, is_text, some
from fedapps.data.options import DataOptions
from fedapps.data.source import Columns, Source
from fedapps.errors import UserError

#: A text column with more values is no category.
MAX_LEVELS = 100
# The column of row numbers that pandas writes by default.
ROW_NUMBERS = ("__index_level_0__", "Unnamed: 0", "")
#: What a column that names the clients is often called.
CLIENT_NAMES = (
    "client,bank,branch,center,centre,city,clinic,company,country,device,district,factory,farm,"
    "hospital,institution,lecturer,machine,participant,patient,person,plant,region,school,site,"
    "speaker,station,store,subject,town,user,ward"
)
#: A column of clients has at most this many values, and as many rows for each.
MOST_CLIENTS, LEAST_ROWS = 1000, 5
#: What a column of numbers of rows or people is called, and what is said of it.
NUMBER = re.compile(r"(?i:^|_|\b)(?:id|index|no|nr|row|number)$|[a-z]I[dD]$")
LABEL = "goes with the label, one value per class, and is a feature: drop it (data.drop)"
ROW = "looks like the number of a row or a person, and is used as a feature: drop it (data.drop)"


#: What the settings of known tables are, where the user gives none.
PRESETS = {
    # 8 columns of numbers, and 4 + 3 values of cp and restecg. The dropped columns are
    # missing at most hospitals.
    "heart": {
        "natural_id": "hospital",
        "label": "label",
        "features": "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak",
        "categorical": "cp,restecg",
        "drop": "slope,ca,thal",
    },
    # 13 columns of numbers, two categories; north Bohemia has a single default.
    "berka": {
        "natural_id": "region",
        "label": "label",
        "features": "amount,duration,payments,account_months_at_loan,owner_age_at_loan,gender,"
        "ownership_count,num_inhabitants,average_salary,num_entrepreneurs_per_1000_inhabitants,"
        "unemployment_rate_96,num_crimes_96,operation_count,amount_mean,balance_mean",
        "categorical": "gender,ownership_count",
        "drop_clients": "north Bohemia",
    },
}


def labels_in(columns: Collection[str], label: str) -> tuple[str, ...]:
    """Return the columns to predict: ``label`` is one column, or several with commas
    between them.
    """
    return (label,) if label in columns else names_in(label)


def resolved(options: DataOptions, columns: Collection[str], fixed: bool = False) -> DataOptions:
    """Return the options with those of a known table, and with the column ``client``,
    where they name no other.

    ``fixed``: rows are not dealt by a column.
    """
    usual = {"natural_id": "client" * ("client" in columns)}
    usual |= find_preset(columns, options.preset)
    if fixed:
        del usual["natural_id"]
    features = names_in(usual.get("features", ""))
    usual["features"] = ",".join(n for n in features if n not in names_in(options.drop))
    answers: dict[str, Any] = {key: getattr(options, key) or usual[key] for key in usual}
    return replace(options, **answers)


def find_preset(columns: Collection[str], chosen: str) -> dict[str, str]:
    """Return the preset of this name or, with ``auto``, the one whose columns are all
    present; {} if there is none.
    """
    if chosen != "auto":
        return PRESETS.get(chosen, {})
    for preset in PRESETS.values():
        named = (preset.get(key, "") for key in ("natural_id", "label", "features", "drop"))
        if set(names_in(",".join(named))) <= set(columns):
            return preset
    return {}


def suggested(data: Frame, others: Collection[str]) -> str:
    """Return the column that most looks like the one of the clients, with its number of
    values; "" if none does.
    """
    free = [name for name in data.columns if name not in {*others, *ROW_NUMBERS}]
    likely = [name for name in free if name.lower().removesuffix("_id") in names_in(CLIENT_NAMES)]
    counts = ((name, len(data.columns[name].unique())) for name in likely)
    most = min(MOST_CLIENTS, len(data) // LEAST_ROWS)
    return next((f"{name!r} ({found} values)" for name, found in counts if 2 <= found <= most), "")


def matching(
    columns: Mapping[str, Any], wanted: str, source: Source, others: Collection[str]
) -> list[str]:
    """Return the columns that names or patterns with commas between them stand for, by
    "" all but the ``others`` and numbers of rows. Raises ``UserError``.
    """
    if not wanted:
        free = [name for name in columns if name not in others]
        return [n for n in free if n not in ROW_NUMBERS or "int" not in str(columns[n].type)]
    chosen: dict[str, None] = {}
    for pattern in names_in(wanted):
        matches = [pattern] if pattern in columns else fnmatch.filter(columns, pattern)
        if not matches:
            raise UserError(
                f"data.features = {wanted!r}: no column is {pattern!r}; {source} has the columns "
                f"{some(columns)}"
            )
        chosen |= dict.fromkeys(matches)
    if taken := [name for name in chosen if name in others]:
        raise UserError(
            f"data.features = {wanted!r}: column {taken[0]!r} is the label or the client: leave it "
            "out (or data.drop names it, too)"
        )
    return [*chosen]


def features_of(
    data: Frame, source: Source, options: DataOptions
) -> tuple[npt.NDArray[np.float32], Columns]:
    """Return the features (N, 1, 1, F), and what they are. Raises ``UserError``."""
    labels = labels_in(data.columns, options.label or label_column(data, source, ""))
    others, named = {*labels, *options.told_apart}, names_in(options.categorical)
    chosen = matching(data.columns, options.features, source, others)
    # filled column by column: memory holds them once
    numbers = np.empty((len(data), len(chosen)), np.float32)
    numeric: list[str] = []
    levels: dict[str, npt.NDArray[np.float32]] = {}
    left_out, written, categories = [], [], []
    for name in chosen:
        if name not in named and (found := numbers_in(data, name, source)):
            numbers[:, len(numeric)] = finite(found[0], name, source)
            numeric.append(name)
            written += [f"{name}: read as numbers {found[1]}"] * bool(found[1])
            written += [f"{name}: {ROW}"] * _counts_rows(found[0], name)
            continue
        kind, given = data.columns[name].type, name in named or bool(options.features)
        plain = is_text(kind) or is_number(kind)  # also the numbers of classes
        different, codes = coded(data.by_names(name)) if plain else ([], np.zeros(0, np.int64))
        most = MAX_LEVELS if name in named else min(MAX_LEVELS, len(data) // 2)
        if (1 if name in named else 2) <= len(different) <= most:
            categories.append(name)
            levels |= dummies(name, different, codes)
        elif given:
            what = f"{len(different)} values of text" if plain else "neither numbers nor text"
            raise UserError(
                f"data.{'categorical' if name in named else 'features'}: {name!r} holds "
                f"{what}, and a category has 2 to {MAX_LEVELS}: leave it out (data.drop)"
            )
        else:
            left_out.append(name)
    label, used = data.columns[labels[0]], [*numeric, *categories]
    written += [f"{name}: {LABEL}" for name in used if _is_the_label(data.columns[name], label)]
    if not used:
        why = f": {some(left_out)}: neither numbers nor categories" * bool(left_out)
        raise UserError(f"data.features: no column of {source} is left to learn from{why}")
    if len(numeric) < len(chosen):
        numbers = np.column_stack([numbers[:, : len(numeric)], *levels.values()])
    return numbers[:, None, None, :], Columns(
        used=(*numeric, *levels),
        left_out=tuple(left_out),
        categories=tuple(categories),
        written=tuple(written),
        scaled=(True,) * len(numeric) + (False,) * len(levels),
        known=bool(find_preset(data.columns, options.preset)),
        suggested="" if options.natural_id else suggested(data, {*labels, *names_in(options.drop)}),
    )


def _is_the_label(column: Column, label: Column) -> bool:
    """Return whether each value of a column goes with one class, and each class with
    one value.
    """
    if label.type.num_fields or len(column.slice(0, 1000).unique()) > FEW_VALUES:
        return False
    pairs = set(zip(column.to_pylist(), label.to_pylist(), strict=True))
    return 1 < len(pairs) == len(column.unique()) == len(label.unique())


def _counts_rows(column: Floats, name: str) -> bool:
    """Return whether a column looks like the number of a row, or of a person: whole
    numbers, all different, in order, one after the other, or called so.
    """
    wide = len(column) >= FEW_VALUES and np.ptp(column) >= len(column) - 1  # none is missing
    if not wide or (column != np.floor(column)).any():
        return False
    following = bool((np.diff(column) > 0).all()) or np.ptp(column) == len(column) - 1
    return (following or bool(NUMBER.search(name))) and len(np.unique(column)) == len(column)
