"""Base of the methods that use one of several candidates at all clients: the one with
the least sum of the clients' validation losses.

A client has a few validation samples, so a choice of its own is mostly noise; the sum
over all clients is not. Before an evaluation the server asks the same clients for their
losses at every candidate, pools them (``algorithms/personal/choice.py``) and sends the
choice with the evaluation. A client that does not answer the question, or whose answer
is unsound, is not pooled, and is scored with the others' choice.

Contract: the configuration of an evaluation message that asks holds
:attr:`SharedChoice.question`. The reply's metrics are ``candidate-losses``, one for
each candidate, ``validation-samples``, and ``num-examples`` above 0. A client without
validation samples reports ``validation-samples`` = 0.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from algorithms.common.sent import Asked, Scoring
from algorithms.personal.choice import counted, least, pooled_curve, sound_curve
from strategies.base.client_grid import TIMEOUT
from strategies.base.messages import metrics_of
from strategies.fedavg import FedAvg


class SharedChoice(FedAvg):
    """FedAvg whose clients are scored with a candidate that all of them share."""

    #: The name under which the choice is reported.
    chosen_as: str
    #: The round of the last choice, and the candidate; ``None``: nothing is known.
    chosen: tuple[int, float | None] = (0, None)
    own_measures: Mapping[str, float] = {}

    @property
    @abstractmethod
    def candidates(self) -> Sequence[float]:
        """The candidates, the most federated first: of equal ones it is taken. Empty:
        clients are not asked.
        """

    @abstractmethod
    def question(self) -> dict[str, Any]:
        """Return the configuration that asks for the losses at every candidate."""

    @abstractmethod
    def answer(self, chosen: float | None) -> dict[str, Any]:
        """Return the configuration that scores clients with a candidate; ``None``: no
        client has answered.
        """

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose a candidate, once a round, and send it."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not messages or not self.candidates:
            return messages
        nodes = [message.metadata.dst_node_id for message in messages]
        if self.chosen[0] != server_round:
            asked = {**config, **self.question()}
            for extra in (*Scoring.keys(), *Asked.keys()):
                asked.pop(extra, None)
            replies = grid.send_and_receive(
                self._messages(arrays, ConfigRecord(asked), nodes, MessageType.EVALUATE),
                timeout=getattr(grid, "timeout", TIMEOUT),
            )
            self.choose(server_round, replies)
        config.update(self.answer(self.chosen[1]))
        return self._messages(arrays, config, nodes, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics; add the choice."""
        metrics = super().aggregate_evaluate(server_round, replies)
        return metrics and MetricRecord({**metrics, **self.own_measures})

    def choose(self, server_round: int, replies: Iterable[Message]) -> None:
        """Choose by the answers of the clients."""
        metrics = [metrics_of(reply.content) for reply in replies if not reply.has_error()]
        sound = [
            (curve, samples)
            for curve, samples in (
                (one.get("candidate-losses"), one.get("validation-samples")) for one in metrics
            )
            if sound_curve(curve, samples, len(self.candidates))
        ]
        chosen = None
        if sound:
            losses = np.array([curve for curve, _ in sound], dtype=np.float64)
            samples = np.array([number for _, number in sound], dtype=np.float64)
            pooled = pooled_curve(losses, counted(losses, samples))
            chosen = self.candidates[least(pooled)]
        else:
            log(WARNING, "no client has reported its validation losses: no shared choice")
        self.recall(server_round, chosen)

    def recall(self, server_round: int, chosen: float | None) -> None:
        """Take the choice of a round as made."""
        self.chosen = server_round, chosen
        self.own_measures = {} if chosen is None else {self.chosen_as: chosen}
