"""Cost of a round of every method, compared with FedAvg: CPU time, bytes in both
directions, and the state that a client keeps.

    python benchmarks/method_cost.py [--methods NAME ...] [--data FOLDER] [--rounds N]
    [--repeats N] [--out DIR]

Methods whose clients train the task's network, on one job: TwoNN, scikit-learn's digits
(or 6,000 images of FOLDER, MNIST as ``datasets.load_dataset`` reads it) dealt to 20
clients, five per round, five local epochs, batches of 10, no evaluation. Every method
runs --repeats times through the inline engine, with FedAvg before every third one. Time
is the median CPU time of a round, so other programs on the machine matter little.
SuPerFed mixes from the first round on.
"""

import argparse
import logging
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from flwr.app import RecordDict
from rich import box
from rich.console import Console
from rich.table import Table

from fedapps.clients import FedAvgClient
from fedapps.clients.base.store import MessageStore
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import prepare_folder
from fedapps.settings.reading import read_settings

JOB: dict[str, Any] = {
    "num-clients": 20,
    "clients-per-round": 5,
    "evaluate-every": 0,
    "model.name": "two-nn",
    "data.partition": "iid",
    "train.local-epochs": 5,
    "train.batch-size": 10,
    "train.learning-rate": 0.01,
    "superfed.start": 0.0,
}


class Clock:
    """A callback that records the CPU time at the end of every round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, now: Any) -> None:
        """Record it."""
        self.times.append(time.process_time())


def job(method: str, data: str, rounds: int) -> dict[str, Any]:
    """Return the settings of one run."""
    samples = 6000 if data else 1797
    given: dict[str, Any] = {"data.source": data} if data else {}
    if METHODS[method].all_clients:  # five clients as large as the others
        given |= {"clients-per-round": 0, "num-clients": 5}
        samples //= 4
    given |= {
        "method": method,
        "num-rounds": rounds,
        "checkpoint-every": rounds,
        "data.max-samples": samples,
    }
    return {**JOB, **given}


def trains_the_network(method: str) -> bool:
    """Whether the clients of a method train the task's network and need nothing but the
    job's data.
    """
    entry = METHODS[method]
    if "classification" not in entry.tasks or entry.public or method == "warm-start":
        return False
    settings = read_settings(job(method, "", 2) | {"data.max-samples": 100})
    return isinstance(
        build_client(settings, build_task(settings), 0, 5, MessageStore(RecordDict())), FedAvgClient
    )


def run(method: str, data: str, rounds: int, folder: Path) -> dict[str, float]:
    """Run a method and return what it costs."""
    settings = replace(read_settings(job(method, data, rounds)), out=str(folder))
    prepare_folder(settings, overwrite=True)
    clock = Clock()
    summary = execute(settings, InlineGrid(app, settings.num_clients, settings.flat()), [clock])
    seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    return {
        "ms": 1000 * median(seconds[:-1]),  # the last round writes the checkpoint
        "up": summary["bytes-up"] / rounds,
        "down": summary["bytes-down"] / rounds,
        "state": state_bytes(folder / "clients"),
    }


def state_bytes(folder: Path) -> float:
    """Return the bytes of the newest version of a client's whole state, for the client
    with the largest state.
    """
    largest = 0
    for client in folder.iterdir() if folder.is_dir() else []:
        newest: dict[str, tuple[int, int]] = {}
        for path in client.iterdir():
            if match := re.fullmatch(r"(.+)\.(\d+)\.\d+\.safetensors", path.name):
                newest[match[1]] = max(
                    newest.get(match[1], (-1, 0)), (int(match[2]), path.stat().st_size)
                )
        largest = max(largest, sum(size for _, size in newest.values()))
    return largest


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], help="default: all that train the task's network"
    )
    parser.add_argument("--data", default="", help="MNIST: a folder or a hub name")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the runs are kept (default: nowhere)")
    a = parser.parse_args()
    if a.rounds < 3 or a.repeats < 1:
        parser.error("--rounds must be at least 3, --repeats at least 1")
    if strange := [name for name in a.methods if name not in METHODS]:
        parser.error(f"--methods {strange[0]}: no such method")
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    methods = [
        name
        for name in a.methods or METHODS
        if name != "fedavg" and (a.methods or trains_the_network(name))
    ]
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in ("fedavg", *methods)}
    relative: dict[str, list[float]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for _ in range(a.repeats):
                for place, name in enumerate(methods):
                    # repeat FedAvg, because the speed of the machine changes
                    for one in (name,) if place % 3 else ("fedavg", name):
                        costs[one].append(
                            run(one, a.data, a.rounds, (a.out or Path(scratch)) / one)
                        )
                        print(f"{one}: {costs[one][-1]['ms']:.1f} ms", file=sys.stderr, flush=True)
                    relative[name].append(costs[name][-1]["ms"] / costs["fedavg"][-1]["ms"])
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
    table = Table(
        "method",
        "CPU, ms",
        "/ FedAvg",
        "up, kB",
        "/ FedAvg",
        "down, kB",
        "/ FedAvg",
        "state of a client, kB",
        title="Cost of a round, next to FedAvg's",
        box=box.MARKDOWN,
    )
    fedavg = costs["fedavg"][0]
    for name, runs in costs.items():
        ms = median(cost["ms"] for cost in runs)
        ratio = median(relative[name]) if name in relative else 1.0
        one = runs[0]
        words = [f"{ms:.1f}", f"{ratio:.2f}"]
        for way in ("up", "down"):
            words += [f"{one[way] / 1000:.1f}", f"{one[way] / fedavg[way]:.2f}"]
        table.add_row(name, *words, f"{one['state'] / 1000:.1f}")
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
