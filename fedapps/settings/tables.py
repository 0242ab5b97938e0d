"""The tables of settings: the dataclass of each table, and how a table is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from fedapps.algorithms.common.fleet import FleetOptions
from fedapps.algorithms.common.options import Options, kebab
from fedapps.clients.base.options import TrainOptions
from fedapps.data.options import DataOptions, PublicOptions, SiteOptions, SyntheticOptions
from fedapps.errors import UserError
from fedapps.extensions.own_code import names_method
from fedapps.extensions.registered import reference_of
from fedapps.methods import METHODS, find_method
from fedapps.methods.method import Method
from fedapps.models.options import ModelOptions
from fedapps.strategies import PrivacyOptions, RobustOptions, SecureOptions
from fedapps.strategies.base.timing import PaceOptions
from fedapps.tasks.registry import TASKS, TaskKind, find_task
from fedapps.toml_text import Value

#: Defaults in a configuration that differ from those of ``Settings``: ``read_settings``
#: replaces ``auto`` by the method's task, its set, and the way to deal that.
CONFIGURED: dict[str, Value] = dict.fromkeys(("task", "data.source", "data.partition"), "auto")


@dataclass(frozen=True)
class Part:
    """A table common to all runs: its dataclass, whether a run with given ``Settings``
    uses it, and what makes a run use it ("" if all do).
    """

    options: type[Options]
    used: Callable[[Any], bool] = lambda _: True
    switch: str = ""


def _methods(trait: str) -> str:
    return "method = " + " or ".join(n for n, method in METHODS.items() if getattr(method, trait))


#: Tables common to all runs.
PARTS = {
    "data": Part(DataOptions),
    "model": Part(ModelOptions),
    "train": Part(TrainOptions),
    "public": Part(
        PublicOptions, lambda run: any(m.public for m in run.methods), _methods("public")
    ),
    "dp": Part(
        PrivacyOptions, lambda run: run.dp.noise_multiplier > 0, "dp.noise-multiplier above 0"
    ),
    "robust": Part(
        RobustOptions, lambda run: run.robust.rule != "none", "another robust.rule than 'none'"
    ),
    "secure": Part(SecureOptions, lambda run: run.secure.on, "secure.on = true"),
    "rounds": Part(PaceOptions, lambda run: run.rounds.on, "rounds.deadline or rounds.over-select"),
    "time": Part(
        FleetOptions,
        lambda run: run.timed,
        "another time.speed than 'auto', rounds.deadline, rounds.over-select or method = fedbuff",
    ),
    "sites": Part(SiteOptions, lambda run: run.sites.own, "sites.labels or sites.columns"),
    "synthetic": Part(
        SyntheticOptions,
        lambda run: bool(run.data.synthetic) or any(m.synthetic for m in run.methods),
        f"{_methods('synthetic')}, or data.synthetic",
    ),
}
_defaults: dict[tuple[Any, str], Mapping[str, Value]] = {}


def option_tables(config: Mapping[str, Any] | None = None) -> dict[str, type[Options]]:
    """Return every table's dataclass by name. The tables of the user's own methods and
    tasks are included if ``config`` names them.

    Values of ``config`` may be lists. Raises ``UserError`` if the user's own table has
    the name of another table.
    """
    tables = {name: part.options for name, part in PARTS.items()}
    ours: list[Method | TaskKind] = [*METHODS.values(), *TASKS.values()]
    for kind in ours:
        if kind.options is not None:
            tables.setdefault(kind.table, kind.options)
    taken = dict.fromkeys(tables, "this project")
    for setting, own in own_kinds(config or {}).items():
        if own.options is None:
            continue
        if tables.setdefault(own.table, own.options) is not own.options:
            raise UserError(
                f"{setting}: its table name {own.table!r} is taken by {taken[own.table]}: choose "
                "another name"
            )
        taken.setdefault(own.table, setting)
    return tables


def own_kinds(config: Mapping[str, Any]) -> dict[str, Method | TaskKind]:
    """Return the user's own methods and tasks that ``config`` names, by the setting
    that names them.
    """
    kinds: dict[str, Method | TaskKind] = {}
    for key, values in config.items():
        for value in values if isinstance(values, list) else [values]:
            if names_method(key) and value not in METHODS and reference_of("method", value):
                kinds[f"{key} = {value!r}"] = find_method(value, key)
            elif key == "task" and value not in (*TASKS, "auto") and reference_of("task", value):
                kinds[f"{key} = {value!r}"] = find_task(value)
    return kinds


def read_table(kind: type[Options], table: str, config: Mapping[str, Any]) -> Any:
    """Return the options of a table, checked; missing keys have their defaults. Raises
    ``UserError``.
    """
    defaults = defaults_of(kind, table)
    names = {f"{table}.{kebab(f.name)}": f.name for f in fields(kind)}
    given = {names[key]: typed(key, config[key], defaults[key]) for key in names if key in config}
    return built(kind, given, f"{table}.")


def start_of(method: Method, config: Mapping[str, Any]) -> str:
    """Return the start that the method, or one that it wraps or composes, needs; "" if
    any will do.
    """
    keys = (f"{method.table}.{key}" for key in ("base", "first", "then"))
    inner = (METHODS[name] for key in keys if (name := config.get(key)) in METHODS)
    starts = (
        one.start(read_table(one.options, one.table, config))
        if callable(one.start) and one.options
        else str(one.start)
        for one in (method, *inner)
    )
    return next(filter(None, starts), "")


def defaults_of(kind: type[Options], table: str) -> Mapping[str, Value]:
    """Return the defaults of a table as flat settings. They are made once: a sweep asks
    for them for each of its runs.
    """
    if (kind, table) not in _defaults:
        _defaults[kind, table] = MappingProxyType(flattened(kind(), table))
    return _defaults[kind, table]


def flattened(instance: Any, table: str) -> dict[str, Value]:
    """Return options as flat settings of a table."""
    return {f"{table}.{kebab(f.name)}": getattr(instance, f.name) for f in fields(instance)}


def built(kind: Any, values: dict[str, Any], prefix: str) -> Any:
    """Return options made of ``values``. Errors are raised as ``UserError``, with
    ``prefix``, the table, before the key.
    """
    try:
        return kind(**values)
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from None


#: Settings that are whole by default and need not be.
FRACTIONS = ("train.local-epochs",)


def typed(key: str, value: Any, default: Value) -> Value:
    """Return ``value`` with the type of ``default``, or raise ``UserError``; an int is
    accepted for a float, and a number for text: layers and columns may be called 3.
    """
    wanted = float if key in FRACTIONS else type(default)
    if wanted is str and type(value) in (int, float):
        return str(value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise UserError(f"{key} = {value!r}: must be {words[wanted]}, like the default {default!r}")
    if type(value) is int and not -(2**63) <= value < 2**63:  # as Flower's messages hold it
        raise UserError(f"{key} = {value}: must be a number of 64 bits")
    return value
