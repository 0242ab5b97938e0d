"""`fedapps sweep`: runs a grid of settings in parallel, and writes tables, plots and a
report.

The results folder holds ``cells/`` (one results folder per run), ``table.csv``,
``table.md``, ``plots/`` and ``report.html``. Running the same file again skips the
finished runs and continues with the others.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fedapps.errors import INTERRUPTED, RunFailed
from fedapps.formats import seconds_text
from fedapps.lab.commands.options import command_options
from fedapps.lab.sweeps.execution import Way, execute_sweep, missing_runs
from fedapps.lab.sweeps.plan import Plan, read_plans
from fedapps.lab.sweeps.pool import finished
from fedapps.lab.watch import watched

add_options = command_options(
    ("Run every combination of the values that a file lists, and write tables, plots and a page."),
    {
        "file": {
            "type": Path,
            "metavar": "FILE.toml | DIR",
            "help": (
                "settings, where each list is an axis of the grid; or a folder, whose "
                "sweeps run one "
                "after the other"
            ),
        },
        "settings": {
            "metavar": "key=value",
            "help": "settings that override the file's, also lists such as seed=[0,1]",
        },
        "--scale": {
            "default": "",
            "metavar": "NAME",
            "help": "apply the file's table [scale.NAME]; full: apply none",
        },
        "--data": {
            "type": Path,
            "metavar": "DIR",
            "help": (
                "read a data set from DIR/NAME if that exists; NAME is the last part of its source"
            ),
        },
        "--jobs": {},
        "--gpus-per-run": {},
        "--out": {"help": "results folder (default: results/sweep-FILE)"},
        "--watch": {"help": "draw the reports of the runs again while they go on"},
        "--dry-run": {"action": "store_true", "help": "only list the runs"},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Run the sweep and return the exit status."""
    try:
        return _sweep(arguments)
    except KeyboardInterrupt:
        print("interrupted; repeat the command to continue", file=sys.stderr)
        return INTERRUPTED


def _sweep(arguments: argparse.Namespace) -> int:
    way = Way(*(getattr(arguments, part.name) for part in fields(Way)))
    plans = read_plans(
        arguments.file, arguments.settings, arguments.scale, arguments.out, arguments.data
    )
    if arguments.dry_run:
        for plan in plans:
            show_plan(plan)
        return 0
    missing = [missing_runs(plan) for plan in plans]
    if minutes := minutes_text([plan for plan, runs in zip(plans, missing, strict=True) if runs]):
        print(minutes, file=sys.stderr)
    failed = total = 0
    for plan, runs in zip(plans, missing, strict=True):
        out = plan.out
        if len(plans) > 1:
            print(f"== {plan.title}", file=sys.stderr)
        with watched(out, arguments.watch):
            results, reasons = execute_sweep(plan, runs, way)
        failed, total = failed + len(reasons), total + len(plan.points)
        if results is not None:
            print(
                f"\n{results.markdown()}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: "
                f"{out / 'report.html'}"
            )
    if failed:
        raise RunFailed(
            f"{failed} of {total} runs failed. Correct the errors above and repeat the command: "
            "finished runs are kept."
        )
    return 0


def minutes_text(plans: Sequence[Plan]) -> str:
    """Return how long sweeps take according to their files; "" if no file gives
    a time.
    """
    known = [plan.grid.options.minutes for plan in plans if plan.grid.options.minutes]
    if not known:
        return ""
    unknown = len(plans) - len(known)
    more = f"; {unknown} more give no time" if unknown else ""
    return (
        f"about {seconds_text(60 * math.fsum(known))} on two cores for {len(known)} "
        f"sweep{'s' * (len(known) > 1)}{more}"
    )


def show_plan(plan: Plan) -> None:
    """Print the runs and their states."""
    for point in plan.points:
        state = "finished" if finished(point.run.folder) else "to run"
        print(f"{point.name}  ({point.run.config['num-rounds']} rounds, {state})")
    done = sum(finished(point.run.folder) for point in plan.points)
    print(f"{len(plan.points)} runs, {done} of them finished; results: {plan.out}")
    if minutes := minutes_text([plan]):
        print(minutes)
