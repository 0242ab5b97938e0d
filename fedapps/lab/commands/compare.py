"""`fedapps compare`: compares several runs in one table, plots and a page."""

import argparse
import sys
from pathlib import Path

from fedapps.lab.commands.options import command_options

add_options = command_options(
    ("Compare several runs: prints a table, and writes plots and a page."),
    {
        "runs": {
            "nargs": "+",
            "type": Path,
            "metavar": "DIR",
            "help": "results folders of the runs",
        },
        "--out": {"help": "folder for the page (default: comparison, beside the first run)"},
        "--worst": {
            "type": float,
            "default": 0.1,
            "metavar": "SHARE",
            "help": "share of the clients that counts as the worst (default: 0.1)",
        },
        "--reference": {
            "type": Path,
            "metavar": "DIR",
            "help": (
                "run that the gains are measured against (default: the first run of method local)"
            ),
        },
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Write the comparison, print its table and return the exit status."""
    from rich.console import Console

    from fedapps.lab.results.compare import compare

    result = compare(arguments.runs, arguments.out, arguments.worst, arguments.reference)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(result.table)
    for section in result.sections:
        console.print(section.terminal())
    print(f"report: {result.report.resolve()}")
    return 0
