"""Effect of AAggFF-D's steps, cap and prior when losses differ persistently between
clients, without any training.

    python benchmarks/weight_steps.py [--clients 689] [--sampled 5] [--rounds 300]
    [--seeds 5]

A tenth of the clients has a loss that is some multiple of the others' in every round,
times log-normal noise of 0.2; the rule decides from a uniform sample. Prints the
tenth's share of all weight over its share of the clients, and the largest weight over
its uniform share, mean ± sample standard deviation over seeds. In a second table one of
several equal clients reports a loss of 1e6.
"""

import argparse
import sys
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL
from fedapps.algorithms.fairness.responses import CDFS, respond

Array = NDArray[np.float64]
HOW: dict[str, dict[str, float | str]] = {
    "(3.12)": {"step": "paper"},
    "(3.12), rate 20": {"step": "paper", "rate": 20.0},
    "sampled, no cap": {"step": "sampled"},
    "sampled, cap 3": {"step": "sampled", "cap": 3.0},
    "sampled, rate 2, cap 3": {"step": "sampled", "rate": 2.0, "cap": 3.0},
}


def played(
    level: Array, cdf: str, args: argparse.Namespace, seed: int, how: dict[str, float | str]
) -> Array:
    """Return all weights times K, after the rounds, of clients whose losses are
    ``level`` times noise.
    """
    rng = np.random.default_rng(seed)
    rule = LinearisedFTRL(len(level), args.sampled / len(level), **how)  # type: ignore[arg-type]
    for _ in range(args.rounds):
        sampled = rng.choice(len(level), args.sampled, replace=False)
        losses = level[sampled] * rng.lognormal(sigma=0.2, size=args.sampled)
        rule.decide(sampled, respond(losses, cdf, rule.low, rule.high))
    return rule.p * len(level)


def spread(values: list[float]) -> str:
    """Return mean ± sample standard deviation."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def main() -> None:
    """Play and print two tables."""
    parser = argparse.ArgumentParser(
        description="AAggFF-D's weights of clients that are served worse."
    )
    parser.add_argument("--clients", type=int, default=689)
    parser.add_argument("--sampled", type=int, default=5, help="clients sampled per round")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    console, worst = Console(width=170), np.arange(args.clients) < args.clients // 10
    table = Table(
        "cdf",
        "losses of a tenth",
        *(f"{name}: {what}" for name in HOW for what in ("mass", "largest")),
    )
    for cdf in CDFS:
        for multiple in (1.5, 2.0, 3.0):
            row = []
            for how in HOW.values():
                runs = [
                    played(np.where(worst, multiple, 1.0), cdf, args, seed, how)
                    for seed in range(args.seeds)
                ]
                row += [
                    spread([float(p[worst].mean()) for p in runs]),
                    f"{np.mean([p.max() for p in runs]):.1f}",
                ]
            table.add_row(cdf, f"{multiple:g} times", *row)
    console.print(table)
    table = Table("cdf", *(f"{name}: weight of the one" for name in HOW))
    level = np.ones(args.clients)
    level[0] = 1e6
    for cdf in CDFS:
        row = [
            spread([float(played(level, cdf, args, seed, how)[0]) for seed in range(args.seeds)])
            for how in HOW.values()
        ]
        table.add_row(cdf, *row)
    console.print("one client that reports 1e6", table)


if __name__ == "__main__":
    main()
