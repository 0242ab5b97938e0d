"""Options of commands, as tables; those that several commands have stand here."""

import argparse
from collections.abc import Mapping
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
    "--gpus-per-client": {
        "type": float,
        "default": 0.0,
        "metavar": "F",
        "help": "share of a GPU for each client (ray)",
    },
    "--log-format": {
        "choices": ["text", "json"],
        "default": "text",
        "help": "json: one JSON object per line (docs/tracking.md)",
    },
    "--watch": {
        "action": "store_true",
        "help": "draw the report again while the run goes on",
    },
}


def add(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add options by flag, with the keywords of ``add_argument``; of an option in
    ``SHARED`` only those that differ.
    """
    for flag, how in options.items():
        parser.add_argument(flag, **{**SHARED.get(flag, {}), **how})
