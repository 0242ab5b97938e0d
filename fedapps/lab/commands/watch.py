"""`fedapps watch`: draws the reports of a run or a sweep again while it goes on."""

import argparse
from pathlib import Path

from fedapps.lab.commands.options import command_options

add_options = command_options(
    (
        "Draw the report of a run, or of each run of a sweep, again while it goes on. Ctrl-C stops "
        "the drawing, not the run."
    ),
    {
        "folder": {"type": Path, "metavar": "DIR", "help": "results folder"},
        "--until-end-of-input": {"action": "store_true", "help": argparse.SUPPRESS},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Draw until Ctrl-C and return the exit status."""
    from fedapps.lab.watch import watch

    return watch(arguments.folder, arguments.until_end_of_input)
