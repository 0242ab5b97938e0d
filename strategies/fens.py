"""FENS: each client trains a predictor once, and FedAvg then trains a small net, the
aggregator, on the outputs of all predictors.

Source: Allouah, Dhasade, Guerraoui, Gupta, Kermarrec, Pinot, Pires, Sharma, "Revisiting
Ensembling in One-Shot Federated Learning", NeurIPS 2024, arXiv 2411.07182: FENS with
the neural aggregator. With the predictors h_1 .. h_M of M clients, of C classes:

    round 1:   client i sends h_i, trained on its own samples
    afterwards f(x) = A(h_1(x), ..., h_M(x); theta), where A has the M C outputs as its
               input; client i: local steps of its cross-entropy in theta alone
               server: theta <- sum_i (n_i / n) theta_i

A is ``linear(M C, hidden)``, ReLU, ``linear(hidden, C)``; with ``hidden = 0`` it is
``linear(M C, C)``: logistic regression on the stacked outputs. The clients compute the
outputs once, so a round costs the size of theta and steps on a small net.

Contract. In the first round the configuration holds ``phase`` = "train-predictor" and
the message no arrays; the reply holds the arrays of one predictor, named in
``predictor-arrays``. Later messages hold theta, ``0.weight`` (out, in), ``0.bias``
(out,), with a hidden layer also ``2.weight`` and ``2.bias``; for clients that have no
outputs yet after them the predictors, ``predictor.NAME`` (M, ...), whose names
``fens-predictors`` lists. The reply holds theta. A client that cannot find its outputs
fails, and is sent the predictors again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import CollectingSent, FENSSent
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.families.predictor_replies import alike_predictors
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

PREDICTOR = "predictor."


@dataclass(frozen=True)
class FENSOptions(Options):
    """Options of FENS."""

    hidden: int = option(32, "width of the aggregator's hidden layer; 0: it is linear", low=0)


class FENS(FedAvg):
    """FENS strategy. ``num_classes``: C, the outputs of a predictor; ``seed``: of the
    first theta. Keyword arguments as in FedAvg.
    """

    def __init__(
        self,
        num_classes: int,
        options: FENSOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.options, self.seed = num_classes, options or FENSOptions(), seed
        #: The predictors by name of array, each (M, ...); empty before the first round.
        self.predictors: dict[str, NDArray[Any]] = {}
        self._holding: set[ClientId] = set()  # the clients that have their outputs
        self._ids: Mapping[int, ClientId] = {}

    @property
    def capabilities(self) -> Capabilities:
        """The first replies are predictors, each of which is used; then theta."""
        return Capabilities(
            "model" if self.predictors else "other",
            "single replies",
            later="model",
            one_way=PREDICTOR,
        )

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Ask for predictors in the first round."""
        return CollectingSent("" if self.predictors else "train-predictor").to_config()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send theta; nothing while the predictors are collected."""
        arrays, self._ids = arrays if self.predictors else ArrayRecord(), clients_of(grid)
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send theta; there is nothing to evaluate without predictors."""
        if not self.predictors:
            return []
        self._ids = clients_of(grid)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _messages(
        self, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], kind: str
    ) -> list[Message]:
        """Return the messages; those to clients without outputs hold the predictors."""
        new = [n for n in nodes if self.predictors and self._client(n) not in self._holding]
        messages = super()._messages(arrays, config, [n for n in nodes if n not in new], kind)
        self._holding.difference_update(map(self._client, nodes))  # until they answer
        if not new:
            return messages
        names = [PREDICTOR + name for name in self.predictors]
        both = {**arrays, **to_record(names, list(self.predictors.values()))}
        sent = FENSSent(list(self.predictors)).to_config()
        return messages + super()._messages(
            ArrayRecord(both), ConfigRecord({**config, **sent}), new, kind
        )

    def answered(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies to use; their clients have the predictors' outputs."""
        valid = super().answered(replies)
        if self.predictors:
            self._holding.update(self._client(reply.metadata.src_node_id) for reply in valid)
        return valid

    def _client(self, node: int) -> ClientId:
        return self._ids.get(node, node)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average theta; in the first round keep the predictors and make theta."""
        if self.predictors:
            return super().aggregate_train(server_round, replies)
        contents = [reply.content for reply in self.answered(replies)]
        if not (rows := alike_predictors(contents)):
            return None, None
        self.predictors = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        theta = first_theta(len(rows), self.num_classes, self.options.hidden, self.seed)
        return to_record(list(theta), list(theta.values())), self.train_metrics_aggr_fn(
            contents, self.weighted_by_key
        )

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the predictors, and which clients have their outputs."""
        holding = {"holding": pack_ids(sorted(self._holding, key=str))} if self._holding else {}
        return {**under(PREDICTOR, self.predictors), **holding}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.predictors = within(PREDICTOR, state)
        self._holding = set(unpack_ids(state["holding"])) if "holding" in state else set()


def first_theta(
    predictors: int, classes: int, hidden: int, seed: int
) -> dict[str, NDArray[np.float32]]:
    """Return the first aggregator of ``predictors`` predictors, by name of array: its
    weights (out, in) uniform with variance 2 / (in + out) (Glorot), its biases 0.
    """
    rng, theta = generator(seed, "aggregator"), {}
    sizes = [predictors * classes, *([hidden] if hidden else []), classes]
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        bound = np.sqrt(6 / (inputs + outputs))
        weight = rng.uniform(-bound, bound, (outputs, inputs))
        theta[f"{2 * place}.weight"] = weight.astype(np.float32)
        theta[f"{2 * place}.bias"] = np.zeros(outputs, np.float32)
    return theta
