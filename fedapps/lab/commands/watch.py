"""`fedapps watch`: serves a page that follows a run or a sweep."""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Serve a page on 127.0.0.1 that shows the progress of a run or a sweep. Ctrl-C stops "
        "the page, not the run."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results folder")
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="port of the page (default: a free port)"
    )
    parser.add_argument("--until-end-of-input", action="store_true", help=argparse.SUPPRESS)


def execute(arguments: argparse.Namespace) -> int:
    """Serve the page and return the exit status."""
    from fedapps.lab.live.page import watch

    return watch(arguments.folder, arguments.port, arguments.until_end_of_input)
