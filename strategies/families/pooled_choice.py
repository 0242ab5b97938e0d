"""Base of the methods that score a client with one of several candidates, chosen by the
validation losses of all clients together.

A client has a few validation samples, so a choice by these alone is mostly noise; a
choice that all clients share is wrong where clients differ. The server shrinks every
client's losses towards those of all (``algorithms/personal/choice.py``). Before an
evaluation it asks the same clients for their losses at every candidate, and sends each
its choice with the evaluation. A client that does not answer, or whose answer is
unsound, is not pooled and gets the choice of all.

Contract: the configuration of an evaluation message that asks holds
:meth:`PooledChoice.question`. The reply's metrics are ``candidate-losses``, one for
each candidate, ``validation-samples`` and ``num-examples`` above 0. A client without
validation samples reports ``validation-samples`` = 0. If nobody reports them, as where
a training loop is the user's own, the server warns and does not ask again.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.personal.choice import (
    SHRINK,
    counted,
    least,
    pooled_curve,
    shrunk,
    sound_curve,
)
from fedapps.strategies.base.messages import metrics_of
from fedapps.strategies.fedavg import FedAvg

#: Whose validation losses choose: the samples as which those of all clients count.
CHOICES = {"own": 0.0, "shrunk": SHRINK, "shared": math.inf}


@dataclass(frozen=True)
class Choices:
    """The choices of a round: by node, and of all clients together; ``None``: nothing
    is known.
    """

    server_round: int = 0
    of_node: Mapping[int, Any] = field(default_factory=dict)
    of_all: Any = None


class PooledChoice(FedAvg):
    """FedAvg whose clients are scored with one of several candidates."""

    choices = Choices()
    #: Whether clients are asked: until all that answer do not know the question.
    asks = True
    #: The option with which they never are.
    unasked: ClassVar[str]

    @property
    def chosen_by(self) -> str:
        """Whose losses choose, of ``CHOICES``. With "own" the server does not ask:
        clients choose by themselves.
        """
        return "shrunk"

    @property
    @abstractmethod
    def candidates(self) -> Sequence[Any]:
        """The candidates, the most federated first: of equal ones it is taken. Empty:
        clients are not asked.
        """

    @abstractmethod
    def question(self) -> dict[str, Any]:
        """Return the configuration that asks for the losses at every candidate."""

    @abstractmethod
    def answer(self, chosen: Any) -> dict[str, Any]:
        """Return the configuration that scores a client with a candidate; ``None``: no
        client has answered.
        """

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose, once a round, and send every client its choice."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not messages or not self.candidates or self.chosen_by == "own":
            return messages
        nodes = [message.metadata.dst_node_id for message in messages]
        if self.asks and self.choices.server_round != server_round:
            self.choose(server_round, self.ask(grid, arrays, config, self.question(), nodes))
        chosen = [self.choices.of_node.get(node, self.choices.of_all) for node in nodes]
        sent = {one: ConfigRecord({**config, **self.answer(one)}) for one in set(chosen)}
        return [
            message
            for node, one in zip(nodes, chosen, strict=True)
            for message in self._messages(arrays, sent[one], [node], MessageType.EVALUATE)
        ]

    def choose(self, server_round: int, replies: Iterable[Message]) -> None:
        """Choose by the answers of the clients."""
        answers = {reply.metadata.src_node_id: metrics_of(reply.content) for reply in replies}
        before, self.choices = self.choices, Choices(server_round)
        known = any("candidate-losses" in one for one in answers.values())
        if answers and not known and before.of_all is None:
            self.asks = False
            log(
                WARNING,
                "the clients do not report validation losses at the candidates, so nothing is "
                "chosen by them and they are not asked again (%s spares the question)",
                self.unasked,
            )
            return
        answers = {
            node: one
            for node, one in answers.items()
            if sound_curve(
                one.get("candidate-losses"), one.get("validation-samples"), len(self.candidates)
            )
        }
        if not answers:
            log(WARNING, "no client has reported its validation losses: nothing is chosen by them")
            return
        losses, samples = (
            np.array([one[name] for one in answers.values()], dtype=np.float64)
            for name in ("candidate-losses", "validation-samples")
        )
        pooled = pooled_curve(losses, counted(losses, samples))
        k = CHOICES[self.chosen_by]
        self.choices = Choices(
            server_round,
            {
                node: self.candidates[least(shrunk(own, pooled, int(n), k))]
                for node, own, n in zip(answers, losses, samples, strict=True)
            },
            self.candidates[least(pooled)],
        )

    def recall(self, server_round: int, metrics: Mapping[str, Any]) -> None:
        """Repeat the choice of a round for the client that reported these metrics."""
        self.choices = Choices(server_round, of_all=self.chosen_of(metrics))

    @abstractmethod
    def chosen_of(self, metrics: Mapping[str, Any]) -> Any:
        """Return the candidate with which a client has been scored, by its metrics."""
