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
from fedapps.errors import INTERRUPTED, RunFailed, UserError
from fedapps.formats import seconds_text
from fedapps.live.watching import watched
from fedapps.sweeps.execution import Way, execute_sweep, missing_runs
from fedapps.sweeps.grid import FULL
from fedapps.sweeps.plan import Plan, read_plan
from fedapps.sweeps.pool import finished
from fedapps.toml_text import read_toml

#: A folder that has it holds the studies of one paper, whose names mean little without
#: that of the folder.
PAPER = "paper.toml"


def sweep(arguments: argparse.Namespace) -> int:
    """Run `fedapps sweep` and return the exit status."""
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


def read_plans(
    path: Path,
    settings: Sequence[str] = (),
    scale: str = "",
    to: Path | None = None,
    data: Path | None = None,
) -> list[Plan]:
    """Return the plan of the file, or of each sweep of a folder. Raises
    ``UserError``.

    ``to``: the folder of the results, below which those of a folder's sweeps have one
    each. The others: see ``read_plan``.
    """
    plans = []
    for file in sweeps_in(path) if path.is_dir() else [path]:
        of_paper = path.is_dir() or (file.parent / PAPER).exists()
        words = (
            "sweep",
            file.parent.name if of_paper else "",
            file.stem,
            "" if scale == FULL else scale,
        )
        folder = (to or Path("results") / "-".join(filter(None, words))).expanduser().absolute()
        if path.is_dir() and to:
            folder /= file.stem
        plans.append(read_plan(file, settings, scale, folder, data))
    return plans


def sweeps_in(folder: Path) -> list[Path]:
    """Return the files of a folder that have a table ``[sweep]``, sorted. Raises
    ``UserError`` if there are none.
    """
    files = [
        path
        for path in sorted(folder.glob("*.toml"))
        if any(key.startswith("sweep.") for key in read_toml(path))
    ]
    if not files:
        raise UserError(f"{folder}: holds no file with a table [sweep]")
    return files


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
