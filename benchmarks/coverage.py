"""How often 95 % intervals of a mean gain contain the truth, over clients and seeds.

    python benchmarks/coverage.py [--repeats 5000] [--bootstrap 400]

Differences d[s, k] of K clients at S seeds are mu + a_s + b_k + e_sk, normal, with the
deviations that a row names. "These sites" must contain the mean over these clients,
"sites like these" mu. Beside them, for mu: a t interval over the seeds' means, and the
bootstrap that redraws seeds and, within them, clients, in the first repeats only. In
"dealt" studies each seed has other clients, b_sk in place of b_k; in "missing" ones a
tenth of the values is left out at random.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.common.seeds import generator
from fedapps.lab.results.seeds import Interval, crossed_interval, t_interval

Array = NDArray[np.float64]
CLIENTS, SEEDS = (8, 20, 60), (3, 5)
#: Deviations of clients, seeds and the rest, and what is special.
STUDIES = (
    (0.0, 0.0, 2.0, ""),
    (0.0, 0.5, 2.0, ""),
    (3.0, 0.0, 2.0, ""),
    (3.0, 0.5, 2.0, ""),
    (0.5, 1.0, 0.5, ""),
    (1.0, 0.5, 0.5, ""),
    (3.0, 0.5, 2.0, "missing"),
    (3.0, 0.5, 2.0, "dealt"),
)


def nested_bootstrap(table: Array, rng: np.random.Generator, draws: int = 300) -> Interval:
    """Return the interval of a bootstrap of seeds and, within them, clients (S, K)."""
    s, k = table.shape
    seeds = rng.integers(s, size=(draws, s, 1))
    means = table[seeds, rng.integers(k, size=(draws, s, k))].mean((1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(table.mean()), 0.0, float(low), float(high), s)


def covered(
    study: tuple[float, float, float, str], shape: tuple[int, int], repeats: int, bootstrap: int
) -> list[float]:
    """Return the shares in which the four intervals contain the truth, NaN for one that
    does not exist, and the mean width of the last one over that of t over seeds.
    """
    clients, seeds, rest, special = study
    rng = generator(0, f"coverage {study} {shape}")
    inside, widths = np.full((repeats, 4), np.nan), np.zeros((repeats, 2))
    for repeat in range(repeats):
        b = clients * rng.normal(size=shape if special == "dealt" else (1, shape[1]))
        table = b + seeds * rng.normal(size=(shape[0], 1)) + rest * rng.normal(size=shape)
        redrawn = nested_bootstrap(table, rng) if repeat < bootstrap else None
        if special == "missing":
            table[rng.random(shape) < 0.1] = np.nan
        means = np.nanmean(table, 1).tolist()
        these = t_interval(means)
        like = these if special == "dealt" else crossed_interval(table)
        for place, (one, truth) in enumerate(
            [
                (redrawn, 0.0),
                (these, 0.0),
                (None if special == "dealt" else these, b.mean()),
                (like, 0.0),
            ]
        ):
            if one is not None:
                inside[repeat, place] = one.low <= truth <= one.high
        if like is not None:
            widths[repeat] = like.high - like.low, these.high - these.low
    width, of_t = widths.mean(0)
    # a mean over the repeats that have the interval; of none it is NaN
    known = np.isfinite(inside).sum(0)
    shares = np.where(known > 0, np.nansum(inside, 0) / np.maximum(known, 1), np.nan)
    return [*shares, width / of_t]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5000)
    parser.add_argument("--bootstrap", type=int, default=400, help="repeats with a bootstrap")
    arguments = parser.parse_args()
    table = Table(title="Coverage of 95 % intervals, %")
    names = ("clients", "seeds", "rest", "", "S", "K")
    old = ("bootstrap", "t over seeds")
    for name in (*names, *old, "these sites", "sites like these", "its width / that of t"):
        table.add_column(name, justify="right")
    for study, s, k in product(STUDIES, SEEDS, CLIENTS):
        *shares, width = covered(study, (s, k), arguments.repeats, arguments.bootstrap)
        texts = ["-" if share != share else f"{100 * share:.1f}" for share in shares]
        table.add_row(*map(str, study), str(s), str(k), *texts, f"{width:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
