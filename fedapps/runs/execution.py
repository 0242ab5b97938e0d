"""Execution of one run on a Grid of any engine: builds task and strategy, runs the
rounds, writes the results folder.

With the inline engine, the grid is in this process, or has worker processes for its
clients. The clock of a run is simulated in a simulation, real on SuperNodes.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.fleet import Fleet, Measured
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import GatewayGrid
from fedapps.engines.processes import Cores, cores
from fedapps.errors import UserError
from fedapps.records.audit import FILE as AUDIT, AuditedGrid, AuditLog
from fedapps.records.best import Best
from fedapps.records.checkpoint import Checkpoints
from fedapps.records.lock import WRITER, FolderLock, FolderLost
from fedapps.records.releases import Releases
from fedapps.records.rounds import (
    check_resumable,
    check_same_data,
    new_clients_of,
    read_rounds,
    record_data,
    settings_digest,
)
from fedapps.records.synthetic_set import SyntheticSet
from fedapps.records.time_log import TimeLog
from fedapps.records.writer import FILES, Recorder
from fedapps.runs.assembly import (
    Parts,
    build_strategy,
    build_task,
    takes_steps,
    validation_setting,
)
from fedapps.runs.devices import for_server, repeatable
from fedapps.runs.work import with_compilation, work_of
from fedapps.settings.reading import default_config
from fedapps.settings.settings import Settings
from fedapps.strategies.base.capabilities import (
    CountingReleases,
    MakingSamples,
    StartingElsewhere,
    is_finished,
)
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.clocks import RealClock, VirtualClock, epochs_of
from fedapps.strategies.base.flower_private import is_simulation
from fedapps.strategies.base.messages import innermost
from fedapps.strategies.base.named_grid import ClientId, called
from fedapps.strategies.base.rounds import (
    Callback,
    Ending,
    Observer,
    Patience,
    Round,
    TooFewReplies,
    run_rounds,
)
from fedapps.strategies.base.timing import Timing
from fedapps.strategies.secure import secured
from fedapps.tasks.capabilities import HasGroups, HasNet, SplitsSamples
from fedapps.tasks.client_names import client_names
from fedapps.tracking.names import names_of
from fedapps.tracking.trackers import Tracked, Trackers


def execute_inline(
    settings: Settings,
    callbacks: Sequence[Callback] = (),
    parts: Parts | None = None,
    workers: int | None = 1,
    shared: Cores | None = None,
) -> dict[str, Any]:
    """Execute the run in this process, or its clients in worker processes; server and
    clients share one task. See :func:`execute`, and :func:`inline_grid` for ``workers``
    and ``shared``.
    """
    parts = parts or assembled(settings)
    with inline_grid(settings, parts, workers, shared) as grid:
        return execute(settings, grid, callbacks, parts)


def assembled(settings: Settings) -> Parts:
    """Return the parts of a run whose settings have been checked."""
    task = build_task(settings)
    return Parts(settings, task, build_strategy(settings, task))


def execute(
    settings: Settings,
    grid: Grid,
    callbacks: Sequence[Callback] = (),
    parts: Parts | None = None,
    flower_run: str = "",
) -> dict[str, Any]:
    """Run all rounds and return the content of summary.json. A failure is recorded
    there, and its error is raised.

    ``callbacks`` are called after the run's own callbacks. ``parts``: task and
    strategy, not used before; built here by default. ``flower_run``: the id of the run
    in Flower, if that runs it.
    """
    with FolderLock(Path(settings.out), WRITER, flower_run) as lock:
        return _execute(settings, grid, callbacks, parts, lock)


def _execute(
    settings: Settings,
    grid: Grid,
    callbacks: Sequence[Callback],
    parts: Parts | None,
    lock: FolderLock,
) -> dict[str, Any]:
    folder = Path(settings.out)
    repeatable(settings.device)
    _, task, strategy = parts or assembled(for_server(settings))
    settings = with_compilation(settings, task, takes_steps)
    names = client_names(task, settings.num_clients)
    timing = timing_of(settings, task, grid, names)
    best = Best(settings.keep_best, settings.early_stopping, validation_setting(settings, task))
    checkpoints = Checkpoints(
        folder / "checkpoint",
        strategy,
        settings.checkpoint_every,
        lock.run,
        best=best,
        timing=timing,
    )
    done, arrays = open_folder(folder, settings, checkpoints)
    count_releases(settings, strategy, lock, done)
    inner = innermost(strategy)
    arrays = arrays if done else first_arrays(task, inner)
    recorder = Recorder(
        folder,
        settings.flat(),
        task.name,
        strategy,
        done,
        task.groups if isinstance(task, HasGroups) else None,
        names,
        classes_of(settings, task),
        best,
        lock,
    )
    checkpoints.record = recorder.files
    if not done:
        account: list[str] = []
        if settings.num_clients and not settings.sites.own and isinstance(task, SplitsSamples):
            account = task.remarks(settings.num_clients)
        record_data(folder, settings.flat(), account)
    if settings.secure.on:
        grid = secured(grid, strategy, settings.secure, settings.bound)
    facts = {"method": settings.method, "settings": settings_digest(settings.deployed().flat())}
    audited = AuditedGrid(grid, AuditLog(folder / AUDIT), **facts)
    audit = settings.audit_log == "on"
    train, evaluate = configs(settings, done)
    observers: list[Observer] = [
        *([TimeLog(timing, recorder.files, folder, done, recorder.called)] if timing else []),
        recorder,
        checkpoints,
        *([SyntheticSet(folder, inner)] if isinstance(inner, MakingSamples) else []),
        *([audited] if audit else []),
        Needed((train, evaluate), checkpoints),
        *([trackers(settings, done, recorder)] if settings.track else []),
    ]
    client_grid = ClientGrid(
        audited if audit else grid,
        seed=settings.seed,
        clients_per_round=settings.clients_per_round,
        num_clients=settings.num_clients,
        start_timeout=600,
        bound=settings.bound,
        num_new=settings.num_new_clients,
        new_clients=new_clients_of(folder) if done else (),
        names=names,
        timing=timing,
    )
    for observer in observers:
        observer.begin()
    over = best.exhausted or (done and is_finished(strategy)) or 0 < settings.until <= done
    try:
        result = run_rounds(
            strategy,
            client_grid,
            arrays,
            done if over else settings.num_rounds,
            settings.timeout,
            train,
            evaluate,
            first_round=done + 1,
            evaluate_every=settings.evaluate_every,
            patience=Patience(
                max(settings.min_replies, settings.robust.least),
                settings.max_failed_rounds,
                scored=True,
            ),
            callbacks=[*observers, *callbacks],
            log_result=False,  # the results folder holds it
            new_epochs=[1, settings.new_epochs],
            until=settings.until,
        )
        ended = best.exhausted or is_finished(strategy)
        paused = not ended and 0 < settings.until <= recorder.completed < settings.num_rounds
        ending = Ending(
            "interrupted" if paused else "completed", result.arrays, resumable=paused or ended
        )
        for observer in observers:
            observer.end(ending)
    except FolderLost:  # nothing here is this run's any more
        raise
    except BaseException as error:
        for observer in observers:
            with suppress(OSError):  # a full disk, maybe: report the error that ended the run
                observer.end(ending_of(error))
        raise
    return recorder.summary


def ending_of(error: BaseException) -> Ending:
    """Return how a run ends that ``error`` ends."""
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    few = isinstance(error, TooFewReplies)  # raised between two rounds
    result = error.result if isinstance(error, TooFewReplies) else None
    arrays = result.arrays if result else None
    return Ending("interrupted" if stopped else "failed", arrays, error, few)


def count_releases(settings: Settings, strategy: Strategy, lock: FolderLock, done: int) -> None:
    """Let a private strategy count its releases on disk. Raises ``UserError`` if they
    have spent the budget, and the run cannot be resumed.
    """
    if not isinstance(strategy, CountingReleases):
        return
    releases = Releases(Path(settings.out), lock.run)
    strategy.count_releases(releases.count, releases.add)
    if is_finished(strategy) and not done:
        raise UserError(
            f"{settings.out} has no checkpoint, and its {releases.count} releases have spent "
            f"dp.max-epsilon = {settings.dp.max_epsilon:g}: a run in another folder spends a new "
            "budget"
        )


def first_arrays(task: Any, strategy: Any) -> ArrayRecord:
    """Return the model that a new run begins with."""
    elsewhere = isinstance(strategy, StartingElsewhere)
    first = strategy.first_arrays() if elsewhere else task.initial_arrays()
    return ArrayRecord({name: Array(value) for name, value in first.items()})


def configs(settings: Settings, done: int) -> tuple[ConfigRecord, ConfigRecord]:
    """Return what is sent with every training and every evaluation."""
    # a client may train before it is evaluated
    base = {"seed": settings.seed, "first-round": done + 1, **settings.train.to_config()}
    wanted = {
        "train-loss": settings.evaluate_train,
        "validation": bool(settings.validates),
        "class-counts": settings.class_counts
        and not settings.dp.noise_multiplier
        and not settings.secure.on,
    }
    more = {name: True for name, on in wanted.items() if on}
    return ConfigRecord(base), ConfigRecord(base | more)


class Needed(Observer):
    """Tells clients in ``configs`` which rounds a resumed run or the score may need, so
    that they may delete stored states of others; ends a run that gets no better.
    """

    def __init__(self, configs: Sequence[ConfigRecord], checkpoints: Checkpoints) -> None:
        self.configs, self.checkpoints = configs, checkpoints

    def begin(self) -> None:
        """Say it before the first round."""
        for config in self.configs:
            config["checkpoint-round"] = self.checkpoints.last
            if kept := self.checkpoints.best.kept_rounds:
                config["kept-rounds"] = kept

    def __call__(self, now: Round) -> bool:
        """Say it after every round."""
        self.begin()
        return self.checkpoints.best.exhausted


def classes_of(settings: Settings, task: Any) -> tuple[str, ...]:
    """Return the names of the classes; () if unknown."""
    if settings.sites.own:
        return settings.sites.classes
    classes = task.samples.classes if isinstance(task, SplitsSamples) else ()
    return tuple(classes) if classes and len(classes) == task.samples.num_classes else ()


def trackers(settings: Settings, done: int, recorder: Recorder) -> Trackers:
    """Return the observer that reports a run to its trackers."""
    config = {key: value for key, value in settings.flat().items() if key not in ("out", "resume")}
    run = Tracked(recorder.folder, config, settings.track_to, done)
    return Trackers(names_of(settings.track), run, recorder)


def open_folder(
    folder: Path, settings: Settings, checkpoints: Checkpoints
) -> tuple[int, ArrayRecord]:
    """Return (rounds done, model) of the checkpoint to resume from, or (0, empty
    record) for a new folder. Raises ``UserError``.
    """
    used = [name for name in FILES if name != "run.log" and (folder / name).exists()]
    if not settings.resume:
        if used:
            raise UserError(
                f"{folder} already holds a run ({', '.join(used[:3])}): add --overwrite or "
                "--resume, or choose another --out"
            )
        return 0, ArrayRecord()
    check_resumable(folder, settings.flat(), default_config(settings.flat()))
    check_same_data(folder, settings.flat())
    done, arrays = checkpoints.load()
    checkpoints.check_origin(read_rounds(folder))
    return done, arrays


def with_folder(settings: Settings, default: Path) -> Settings:
    """Return the settings with an absolute results folder."""
    return settings.but(out=str(Path(settings.out or default).expanduser().absolute()))


#: By default there are worker processes if a client takes more seconds, since its
#: messages to a worker take up to half a millisecond, ...
WORTH_A_CLIENT = 2e-3
#: ... and all clients together take more seconds: by how workers start.
WORTH_A_RUN = {"fork": 2.0, "spawn": 40.0}


def load_app() -> ClientApp:
    """Return the app that runs for every client."""
    from fedapps.runs.client_app import app

    return app


@contextmanager
def inline_grid(
    settings: Settings, parts: Parts, workers: int | None = 1, shared: Cores | None = None
) -> Iterator[InlineGrid]:
    """Yield the grid of a run. ``workers``: the number of worker processes; 1: clients
    run in this process; ``None``: as many as there are cores, if that pays. ``shared``:
    the cores, if several runs share them; workers then run while some are free.
    """
    from fedapps.runs.client_factory import share

    config = settings.flat()
    share(config, settings, parts.task)
    number = number_of_workers(settings, parts.task, workers, shared)
    if number == 1:
        yield InlineGrid(load_app(), settings.num_clients, config, numbered=True)
        return
    from fedapps.engines.workers import WorkerGrid

    with WorkerGrid(
        load_app, settings.num_clients, config, numbered=True, workers=number, cores=shared
    ) as grid:
        if not shared:  # before this process has other threads
            read_samples(parts.task, settings.num_clients)
            grid.start(number)
        yield grid


def read_samples(task: Any, num_clients: int) -> None:
    """Let this process read the samples and import PyTorch, so that processes which it
    forks share them.
    """
    if isinstance(task, HasNet):
        task.work_model()
        task.client_data(0, num_clients)


def number_of_workers(
    settings: Settings, task: Any, workers: int | None, shared: Cores | None = None
) -> int:
    """Return the number of processes that run clients: one on a GPU."""
    device = getattr(task, "device", None)
    if device is not None and device.type != "cpu":
        return 1
    largest = settings.num_clients  # of a phase: an evaluation may ask all clients
    if workers is not None:
        return min(workers, largest) or 1
    available = min(shared.total if shared else cores(), largest)
    return available if available > 1 and pays(settings, task) else 1


def pays(settings: Settings, task: Any) -> bool:
    """Return whether worker processes would save time in this run."""
    from fedapps.engines.workers import usual_method

    work = work_of(settings, task)
    if work is None or work.of_client < WORTH_A_CLIENT or work.of_run < min(WORTH_A_RUN.values()):
        return False
    return work.of_run >= WORTH_A_RUN[usual_method()]  # which tries a fork


def timing_of(settings: Settings, task: Any, grid: Grid, names: Sequence[str]) -> Timing | None:
    """Return when the run's training phases end; ``None``: with the last reply, and
    time is not simulated. Raises ``UserError``.
    """
    simulated = isinstance(grid, InlineGrid) or is_simulation(grid)
    if not simulated and settings.time.speed not in ("auto", "off"):
        log(
            WARNING,
            "time.speed = %r has no effect: time on SuperNodes is real",
            settings.time.speed,
        )
    if not (settings.asynchronous or settings.rounds.on or (simulated and settings.timed)):
        return None
    if isinstance(grid, GatewayGrid):
        raise UserError(
            f"sites.client = {settings.sites.client!r}: a site answers for all its clients at "
            "once, so none of them is late: leave out fedbuff, rounds.deadline and "
            "rounds.over-select"
        )
    if not simulated:
        return Timing(RealClock(), settings.rounds)
    work = work_of_trainings(task, settings.num_clients)
    return Timing(VirtualClock(fleet_of(settings, names), work), settings.rounds)


def fleet_of(settings: Settings, names: Sequence[str] = ()) -> Fleet:
    """Return the simulated clients' speeds. Raises ``UserError``."""
    options, measured = settings.time, None
    if options.speed == "auto":
        options = replace(options, speed="log-normal")
    if options.file:
        try:
            measured = Measured(rows_of(Path(options.file).expanduser()))
        except (OSError, ValueError) as error:
            raise UserError(
                f"time.file = {options.file!r}: {error}: a csv with the columns client and "
                "seconds is needed, or the time.csv of a run"
            ) from None
    return Fleet(options, settings.seed, measured, lambda client: called(client, names))


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a csv file by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def work_of_trainings(task: Any, num_clients: int) -> Callable[[Message, ClientId], float]:
    """Return the work of a training: the client's training samples times epochs."""

    @cache
    def samples(client: ClientId) -> int:
        if isinstance(task, SplitsSamples):
            return len(task.split(int(client), num_clients)[0])
        return len(task.client_data(client, num_clients).train) if isinstance(task, HasNet) else 1

    return lambda question, client: samples(client) * epochs_of(question)
