"""Base of the methods for constrained problems: ``min F(x) = (1/n) sum_i f_i(x)`` over
a convex compact set, and their evaluation.

Contract of an evaluation. The message is a training message whose configuration holds
``phase = "evaluate"``, so the reply can carry arrays: the gradient of f_i at x_bar (one
array of the domain's shape, or the values and int64 flat indices of a sparse gradient).
Its metrics are ``num-examples``, ``loss`` = f_i(x_bar) and, if the client keeps its own
point, ``distance`` = ||x_i - x_bar||. From the replies of all clients the server
reports ``objective`` = F(x_bar), ``gap`` = <grad F, x_bar - lmo(grad F)>, which bounds
F(x_bar) - min F if F is convex, and ``consensus`` = sqrt(sum_i ||x_i - x_bar||^2). A
gap of at most ``tolerance`` ends the run.

A problem may need constants that depend on the clients' data (``Centering`` of a
matrix). The first rounds then ask for them: the configuration
holds ``phase = "prepare"`` and ``stage``, the arrays hold what the server knows, and
all clients reply with sums over their samples, as float64 arrays. From then on the
constants follow the point in every message, and in the model.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.contract.sent import PhaseSent
from fedapps.algorithms.contract.wire import read
from fedapps.algorithms.frank_wolfe.centering import Centering
from fedapps.algorithms.frank_wolfe.domain import Array, Domain
from fedapps.algorithms.frank_wolfe.steps import duality_gap
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import arrays_of, metrics_of, to_record, values_in
from fedapps.strategies.base.named_grid import clients_of
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

Measure = Callable[[Array, Mapping[str, float], int], Mapping[str, float]]
PREPARATION = "preparation."


class Constrained(FedAvg):
    """Base strategy of a method over ``domain``; clients have equal weights.
    Subclasses: ``configure_step`` and ``aggregate_step``.

    ``tolerance``: stop once the gap is at most this (0: never). ``measure(x_bar, means,
    num_clients)`` returns further metrics to report; ``means``: the clients' metrics,
    averaged uniformly, and ``objective``. ``preparation``: what to ask the clients
    first. Keyword arguments as in FedAvg.
    """

    capabilities = Capabilities(replies="other", aggregation="single replies", any_scale=True)
    scheduled = True

    def __init__(
        self,
        domain: Domain,
        *,
        tolerance: float = 0.0,
        measure: Measure | None = None,
        preparation: Centering | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**({"weights": "uniform"} | kwargs))
        self.domain = domain
        self.tolerance = tolerance
        self.measure = measure
        self.preparation = preparation
        self.finished = False
        self.own_measures: Mapping[str, float] = {}
        self._asked = 0
        self._evaluated: Array = np.zeros(0)
        self._prepared_rounds = 0
        self._model = ArrayRecord()  # the model at the start of this round

    # --- a round: preparation, then steps ---------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all clients the next question of the preparation; when there is none,
        configure a step of the method.
        """
        # A copy: the loop keeps its record, and entries of this round must not reach
        # the next. Flower's own loop leaves the round number to the strategy.
        config = ConfigRecord({**config, "server-round": server_round})
        if server_round == 1:
            self.open_model(arrays, server_round)
        self._model = arrays
        if self.preparation and self.preparation.stage:
            config.update(PhaseSent("prepare", self.preparation.stage).to_config())
            question = self.preparation.question()
            content = to_record([str(i) for i in range(len(question))], question)
            return self._messages(content, config, list(clients_of(grid)), MessageType.TRAIN)
        steps = self.rounds_in(config, server_round) - self._prepared_rounds
        return self.configure_step(
            server_round - self._prepared_rounds, steps, arrays, config, grid
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the answers to a question, or aggregate a step."""
        if self.preparation and self.preparation.stage:
            return self._take_answers(replies, self.preparation), None
        return self.aggregate_step(server_round, replies)

    @abstractmethod
    def configure_step(
        self, step: int, num_steps: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of round ``step`` = 1, 2, ... of ``num_steps``, counted
        without the preparation.
        """

    @abstractmethod
    def aggregate_step(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model and metrics."""

    def _take_answers(
        self, replies: Iterable[Message], preparation: Centering
    ) -> ArrayRecord | None:
        """Add up the answers; return the model with the constants once the last
        question is answered.
        """
        self._prepared_rounds += 1
        shapes, answers = preparation.shapes(), []
        for reply in self.answered(replies):
            arrays = values_in(reply.content)
            if [array.shape for array in arrays] == shapes and all(
                array.dtype == np.float64 for array in arrays
            ):
                answers.append(arrays)
            else:
                log(
                    WARNING,
                    "skipped node %d: its sums are not float64 arrays of shapes %s",
                    reply.metadata.src_node_id,
                    shapes,
                )
        if answers:  # otherwise the question is asked again
            preparation.take([np.sum(parts, axis=0) for parts in zip(*answers, strict=True)])
        constants = {} if preparation.stage else preparation.constants()
        return (
            ArrayRecord({**self._model, **to_record(list(constants), list(constants.values()))})
            if constants
            else None
        )

    # --- the model --------------------------------------------------------------------

    def open_model(self, arrays: ArrayRecord, server_round: int = 0) -> Array:
        """Return a copy of x_bar. Raises ``ValueError`` if it does not fit the domain
        or, in round 1, lies outside.
        """
        layers = [read(array) for array in arrays.values()][: self.domain.num_layers]
        x_bar = np.array(self.domain.join(layers))
        if server_round == 1 and not self.domain.contains(x_bar, 1e-5):
            raise ValueError(
                f"the initial point lies outside the {type(self.domain).__name__}: start from "
                "domain.start() or from a projected point"
            )
        return x_bar

    def model(self, x_bar: Array) -> ArrayRecord:
        """Return the round's model with the layers of another x_bar."""
        return ArrayRecord({**self._model, **to_record(self.layer_names, self.domain.split(x_bar))})

    @property
    def layer_names(self) -> list[str]:
        """The names of the arrays of x_bar."""
        return list(self._model)[: self.domain.num_layers]

    # --- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the preparation's state."""
        if self.preparation is None:
            return {}
        state = under(PREPARATION, self.preparation.state_dict())
        return state | {f"{PREPARATION}rounds": np.array(self._prepared_rounds)}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if self.preparation is None:
            return super().load_state_dict(state)
        own = within(PREPARATION, state)
        if not own:
            raise ValueError(
                "the checkpoint holds no preparation: an older version wrote it; start a new run"
            )
        self._prepared_rounds = int(own.pop("rounds"))
        return self.preparation.load_state_dict(own)

    # --- evaluation -------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Request the loss and gradient at x_bar."""
        if self.fraction_evaluate == 0 or (self.preparation and self.preparation.stage):
            return []
        config.update({"server-round": server_round, **PhaseSent("evaluate").to_config()})
        nodes = self._sample(grid, server_round, MessageType.EVALUATE)
        self._evaluated, self._asked = self.open_model(arrays), len(list(grid.get_node_ids()))
        return self._messages(arrays, config, nodes, MessageType.TRAIN)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics; if all clients replied, add objective, gap, consensus
        and the metrics of ``measure``.
        """
        self.own_measures = {}
        valid = self.answered(replies)
        if not valid:
            return None
        metrics = self.evaluate_metrics_aggr_fn(
            [reply.content for reply in valid], self.weighted_by_key
        )
        own = self._at_the_mean(valid)
        self.finished = self.tolerance > 0 and own.get("gap", math.inf) <= self.tolerance
        self.own_measures = own | dict(self.preparation.metrics() if self.preparation else {})
        return MetricRecord({**metrics, **self.own_measures})

    def _at_the_mean(self, valid: list[Message]) -> dict[str, float]:
        """Return objective, gap, consensus and the metrics of ``measure`` at x_bar;
        empty unless all clients replied.
        """
        if not (means := self._means(valid)):
            return {}
        measures = {"objective": means["objective"]} | self._gap(valid)
        if "distance" in means:
            measures["consensus"] = math.sqrt(
                sum(float(metrics_of(reply.content)["distance"]) ** 2 for reply in valid)
            )
        if self.measure:
            try:
                measured = self.measure(self._evaluated, means, len(valid))
            except KeyError as missing:
                log(
                    WARNING,
                    "the task's measures are missing: a client did not report %s",
                    missing,
                )
            else:
                measures |= {name: float(value) for name, value in measured.items()}
        return measures

    def _means(self, valid: list[Message]) -> dict[str, float]:
        """Return the metrics that all clients reported, averaged uniformly, and
        ``objective``.
        """
        if len(valid) < self._asked:  # F is known only from all clients
            return {}
        listed = [metrics_of(reply.content) for reply in valid]
        names = [
            name
            for name in listed[0]
            if all(isinstance(row.get(name), int | float) for row in listed)
        ]
        if "loss" not in names:
            log(WARNING, "the duality gap is missing: a client did not report its loss")
            return {}
        means = {name: sum(float(row[name]) for row in listed) / len(listed) for name in names}
        return means | {"objective": means["loss"]}

    def _gap(self, valid: list[Message]) -> dict[str, float]:
        """Return the duality ``gap``, computed from the clients' gradients; empty if a
        gradient does not match the domain.
        """
        gradient = np.zeros(self.domain.shape)
        try:
            for reply in valid:
                _add(gradient, [read(array) for array in arrays_of(reply.content)[0].values()])
        except (ValueError, IndexError, TypeError) as error:
            log(
                WARNING,
                "the duality gap is missing: the gradient of node %d does not match the domain: %s",
                reply.metadata.src_node_id,
                error,
            )
            return {}
        return {"gap": duality_gap(self.domain, self._evaluated, gradient / len(valid))}


def _add(total: NDArray[np.float64], packed: list[Array]) -> None:
    """Add the gradient packed in a message to ``total``."""
    if len(packed) == 1:
        if packed[0].shape != total.shape:
            raise ValueError(f"its shape is {packed[0].shape}, but the domain has {total.shape}")
        total += packed[0]
    else:
        values, indices = packed
        if (
            values.shape != indices.shape
            or values.ndim != 1
            or indices.dtype.kind != "i"
            or indices.min(initial=0) < 0
        ):
            raise ValueError(
                f"its values have shape {values.shape}, its indices shape {indices.shape} and type "
                f"{indices.dtype}: both must be one-dimensional, and indices integers from 0"
            )
        total.reshape(-1)[indices] += values  # an index beyond the end is an IndexError
