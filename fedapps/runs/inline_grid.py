"""The grid of a run with the inline engine: in this process, or with worker processes
for its clients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.clientapp import ClientApp

from fedapps.engines.inline import InlineGrid
from fedapps.engines.processes import Cores, cores
from fedapps.runs.assembly import Parts
from fedapps.runs.work import work_of
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet

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
