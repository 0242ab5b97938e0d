"""Flower's ServerApp, which `flwr run` starts on the server."""

import io
import json
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save_file

from fedapps.engines.fast_polling import PollingGrid
from fedapps.engines.node_grid import GatewayGrid, shared
from fedapps.errors import UserError, what_to_install
from fedapps.lab import write_report
from fedapps.records.files import replace as place
from fedapps.records.lock import WRITER, holder_of
from fedapps.records.rounds import set_status
from fedapps.runs.devices import visible
from fedapps.runs.execution import execute, with_folder
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.flower_private import at_exit, is_simulation
from fedapps.strategies.base.rounds import Round

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Read the settings, execute the run, and write its folder and report. Raises
    ``UserError`` if a package is missing.
    """
    try:
        run(grid, context)
    except ModuleNotFoundError as error:
        if not (line := what_to_install(error, "this run")):
            raise
        raise UserError(line) from error


def run(grid: Grid, context: Context) -> None:
    """Do what ``main`` promises. Charts and tables are imported late: a package that
    they lack must not keep the app from starting.
    """
    # The working directory of the SuperLink is arbitrary: without `out`, results go to
    # the user's home.
    settings = read_settings(context.run_config)
    if settings.device == "auto":  # started by `flwr run`: clients read "auto", too
        settings = settings.but(device="cpu")
        if kind := visible():
            log(INFO, 'device cpu: for a GPU set device="%s", and give clients a share', kind)
    settings = with_folder(settings, Path.home() / "fedapps-results" / str(context.run_id))
    grid = PollingGrid(grid)
    if is_simulation(grid):
        grid = shared(grid, settings.num_clients)
    else:
        settings = settings.deployed()
        grid = GatewayGrid(grid) if settings.sites.client else grid
    rounds: deque[Round] = deque(maxlen=1)
    at_exit(partial(close, Path(settings.out), rounds))
    try:
        summary = execute(settings, grid, [rounds.append], flower_run=str(context.run_id))
        for line in ending(Path(settings.out)):  # all that a user of another's SuperLink sees
            log(INFO, "%s", line)
        log(INFO, "summary: %s", json.dumps(summary))
    finally:
        # Without records there is no report; report the error that ended the run.
        with suppress(UserError):
            write_report(Path(settings.out))
        log(INFO, "results: %s", settings.out)


def close(folder: Path, rounds: Sequence[Round]) -> None:
    """Close the record of a run that `flwr stop` ends: Flower does not wait for it. A
    folder without the writer's lock is closed.
    """
    if (folder / WRITER).exists() and holder_of(folder / WRITER).get("pid") == os.getpid():
        set_status(folder, "interrupted")
        for now in rounds:
            model = {name: array.numpy() for name, array in now.arrays.items()}
            place(folder / "model.safetensors", partial(save_file, model))
        with suppress(UserError):
            write_report(folder)
        (folder / WRITER).unlink(missing_ok=True)


def ending(folder: Path) -> list[str]:
    """Return what `fedapps run` shows at the end of a run, as lines."""
    from rich.console import Console

    from fedapps.lab.results.report import show_ending

    text = io.StringIO()
    show_ending(folder, Console(file=text, width=160))
    return [line.rstrip() for line in text.getvalue().splitlines()]
