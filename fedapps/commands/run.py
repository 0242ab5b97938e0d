"""`fedapps run`: merges and checks the settings, prepares the folder, runs the chosen
engine, prints a table and writes a report.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedapps import json_log
from fedapps.errors import INTERRUPTED, RunFailed, UserError
from fedapps.live.progress import Progress
from fedapps.live.watching import watched
from fedapps.records.reader import read_run
from fedapps.records.writer import all_written, set_status, status_of
from fedapps.results.compare import summary_table
from fedapps.results.parts import run_sections
from fedapps.results.report import write_report
from fedapps.runs.execution import execute, page_of, with_folder
from fedapps.runs.prepare import checked, completed, data_paths, prepare_folder
from fedapps.settings.settings import Settings
from fedapps.toml_text import parse_assignment, read_toml

if TYPE_CHECKING:
    from fedapps.engines.superlink import SuperLink

#: (settings, progress, arguments) -> status, reason
Engine = Callable[[Settings, Progress, argparse.Namespace], tuple[str, str]]


def run(arguments: argparse.Namespace) -> int:
    """Run `fedapps run` and return the exit status."""
    settings, status = carry_out(settings_of(arguments), arguments)
    folder = Path(settings.out)
    if json_log.chosen():
        level = "WARNING" if status == "interrupted" else "INFO"
        print(
            json_log.line(
                level,
                f"the run has ended: {status}",
                event="end",
                run=folder.name,
                status=status,
                folder=folder,
            )
        )
        return INTERRUPTED if status == "interrupted" else 0
    if status == "interrupted":
        print(
            f"interrupted; go on with: fedapps run --resume --out {folder} --engine "
            f"{arguments.engine}",
            file=sys.stderr,
        )
        return INTERRUPTED
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(summary_table([folder]))
    for section in run_sections(read_run(folder)):
        console.print(section.terminal())
    print(f"results: {folder}\nreport:  {folder / 'report.html'}")
    return 0


def carry_out(
    settings: Settings, arguments: argparse.Namespace, console: Console | None = None
) -> tuple[Settings, str]:
    """Check the settings, run, and write the report; return the settings in full, and
    "completed" or "interrupted".

    ``arguments``: the flags of the command. ``console``: where progress is shown.
    Raises ``UserError``, ``RunFailed``.
    """
    if arguments.gpus_per_client and arguments.engine == "inline":
        raise UserError(
            "--gpus-per-client is for --engine ray: choose device=cuda with --engine inline"
        )
    if arguments.ray_address and arguments.engine != "ray":
        raise UserError(f"--ray-address is for --engine ray, not {arguments.engine}")
    if settings.sites.own and arguments.engine != "deployment":
        raise UserError(
            "sites.labels and sites.columns are for sites with data of their own: choose --engine "
            f"deployment, not {arguments.engine}"
        )
    if arguments.engine == "deployment":
        settings = with_sites(settings, arguments)
    # gets ready while the settings are checked, which loads PyTorch and the data
    with _superlink(arguments) as superlink:
        settings, task = checked(settings)
        name = f"{settings.method}-{task.name}-seed{settings.seed}".replace(":", "-")
        settings = with_folder(settings, Path("results") / name)
        prepare_folder(settings, overwrite=arguments.overwrite)
        folder = Path(settings.out)
        label = f"{settings.method} on {task.name}"
        settings, page = metrics_page(settings, task.name)
        with (
            watched(folder, getattr(arguments, "watch", False)),
            page,
            Progress(settings.num_rounds, label, console) as progress,
        ):
            progress.poll(folder)  # rounds already in the folder, of a run to resume, count as done
            engines: dict[str, Engine] = {
                "inline": run_inline,
                "ray": partial(run_ray, superlink),
                "deployment": run_deployment,
            }
            status, reason = engines[arguments.engine](settings, progress, arguments)
    if status_of(folder) is None:
        try:
            set_status(folder, status, reason)
        except OSError as error:
            print(f"fedapps: summary.json is not up to date: {error}", file=sys.stderr)
    if (folder / "rounds.jsonl").exists() and not (status == "completed" and all_written(folder)):
        try:
            write_report(folder)
        except OSError as error:
            print(f"fedapps: no report: {error}", file=sys.stderr)
    if status not in ("completed", "interrupted"):
        raise RunFailed(f"{reason} (log: {folder / 'run.log'})")
    return settings, status


def metrics_page(settings: Settings, task: str) -> tuple[Settings, AbstractContextManager[object]]:
    """Return the settings without the page for Prometheus, which this process serves
    for the others, and its context.
    """
    if not settings.metrics_port:
        return settings, nullcontext()
    page = page_of(settings, task)
    told = f"metrics: http://{settings.metrics_host}:{settings.metrics_port}/metrics"
    print(json_log.line("INFO", told) if json_log.chosen() else told, file=sys.stderr)
    return replace(settings, metrics_port=0), page


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the merged settings, in increasing precedence: method's defaults, task's
    defaults, files, key=value, flags.
    """
    given: dict[str, Any] = {}
    if arguments.resume and arguments.out is not None:
        given |= (
            read_toml(arguments.out / "settings.toml")
            if (arguments.out / "settings.toml").exists()
            else {}
        )
    for text in arguments.settings:
        if text.endswith(".toml") and "=" not in text:
            given |= read_toml(Path(text))
    given |= dict(
        parse_assignment(text)
        for text in arguments.settings
        if "=" in text or not text.endswith(".toml")
    )
    if arguments.nodes is not None:
        given["num-clients"] = arguments.nodes
    if arguments.out is not None:
        given["out"] = str(arguments.out)
    if getattr(arguments, "metrics_port", None) is not None:
        given["metrics-port"] = arguments.metrics_port
    if arguments.gpus_per_client:
        given.setdefault("device", "cuda")
    given["resume"] = arguments.resume
    return completed(given)


@contextmanager
def _superlink(arguments: argparse.Namespace) -> Iterator["SuperLink | None"]:
    """Start the SuperLink of a run through Ray on this machine; no other run needs
    one.
    """
    from fedapps.engines import flower
    from fedapps.engines.cluster import address_of

    if arguments.engine != "ray":
        yield None
        return
    address = address_of(arguments.ray_address)
    walled, warning = flower.wall_wanted(arguments.no_wall, address)
    if warning:
        print(f"fedapps: {warning}", file=sys.stderr)
    if address:  # its folder lies beside the run's, which is to be made yet
        yield None
        return
    with flower.launched(arguments.port, walled) as superlink:
        yield superlink


def run_inline(
    settings: Settings, progress: Progress, arguments: argparse.Namespace
) -> tuple[str, str]:
    """Run in this process; return status and reason."""
    from fedapps.engines.inline import InlineGrid
    from fedapps.runs.client_app import app

    folder = Path(settings.out)
    _log_to(folder / "run.log")
    grid = InlineGrid(app, settings.num_clients, settings.flat(), numbered=True)

    try:
        execute(settings, grid, callbacks=[lambda _: show(progress, folder)])
    except KeyboardInterrupt:
        return "interrupted", ""
    except UserError:
        raise
    except Exception as error:  # any error is recorded in the folder and the exit status
        logging.getLogger("flwr").exception("the run failed")
        return "failed", f"{type(error).__name__}: {error}"
    return "completed", ""


def run_ray(
    superlink: "SuperLink | None",
    settings: Settings,
    progress: Progress,
    arguments: argparse.Namespace,
) -> tuple[str, str]:
    """Run through `flwr run` on its own SuperLink; return status and reason."""
    from fedapps.engines import flower
    from fedapps.engines.cluster import address_of, checked_cluster

    folder = Path(settings.out)
    address = address_of(arguments.ray_address)
    cluster = checked_cluster(address, [folder, *data_paths(settings.flat())]) if address else None
    progress.note("starting Flower and Ray")
    clients, share, workers = settings.num_clients, arguments.gpus_per_client, arguments.workers
    outcome = flower.run_simulation(
        None,
        settings.flat(),
        num_nodes=clients
        if arguments.node_per_client
        else flower.nodes_for(clients, 1, share, workers, cluster),
        gpus_per_client=arguments.gpus_per_client,
        ray_cpus=None if cluster else workers,
        cluster=address,
        port=arguments.port,
        superlink=superlink,
        log_path=folder / "run.log",
        poll=lambda: show(progress, folder),
        ended=lambda: status_of(folder),
        written=lambda: all_written(folder),
    )
    show(progress, folder)
    return ("failed" if outcome.status == "rejected" else outcome.status), outcome.details


def with_sites(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Return the settings with the deployment's number of sites as default of
    num-clients. Raises ``UserError``.
    """
    from fedapps.deployment.local import Deployment

    deployment = Deployment.open(arguments.deployment)
    deployment.check()
    for line in deployment.warnings():
        print(f"fedapps: warning: {line}", file=sys.stderr)
    sites = len(deployment.sites)
    if settings.sites.client:  # more clients than sites
        return settings.deployed()
    if settings.num_clients > sites:
        raise UserError(
            f"num-clients = {settings.num_clients}, but {deployment.folder} has {sites} sites: "
            f"choose 1..{sites}"
        )
    return replace(settings.deployed(), num_clients=settings.num_clients or sites)


def run_deployment(
    settings: Settings, progress: Progress, arguments: argparse.Namespace
) -> tuple[str, str]:
    """Run through `flwr run` on the SuperNodes of a deployment; return status and
    reason.
    """
    from fedapps.deployment.local import Deployment
    from fedapps.deployment.site_run import run_on_deployment

    folder = Path(settings.out)
    progress.note("starting on the sites")
    outcome = run_on_deployment(
        Deployment.open(arguments.deployment),
        settings.flat(),
        log_path=folder / "run.log",
        poll=lambda: show(progress, folder),
        ended=lambda: status_of(folder),
    )
    show(progress, folder)
    return ("failed" if outcome.status == "rejected" else outcome.status), outcome.details


def show(progress: Progress, folder: Path) -> None:
    """Update the display."""
    progress.poll(folder)


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Do without lines for which there is no room on the disk, instead of a
        traceback on the terminal for each.
        """


def _log_to(path: Path) -> None:
    """Redirect Flower's log to a file: the terminal is used by the progress bar."""
    logger = logging.getLogger("flwr")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = _LogFile(path, encoding="utf-8")
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(json_log.Formatter(run=path.parent.name) if json_log.chosen() else text)
    logger.addHandler(handler)
    logger.propagate = False
