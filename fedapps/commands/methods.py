"""`fedapps methods`: prints the table of methods."""

import argparse
import shutil
import sys

from fedapps.lab.commands.options import command_options

add_options = command_options("List the methods, and where their papers' options differ.", {})


def execute(arguments: argparse.Namespace) -> int:
    """Print the methods and return the exit status."""
    from rich.console import Console
    from rich.table import Table

    from fedapps.extensions.registered import registered
    from fedapps.methods import METHODS, registered_methods
    from fedapps.settings.reading import printed

    entries = registered("method")
    installed, warnings = registered_methods()
    for warning in warnings:
        print(f"fedapps: warning: {warning}", file=sys.stderr)
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it does", "kind", "paper", *(["from"] if installed else [])):
        table.add_column(column, no_wrap=column == "method")
    for name, method in [*METHODS.items(), *installed.items()]:
        origin = [entries[name].package if name in installed else ""] if installed else []
        table.add_row(name, method.summary, method.trait, method.paper, *origin)
    width = max(140, shutil.get_terminal_size().columns)
    console = Console(width=None if sys.stdout.isatty() else width)
    console.print(table)
    print("\nform=printed: as its paper prints it, where our defaults differ:")
    for name, method in METHODS.items():
        if papers := [f"{key} = {value!r}" for key, (_, value) in printed(method).items()]:
            print(f"{name}: {', '.join(papers)}")
    return 0
