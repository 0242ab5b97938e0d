"""The command `fedapps figures`: the plots of a run, or of several runs compared, as
files for papers.
"""

import argparse

from fedapps.charts.theme import LIGHT
from fedapps.errors import UserError
from fedapps.records.reader import read_run, run_folder
from fedapps.results.compare import compared
from fedapps.results.parts import run_figures, write_figures


def figures(arguments: argparse.Namespace) -> int:
    """Write the figures and print the files' paths. Raises ``UserError`` for a folder
    that holds no run, or nothing to draw.
    """
    first = arguments.runs[0]
    for folder in arguments.runs:
        run_folder(folder)
    alone = len(arguments.runs) == 1
    found = (
        run_figures(read_run(first), LIGHT) if alone else compared(arguments.runs).figures(LIGHT)
    )
    if not found:
        raise UserError(f"{first} has nothing to draw yet: no round has ended")
    out = arguments.out or (first if alone else first.resolve().parent) / "figures"
    for path in write_figures(out, found, arguments.format):
        print(path)
    return 0
