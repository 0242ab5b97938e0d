"""FedFW and FedFW+ on quadratics, whose minimum a solver (daqp) finds.

    python benchmarks/quadratics.py [--rounds 1000] [--choose]

Ten clients have f_i(x) = ||A_i x - b_i||^2 with eight rows each of normal numbers and
40 unknowns, in an l1 ball or a simplex whose radius is half of the unconstrained
solution's norm, so that the constraint binds. Printed is F - min F, mean and deviation
over seeds 0, 1, 2, where all clients take part and where 3 of 10 do, with the lambda_0
that is best on seeds 100 and 101 (--choose: the table that it was chosen from). A plain
loop of the project's own steps, no messages.
"""

import argparse
import sys
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness.simplex import minimise_on_simplex
from fedapps.algorithms.frank_wolfe.atoms import Array
from fedapps.algorithms.frank_wolfe.domain import Domain
from fedapps.algorithms.frank_wolfe.objectives import LeastSquares
from fedapps.algorithms.frank_wolfe.steps import Schedule, client_step, dual_step
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, Simplex

CLIENTS, ROWS, SIZE = 10, 8, 40
LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: The dual step of FedFW+ over step size and penalty; None: FedFW, 0: as printed.
DUALS = {"FedFW": None, "FedFW+ as printed": 0.0, "FedFW+": 0.3}


def instance(domain: str, seed: int) -> tuple[Domain, list[LeastSquares], float]:
    """Return the domain, the f_i and the minimum of their mean."""
    rng = generator(seed, f"quadratics {domain}")
    a = rng.normal(size=(CLIENTS, ROWS, SIZE))
    b = rng.normal(size=(CLIENTS, ROWS)) + a @ rng.normal(size=SIZE)
    rows, sides = a.reshape(-1, SIZE), b.ravel()
    radius = 0.5 * float(np.abs(np.linalg.lstsq(rows, sides)[0]).sum())
    parts = [LeastSquares(*part) for part in zip(a, b, strict=True)]
    ball = L1Ball((SIZE,), radius) if domain == "l1 ball" else Simplex((SIZE,), radius)
    corners = radius * (np.hstack([rows, -rows]) if domain == "l1 ball" else rows)
    return ball, parts, minimum(corners, sides) / CLIENTS


def minimum(corners: Array, sides: Array) -> float:
    """Return the least ||corners p - b||^2, p on the simplex: a point of a polytope is
    a mean of its corners, of which ``corners`` (m, k) has the images A c.
    """
    # strictly convex for the solver; the same point has several p
    hessian = corners.T @ corners
    hessian += 1e-9 * np.trace(hessian) * np.eye(len(hessian)) / len(hessian)
    p = minimise_on_simplex(hessian, corners.T @ sides)
    return float(np.square(corners @ p - sides).sum())


def excess(
    domain: str, seed: int, lambda_0: float, dual: float | None, share: int, rounds: int
) -> float:
    """Return F(x_bar) - min F after the rounds, ``share`` of 10 clients in each."""
    ball, parts, least = instance(domain, seed)
    schedule = Schedule(lambda_0, participation=share / CLIENTS, dual=dual or 0.0)
    rng = generator(seed, "quadratics, clients")
    x = np.repeat(ball.start()[None].astype(float), CLIENTS, axis=0)
    y, x_bar = np.zeros_like(x), x[0].copy()
    for t in range(1, rounds + 1):
        step = schedule.at(t)
        drawn = rng.permutation(CLIENTS)[:share]
        if dual is not None:
            for k in drawn:
                dual_step(y[k], x[k], x_bar, step.dual)
        mean = y.mean(0)
        for k in drawn:
            own = None if dual is None else y[k] - mean
            client_step(ball, x[k], x_bar, parts[k].gradient(x[k]), CLIENTS, step, dual=own)
        x_bar = x.mean(0)
    return sum(part.value(x_bar) for part in parts) / CLIENTS - least


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--choose", action="store_true", help="print the choice of lambda_0, too")
    arguments = parser.parse_args()
    result = Table(title=f"F - min F after {arguments.rounds} rounds")
    chosen = Table(title="The same on seeds 100 and 101, mean")
    for table, more in ((result, ("best lambda_0", "F - min F")), (chosen, map(str, LAMBDAS))):
        for name in ("domain", "clients", "method", *more):
            table.add_column(name)
    for domain in ("l1 ball", "simplex"):
        for share in (10, 3):
            for name, dual in DUALS.items():
                row = [
                    np.mean(
                        [
                            excess(domain, s, value, dual, share, arguments.rounds)
                            for s in (100, 101)
                        ]
                    )
                    for value in LAMBDAS
                ]
                best = LAMBDAS[int(np.argmin(row))]
                runs = [excess(domain, s, best, dual, share, arguments.rounds) for s in (0, 1, 2)]
                start = domain, f"{share} of {CLIENTS}", name
                chosen.add_row(*start, *(f"{value:.3g}" for value in row))
                spread = f"{np.mean(runs):.3g} ± {np.std(runs, ddof=1):.2g}"
                result.add_row(*start, f"{best:g}", spread)
    for table in (chosen, result) if arguments.choose else (result,):
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
