"""`fedapps run`: runs one method, prints a table, and writes its results folder with a
report.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.errors import INTERRUPTED
from fedapps.extensions.own_code import check_trusted, code_named
from fedapps.lab.commands.options import command_options

if TYPE_CHECKING:
    from fedapps.settings.settings import Settings


add_options = command_options(
    ("Run one method and write its results folder."),
    {
        "settings": {},
        "--engine": {
            "choices": ["auto", "inline", "ray", "deployment"],
            "default": "auto",
            "help": (
                "where clients run: in this process and its workers, in Flower's Ray "
                "simulation (opens ports on this machine), or on the SuperNodes of a "
                "deployment (default: inline; ray with an option for it)"
            ),
        },
        "--deployment": {
            "type": Path,
            "metavar": "DIR",
            "help": "run on the deployment in this folder (with --engine deployment: deployment)",
        },
        "--nodes": {
            "type": int,
            "metavar": "N",
            "help": (
                "number of virtual clients, as num-clients (default: one per client in the "
                "data, or 20)"
            ),
        },
        "--gpus-per-client": {
            "type": float,
            "default": 0.0,
            "metavar": "F",
            "help": "share of a GPU for each client (ray)",
        },
        "--workers": {
            "type": int,
            "metavar": "N",
            "help": (
                "number of processes that run clients, one CPU each; the numbers are the same "
                "(default: one per CPU; inline: 1 if more would not save time)"
            ),
        },
        "--ray-address": {
            "metavar": "ADDRESS",
            "help": (
                "join this Ray cluster; its machines must share DIR and the data (ray; "
                "docs/cluster.md)"
            ),
        },
        "--port": {
            "type": int,
            "help": "port of the run's SuperLink on 127.0.0.1 (ray; default: a free one)",
        },
        "--out": {"help": "results folder (default: results/METHOD-TASK-seedN)"},
        "--resume": {"action": "store_true", "help": "continue from the last checkpoint in DIR"},
        "--until": {
            "type": int,
            "metavar": "ROUND",
            "help": "pause after this round; continue with --resume and a later one, or none",
        },
        "--trust": {
            "action": "store_true",
            "help": "with --resume: execute the code that DIR names",
        },
        "--overwrite": {"action": "store_true", "help": "first delete the run in DIR"},
        "--watch": {},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Run one method and return the exit status."""
    from fedapps.lab import write_report
    from fedapps.lab.watch import watched
    from fedapps.records.reader import read_run
    from fedapps.records.rounds import status_of
    from fedapps.runs.launch import Launch, launch

    how = Launch(**{part.name: getattr(arguments, part.name) for part in fields(Launch)})
    settings, status = launch(
        settings_of(arguments),
        how,
        write_report,
        watch=lambda folder: watched(folder, arguments.watch),
    )
    folder = Path(settings.out)
    if status == "interrupted":
        trust = " --trust" if code_named(settings.flat()) else ""
        print(
            f"interrupted; continue with: fedapps run --resume{trust} --out {folder}{how.again}",
            file=sys.stderr,
        )
    else:
        from rich.console import Console

        from fedapps.lab.results.report import show_ending

        show_ending(folder, Console(width=None if sys.stdout.isatty() else 160))
        print(f"results: {folder}\nreport:  {folder / 'report.html'}")
        if status_of(folder) == "interrupted":
            flags = f"--resume --out {folder}{how.again}"
            done = read_run(folder).summary["rounds-completed"]
            print(f"paused after round {done}; continue with {flags}")
    return INTERRUPTED if status == "interrupted" else 0


def settings_of(arguments: argparse.Namespace) -> "Settings":
    """Return the merged settings. From lowest to highest precedence: defaults of the
    method, defaults of the task, files, key=value, flags.
    """
    from fedapps.notes import logger
    from fedapps.runs.prepare import with_defaults
    from fedapps.settings.reading import check_used, unused
    from fedapps.toml_text import assignments, given_by, read_toml

    given: dict[str, Any] = {}
    recorded = (arguments.out or Path()) / "settings.toml"
    if arguments.resume and arguments.out is not None:
        given = read_toml(recorded) if recorded.exists() else {}
    named = given_by(arguments.settings)
    if not arguments.trust:
        check_trusted(recorded, given, named.values())
    given |= named
    if arguments.nodes is not None:
        given["num-clients"] = arguments.nodes
    if arguments.out is not None:
        given["out"] = str(arguments.out)
    if arguments.until is not None or arguments.resume:
        given["until"] = arguments.until or 0
    given["resume"] = arguments.resume
    settings = with_defaults(given)
    if given.get("form") == "printed" and settings == with_defaults({**given, "form": "usual"}):
        logger.warning(
            "form = 'printed' changes nothing: what it would set is given, as in the settings.toml "
            "of a run, or the method has nothing of it: `fedapps methods` lists what it sets"
        )
    assigned, used = assignments(arguments.settings), settings.flat()
    check_used(assigned, used)
    # A file may hold the options of several methods.
    if others := unused({k: v for k, v in given.items() if k not in assigned}, used):
        logger.warning("not used by this run: %s", ", ".join(sorted(others)))
    return settings
