"""`fedapps figures`: the plots of a run, or of several runs compared, as
files for papers.
"""

import argparse
from pathlib import Path

from fedapps.errors import UserError
from fedapps.records.reader import read_run, run_folder
from fedapps.results.compare import compared
from fedapps.results.parts import run_figures, write_figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Write the plots of a run, or those of several runs compared, as files for papers."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="results folder; of a sweep: its DIR/cells/*",
    )
    parser.add_argument(
        "--format", choices=("pdf", "png", "svg"), default="pdf", help="of the files (default: pdf)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where they go (default: figures, in or beside the first run)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the figures and print the files' paths. Raises ``UserError`` for a folder
    that holds no run, or nothing to draw.
    """
    first = arguments.runs[0]
    for folder in arguments.runs:
        run_folder(folder)
    alone = len(arguments.runs) == 1
    found = run_figures(read_run(first)) if alone else compared(arguments.runs).figures()
    if not found:
        raise UserError(f"{first} has nothing to draw yet: no round has ended")
    out = arguments.out or (first if alone else first.resolve().parent) / "figures"
    for path in write_figures(out, found, arguments.format):
        print(path)
    return 0
