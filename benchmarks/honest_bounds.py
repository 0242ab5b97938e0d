"""What the bounds that compare clients (``max-relative-update``, ``max-weight``) cost
runs in which everybody is honest: a table of methods and uneven data.

    python benchmarks/honest_bounds.py [--bounds default 3:3] [--seeds 3] [--rounds 20]
    [--methods fedavg ...] [--data "sizes 0.1" ...]

Bounds are written as max-relative-update:max-weight, one table for each; ``default``
are those of every run. Digits, twenty
clients of which ten train in a round, three local epochs. Data: labels
by Dirichlet(alpha) (``labels``), or sizes by Dirichlet(alpha) over at least ten samples
each (``sizes``; with alpha = 0.1 the largest client has a hundred times the samples of
the median one). Each run with bounds is compared with the run of the same seed without:
difference of the accuracy (mean over clients, per cent), mean over seeds with the
sample standard deviation; and in how many of 100 replies a bound acted. Where none did,
the two runs are equal to the bit, and the one without is not run.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedapps.runs.execution import execute_inline
from fedapps.settings.reading import read_settings

METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fedadam",
    "feddyn",
    "q-fedavg",
    "ditto",
    "fedper",
    "pfedme",
    "superfed-mm",
)
DATA = ("labels 0.1", "labels 0.5", "sizes 0.1", "sizes 0.5")
CLIENTS, SAMPLES, LEAST = 20, 1797, 10
JOB = {
    "num-clients": CLIENTS,
    "clients-per-round": 10,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "train.local-epochs": 3,
    "train.learning-rate": 0.05,
}


def dealt(data: str, seed: int) -> dict[str, Any]:
    """Return the settings that deal the samples."""
    kind, alpha = data.split()
    if kind == "labels":
        return {"data.partition": "dirichlet", "data.alpha": float(alpha)}
    shares = np.random.default_rng(seed).dirichlet([float(alpha)] * CLIENTS)
    sizes = LEAST + np.floor(shares * (SAMPLES - CLIENTS * LEAST)).astype(int)
    sizes[0] += SAMPLES - sizes.sum()
    return {
        "data.partition": "flwr:SizePartitioner",
        "data.partition-arguments": f"partition_sizes = {sizes.tolist()}",
    }


def run(given: dict[str, Any], update: float, weight: float) -> tuple[float, float]:
    """Return the accuracy of a run in per cent, and the share of replies on which a
    bound acted.
    """
    with tempfile.TemporaryDirectory() as folder:
        bounds = {"max-relative-update": update, "max-weight": weight}
        summary = execute_inline(read_settings({**given, **bounds, "out": folder}))
        lines = (Path(folder) / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    acted = sum(len({*row.get("shortened", ()), *row.get("capped", ())}) for row in rows)
    return 100 * float(summary["accuracy-mean"]), acted / sum(len(row["clients"]) for row in rows)


def main() -> None:
    """Print the tables in Markdown, and each cell to the error stream when known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bounds", nargs="+", default=["default", "3:3"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("flwr").propagate = False
    logging.getLogger("flwr").handlers.clear()
    tables: dict[str, list[str]] = {pair: [] for pair in chosen.bounds}
    for method in chosen.methods:
        cells: dict[str, list[str]] = {pair: [] for pair in chosen.bounds}
        for data in chosen.data:
            rows: dict[str, list[tuple[float, float]]] = {pair: [] for pair in chosen.bounds}
            for seed in range(chosen.seeds):
                given = {**JOB, "method": method, "seed": seed, "num-rounds": chosen.rounds}
                given |= dealt(data, seed)
                free: float | None = None
                for pair in chosen.bounds:
                    bounds = "-1:-1" if pair == "default" else pair
                    accuracy, acted = run(given, *map(float, bounds.split(":")))
                    if acted and free is None:
                        free = run(given, 0.0, 0.0)[0]
                    rows[pair].append((accuracy - free if acted and free else 0.0, acted))
            for pair, found in rows.items():
                cells[pair].append(_cell(found))
                print(pair, method, data, cells[pair][-1], file=sys.stderr, flush=True)
        for pair, row in cells.items():
            tables[pair].append(f"| {method} | {' | '.join(row)} |")
    for pair, lines in tables.items():
        print(f"\n{pair}\n\n| method | {' | '.join(chosen.data)} |")
        print(f"| --- |{' --- |' * len(chosen.data)}", *lines, sep="\n")


def _cell(found: list[tuple[float, float]]) -> str:
    differences, shares = zip(*found, strict=True)
    spread = f" ± {statistics.stdev(differences):.1f}" if len(differences) > 1 else ""
    return f"{statistics.mean(differences):+.1f}{spread} ({100 * statistics.mean(shares):.0f})"


if __name__ == "__main__":
    main()
