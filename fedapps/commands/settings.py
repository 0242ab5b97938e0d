"""`fedapps settings`: lists and explains the settings."""

import argparse
import shutil
import textwrap
from collections.abc import Sequence

from fedapps.errors import UserError
from fedapps.extensions.own_code import is_reference, load
from fedapps.extensions.registered import reference_of, registered
from fedapps.lab.commands.options import command_options
from fedapps.methods import checked_method
from fedapps.methods.method import Method
from fedapps.settings.reference import (
    Setting,
    all_tables,
    by_table,
    chosen,
    described,
    settings_in,
)
from fedapps.tasks.registry import checked_task

add_options = command_options(
    "List all settings, or explain those of one table, or one key.",
    {
        "name": {
            "nargs": "?",
            "default": "",
            "metavar": "TABLE | KEY",
            "help": "the table or key to explain (default: list all)",
        }
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Print all settings, or those of a table or key; return the exit status."""
    known = settings_in(all_tables())
    if is_reference(arguments.name) or (
        arguments.name
        and arguments.name not in by_table(known)
        and arguments.name in (*registered("method"), *registered("task"))
    ):
        print("\n".join(described(setting) for setting in settings_in(tables_of(arguments.name))))
        return 0
    if arguments.name:
        print("\n".join(described(setting) for setting in chosen(known, [arguments.name])))
    else:
        print(overview(known, shutil.get_terminal_size().columns))
    return 0


def tables_of(name: str) -> dict[str, type]:
    """Return the table of your own method or task. Raises ``UserError``."""
    loaded = load(
        "settings", reference_of("method", name) or reference_of("task", name) or name, name
    )
    kind = (
        checked_method("settings", name, loaded)
        if isinstance(loaded, Method)
        else checked_task(name, loaded)
    )
    if kind.options is None:
        raise UserError(f"{name} has no options, so there is nothing to explain")
    return {kind.table: kind.options}


def overview(known: Sequence[Setting], width: int) -> str:
    """Return an overview of the keys of every table, starting with the top level."""
    tables = by_table(known)
    margin = max(map(len, tables)) + 2
    blocks = [
        textwrap.fill(
            ", ".join(setting.name for setting in own),
            width=max(width, margin + 30),
            initial_indent=f"{table:<{margin}}",
            subsequent_indent=" " * margin,
            break_on_hyphens=False,
        )
        for table, own in tables.items()
    ]
    return "\n".join(
        [
            *blocks,
            "",
            "To explain a table or one of its keys: fedapps settings TABLE | TABLE.KEY",
        ]
    )
