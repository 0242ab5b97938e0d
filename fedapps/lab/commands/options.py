"""Options of commands, as tables; those that several commands have stand here."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Options = Mapping[str, Mapping[str, Any]]

SHARED: Options = {
    "settings": {
        "nargs": "*",
        "metavar": "FILE.toml | key=value",
        "help": "settings; a later one overrides an earlier one",
    },
    "--out": {"type": Path, "metavar": "DIR"},
    "--jobs": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "number of runs at a time (default: one per core)",
    },
    "--gpus-per-run": {
        "type": float,
        "default": 1.0,
        "metavar": "F",
        "help": "share of a GPU for each run that uses one (default: 1)",
    },
    "--watch": {
        "action": "store_true",
        "help": "draw the report again while the run goes on",
    },
}


def add(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add options. ``options``: the keywords of ``add_argument`` by flag; of an option
    in ``SHARED`` only those that differ.
    """
    for flag, how in options.items():
        parser.add_argument(flag, **{**SHARED.get(flag, {}), **how})


def command_options(
    description: str, options: Options
) -> Callable[[argparse.ArgumentParser], None]:
    """Return the function ``add_options`` of a command with these options."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.description = description
        add(parser, options)

    return add_options
