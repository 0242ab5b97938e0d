"""`fedapps watch`: draws the reports of a run or a sweep again while it goes on."""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Draw the report of a run, or of each run of a sweep, again while it goes on. Ctrl-C stops "
        "the drawing, not the run."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results folder")
    parser.add_argument("--until-end-of-input", action="store_true", help=argparse.SUPPRESS)


def execute(arguments: argparse.Namespace) -> int:
    """Draw until Ctrl-C and return the exit status."""
    from fedapps.lab.watch import watch

    return watch(arguments.folder, arguments.until_end_of_input)
