"""A process pool for the runs of a sweep. They run in parallel with the inline engine,
each with its own results folder.

A finished run is not started again. An interrupted one resumes from its checkpoint, or
starts again if there is none. A failing run does not stop the others.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Self

from fedapps import notes
from fedapps.engines.processes import Cores, threads, without_main
from fedapps.records.rounds import set_status, status_of
from fedapps.runs.prepare import prepare_folder
from fedapps.settings.reading import read_settings

#: In a process of the pool: the cores that it shares with the others. The last runs of
#: a sweep have worker processes on those that became free.
SHARED: list[Cores] = []
#: The error of a run whose process, or that of another run, was killed.
DIED = "its process died, probably out of memory: lower --jobs"


@dataclass(frozen=True)
class PlannedRun:
    """A planned run: its settings (keys as in ``pyproject.toml``), its results folder,
    whose name describes it, and whether it computes on a GPU.
    """

    config: Mapping[str, Any]
    folder: Path
    on_gpu: bool = False


@dataclass(frozen=True)
class Ended:
    """A run that has ended, with its summary or the reason for its failure."""

    run: PlannedRun
    summary: Mapping[str, Any]
    error: str = ""

    def __str__(self) -> str:
        """Return a one-line progress message."""
        if self.error:
            return f"{self.run.folder.name}: failed: {self.error}"
        return (
            f"{self.run.folder.name}: {self.summary['rounds-completed']} rounds in "
            f"{self.summary['seconds']:.0f} s"
        )


def finished(folder: Path) -> bool:
    """Return whether a run is completed."""
    return status_of(folder) == "completed"


def run_all(
    runs: Iterable[PlannedRun], processes: int, gpus: Sequence[str] = ()
) -> Iterator[Ended]:
    """Start the runs in this number of processes, as a :class:`Pool`, and yield each
    when it ends. Of runs that share a folder only one is started.
    """
    with Pool(processes, gpus) as pool:
        yield from pool(runs)


class Pool:
    """A context in which this number of processes, which start when they are needed,
    execute the runs of several calls. ``gpus``: dealt to the processes in turn, by
    their names in ``CUDA_VISIBLE_DEVICES``; each process sees one.
    """

    def __init__(self, processes: int, gpus: Sequence[str] = ()) -> None:
        self.processes, self.gpus = processes, gpus
        self._executor: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()
        self._jobs: dict[Path, PlannedRun] = {}

    def __enter__(self) -> Self:
        self._others = set(active_children())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is not None:
            # On Ctrl-C it would wait for the current runs and start more, which takes
            # minutes.
            self._executor.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            for process in set(active_children()) - self._others:
                process.terminate()
                process.join()
            mark_interrupted(self._jobs)

    def __call__(self, runs: Iterable[PlannedRun]) -> Iterator[Ended]:
        """Execute the runs and yield each when it ends, as :func:`run_all` does."""
        self._jobs = {run.folder: run for run in runs}
        if not self._jobs:
            return
        try:
            running = self._submitted()
        except BrokenProcessPool:  # a process was killed since the last call
            self._executor = None
            running = self._submitted()
        for future in as_completed(running):
            try:
                yield Ended(running[future], future.result())
            except BrokenProcessPool:
                self._executor = None
                yield Ended(running[future], {}, DIED)
            except Exception as error:
                yield Ended(running[future], {}, f"{type(error).__name__}: {error}")

    def _submitted(self) -> dict[Future[dict[str, Any]], PlannedRun]:
        executor = self._executor = self._executor or self._started()
        with without_main():
            return {executor.submit(run_one, run): run for run in self._jobs.values()}

    def _started(self) -> ProcessPoolExecutor:
        # Inherited by the worker processes: with more threads they would compete for
        # cores.
        os.environ |= threads(1)
        context = get_context("spawn")
        shared = Cores(self.processes, context.Value("i", self.processes))
        dealt = context.SimpleQueue() if self.gpus else None
        if dealt:
            for gpu in islice(cycle(self.gpus), self.processes):
                dealt.put(gpu)
        return ProcessPoolExecutor(
            self.processes, mp_context=context, initializer=_start_worker, initargs=(shared, dealt)
        )


def _start_worker(shared: Cores, dealt: SimpleQueue[str] | None) -> None:
    """Take one of the GPUs that are ``dealt``, before CUDA is used. Ignore Ctrl-C,
    which a terminal sends to all its processes: the main process terminates the
    workers. It also printed the notes on the runs.
    """
    if dealt:
        os.environ["CUDA_VISIBLE_DEVICES"] = dealt.get()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    SHARED.append(shared)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    notes.logger.setLevel(logging.ERROR)
    notes.respect_no_color()


def _end_with_parent() -> None:
    """End this process when its parent was killed, which cannot end it any more: its
    run would go on, and keep others from the folder.
    """
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def mark_interrupted(folders: Iterable[Path]) -> None:
    """Set the status of the terminated runs to "interrupted"."""
    for folder in folders:
        if (folder / "summary.json").exists() and status_of(folder) is None:
            set_status(folder, "interrupted")


def run_one(run: PlannedRun) -> dict[str, Any]:
    """Start or resume one run in this process and return its summary."""
    import torch  # imported late: the main process does not need it

    from fedapps.runs.execution import execute_inline

    torch.set_num_threads(1)
    resume = (run.folder / "checkpoint").exists()
    settings = read_settings({**run.config, "out": str(run.folder.absolute()), "resume": resume})
    prepare_folder(settings, overwrite=not settings.resume)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    shared = SHARED[0] if SHARED else None
    if shared:
        shared.take()
    try:
        return execute_inline(settings, workers=None if shared else 1, shared=shared)
    finally:
        logger.setLevel(level)  # this process may log other runs
        if shared:
            shared.give_back()
