"""`fedapps figures`: writes the plots of a run, or of a comparison of runs, as files
for papers.
"""

import argparse
from pathlib import Path

from fedapps.errors import UserError
from fedapps.lab.commands.options import command_options
from fedapps.lab.results.compare import compared
from fedapps.lab.results.parts import run_figures, write_figures
from fedapps.records.reader import read_run, run_folder

add_options = command_options(
    ("Write the plots of a run, or of a comparison of several runs, as files for papers."),
    {
        "runs": {
            "nargs": "+",
            "type": Path,
            "metavar": "DIR",
            "help": "results folder of a run; for the runs of a sweep, DIR/cells/*",
        },
        "--format": {
            "choices": ("pdf", "png", "svg"),
            "default": "pdf",
            "help": "file format (default: pdf)",
        },
        "--out": {
            "help": (
                "folder for the files (default: figures, in the run or beside the first of several)"
            )
        },
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Write the figures and print the files' paths. Raises ``UserError`` if a folder
    holds no run, or if there is nothing to draw.
    """
    first = arguments.runs[0]
    for folder in arguments.runs:
        run_folder(folder)
    alone = len(arguments.runs) == 1
    figures = run_figures(read_run(first)) if alone else compared(arguments.runs).figures()
    if not figures:
        raise UserError(f"{first} has nothing to draw: wait until its first round has ended")
    out = arguments.out or (first if alone else first.resolve().parent) / "figures"
    for path in write_figures(out, figures, arguments.format):
        print(path)
    return 0
