"""Execution of one run on a Grid of any engine: builds task and strategy, runs the
rounds, writes the results folder.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapps.engines.processes import Cores
from fedapps.errors import UserError
from fedapps.records.audit import FILE as AUDIT
from fedapps.records.audit import AuditedGrid, AuditLog
from fedapps.records.best import Best
from fedapps.records.checkpoint import Checkpoints
from fedapps.records.data_record import check_same_data, record_data
from fedapps.records.digest import settings_digest
from fedapps.records.image_grids import ImageGrids
from fedapps.records.lock import WRITER, FolderLock, FolderLost
from fedapps.records.releases import Releases
from fedapps.records.time_log import TimeLog
from fedapps.records.writer import FILES, Recorder, check_resumable, new_clients_of, read_rounds
from fedapps.runs.assembly import (
    Parts,
    build_strategy,
    build_task,
    takes_steps,
    validation_setting,
)
from fedapps.runs.compilation import with_compilation
from fedapps.runs.devices import for_server
from fedapps.runs.inline_grid import inline_grid
from fedapps.runs.timing import timing_of
from fedapps.settings.reading import default_config
from fedapps.settings.settings import Settings
from fedapps.strategies.base.capabilities import CountingReleases, MakingSamples, is_finished
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.messages import innermost
from fedapps.strategies.base.rounds import Callback, Patience, Round, TooFewReplies, run_rounds
from fedapps.strategies.secure import secured
from fedapps.tasks.capabilities import HasCurves, HasGroups, SplitsSamples
from fedapps.tasks.client_names import client_names
from fedapps.tracking.callback import Tracked, Trackers
from fedapps.tracking.names import names_of
from fedapps.tracking.prometheus import Counts, served


class Report(Protocol):
    """Writes the report of the run in a folder and, if wanted, its plots as files."""

    def __call__(self, folder: Path, plots: bool = False) -> object: ...  # noqa: D102


def no_report(folder: Path, plots: bool = False) -> None:
    """Write nothing."""


def execute_inline(
    settings: Settings,
    callbacks: Sequence[Callback] = (),
    parts: Parts | None = None,
    workers: int | None = 1,
    shared: Cores | None = None,
    report: Report = no_report,
) -> dict[str, Any]:
    """Execute the run in this process, or its clients in worker processes; server and
    clients share one task. See :func:`execute`, and :func:`inline_grid` for ``workers``
    and ``shared``.
    """
    parts = parts or assembled(settings)
    with inline_grid(settings, parts, workers, shared) as grid:
        return execute(settings, grid, callbacks, parts, report=report)


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
    report: Report = no_report,
) -> dict[str, Any]:
    """Run all rounds and return the content of summary.json. A failure is recorded
    there, and its error is raised.

    ``callbacks`` are called after the run's own callbacks. ``parts``: task and
    strategy, not used before; built here by default. ``flower_run``: the id of the run
    in Flower, if that runs it. ``report``: writes what the trackers receive.
    """
    with FolderLock(Path(settings.out), WRITER, flower_run) as lock:
        return _execute(settings, grid, callbacks, parts, lock, report)


def _execute(
    settings: Settings,
    grid: Grid,
    callbacks: Sequence[Callback],
    parts: Parts | None,
    lock: FolderLock,
    report: Report,
) -> dict[str, Any]:
    folder = Path(settings.out)
    _, task, strategy = parts or assembled(for_server(settings))
    settings = with_compilation(settings, task, takes_steps)
    checkpoints = Checkpoints(folder / "checkpoint", strategy, settings.checkpoint_every, lock.run)
    best = checkpoints.best = Best(
        settings.keep_best, settings.early_stopping, validation_setting(settings, task)
    )
    inner = innermost(strategy)
    names = client_names(task, settings.num_clients)
    timing = checkpoints.timing = timing_of(settings, task, grid, names)
    done, arrays = open_folder(folder, settings, checkpoints)
    if isinstance(strategy, CountingReleases):
        releases = Releases(folder, lock.run)
        strategy.count_releases(releases.count, releases.add)
        if is_finished(strategy) and not done:
            raise UserError(
                f"{folder} has no checkpoint, and its {releases.count} releases have spent "
                f"dp.max-epsilon = {settings.dp.max_epsilon:g}: a run in another folder spends a "
                "new budget"
            )
    if not done:
        first = inner.first_arrays() if isinstance(inner, MakingSamples) else task.initial_arrays()
        arrays = ArrayRecord({name: Array(value) for name, value in first.items()})
    groups = task.groups if isinstance(task, HasGroups) else None
    classes = classes_of(settings, task)
    times = task.grid if isinstance(task, HasCurves) else ()
    recorder = Recorder(
        folder,
        settings.flat(),
        task.name,
        done,
        strategy,
        groups,
        names,
        classes,
        best,
        lock,
        times,
    )
    checkpoints.record = recorder.files
    if timing:
        timing.log = TimeLog(recorder.files, folder, done, recorder.called)
    if not done:
        account: list[str] = []
        if not settings.sites.own and isinstance(task, SplitsSamples):
            account = task.remarks(settings.num_clients)
        record_data(folder, settings.flat(), account)
    trackers = track(settings, folder, done, recorder) if settings.track else None
    image_grids = (
        ImageGrids(folder, inner, settings.synthetic.every, len(set(inner.labels)), done)
        if isinstance(inner, MakingSamples)
        else None
    )
    if settings.secure.on:
        grid = secured(grid, strategy, settings.secure, settings.bound)
    audited = None
    if settings.audit_log == "on":
        note = AuditLog(folder / AUDIT)
        grid = audited = AuditedGrid(grid, note)
        digest = settings_digest(settings.deployed().flat())
        note("run", method=settings.method, settings=digest, **who_started(grid))
    client_grid = ClientGrid(
        grid,
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
    base: dict[str, Any] = {"seed": settings.seed, "first-round": done + 1}
    # a client may train before it is evaluated
    base |= {"checkpoint-round": done, **settings.train.to_config()}
    evaluate, train = ConfigRecord(base), ConfigRecord(base)
    if settings.evaluate_train:
        evaluate["train-loss"] = True
    if settings.validates:
        evaluate["validation"] = True
    if settings.class_counts and not settings.dp.noise_multiplier and not settings.secure.on:
        evaluate["class-counts"] = True

    # Clients may delete stored states that nothing needs any more.
    def send_rounds_needed(now: Round | None = None) -> None:
        for config in (train, evaluate):
            config["checkpoint-round"] = checkpoints.last
            if best.kept_rounds:
                config["kept-rounds"] = best.kept_rounds

    send_rounds_needed()

    try:
        result = run_rounds(
            strategy,
            client_grid,
            arrays,
            done
            if best.exhausted or (done and is_finished(strategy)) or 0 < settings.until <= done
            else settings.num_rounds,
            settings.timeout,
            train,
            evaluate,
            first_round=done + 1,
            evaluate_every=settings.evaluate_every,
            patience=Patience(
                max(settings.min_replies, settings.robust.least), settings.max_failed_rounds
            ),
            callbacks=[
                recorder,
                checkpoints,
                *([audited] if audited else []),
                *([image_grids] if image_grids else []),
                send_rounds_needed,
                lambda now: best.exhausted,
                *([trackers] if trackers else []),
                *callbacks,
            ],
            log_result=False,  # the results folder holds it
            new_epochs=[1, settings.new_epochs],
            until=settings.until,
        )
    except BaseException as error:
        if isinstance(error, FolderLost):  # nothing here is this run's any more
            raise
        # raised between two rounds, so the run can be resumed from the current state
        if isinstance(error, TooFewReplies):
            checkpoints.keep_last()
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        status = "interrupted" if stopped else "failed"
        with suppress(OSError):  # a full disk, maybe: report the error that ended the run
            if audited:
                audited.note("ended", status=status)
            recorder.finish(status, "" if stopped else f"{type(error).__name__}: {error}")
            if isinstance(error, TooFewReplies) and error.result is not None:
                recorder.save_model(error.result.arrays)
        if trackers:
            trackers.end(status)
        raise
    if timing:
        timing.log(timing.clock.flights, recorder.completed)
    recorder.save_model(result.arrays)
    if image_grids:
        image_grids.close(result.arrays)
    ended = best.exhausted or is_finished(strategy)
    paused = not ended and 0 < settings.until <= recorder.completed < settings.num_rounds
    if paused:
        checkpoints.keep_last()
    status = "interrupted" if paused else "completed"
    summary = recorder.finish(status)
    if audited:
        audited.note("ended", status=status)
    if trackers:
        with suppress(OSError):
            report(folder, plots=True)  # before the end: trackers receive them
        trackers.end(status)
    return summary


def who_started(grid: Grid) -> dict[str, Any]:
    """Return what Flower knows about a run: its number, its app, the account."""
    facts = {"run": "run_id", "app": "fab_hash", "account": "account_name"}
    return {name: getattr(grid.run, field, None) for name, field in facts.items()}


def classes_of(settings: Settings, task: Any) -> tuple[str, ...]:
    """Return the names of the classes; () if unknown."""
    if settings.sites.own:
        return settings.sites.classes
    classes = task.samples.classes if isinstance(task, SplitsSamples) else ()
    return tuple(classes) if classes and len(classes) == task.samples.num_classes else ()


def page_of(settings: Settings, task: str) -> AbstractContextManager[int]:
    """Return the context manager that serves the run's counters for Prometheus."""
    folder = Path(settings.out)
    labels = {"run": folder.name, "method": settings.method, "task": task}
    return served(
        Counts(folder, labels, settings.num_rounds), settings.metrics_port, settings.metrics_host
    )


def track(settings: Settings, folder: Path, done: int, recorder: Recorder) -> Trackers:
    """Return the callback that reports a run to its trackers."""
    reported = {
        key: value for key, value in settings.flat().items() if key not in ("out", "resume")
    }
    return Trackers(
        names_of(settings.track),
        Tracked(folder, reported, done, settings.track_to),
        lambda: (recorder.row, recorder.clients),
    )


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
    return replace(settings, out=str(Path(settings.out or default).expanduser().absolute()))
