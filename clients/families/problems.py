"""Base for clients of constrained problems: local objectives, mini-batch gradients,
replies to evaluation messages.

The message formats are documented in ``strategies/families/consensus.py``. This module
does not need PyTorch, for small devices; ``torch_problem.py`` has the loss of a net.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import RecordDict
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import PhaseSent, Reads, RoundFacts
from fedapps.algorithms.frank_wolfe.domain import Array, Domain
from fedapps.algorithms.frank_wolfe.objectives import Objective, SparseGradient
from fedapps.algorithms.frank_wolfe.steps import distance
from fedapps.clients.base.options import Config
from fedapps.clients.base.store import MessageStore, Store

Draw = Callable[[NDArray[np.int64]], Objective]


class Problem(Protocol):
    """A client's objective f_i, a function of one array of the domain's shape."""

    @property
    def num_examples(self) -> int:
        """The number of training samples."""

    def value(self, x: Array) -> float:
        """Return f_i(x)."""

    def gradient(self, x: Array) -> Any:
        """Return the gradient: an array of x's shape, or a ``SparseGradient``."""

    def batch_gradient(self, x: Array, rows: NDArray[np.int64]) -> Array:
        """Return the gradient estimated on the samples ``rows``."""

    def score(self, x: Array) -> Mapping[str, float]:
        """Return further metrics at x, on test samples for example."""


@runtime_checkable
class PreparedProblem(Problem, Protocol):
    """A problem with constants that the server computes from all clients' sums before
    the first step.
    """

    def answer(self, stage: str, estimates: Arrays) -> Arrays:
        """Return sums over this client's samples for a stage of the preparation."""

    def given(self, constants: Arrays) -> Problem:
        """Return the problem with the constants that came with a message, or with
        none.
        """


@dataclass(frozen=True, eq=False)
class ObjectiveProblem:
    """A problem given by an objective of ``algorithms/frank_wolfe/objectives.py``.

    ``batch``: rows -> an objective whose gradient estimates the full one (``None``:
    there are no samples); ``test``: x -> metrics.
    """

    objective: Objective
    batch: Draw | None = None
    test: Callable[[Array], Mapping[str, float]] | None = None

    @property
    def num_examples(self) -> int:
        """The number of training samples."""
        return self.objective.num_examples

    def value(self, x: Array) -> float:
        """Return f_i(x)."""
        return self.objective.value(x)

    def gradient(self, x: Array) -> Any:
        """Return the gradient."""
        return self.objective.gradient(x)

    def batch_gradient(self, x: Array, rows: NDArray[np.int64]) -> Array:
        """Return the gradient of ``batch(rows)``."""
        if self.batch is None:
            raise ValueError(
                f"{type(self.objective).__name__} has no samples to draw: set batch-size = 0"
            )
        return np.asarray(self.batch(rows).gradient(x))

    def score(self, x: Array) -> Mapping[str, float]:
        """Return the metrics of ``test``."""
        return self.test(x) if self.test else {}


class ConstrainedClient(NumPyClient):
    """Client with an objective f_i over a domain. Subclasses implement ``step``, and
    ``point`` if clients keep iterates of their own.

    ``client_id`` keys the client's random draws; ``store`` holds its state between
    rounds.
    """

    reads: Reads = (PhaseSent,)

    def __init__(
        self, problem: Problem, domain: Domain, client_id: int | str = 0, store: Store | None = None
    ) -> None:
        self.problem, self.domain = problem, domain
        self.client_id = client_id
        self.store = store if store is not None else MessageStore(RecordDict())

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the method's training reply; gradient and metrics at x_bar, or sums,
        if the message asks for these.
        """
        layers, problem = self.domain.num_layers, self.problem
        sent = PhaseSent.from_config(config)
        if isinstance(problem, PreparedProblem):
            if sent.phase == "prepare":
                answers = problem.answer(str(sent.stage), parameters)
                return answers, problem.num_examples, {}
            self.problem, parameters = problem.given(parameters[layers:]), parameters[:layers]
        x_bar = self.domain.join(parameters)
        answer = self.report if sent.phase == "evaluate" else self.step
        arrays, metrics = answer(x_bar, config)
        return arrays, self.problem.num_examples, metrics

    def step(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return the arrays and metrics of a training reply."""
        raise NotImplementedError

    def point(self, config: Config) -> Array | None:
        """Return the client's own iterate, if it has one."""
        return None

    def report(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return the gradient, f_i and further metrics at x_bar, and the distance of
        the client's own iterate from it.
        """
        metrics = {"loss": self.problem.value(x_bar), **self.problem.score(x_bar)}
        own = self.point(config)
        metrics["distance"] = 0.0 if own is None else distance(own, x_bar)
        gradient = self.problem.gradient(x_bar)
        if isinstance(gradient, SparseGradient):
            return [gradient.values, gradient.indices], metrics
        return [np.asarray(gradient)], metrics

    def gradient(self, x: Array, config: Config, batch_size: int, step: int) -> Any:
        """Return the gradient at x: on ``batch_size`` samples drawn for this step, or
        on all samples if that is 0.
        """
        if not batch_size:
            return self.problem.gradient(x)
        facts = RoundFacts.from_config(config)
        rng = generator(
            facts.seed, f"constrained batches {step}", self.client_id, facts.server_round
        )
        size = self.problem.num_examples
        return self.problem.batch_gradient(
            x, rng.choice(size, min(batch_size, size), replace=False)
        )
