"""Reading the settings of a run from Flower's flat ``key = value`` configuration.

Errors are reported in one line that names the key, the value and what is allowed,
before anything is downloaded or started.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any

from fedapps.algorithms.common.options import kebab, nearest
from fedapps.data.options import DataOptions
from fedapps.errors import UserError, refuse_first
from fedapps.methods import METHODS, find_method
from fedapps.methods.method import Method
from fedapps.settings.rules import GIVEN, refuse
from fedapps.settings.settings import Settings
from fedapps.settings.tables import (
    CONFIGURED,
    PARTS,
    built,
    defaults_of,
    flattened,
    option_tables,
    read_table,
    start_of,
    typed,
)
from fedapps.strategies import WarmStartOptions
from fedapps.tasks.registry import TASKS, find_task, task_name
from fedapps.toml_text import Value

#: The most rounds between evaluations unless the user chooses.
LONGEST_INTERVAL = 10
#: Names that other libraries use for our settings, by the last part of the key.
OTHER_NAMES = {
    "rounds": "num-rounds",
    "clients": "num-clients",
    "epochs": "train.local-epochs",
    "lr": "train.learning-rate",
    "batch": "train.batch-size",
    "bs": "train.batch-size",
    "dataset": "data.source",
    "output": "out",
    "patience": "early-stopping",
}
#: Tables of files that `fedapps sweep` reads and `fedapps run` does not.
OF_SWEEPS = ("axis", "claim", "scale", "sweep", "when")


def default_config(config: Mapping[str, Any] | None = None) -> dict[str, Value]:
    """Return every key of every method with its default. The user's own methods and
    tasks are included if ``config`` names them.

    Values of ``config`` may be the lists of a sweep. Raises ``UserError`` for an
    unknown method or task.
    """
    known = dict(_general())
    for table, kind in option_tables(config).items():
        known |= defaults_of(kind, table)
    return known | CONFIGURED


@cache
def _general() -> Mapping[str, Value]:
    """Return the defaults of the default method."""
    return MappingProxyType(Settings().flat())


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown key."""
    known = list(known)
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside and key not in OTHER_NAMES:
        return (
            f"unknown setting {key!r}: it is a table with keys such as {', '.join(inside[:3])}: "
            f"`fedapps settings {key}` lists them"
        )
    meant = next((name for name in known if name == OTHER_NAMES.get(key.rpartition(".")[2])), "")
    hint = f"did you mean {meant!r}? " if meant else nearest(key, known)
    return f"unknown setting {key!r}: {hint}`fedapps settings` lists all keys"


def unused(given: Mapping[str, Any], used: Container[str]) -> list[str]:
    """Return the keys in ``given`` that belong to a table and are not in ``used``, the
    settings of the run or runs. The default of a part that is off does not count.
    """
    others, known = (*OF_SWEEPS, "versions"), _parts()
    return [
        key
        for key, value in given.items()
        if "." in key
        and key not in used
        and key.partition(".")[0] not in others
        and (key not in known or value != known[key])
    ]


@cache
def _parts() -> Mapping[str, Value]:
    """Return the defaults of the tables common to all runs."""
    parts = (defaults_of(part.options, table) for table, part in PARTS.items())
    return MappingProxyType({key: value for part in parts for key, value in part.items()})


def printed(method: Method) -> dict[str, tuple[Value, Value]]:
    """Return the options whose default is not the paper's value, with both."""
    if method.options is None:
        return {}
    usual = defaults_of(method.options, method.table)
    values = {f"{method.table}.{kebab(name)}": v for name, v in method.options.PRINTED.items()}
    return {key: (usual[key], value) for key, value in values.items()}


def check_used(given: Mapping[str, Any], used: Container[str]) -> None:
    """Raise ``UserError`` for a given option that is not in ``used``, the settings of
    the run or runs.
    """
    for key in unused(given, used):
        table, value = key.partition(".")[0], given[key]
        if table in PARTS:
            raise UserError(
                f"{key} = {value!r}: has no effect without {PARTS[table].switch}: set this, or "
                f"leave {key} out"
            )
        kinds: dict[str, Any] = {**METHODS, **TASKS}
        owners = [name for name, one in kinds.items() if one.table == table]
        choice = f"choose {' or '.join(owners[:4])}, or " if owners else ""
        raise UserError(
            f"{key} = {value!r}: neither the method nor the task has this option: {choice}leave "
            "it out"
        )


def chosen(config: Mapping[str, Any]) -> tuple[Method, str]:
    """Return the method of a flat configuration and the name of its task. Raises
    ``UserError``.
    """
    method = find_method(config.get("method", Settings.method))
    task = task_name(str(typed("task", config.get("task", "auto"), "")), method.tasks)
    source = config.get("data.source", "auto")
    if (
        task == "classification"
        and source in ("auto", DataOptions.source)
        and not config.get("sites.labels")
    ):
        task = "digits"
    return method, task


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Return the checked settings of a flat configuration; missing keys have their
    defaults. Raises ``UserError``.
    """
    # a run's record, where every value is chosen
    recorded = any(key.startswith("versions.") for key in config)
    config = {key: value for key, value in config.items() if not key.startswith("versions.")}
    known = default_config(config)
    for key in config:
        if key not in known:
            if key.partition(".")[0] in OF_SWEEPS:
                raise UserError(
                    f"{key}: belongs to a sweep: start the file with `fedapps sweep FILE`"
                )
            raise UserError(unknown(key, known))
    method, task = chosen(config)
    config["task"] = task
    if config.get("form") == "printed":
        # Flower's run configuration has all keys: a default there is no choice
        whole = not recorded and config.keys() >= _general().keys()
        config |= {
            key: value
            for key, (usual, value) in printed(method).items()
            if key not in config or (whole and config[key] == usual)
        }
    kind = find_task(task)
    named = config.get("data.natural-id") and kind.data is None
    dealt = kind.defaults.get("data.partition", DataOptions.partition)
    usual = {"data.source": kind.sources[0], "data.partition": "natural" if named else dealt}
    config |= {key: value for key, value in usual.items() if config.get(key, "auto") == "auto"}
    if config.get("model.name", "auto") == "auto":
        config["model.name"] = method.model or find_task(task).model
    if config.get("model.start", "auto") == "auto":
        config["model.start"] = start_of(method, config) or kind.start
    values: dict[str, Any] = {
        part.name: typed(key, config[key], known[key])
        for part in fields(Settings)
        if (key := kebab(part.name)) in config
    }
    values |= {name: read_table(part.options, name, config) for name, part in PARTS.items()}
    options: Any = read_table(method.options, method.table, config) if method.options else None
    values["options"] = options
    values["base"] = _base(method, options.base, config) if method.wrap else None
    values["halves"] = _halves(options, config)
    values["problem"] = read_table(kind.options, kind.table, config) if kind.options else None
    if values.get("evaluate_every", Settings.evaluate_every) == -1:
        tenth = max(1, values.get("num_rounds", Settings.num_rounds) // 10)
        values["evaluate_every"] = min(LONGEST_INTERVAL, tenth)
    if values.get("form") == "printed":  # what it stands for is in the options now
        values["form"] = Settings.form
    settings: Settings = built(Settings, values, "")
    check_data_used(settings, method)
    refuse(settings, GIVEN)
    return settings


def check_data_used(settings: Settings, method: Method) -> None:
    """Raise ``UserError`` for settings of the table ``data`` that the task does not
    read; it names them all.
    """
    kind, given = find_task(settings.task), flattened(settings.data, "data")
    if kind.data is None:
        return
    usual = flattened(DataOptions(), "data") | {"data.source": kind.sources[0]}
    used = {f"data.{name}" for name in kind.data}
    others = {
        key: value
        for key, value in given.items()
        if key not in used and value not in (usual[key], method.defaults.get(key))
    }
    if others:
        named = ", ".join(f"{key} = {value!r}" for key, value in others.items())
        it = "it" if len(others) == 1 else "them"
        fits = [
            name
            for name in method.tasks
            if (read := find_task(name).data) is None
            or others.keys() <= {f"data.{part}" for part in read}
        ]
        choice = f", or choose task = {' or '.join(map(repr, fits[:3]))}" if fits else ""
        raise UserError(
            f"{named}: task {settings.task!r} does not use {it}: leave {it} out{choice}"
        )


def _base(method: Method, name: str, config: Mapping[str, Any]) -> Settings:
    """Return the settings of the method ``name``, which ``method`` wraps. Only the
    method and its table differ.
    """
    try:
        inner = find_method(name, f"{method.table}.base")
        weights = (
            f": choose method = {name!r} and {inner.table}.base = 'propfair'"
            if method.loss
            else ", and so does this one"
        )
        refuse_first(
            (
                inner.wrap and (method.loss or not inner.loss),
                f"it decides weights{weights}",
            ),
            (
                not inner.wrap and inner.strategy is None,
                f"it composes two methods: choose method = {name!r}, with this one as one of them",
            ),
            (
                inner.synthetic,
                "it makes a set of images, so its clients have no classifier's loss to weight by: "
                "choose another method",
            ),
        )
        task_name(str(config["task"]), inner.tasks)
    except UserError as error:
        reason = str(error).removeprefix(f"{method.table}.base = {name!r}: ")
        raise UserError(f"{method.table}.base = {name!r}: {reason}") from None
    given = {**config, "method": name}
    known = default_config(given)  # leaves out the table of the user's own wrapper
    return read_settings({key: value for key, value in given.items() if key in known})


def _halves(options: Any, config: Mapping[str, Any]) -> tuple[Settings, ...]:
    """Return the settings of the two methods that the chosen one composes. They differ
    only in the method and its table.
    """
    halves = (
        {"first": options.first, "then": options.then}
        if isinstance(options, WarmStartOptions)
        else {}
    )
    settings = []
    for key, method in halves.items():
        try:
            settings.append(read_settings({**config, "method": method}))
        except UserError as error:
            raise UserError(f"warm-start.{key} = {method!r}: {error}") from None
    return tuple(settings)
