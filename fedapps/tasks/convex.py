"""Constrained tasks: ``lasso`` (generated) and ``qap``, whose optimum is known,
``sparse-logistic`` (digits) and ``matrix-completion``.

A task of a constrained method has ``domain``; ``problem(client_id, num_clients)``, a
client's f_i; ``lambda_0`` for FedFW and for FedFW+ and ``learning_rate``, the defaults
of the methods' options; ``preparation()``, what the clients are asked first, if
anything; ``measure``, the server's metrics of x_bar. Another such task:
``fedapps/tasks/constrained_classification.py``.

Matrix completion minimises the squared error on observed entries over a nuclear-norm
ball. The observations (``fedapps/tasks/observations.py``) are centred first, by sums
over the clients (``algorithms/frank_wolfe/centering.py``), and beside every result
stand the errors of predictors that are not learnt.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022,
section 5, which centres nothing.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.measures import topk_accuracy
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.frank_wolfe.centering import Centering, Table
from fedapps.algorithms.frank_wolfe.domain import Array, Domain
from fedapps.algorithms.frank_wolfe.matrix_domains import Birkhoff, GroupL1, NuclearBall
from fedapps.algorithms.frank_wolfe.objectives import (
    LeastSquares,
    Logistic,
    QuadraticAssignment,
    read_qaplib,
)
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients.families.completion import CompletionProblem
from fedapps.clients.families.problems import ObjectiveProblem, Problem
from fedapps.data.source import GENERATED, Source
from fedapps.data.sources import digits_table
from fedapps.errors import UserError, reason
from fedapps.tasks.base import dealt
from fedapps.tasks.context import RunContext
from fedapps.tasks.observations import Observations, observations
from fedapps.tasks.options import LASSO, TEST

# An entry counts as non-zero from this fraction of the largest entry: Frank-Wolfe
# shrinks earlier atoms but never removes them.
NON_ZERO = 1e-3


class ConstrainedTask:
    """Base of the constrained tasks; caches the clients' objectives in the process."""

    name: str
    lambda_0: tuple[float, float]  # for FedFW and FedFW+; 0: from the curvature
    curvature: float = 0.0
    learning_rate: float = 0.1

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options = options
        self.source = Source(context.data.source, context.data.split)
        self.seed = context.seed
        self._problems: dict[tuple[int, int], Problem] = {}

    @property
    def domain(self) -> Domain:
        """The constraint set."""
        raise NotImplementedError

    def make(self, client: int, num_clients: int) -> Problem:
        """Build a client's f_i; called once per client."""
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Build the first client's f_i, so that errors are reported before a run
        starts.
        """
        self.problem(0, num_clients)

    def problem(self, client_id: int | str, num_clients: int) -> Problem:
        """Return a client's f_i."""
        client = dealt(client_id, num_clients)
        if (client, num_clients) not in self._problems:
            self._problems[client, num_clients] = self.make(client, num_clients)
        return self._problems[client, num_clients]

    def preparation(self) -> Centering | None:
        """Return what to ask the clients before the first step, or ``None``."""
        return None

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the initial point, which lies in the domain."""
        return {"x": self.domain.start()}

    def measure(self, x: Array, means: Mapping[str, float], num_clients: int) -> dict[str, float]:
        """Return the server's metrics of x; ``means``: the clients' metrics, averaged
        uniformly.
        """
        sizes = np.abs(x)
        return {"non-zeros": float((sizes > NON_ZERO * sizes.max()).sum())}

    def deal(self, total: int, what: str, client: int, num_clients: int) -> NDArray[np.int64]:
        """Return the client's block of 0..total-1, which is divided into blocks of
        nearly equal size.
        """
        if num_clients > total:
            raise UserError(
                f"num-clients = {num_clients}, but task {self.name!r} has {total} {what} to deal: "
                f"choose 1..{total}"
            )
        return np.array_split(np.arange(total), num_clients)[client]


# --- lasso ----------------------------------------------------------------------------


class Lasso(ConstrainedTask):
    """``||A x - b||^2`` over an l1 ball, b = A x*: the columns of A have variances from
    U[1, 2]; its rows are dealt in blocks.
    """

    name = "lasso"
    lambda_0 = (5.0, 1.0)  # FedFW+: for its falling dual step; the paper's is 0.5

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        rng, o = generator(self.seed, "lasso"), self.options
        self.a = rng.normal(size=LASSO) * np.sqrt(rng.uniform(1, 2, LASSO[1]))
        self.solution = np.zeros(LASSO[1])
        self.solution[rng.choice(LASSO[1], o.sparsity, replace=False)] = rng.normal(size=o.sparsity)
        self.b = self.a @ self.solution

    @cached_property
    def domain(self) -> Domain:
        """The l1 ball."""
        return L1Ball(LASSO[1:], self.options.radius or float(np.abs(self.solution).sum()))

    @cached_property
    def learning_rate(self) -> float:  # type: ignore[override]
        """One over a bound on the smoothness constant of every client's f_i."""
        return float(1 / (2 * np.linalg.norm(self.a, 2) ** 2))

    def make(self, client: int, num_clients: int) -> Problem:
        """Return a block of rows; mini-batches are rescaled to the whole block."""
        rows = self.deal(LASSO[0], "rows", client, num_clients)
        a, b = self.a[rows], self.b[rows]

        def batch(at: NDArray[np.int64]) -> LeastSquares:
            scale = np.sqrt(len(rows) / len(at))
            return LeastSquares(scale * a[at], scale * b[at])

        return ObjectiveProblem(LeastSquares(a, b), batch)

    def measure(self, x: Array, means: Mapping[str, float], num_clients: int) -> dict[str, float]:
        """Return non-zeros, the distance to x*, the share of its support among the
        largest entries of x, and the residual F(x).
        """
        support = np.flatnonzero(self.solution)
        largest = np.argsort(-np.abs(x), kind="stable")[: len(support)]
        out = {
            **super().measure(x, means, num_clients),
            "support-found": float(np.isin(largest, support).mean()),
        }
        out["solution-distance"] = float(np.linalg.norm(x - self.solution))
        known = not self.options.radius or self.options.radius >= np.abs(self.solution).sum()
        return out | ({"residual": means["objective"]} if known else {})


# --- sparse-logistic ------------------------------------------------------------------


class SparseLogistic(ConstrainedTask):
    """Multi-class logistic regression on the bundled digits, dealt at random; the
    weights of each class lie in an l1 ball.
    """

    name = "sparse-logistic"
    lambda_0 = (4e-4, 1e-4)
    learning_rate = 0.5

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        digits = digits_table()
        order = generator(self.seed, "sparse-logistic").permutation(len(digits))
        cut = round(TEST * len(order))
        self.x, self.y = digits[:, :-1] / 16, digits[:, -1].astype(np.int64)
        self.test, self.train = order[:cut], order[cut:]

    @cached_property
    def domain(self) -> Domain:
        """One l1 ball per class."""
        return GroupL1((self.x.shape[1], 10), self.options.radius)

    def make(self, client: int, num_clients: int) -> Problem:
        """Return the f_i of a part of the training samples; metrics are computed on a
        part of the test samples.
        """
        rows = self.train[self.deal(len(self.train), "training samples", client, num_clients)]
        tests = self.test[self.deal(len(self.test), "test samples", client, num_clients)]
        x, y, test_x, test_y = self.x[rows], self.y[rows], self.x[tests], self.y[tests]
        scored = Logistic(test_x, test_y, 10)

        def test(point: Array) -> dict[str, float]:
            return {
                "accuracy": topk_accuracy(test_x @ point, test_y, 1),
                "test-loss": scored.value(point),
            }

        return ObjectiveProblem(Logistic(x, y, 10), lambda at: Logistic(x[at], y[at], 10), test)


# --- qap ------------------------------------------------------------------------------

# chr12a of QAPLIB, optimum 9552: the edges of the tree A, and B above its diagonal.
# Source: Christofides, Benavent, "An Exact Algorithm for the Quadratic Assignment
# Problem on a Tree", Operations Research 1989, DOI 10.1287/opre.37.5.760.
CHR12A_EDGES = (
    (0, 1, 90),
    (0, 2, 10),
    (0, 3, 23),
    (0, 4, 43),
    (1, 5, 88),
    (2, 6, 26),
    (2, 7, 16),
    (5, 8, 1),
    (7, 9, 96),
    (8, 10, 29),
    (9, 11, 37),
)
CHR12A_DISTANCES = """36 54 26 59 72 9 34 79 17 46 95  73 35 90 58
    30 78 35 44 79 36  21 10 97 58 66 69 61 54 63
    93 12 46 40 37 48 68 85  64 5 29 76 16 5 76  96 55 38 54 0 34  83 35 11
    56 37  44 12 15 80  64 39 33  70 86  18"""


def chr12a() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrices A and B (12, 12) of the instance chr12a."""
    a, b = np.zeros((12, 12)), np.zeros((12, 12))
    for i, j, weight in CHR12A_EDGES:
        a[i, j] = a[j, i] = weight
    b[np.triu_indices(12, 1)] = [float(word) for word in CHR12A_DISTANCES.split()]
    return a, b + b.T


class Qap(ConstrainedTask):
    """``trace(A X B' X')`` over doubly stochastic X; the entries of B are dealt row by
    row.
    """

    name = "qap"
    lambda_0 = (65.0, 10.0)

    @cached_property
    def matrices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The matrices A and B."""
        if self.source.name == "chr12a":
            return chr12a()
        try:
            a, b = read_qaplib(Path(self.source.name).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.source.given}: cannot be read: {reason(error)}") from None
        return a, b

    @cached_property
    def domain(self) -> Domain:
        """The Birkhoff polytope."""
        return Birkhoff(self.matrices[0].shape)

    def make(self, client: int, num_clients: int) -> Problem:
        """Return the part of the cost that belongs to some entries of B; the metric is
        its value at the nearest permutation.
        """
        a, b = self.matrices
        entries = self.deal(b.size, "entries of B", client, num_clients)
        part = QuadraticAssignment(a, b, [divmod(int(entry), len(b)) for entry in entries])
        return ObjectiveProblem(
            part, None, lambda x: {"rounded-loss": part.value(self.domain.lmo(-x).dense())}
        )

    def measure(self, x: Array, means: Mapping[str, float], num_clients: int) -> dict[str, float]:
        """Return the total cost of x and of the nearest permutation."""
        return {
            "relaxed-cost": num_clients * means["objective"],
            "rounded-cost": num_clients * means["rounded-loss"],
        }


# Points with at least this many entries are stored in single precision: half the memory
# and time.
SINGLE_PRECISION = 2**18
# Radius of centred observations of unit deviation, over the root of their number:
# sqrt(m) is the order of the largest singular value of noise at m places, and of the
# norm of what can be learned from it. Wide optimum: docs/fedfw.md.
RADIUS = 0.7


class Completion(ConstrainedTask):
    """Matrix completion; the observations are shuffled and split into training and
    test, and dealt to the clients: evenly, or by users, a user's all to one client.
    """

    name = "matrix-completion"
    lambda_0 = (0.0, 0.0)  # from the curvature
    curvature = 2.0  # of (x - z)^2, an observed entry
    learning_rate = 0.5  # one over the curvature

    @cached_property
    def observed(self) -> Observations:
        """The shuffled observations, in the order in which they are dealt."""
        return observations(self.options, self.source, self.seed)

    @property
    def center(self) -> str:
        """What is subtracted: of a generated matrix, whose entries have mean 0,
        nothing, otherwise biases.
        """
        chosen: str = self.options.center
        return chosen if chosen != "auto" else "none" if self.source.name == GENERATED else "bias"

    def preparation(self) -> Centering:
        """Return the questions to the clients before the first step."""
        return Centering(self.observed.shape, self.center)

    @cached_property
    def domain(self) -> Domain:
        """The nuclear-norm ball."""
        observed = self.observed
        chosen = (
            observed.norm
            if self.center == "none"
            else RADIUS * math.sqrt(len(observed.values) - self._cut)
        )
        radius = self.options.radius or chosen
        if not radius:
            raise UserError(
                "matrix-completion.radius = 0: the norm of a table of ratings is not known: choose "
                "center = 'bias', which needs no "
                "radius, or set one (the paper has 7000 for the ratings of MovieLens-100k)"
            )
        return NuclearBall(observed.shape, radius)

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the domain's initial point, in single precision if it is large."""
        start = self.domain.start()
        return {"x": start.astype(np.float32) if start.size >= SINGLE_PRECISION else start}

    @property
    def _cut(self) -> int:
        return round(TEST * len(self.observed.values))

    def check(self, num_clients: int) -> None:
        """Also deal all users, each of which may have few observations."""
        super().check(num_clients)
        if self.options.partition == "users":
            for client in range(num_clients):
                self._dealt(client, num_clients)

    def make(self, client: int, num_clients: int) -> Problem:
        """Return the f_i of a part of the training observations; its metrics are the
        squared errors on training and test parts.
        """
        rows, tests = self._dealt(client, num_clients)
        return CompletionProblem(
            self._part(rows), self._part(tests), self.observed.shape, self.options.clip
        )

    def _dealt(self, client: int, num_clients: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a client's training and test observations. The test observations of
        all clients together are the same for every way to deal.
        """
        total = len(self.observed.values) - self._cut
        if self.options.partition == "iid":
            tests = self.deal(self._cut, "test observations", client, num_clients)
            return self._cut + self.deal(total, "training observations", client, num_clients), tests
        users = np.flatnonzero(np.bincount(self.observed.rows))
        users = users[generator(self.seed, "users").permutation(len(users))]
        mine = users[self.deal(len(users), "users", client, num_clients)]
        own = np.flatnonzero(np.isin(self.observed.rows, mine))
        rows, tests = own[own >= self._cut], own[own < self._cut]
        if not len(rows):
            raise UserError(
                f"matrix-completion.partition = 'users': client {client} of {num_clients} has no "
                "training observations: choose fewer clients"
            )
        return rows, tests

    def _part(self, at: NDArray[np.int64]) -> Table:
        o = self.observed
        return Table(o.rows[at], o.columns[at], o.values[at])

    def measure(self, x: Array, means: Mapping[str, float], num_clients: int) -> dict[str, float]:
        """Return the root mean squared errors and the rank."""
        sizes = np.linalg.svd(x, compute_uv=False)
        return {
            "rmse": math.sqrt(means["squared-error"] / means["observations"]),
            "test-rmse": math.sqrt(means["test-squared-error"] / means["test-observations"]),
            "rank": float((sizes > NON_ZERO * sizes[0]).sum()),
        }
