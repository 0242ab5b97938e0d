"""`fedapps sweep`: runs a grid of settings in parallel, resumable, and writes tables,
plots and a report.

The results folder holds ``cells/`` (one results folder per run), ``table.csv``,
``table.md``, ``plots/`` and ``report.html``. Running the same file again skips the
finished runs and continues with the others.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fedapps import json_log
from fedapps.errors import INTERRUPTED, RunFailed
from fedapps.formats import seconds_text
from fedapps.live.watching import watched
from fedapps.sweeps.execution import Way, execute_sweep, missing_runs
from fedapps.sweeps.plan import Plan, read_plans
from fedapps.sweeps.pool import finished


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Run every combination of a file's lists, and make tables, plots and a page of them."
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE.toml | DIR",
        help="settings; a list is an axis of the grid. DIR: all sweeps in it, in turn",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="settings that win over the file's; lists, too: seed=[0,1]",
    )
    parser.add_argument(
        "--scale",
        default="",
        metavar="NAME",
        help="use the file's table [scale.NAME]; full: the file as it stands",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="read a data set from DIR/NAME where DIR has the last name of its source",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="runs at a time (default: as many as there are cores)",
    )
    parser.add_argument(
        "--engine",
        choices=["inline", "ray"],
        default="inline",
        help="parallel processes (default), or Ray, run after run",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="run on this Ray cluster: runs as tasks, or, with --engine ray, one after the other",
    )
    parser.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        metavar="F",
        help="share of a GPU for each client (ray)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="results folder (default: results/sweep-FILE)"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="serve a page that follows the runs, to this machine alone",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs and start none")
    json_log.add_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run the sweep and return the exit status."""
    try:
        return _sweep(arguments)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED


def _sweep(arguments: argparse.Namespace) -> int:
    way = Way(arguments.engine, arguments.jobs, arguments.gpus_per_client, arguments.ray_address)
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
        if results is not None and json_log.chosen():
            print(
                json_log.line(
                    "INFO",
                    "the sweep has ended",
                    event="sweep",
                    sweep=out.name,
                    folder=out,
                    failed=len(reasons),
                )
            )
        elif results is not None:
            print(
                f"\n{results.markdown()}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: "
                f"{out / 'report.html'}"
            )
    if failed:
        raise RunFailed(
            f"{failed} of {total} runs: see above, mend, and start again; what is finished is kept"
        )
    return 0


def minutes_text(plans: Sequence[Plan]) -> str:
    """Return how long sweeps take, by what their files say of it; "" if none says."""
    known = [plan.grid.options.minutes for plan in plans if plan.grid.options.minutes]
    if not known:
        return ""
    more = f", and {len(plans) - len(known)} that do not say" if len(known) < len(plans) else ""
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
