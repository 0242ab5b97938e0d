"""Launching a run on one of the engines: checks, the results folder, progress, the
report.

The command `fedapps run` and ``fedapps.run(...)`` both fill a :class:`Launch` and call
:func:`launch`.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedapps.algorithms.common.options import kebab
from fedapps.engines import flower, superlink
from fedapps.engines.cluster import address_of, checked_cluster
from fedapps.engines.inline import InlineGrid
from fedapps.errors import RunFailed, UserError, refuse_first
from fedapps.formats import one_line
from fedapps.notes import each_once, logger
from fedapps.records.lock import LAUNCHER, RUN_ID, WRITER, FolderLock, FolderLost, holder_of
from fedapps.records.rounds import all_written, data_paths, set_status, status_of
from fedapps.runs.assembly import Parts
from fedapps.runs.devices import Asked
from fedapps.runs.execution import execute, inline_grid, with_folder
from fedapps.runs.prepare import assemble, ended_before_it_began, prepare_folder
from fedapps.runs.progress import Progress
from fedapps.settings.settings import Settings
from fedapps.surroundings import settle_caches

ENGINES = ("inline", "ray", "deployment", "auto")
# options of Launch, and flags of the command, that only Ray has
OF_RAY = ("gpus_per_client", "ray_address", "port")
# how long a run without its command may take to end, once it is stopped or Flower ends
ORPHAN_SECONDS = 60.0


@dataclass(frozen=True)
class Launch:
    """How a run is started, besides its settings. ``engine``: "auto" is "inline", or
    "ray" with one of the options ``OF_RAY``, or "deployment" with its folder, by
    default ``deployment``. ``workers``: the processes that run clients, with the first
    two.
    """

    engine: str = "auto"
    overwrite: bool = False
    deployment: Path | None = None
    workers: int | None = None
    gpus_per_client: float = 0.0
    ray_address: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        """Raise ``UserError`` for options of another engine."""
        ray, engine = self.for_ray, self.engine
        other = ray or ("" if engine == "auto" else f"--engine {engine}")
        sites = self.deployment and engine != "deployment"
        refuse_first(
            (engine not in ENGINES, f"engine = {engine!r}: choose one of {', '.join(ENGINES)}"),
            (
                self.workers is not None and self.workers < 1,
                f"--workers {self.workers}: choose 1 or more",
            ),
            (
                self.workers and engine == "deployment",
                "--workers is for --engine inline and ray: each site has its own",
            ),
            (
                self.gpus_per_client and engine == "inline",
                "--gpus-per-client is for --engine ray: choose device=cuda with --engine inline",
            ),
            (ray and engine not in ("ray", "auto"), f"{ray} is for --engine ray, not {engine}"),
            (
                self.ray_address is not None and not self.ray_address.strip(),
                "--ray-address is empty: name a cluster, or leave it out",
            ),
            (sites and other, f"--deployment {self.deployment} does not go with {other}"),
        )

    @property
    def for_ray(self) -> str:
        """The first given flag that only Ray has, or ""."""
        return next((f"--{kebab(name)}" for name in self._given()), "")

    @property
    def again(self) -> str:
        """The flags that choose the same engine again, each after a space."""
        engine = "" if self.engine == "auto" else f" --engine {self.engine}"
        flags = [f" --{kebab(name)} {getattr(self, name)}" for name in self._given()]
        return engine + "".join(flags)

    @property
    def sites(self) -> Path:
        """The folder of the deployment."""
        return self.deployment or Path("deployment")

    def _given(self) -> list[str]:
        """Return the given options that only Ray has; a port may be 0."""
        return [name for name in OF_RAY if getattr(self, name) != getattr(Launch, name)]

    def decided(self) -> tuple["Launch", str]:
        """Return it with a definite engine, and why; "" if it was given."""
        if self.engine != "auto":
            return self, ""
        if self.deployment:
            return replace(self, engine="deployment"), f"engine deployment: {self.deployment}"
        why = self.for_ray or ("$RAY_ADDRESS" if address_of(None) else "")
        if why:
            return replace(self, engine="ray"), f"engine ray: for {why}"
        return replace(self, engine="inline"), "engine inline: the cores of this machine serve"


def launch(
    settings: Settings,
    how: Launch,
    report: Callable[[Path], object],
    console: Console | None = None,
    watch: Callable[[Path], AbstractContextManager[object]] = nullcontext,
) -> tuple[Settings, str]:
    """Check the settings, run, and write the report; return the settings in full, and
    "completed" or "interrupted".

    ``report``: writes the report. ``console``: where progress is shown. ``watch``: the
    context in which the run's folder is watched. Raises ``UserError``, ``RunFailed``.
    """
    settle_caches()  # for those who start from Python; before data are read
    how, why = how.decided()
    if settings.sites.own and how.engine != "deployment":
        raise UserError(
            "sites.labels and sites.columns are for sites with their own data: choose --engine "
            f"deployment, not {how.engine}"
        )
    if how.engine == "deployment":
        settings = with_sites(settings, how.sites)
    # The SuperLink starts while the checks load PyTorch and the data.
    with ExitStack() as locks, _superlink(how) as link:
        with each_once():
            asked = Asked(how.engine, how.gpus_per_client, how.workers)
            parts = assemble(settings, asked, here=how.engine == "inline")
        if why and console is None:
            logger.warning("%s", why)
        settings, task, _ = parts
        name = f"{settings.method}-{task.name}-seed{settings.seed}".replace(":", "-")
        settings = with_folder(settings, Path("results") / name)
        folder = Path(settings.out)
        killed = settings.resume and ended_before_it_began(folder)  # before this lock is there
        lock = locks.enter_context(FolderLock(folder, LAUNCHER))
        resources = checked_resources(settings, how) if how.engine == "ray" else None
        if settings.resume or how.overwrite:
            settle(folder, how)
        # nor has what it left running begun
        if begins := killed and ended_before_it_began(folder):
            logger.warning("--resume: the start before ended before its record: this one begins")
            settings = settings.but(resume=False)
        prepare_folder(settings, overwrite=how.overwrite or begins)
        label = f"{settings.method} on {task.name}"
        with (
            inline_grid(settings, parts, how.workers)  # forked before there are threads
            if how.engine == "inline"
            else nullcontext() as grid,
            watch(folder),
            Progress(settings.num_rounds, label, console) as progress,
        ):
            progress.poll(folder)  # shows the completed rounds of a resumed run
            if grid:
                status, reason = run_inline(settings, parts, progress, grid)
            else:
                status, reason = run_in_flower(settings, how, progress, resources, link)
        lock.check()
        close(settings, status, reason, report)
    return settings, status


def settle(folder: Path, how: Launch) -> None:
    """Stop the run that a killed command left writing to the folder through Flower, or
    wait for its end, and print what is done. Raises ``Held`` if it goes on, or if
    another command started it.
    """
    holder = holder_of(folder / WRITER)
    if not holder.get("launcher"):  # prepare_folder takes the lock, or names the holder
        return
    run = one_line(str(holder.get(RUN_ID)), 30)
    left = f"Flower's run {run}, which a killed command left writing to {folder}"
    if how.engine == "deployment":
        from fedapps.deployment.local import stop_run

        if stop_run(how.sites, run):
            print(f"fedapps: stopped {left}", file=sys.stderr)
    else:
        print(f"fedapps: waiting for the end of {left}", file=sys.stderr)
    with FolderLock(folder, WRITER, wait=ORPHAN_SECONDS):
        pass


def close(settings: Settings, status: str, reason: str, report: Callable[[Path], object]) -> None:
    """Complete the records of a run that has ended. Raises ``RunFailed`` if it
    failed.
    """
    folder = Path(settings.out)
    if status_of(folder) is None:
        try:
            set_status(folder, status, reason)
        except OSError as error:
            print(f"fedapps: cannot update summary.json: {error}", file=sys.stderr)
    if (folder / "rounds.jsonl").exists() and not (status == "completed" and all_written(folder)):
        try:
            report(folder)
        except OSError as error:
            print(f"fedapps: cannot write the report: {error}", file=sys.stderr)
    if status not in ("completed", "interrupted"):
        log = folder / "run.log"
        raise RunFailed(f"{reason} (log: {log})" if log.exists() else reason)


@contextmanager
def _superlink(how: Launch) -> Iterator[superlink.SuperLink | None]:
    """Start the SuperLink of a run through Ray on this machine. Other runs yield
    ``None``.
    """
    # With a cluster, its folder is next to the run's, which does not exist yet.
    if how.engine != "ray" or address_of(how.ray_address):
        yield None
        return
    with superlink.SuperLink(how.port) as link:
        yield link


def run_inline(
    settings: Settings, parts: Parts, progress: Progress, grid: InlineGrid
) -> tuple[str, str]:
    """Run in this process and its workers; return status and reason."""
    folder = Path(settings.out)
    with _logged_to(folder / "run.log") as logger:
        try:
            execute(settings, grid, [lambda _: progress.poll(folder)], parts)
        except KeyboardInterrupt:
            return "interrupted", ""
        except (UserError, FolderLost):
            raise
        except Exception as error:  # any error is recorded in the folder and the exit status
            logger.exception("The run failed.")
            return "failed", f"{type(error).__name__}: {error}"
    return "completed", ""


def checked_resources(settings: Settings, how: Launch) -> flower.Resources:
    """Return the resources of a run through Ray. Raises ``UserError`` if no client fits
    on a machine, or if a machine of a cluster lacks something.
    """
    address, clients = address_of(how.ray_address), settings.num_clients
    paths = [Path(settings.out), *data_paths(settings.flat())]
    resources = flower.Resources(
        clients,
        gpus_per_client=how.gpus_per_client,
        ray_cpus=None if address else how.workers,
        cluster=address,
        machines=checked_cluster(address, paths) if address else (),
    )
    resources.check()
    if line := resources.remark():
        logger.warning(line)
    return replace(resources, nodes=min(clients, how.workers or clients)).with_shared_nodes()


def with_sites(settings: Settings, folder: Path) -> Settings:
    """Return the settings; num-clients defaults to the deployment's number of sites.
    Raises ``UserError``.
    """
    from fedapps.deployment.local import Deployment

    deployment = Deployment.open(folder)
    deployment.check()
    for line in deployment.warnings():
        print(f"fedapps: warning: {line}", file=sys.stderr)
    sites = len(deployment.sites)
    deployed = settings.deployed().but(device=settings.device)  # decided later
    if settings.sites.client:  # more clients than sites
        return deployed
    if settings.num_clients > sites:
        raise UserError(
            f"num-clients = {settings.num_clients}, but {deployment.folder} has {sites} sites: "
            f"choose 1..{sites}"
        )
    return deployed.but(num_clients=settings.num_clients or sites)


def run_in_flower(
    settings: Settings,
    how: Launch,
    progress: Progress,
    resources: flower.Resources | None,
    link: superlink.SuperLink | None,
) -> tuple[str, str]:
    """Run through `flwr run`, on the run's own SuperLink with ``resources`` for Ray, or
    on the SuperNodes of a deployment; return status and reason.
    """
    folder = Path(settings.out)
    following = flower.Following(
        folder / "run.log",
        poll=lambda: progress.poll(folder),
        ended=lambda: status_of(folder),
        written=lambda: resources is not None and all_written(folder),
    )
    progress.note("starting Flower and Ray" if resources else "starting on the sites")
    if resources:
        outcome = flower.run_simulation(None, settings.flat(), resources, following, superlink=link)
    else:
        from fedapps.deployment.local import run_on_deployment

        outcome = run_on_deployment(how.sites, settings.flat(), following)
    progress.poll(folder)
    return outcome.status, outcome.details


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line if the disk is full, instead of printing a traceback."""


@contextmanager
def _logged_to(path: Path) -> Iterator[logging.Logger]:
    """Redirect Flower's log to a file: the terminal is used by the progress bar."""
    logger = logging.getLogger("flwr")
    before, propagate = logger.handlers, logger.propagate
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    try:
        yield logger
    finally:
        logger.handlers, logger.propagate = before, propagate
        with suppress(OSError):  # a full disk
            handler.close()
