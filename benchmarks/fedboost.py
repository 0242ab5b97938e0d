"""Cost of a FedBoost round as the library grows: seconds, bytes and memory for q
predictors, of which C are sent.

    python benchmarks/fedboost.py [--sizes 10 100 1000 10000] [--budget 32] [--rounds
    20] [--clients 10] [--folder DIR]

Every predictor is a dense distribution over 10,000 outcomes (40 kB as float32) in its
own file; the server reads those that a round sends. Exactly C of them are drawn
uniformly, so that bytes can be compared. Every size runs in a fresh process: "added" is
the rise of its peak memory over that of Python and its packages before the predictors
were opened. "whole ensemble" is the mixture of all q predictors, which
an evaluation needs and which reads every file. DIR (default: the folder for temporary
files) needs 40 kB of disk per predictor.
"""

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from fedapps.clients.base.adapter import client_id, to_client_app
from fedapps.clients.families.ensemble_data import DensityData, Histogram
from fedapps.clients.fedboost import FedBoostClient
from fedapps.engines.inline import InlineGrid
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.rounds import Round, run_rounds
from fedapps.strategies.fedboost import FedBoost, FedBoostOptions
from fedapps.tasks.predictor_library import Library

OUTCOMES, WORDS = 10_000, 500


def write_library(folder: Path, q: int) -> None:
    """Write q distributions, one file each: no more than one of them is in memory."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for k in range(q):
        table = rng.standard_gamma(0.5, OUTCOMES).astype(np.float32)
        save_file(
            {"table": table / table.sum(dtype=np.float64).astype(np.float32)},
            folder / f"{k:06d}.safetensors",
        )


def peak() -> float:
    """Return the peak memory of this process, in MB."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6


def measure(folder: Path, budget: int, rounds: int, clients: int) -> dict[str, float]:
    """Run rounds without evaluation on the library of a folder; the first one warms up
    and is left out.
    """
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)

    def client(context: Context) -> FedBoostClient:
        rng = np.random.default_rng(int(client_id(context)))
        counts = np.bincount(rng.integers(0, OUTCOMES, WORDS), minlength=OUTCOMES)
        return FedBoostClient(DensityData(Histogram.of_frequencies(counts, WORDS)))

    before, start = peak(), time.perf_counter()
    library = Library.open(folder)
    opened = time.perf_counter() - start
    strategy = FedBoost(
        library,
        FedBoostOptions(budget=min(budget, library.q), sampling="uniform", draw="exact"),
        fraction_evaluate=0.0,
    )
    grid = ClientGrid(InlineGrid(to_client_app(client), clients), seed=0, num_clients=clients)
    log: list[Round] = []
    run_rounds(
        strategy,
        grid,
        ArrayRecord(),
        rounds + 1,
        600.0,
        ConfigRecord(),
        ConfigRecord(),
        callbacks=[log.append],
    )
    kept, after = log[1:], peak()
    start = time.perf_counter()
    library.mixture(np.full(library.q, 1 / library.q))
    return {
        "open": opened,
        "round": float(np.median([now.seconds for now in kept])),
        "down": float(np.mean([now.trained.bytes_down for now in kept])),
        "up": float(np.mean([now.trained.bytes_up for now in kept])),
        "before": before,
        "added": after - before,
        "mixture": time.perf_counter() - start,
        "added-mixture": peak() - before,
    }


def main() -> None:
    """Measure every size in its own process, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[10, 100, 1000, 10_000], metavar="Q"
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=32,
        metavar="C",
        help="predictors per round; all if there are fewer",
    )
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--clients", type=int, default=10, metavar="P")
    parser.add_argument("--folder", type=Path, metavar="DIR")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the measuring process
    arguments = parser.parse_args()
    if arguments.one:
        print(
            json.dumps(
                measure(arguments.one, arguments.budget, arguments.rounds, arguments.clients)
            )
        )
        return
    table = Table(
        title=f"C = {arguments.budget}, {arguments.clients} clients a round, tables of "
        f"{OUTCOMES:,} entries"
    )
    for column in (
        "q",
        "open, s",
        "round, ms",
        "down, MB",
        "up, kB",
        "added, MB",
        "whole ensemble, s",
        "added then, MB",
    ):
        table.add_column(column, justify="right")
    for q in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="fedboost-", dir=arguments.folder) as name:
            write_library(Path(name) / "library", q)
            options = [
                f"--{key}={getattr(arguments, key)}" for key in ("budget", "rounds", "clients")
            ]
            command = [sys.executable, __file__, "--one", str(Path(name) / "library"), *options]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seen = json.loads(done.stdout.splitlines()[-1])
        table.add_row(
            f"{q:,}",
            f"{seen['open']:.2f}",
            f"{1e3 * seen['round']:.1f}",
            f"{seen['down'] / 1e6:.3f}",
            f"{seen['up'] / 1e3:.2f}",
            f"{seen['added']:.0f}",
            f"{seen['mixture']:.2f}",
            f"{seen['added-mixture']:.0f}",
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()
