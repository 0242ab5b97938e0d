"""Time that Frank-Wolfe saves (an oracle compared with a projection) and that
federation adds (a round compared with a central step).

    python benchmarks/frank_wolfe.py [--largest N] [--only NAME] [--rounds N]

Gradients: noise for vectors and assignments; for matrices a rank-ten part in noise, as
an array, or (sparse) noise in one entry of a hundred, as an operator. The nuclear-norm
ball's oracle is Lanczos at two tolerances; its projection is a full SVD. The Birkhoff
polytope has no projection in closed form: Dykstra's alternating projections until the
sums are met to 1e-4. --largest: bound on rows of matrices (4000: the SVD takes
minutes).

Second table (--rounds 0: none): N rounds of every method through the inline engine,
next to N steps of central Frank-Wolfe on all clients' data in a plain loop, and of
copt's where it is installed; bytes of all messages of a round, next to FedAvg with
projection.
"""

import os

# more threads than free cores make small products a hundred times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.sparse import random_array
from scipy.sparse.linalg import aslinearoperator, svds

from fedapps.algorithms.frank_wolfe.atoms import Array, Atom, RankOne
from fedapps.algorithms.frank_wolfe.domain import Domain
from fedapps.algorithms.frank_wolfe.lanczos import generic_vector
from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Birkhoff,
    GroupL1,
    NuclearBall,
    Spectrahedron,
)
from fedapps.algorithms.frank_wolfe.objectives import SparseGradient
from fedapps.algorithms.frank_wolfe.steps import Schedule, move
from fedapps.algorithms.frank_wolfe.vector_domains import KSparse, L1Ball, Simplex
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.rounds import Round

BUDGET = 1.0  # seconds that a cell may take, beyond one call


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of one call."""
    times: list[float] = []
    while not times or (sum(times) < BUDGET and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times[len(times) > 1 :]))


def dykstra(x: Array, tolerance: float = 1e-4) -> Array:
    """Return the projection onto the Birkhoff polytope: unit sums (in closed form) and
    no negative entries, in turn.
    """
    q = len(x)
    point, correction = x, np.zeros_like(x)
    while True:
        rows, columns, total = 1 - point.sum(axis=1), 1 - point.sum(axis=0), q - point.sum()
        point = point + rows[:, None] / q + columns / q - total / q**2
        shifted = point + correction
        point = np.maximum(shifted, 0.0)
        correction = shifted - point
        if (
            max(np.abs(point.sum(axis=0) - 1).max(), np.abs(point.sum(axis=1) - 1).max())
            < tolerance
        ):
            return point


def matrix(rng: np.random.Generator, p: int) -> Array:
    """Return a p x p float32 matrix: rank ten, with falling singular values, in noise
    whose norm is that of the tenth.
    """
    left, right = (np.linalg.qr(rng.normal(size=(p, 10)))[0] for _ in range(2))
    signal = (left * np.linspace(4, 2, 10) * np.sqrt(p)) @ right.T
    return (signal + rng.normal(size=(p, p))).astype(np.float32)


def cases(largest: int) -> Iterator[tuple[str, str, Domain, Array, Callable[[Array], object]]]:
    """Yield name, size, domain, gradient and projection."""
    rng = np.random.default_rng(0)
    for d in (1000, 30_000, 1_000_000):
        for domain in (L1Ball(d, 10.0), Simplex(d), KSparse(d, d // 100)):
            yield type(domain).__name__, f"{d:,}", domain, rng.normal(size=d), domain.project
    for d in (64, 1000, 30_000):
        groups = GroupL1((d, 10), 5.0)
        yield "GroupL1", f"{d:,} x 10", groups, rng.normal(size=(d, 10)), groups.project
    for q in (12, 50, 200):
        yield "Birkhoff", f"{q} x {q}", Birkhoff((q, q)), rng.normal(size=(q, q)), dykstra
    for p in (n for n in (200, 500, 1000, 2000, 4000) if n <= largest):
        g = matrix(rng, p)
        for tolerance in (1e-2, 1e-4):
            ball = NuclearBall((p, p), 100.0, tolerance)
            yield (
                f"svds, {tolerance:g}",
                f"{p} x {p}",
                Arpack((p, p), 100.0, tolerance),
                g,
                no_projection,
            )
            yield (
                f"NuclearBall, {tolerance:g}",
                f"{p} x {p}",
                ball,
                g,
                ball.project if tolerance == 1e-2 else no_projection,
            )
        sparse = random_array(
            (p, p), density=0.01, rng=rng, dtype=np.float32, data_sampler=rng.standard_normal
        ).tocsr()
        yield (
            "NuclearBall, sparse",
            f"{p} x {p}",
            NuclearBall((p, p), 100.0),
            aslinearoperator(sparse),
            no_projection,
        )
        yield "svds, sparse", f"{p} x {p}", Arpack((p, p), 100.0), sparse, no_projection
    for p in (n for n in (200, 1000) if n <= largest):
        spectrahedron = Spectrahedron((p, p))
        g = matrix(rng, p)
        yield "Spectrahedron", f"{p} x {p}", spectrahedron, g + g.T, spectrahedron.project


class Arpack(NuclearBall):
    """The nuclear-norm ball with SciPy's ``svds`` (ARPACK) as its oracle, at the same
    tolerance, from the same vector.
    """

    def lmo(self, gradient: Any, warm: Atom | None = None) -> RankOne:
        """Return ``-radius u v'`` with the top singular pair."""
        p, q = self.shape
        start = generic_vector(min(p, q)) if warm is None else warm.u if p <= q else warm.v  # type: ignore[attr-defined]
        u, _, vt = svds(gradient, k=1, tol=self.tolerance, v0=start)
        return RankOne(u[:, 0], vt[0], -self.radius)


def no_projection(x: Array) -> None:
    """Stand for a projection that another row measures, or that does not take an
    operator.
    """


# --- rounds ---------------------------------------------------------------------------

METHODS = ("fedfw", "fedfw-plus", "projected-fedavg")
PROBLEMS: dict[str, tuple[int, float, dict[str, Any]]] = {  # clients, share of the rounds, settings
    "LASSO, 200 x 400": (10, 1.0, {"task": "lasso"}),
    "sparse logistic, digits": (10, 1.0, {"task": "sparse-logistic"}),
    "matrix completion, 943 x 1682": (
        40,
        0.1,
        {
            "task": "matrix-completion",
            "matrix-completion.rows": 943,
            "matrix-completion.columns": 1682,
            "matrix-completion.observations": 100_000,
            "matrix-completion.rank": 10,
        },
    ),
    "QAP, chr12a": (72, 0.3, {"task": "qap"}),
}


def central(problem: Any, domain: Domain, start: Array, rounds: int) -> float:
    """Return the seconds of a step of Frank-Wolfe on all data."""
    x, schedule, warm = start.copy(), Schedule(0.0), None
    begin = time.perf_counter()
    for t in range(1, rounds + 1):
        warm = domain.lmo(problem.gradient(x), warm)
        move(x, warm, schedule.at(t).eta)
    return (time.perf_counter() - begin) / rounds


def central_copt(problem: Any, domain: Domain, start: Array, rounds: int) -> float | None:
    """Return the seconds of a step of copt, same step sizes, its own oracle; ``None``
    where it has none, or is missing.
    """
    try:
        from copt import minimize_frank_wolfe
        from copt.constraint import L1Ball as CoptL1Ball
        from copt.constraint import TraceBall
    except ImportError:
        return None
    if isinstance(domain, L1Ball):
        oracle = CoptL1Ball(domain.radius).lmo
    elif isinstance(domain, NuclearBall):
        oracle = TraceBall(domain.radius, domain.shape).lmo
    else:
        return None

    def value_and_gradient(row: Array) -> tuple[float, Array]:
        x = row.reshape(domain.shape)
        gradient = problem.gradient(x)
        if isinstance(gradient, SparseGradient):
            dense = np.zeros(domain.shape)
            gradient.add_to(dense, 1.0)
            gradient = dense
        return problem.value(x), gradient.ravel()

    begin = time.perf_counter()
    minimize_frank_wolfe(
        value_and_gradient,
        start.ravel(),
        oracle,
        jac=True,
        step="sublinear",
        lipschitz=1.0,
        max_iter=rounds,
        tol=0,
    )
    return (time.perf_counter() - begin) / rounds


def rounds_table(rounds: int) -> Table:
    """Return seconds and bytes of a round of every method on every problem."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    table = Table(title="one round of all clients next to one central step")
    columns = [
        "problem",
        "method",
        "round, ms",
        "ms a client",
        "/ plain step",
        "/ copt",
        "up, bytes",
        "down, bytes",
        "/ projected",
    ]
    for column in columns:
        table.add_column(column, justify="left" if column in ("problem", "method") else "right")
    for name, (clients, share, config) in PROBLEMS.items():
        length = max(2, round(share * rounds))
        task: Any = build_task(read_settings({**config, "method": "fedfw"}))
        (start,) = task.initial_arrays().values()
        problem = task.problem(0, 1)
        plain, other = (
            step(problem, task.domain, start, length) for step in (central, central_copt)
        )
        table.add_row(name, "central, plain loop", f"{1e3 * plain:.3g}")
        if other is not None:
            table.add_row("", "central, copt", f"{1e3 * other:.3g}", "", f"{other / plain:.2g}")
        costs: dict[str, tuple[float, float, float]] = {}
        for method in METHODS:
            if method == "projected-fedavg" and config["task"] == "qap":
                continue  # no projection in closed form
            # 40 SVDs a round
            count = (
                2
                if method == "projected-fedavg" and config["task"] == "matrix-completion"
                else length
            )
            costs[method] = one_run(
                {**config, "method": method, "num-clients": clients, "num-rounds": count}
            )
        total = sum(costs.get("projected-fedavg", (0.0, 0.0, 0.0))[1:])
        for method, (duration, up, down) in costs.items():
            ratios = [f"{duration / plain:.3g}", f"{duration / other:.3g}" if other else ""]
            share_of = f"{(up + down) / total:.2g}" if total else ""
            table.add_row(
                "",
                method,
                f"{1e3 * duration:.3g}",
                f"{1e3 * duration / clients:.3g}",
                *ratios,
                f"{up:,.0f}",
                f"{down:,.0f}",
                share_of,
            )
    return table


def one_run(config: dict[str, Any]) -> tuple[float, float, float]:
    """Return the median seconds of a round of training, and the bytes up and down of
    the last one.
    """
    durations: list[float] = []
    traffic: list[tuple[int, int]] = []

    def note(now: Round) -> None:
        durations.append(now.seconds)
        traffic.append((now.trained.bytes_up, now.trained.bytes_down))

    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings(
            {
                **config,
                "clients-per-round": 0,
                "evaluate-every": 0,
                "checkpoint-every": 0,
                "out": folder,
            }
        )
        execute(settings, InlineGrid(app, settings.num_clients, settings.flat()), [note])
    return float(np.median(durations)), *traffic[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--largest", type=int, default=2000, metavar="N")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="first table: only domains whose name starts with NAME",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1000,
        metavar="N",
        help="rounds of the second table (default 1000)",
    )
    arguments = parser.parse_args()
    table = Table(title="one oracle call next to one projection")
    for column in (
        "domain",
        "size",
        "oracle, ms",
        "projection, ms",
        "ratio",
        "atom, bytes",
        "dense, bytes",
    ):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for name, size, domain, g, projection in cases(arguments.largest):
        if not name.startswith(arguments.only):
            continue
        atom = domain.lmo(g)
        oracle = seconds(lambda domain=domain, g=g: domain.lmo(g))  # type: ignore[misc]
        row = [name, size, f"{1e3 * oracle:.4g}"]
        if projection is no_projection:
            row += ["", ""]
        else:
            projected = seconds(lambda projection=projection, g=g: projection(g))  # type: ignore[misc]
            row += [f"{1e3 * projected:.4g}", f"{projected / oracle:.3g}"]
        table.add_row(
            *row, f"{atom.num_bytes:,}", f"{g.dtype.itemsize * int(np.prod(domain.shape)):,}"
        )
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    if arguments.rounds:
        console.print(rounds_table(arguments.rounds))


if __name__ == "__main__":
    main()
