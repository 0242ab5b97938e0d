"""`fedapps sweep`: runs a grid of settings in parallel, resumable, and writes tables, plots and a report.

The results folder holds ``cells/`` (one results folder per run), ``table.csv``, ``table.md``, ``plots/`` and ``report.html``. Running
the same file again skips the finished runs and continues with the others.
"""

import argparse
import fcntl
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedapps.engines.cluster import address_of, checked_cluster
from fedapps.errors import INTERRUPTED, RunFailed, UserError
from fedapps.prepare import checked, data_paths, prepare_folder
from fedapps.results.formats import seconds_text
from fedapps.results.reader import read_run
from fedapps.results.writer import FREE, all_written, set_status, status_of
from fedapps.settings import default_config, read_settings
from fedapps.sweeps.grid import FULL, RESERVED
from fedapps.sweeps.keep import prune
from fedapps.sweeps.page import write_page
from fedapps.sweeps.plan import Plan, read_plan
from fedapps.sweeps.pool import Ended, PlannedRun, finished, run_all
from fedapps.sweeps.progress import SweepProgress
from fedapps.sweeps.tables import Results
from fedapps.toml_text import read_toml

#: A folder that has it holds the studies of one paper, whose names mean little without that of the folder.
PAPER = "paper.toml"


def sweep(arguments: argparse.Namespace) -> int:
    """Run `fedapps sweep` and return the exit status."""
    try:
        return _sweep(arguments)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED


def _sweep(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 0:
        raise UserError(f"--jobs {arguments.jobs}: choose 1 or more, or 0 for as many as there are cores")
    if arguments.gpus_per_client and arguments.engine == "inline":
        raise UserError("--gpus-per-client is for --engine ray: choose device=cuda with --engine inline")
    if arguments.jobs and arguments.engine == "ray":
        raise UserError("--jobs is for --engine inline: Ray runs the clients of one run in parallel, one run after the other")
    if arguments.jobs and arguments.ray_address:
        raise UserError("--jobs is for this machine: the cluster of --ray-address runs as many at a time as it has CPUs")
    plans = read_plans(arguments)
    if arguments.dry_run:
        for out, plan in plans.items():
            show_plan(plan, out)
        return 0
    for out in plans:
        check_out(out)
    missing = {out: check_runs([point.run for point in plan.points if not is_done(point.run)]) for out, plan in plans.items()}
    if told := minutes_text([plan for out, plan in plans.items() if missing[out]]):
        print(told, file=sys.stderr)
    failed = total = 0
    for out, plan in plans.items():
        if len(plans) > 1:
            print(f"== {plan.title}", file=sys.stderr)
        failed, total = failed + one_sweep(plan, out, missing[out], arguments), total + len(plan.points)
    if failed:
        raise RunFailed(f"{failed} of {total} runs: see above, mend, and start again; what is finished is kept")
    return 0


def read_plans(arguments: argparse.Namespace) -> dict[Path, Plan]:
    """Return the plan of the file, or of each sweep of a folder, by the folder of its results. Raises ``UserError``."""
    files = sweeps_in(arguments.file) if arguments.file.is_dir() else [arguments.file]
    scale = "" if arguments.scale == FULL else arguments.scale
    out = {}
    for file in files:
        of_paper = arguments.file.is_dir() or (file.parent / PAPER).exists()
        words = ("sweep", file.parent.name if of_paper else "", file.stem, scale)
        folder = (arguments.out or Path("results") / "-".join(filter(None, words))).expanduser().absolute()
        if arguments.file.is_dir() and arguments.out:
            folder /= file.stem
        out[folder] = read_plan(file, arguments.settings, arguments.scale, folder, arguments.data)
    return out


def sweeps_in(folder: Path) -> list[Path]:
    """Return the files of a folder that have a table ``[sweep]``, sorted. Raises ``UserError`` if there are none."""
    found = [path for path in sorted(folder.glob("*.toml")) if any(key.startswith("sweep.") for key in read_toml(path))]
    if not found:
        raise UserError(f"{folder}: holds no file with a table [sweep]")
    return found


def minutes_text(plans: Sequence[Plan]) -> str:
    """Return how long sweeps take, by what their files say of it; "" if none says."""
    known = [plan.grid.options.minutes for plan in plans if plan.grid.options.minutes]
    if not known:
        return ""
    more = f", and {len(plans) - len(known)} that do not say" if len(known) < len(plans) else ""
    return f"about {seconds_text(60 * math.fsum(known))} on two cores for {len(known)} sweep{'s' * (len(known) > 1)}{more}"


def one_sweep(plan: Plan, out: Path, missing: Sequence[PlannedRun], arguments: argparse.Namespace) -> int:
    """Run what is missing of a sweep, prune, tabulate and draw; return how many runs failed."""
    (out / "cells").mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(out):
        failed = run_missing(plan, missing, arguments)
        for point in plan.points:
            prune(point.run.folder, plan.grid.options.keep)
        write_results(plan, out, failed)
        write_record(plan, out, arguments)
    return len(failed)


def write_record(plan: Plan, out: Path, arguments: argparse.Namespace) -> None:
    """Write sweep.json: which file, at which scale, with which settings, and what is behind each entry of the table."""
    record = {
        "file": plan.grid.name,
        "title": plan.grid.options.title,
        "scale": plan.grid.scale,
        "settings": list(arguments.settings),
        "runs": len(plan.points),
        "keep": list(plan.grid.options.keep),
        "axes": {axis.name: list(axis.values) for axis in plan.grid.axes},
    }
    (out / "sweep.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_missing(plan: Plan, missing: Sequence[PlannedRun], arguments: argparse.Namespace) -> dict[str, str]:
    """Start the unfinished runs, show the progress, and return the reasons of failures by run name."""
    failed: dict[str, str] = {}
    with SweepProgress([point.run for point in plan.points], missing) as progress:
        for ended in started(missing, arguments):
            progress.tell(ended)
            prune(ended.run.folder, plan.grid.options.keep)
            if ended.error:
                failed[ended.run.folder.name] = ended.error
    return failed


def started(missing: Sequence[PlannedRun], arguments: argparse.Namespace) -> Iterator[Ended]:
    """Start the runs in the way that the arguments say; yield each as it ends. Raises ``UserError`` if a cluster lacks something."""
    address, share = address_of(arguments.ray_address), arguments.gpus_per_client
    if arguments.engine == "ray":
        return run_ray(missing, share, address)
    if not arguments.ray_address:
        return run_all(missing, arguments.jobs or cores())
    from fedapps.sweeps.cluster_pool import run_on_cluster

    checked_cluster(address, shared_paths(missing))
    return run_on_cluster(missing, address, share)


def shared_paths(runs: Sequence[PlannedRun]) -> list[Path]:
    """Return the paths that all machines of a cluster must see: the sweep's folder, and data that are files."""
    return sorted({run.folder.parent.absolute() for run in runs} | {path for run in runs for path in data_paths(run.config)})


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Lock the folder against a second sweep, which would start the same runs. Raises ``UserError`` if it is locked."""
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{out}: a sweep is running there: wait for its end, or choose another --out") from None
        yield


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def show_plan(plan: Plan, out: Path) -> None:
    """Print the runs and their states."""
    for point in plan.points:
        state = "finished" if finished(point.run.folder) else "to run"
        print(f"{point.name}  ({point.run.config['num-rounds']} rounds, {state})")
    done = sum(finished(point.run.folder) for point in plan.points)
    print(f"{len(plan.points)} runs, {done} of them finished; results: {out}")
    if told := minutes_text([plan]):
        print(told)


def is_done(run: PlannedRun) -> bool:
    """Return whether a run is finished. Raises ``UserError`` if its folder was made with other settings."""
    done = finished(run.folder)
    path = run.folder / "settings.toml"
    if path.exists() and (done or (run.folder / "checkpoint").exists()):
        known = default_config(run.config)
        before = {key: known[key] for key in run.config if key in known} | read_toml(path)
        for key, value in run.config.items():
            if key not in FREE and before[key] != value and not (key == "num-clients" and not value):
                raise UserError(
                    f"{run.folder} was run with {key} = {before[key]!r}, now it is {value!r}: choose another --out, "
                    "or delete that folder"
                )
    return done


def check_runs(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs with their numbers of clients filled in, each checked against its data. Raises ``UserError``."""
    out = []
    for run in runs:
        try:
            settings, _ = checked(read_settings(run.config))
        except UserError as error:
            raise UserError(f"{run.folder.name}: {error}") from None
        out.append(PlannedRun({key: value for key, value in settings.flat().items() if key not in RESERVED}, run.folder))
    return out


def check_out(out: Path) -> None:
    """Raise ``UserError`` if ``out`` is a file, or the folder of a run or a comparison."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file")
    if (out / "settings.toml").exists() or (out / "comparison.csv").exists():
        raise UserError(f"--out {out}: is the folder of a run or of a comparison, choose another")


def write_results(plan: Plan, out: Path, failed: dict[str, str]) -> None:
    """Write tables, plots and the report, and print their paths."""
    runs = {point.name: read_run(point.run.folder) for point in plan.points if finished(point.run.folder)}
    if not runs:
        return
    results = Results(plan, runs)
    results.write_csv(out / "table.csv")
    text = results.markdown()
    (out / "table.md").write_text(text, encoding="utf-8")
    report = write_page(results, out, failed)
    print(f"\n{text}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: {report}")


def run_ray(runs: Sequence[PlannedRun], gpus_per_client: float, address: str = "") -> Iterator[Ended]:
    """Start the runs sequentially through Flower's Ray simulation and yield each as it ends."""
    from fedapps.engines import flower

    cluster = checked_cluster(address, shared_paths(runs)) if address and runs else None
    walled, warning = flower.wall_wanted(cluster=address)
    if warning:
        print(f"fedapps: {warning}", file=sys.stderr)
    for run in runs:
        resume = (run.folder / "checkpoint").exists()
        try:
            settings = read_settings({**run.config, "out": str(run.folder), "resume": resume})
            prepare_folder(settings, overwrite=not resume)
            outcome = flower.run_simulation(
                None, settings.flat(), num_nodes=flower.nodes_for(settings.num_clients, 1, gpus_per_client, None, cluster),
                gpus_per_client=gpus_per_client,
                log_path=run.folder / "run.log", ended=_ended(run.folder), written=partial(all_written, run.folder), walled=walled,
                cluster=address,
            )  # fmt: skip
        except (UserError, RunFailed) as error:
            yield Ended(run, {}, str(error))
            continue
        if status_of(run.folder) is None:
            set_status(run.folder, outcome.status, outcome.details)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status == "completed":
            yield Ended(run, read_run(run.folder).summary)
        else:
            yield Ended(run, {}, outcome.details or outcome.status)


def _ended(folder: Path) -> Callable[[], str | None]:
    return lambda: status_of(folder)
