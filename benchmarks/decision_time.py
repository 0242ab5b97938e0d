"""Time per round to decide the clients' weights: AAggFF-S, and AAggFF-D with many
clients.

    python benchmarks/decision_time.py [--silo 10 100 300] [--clients 1500000]
    [--sampled 5000] [--rounds 30]

AAggFF-S: log-normal losses of K clients, all of which answer; time of one whole
decision (gradient, sums, quadratic program) and the residual of the optimality
conditions, worst of all rounds. AAggFF-D: a uniform sample answers; time of a decision
without drawing the sample. State is what a checkpoint holds.
"""

import argparse
import sys
import time
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL, OnlineNewtonStep
from fedapps.algorithms.fairness.responses import respond

Array = NDArray[np.float64]


def residual(hessian: Array, linear: Array, p: Array) -> float:
    """Return how far p is from the conditions for the minimum of p'Hp/2 - b'p on the
    simplex.
    """
    slope = hessian @ p - linear
    return float(max(abs(p.sum() - 1), -p.min(), (p * (slope - slope.min())).max()))


def silo(count: int, rounds: int) -> list[str]:
    """Return the row of AAggFF-S for ``count`` clients."""
    rng = np.random.default_rng(0)
    rule, everyone, level = OnlineNewtonStep(count), np.arange(count), rng.lognormal(size=count)
    times, residuals = [], []
    for _ in range(rounds):
        r = respond(level * rng.lognormal(sigma=0.3, size=count), "weibull", rule.low, rule.high)
        start = time.perf_counter()
        rule.decide(everyone, r)
        times.append(time.perf_counter() - start)
        residuals.append(residual(*rule.program(), rule.p))
    return [
        f"{count}",
        f"{1e3 * np.median(times):.2f}",
        f"{1e3 * max(times):.2f}",
        f"{max(residuals):.0e}",
    ]


def device(count: int, size: int, rounds: int) -> list[str]:
    """Return the row of AAggFF-D for samples of ``size`` of ``count`` clients."""
    rng = np.random.default_rng(0)
    rule, times = LinearisedFTRL(count, size / count), []
    for _ in range(rounds):
        sampled = rng.choice(count, size, replace=False)
        start = time.perf_counter()
        rule.decide(sampled, respond(rng.lognormal(size=size), "normal", rule.low, rule.high))
        times.append(time.perf_counter() - start)
    state = sum(value.nbytes for value in rule.state_dict().values())
    return [
        f"{count:,}",
        f"{size:,}",
        f"{1e3 * np.median(times):.2f}",
        f"{1e3 * max(times):.2f}",
        f"{state / count:.1f}",
    ]


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description="Time decisions about weights.")
    parser.add_argument(
        "--silo", type=int, nargs="+", default=[10, 100, 300], help="clients of AAggFF-S"
    )
    parser.add_argument("--clients", type=int, default=1_500_000, help="clients of AAggFF-D")
    parser.add_argument("--sampled", type=int, default=5_000, help="clients sampled per round")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    console = Console()
    table = Table("K", "ms a round", "slowest, ms", "residual")
    for count in args.silo:
        table.add_row(*silo(count, args.rounds))
    console.print("AAggFF-S", table)
    table = Table("K", "sampled", "ms a round", "slowest, ms", "bytes of state a client")
    table.add_row(*device(args.clients, args.sampled, args.rounds))
    console.print("AAggFF-D, responses included", table)


if __name__ == "__main__":
    main()
