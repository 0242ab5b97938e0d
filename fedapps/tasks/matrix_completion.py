"""Task ``matrix-completion``: minimise the squared error on observed entries over a
nuclear-norm ball.

The observations (``fedapps/tasks/observations.py``) are centred first, by sums over the
clients (``algorithms/frank_wolfe/centering.py``), and beside every result stand the
errors of predictors that are not learnt.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022,
section 5, which centres nothing.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.frank_wolfe.centering import Centering, Table
from fedapps.algorithms.frank_wolfe.domain import Array, Domain
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.clients.families.completion import CompletionProblem
from fedapps.clients.families.problems import Problem
from fedapps.data.source import GENERATED
from fedapps.errors import UserError
from fedapps.tasks.convex import NON_ZERO, ConstrainedTask
from fedapps.tasks.observations import Observations, observations
from fedapps.tasks.options import TEST

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
