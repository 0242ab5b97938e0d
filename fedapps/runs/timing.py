"""The clock of a run: simulated in a simulation, real on SuperNodes."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.common.fleet import Fleet, Measured
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import GatewayGrid
from fedapps.errors import UserError
from fedapps.settings.settings import Settings
from fedapps.strategies.base.clocks import RealClock, VirtualClock, epochs_of
from fedapps.strategies.base.flower_private import is_simulation
from fedapps.strategies.base.named_grid import ClientId, called
from fedapps.strategies.base.timing import Timing
from fedapps.tasks.capabilities import HasNet, SplitsSamples


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
    work = work_of(task, settings.num_clients)
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


def work_of(task: Any, num_clients: int) -> Callable[[Message, ClientId], float]:
    """Return the work of a training: the client's training samples times epochs."""

    @cache
    def samples(client: ClientId) -> int:
        if isinstance(task, SplitsSamples):
            return len(task.split(int(client), num_clients)[0])
        return len(task.client_data(client, num_clients).train) if isinstance(task, HasNet) else 1

    return lambda question, client: samples(client) * epochs_of(question)
