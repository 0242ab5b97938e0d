"""Reference of all settings, read from the dataclasses that declare them, for the
terminal. ``tools`` renders it as pages.

A field without ``option(...)`` has a default but no help text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedapps.algorithms.common.options import Declared, kebab, nearest
from fedapps.errors import UserError
from fedapps.settings.settings import Settings
from fedapps.settings.tables import CONFIGURED, FRACTIONS, option_tables, typed
from fedapps.toml_text import Value, toml_value

TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
#: Heading of the settings without a table.
TOP = "Top level"


@dataclass(frozen=True)
class Setting:
    """One setting: its table, name, default, and the declaration of its field."""

    table: str
    name: str
    default: Value
    declared: Declared

    @property
    def key(self) -> str:
        """The key as used on the command line."""
        return f"{self.table}.{self.name}" if self.table else self.name


def all_tables() -> dict[str, type]:
    """Return every table's dataclass by name, in the order of the reference."""
    return {"": Settings, **option_tables()}


def settings_in(tables: Mapping[str, type]) -> list[Setting]:
    """Return every setting, in order; fields that hold tables or derived values are
    left out.
    """
    return [
        _setting(table, part)
        for table, kind in tables.items()
        for part in fields(kind)
        if isinstance(part.default, bool | int | float | str)
    ]


def _setting(table: str, part: Any) -> Setting:
    setting = Setting(
        table, kebab(part.name), part.default, part.metadata.get("option", Declared(""))
    )
    default = int(part.default) if setting.key in FRACTIONS else part.default
    return replace(setting, default=CONFIGURED.get(setting.key, default))


def by_table(settings: Iterable[Setting]) -> dict[str, list[Setting]]:
    """Return the settings grouped by table."""
    tables: dict[str, list[Setting]] = {}
    for setting in settings:
        tables.setdefault(setting.table, []).append(setting)
    return tables


def chosen(settings: Sequence[Setting], words: Iterable[str]) -> list[Setting]:
    """Return the settings named by ``words``, each a table or a key. Raises
    ``UserError`` for an unknown name.
    """
    known = [word for setting in settings for word in (setting.key, setting.table) if word]
    matches = []
    for word in words:
        if word not in known:
            raise UserError(
                f"unknown setting {word!r}: {nearest(word, known)}`fedapps settings` lists all "
                "tables and keys"
            )
        matches += [setting for setting in settings if word in (setting.key, setting.table)]
    return matches


# --- TOML -----------------------------------------------------------------------------


def described(setting: Setting) -> str:
    """Return two lines: key, type, default and allowed values; and the help text."""
    facts = [
        TYPES[type(typed(setting.key, setting.default, setting.default))],
        f"default {toml_value(setting.default)}",
        setting.declared.allowed,
    ]
    lines = [
        f"{setting.key}: {', '.join(fact for fact in facts if fact)}",
        f"    {setting.declared.help}",
    ]
    return "\n".join(line for line in lines if line.strip())
