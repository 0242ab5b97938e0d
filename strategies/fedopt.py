"""FedAdam, FedYogi and FedAdagrad: the server applies an adaptive optimiser to the
clients' mean update as a pseudo-gradient.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive
Federated Optimization", ICLR 2021, arXiv 2003.00295, Algorithm 2. With the weighted
mean update Delta:

    m <- beta_1 m + (1 - beta_1) Delta
    v <- v + Delta^2                                    FedAdagrad
         v - (1 - beta_2) Delta^2 sign(v - Delta^2)     FedYogi
         beta_2 v + (1 - beta_2) Delta^2                FedAdam
    w <- w + eta m / (sqrt(v) + tau)

m starts at 0, v at tau^2; both are saved in checkpoints. There is no bias correction.

The moments remember: one Delta of length L stays in v as (1 - beta_2) L^2 for 1 / (1 -
beta_2) rounds, and with FedAdagrad for ever, so that one poisoned round stops all later
steps. Updates shrink in training. A Delta more than ``MOST`` times longer than the
longest one of the rounds before is therefore shortened to that.

Differences from Flower's classes of these names, which start v at 0, multiply FedAdam's
learning rate by a bias correction of round + 1, fix beta_1 = 0 for FedAdagrad, also
apply the step to counters and running statistics, and cannot be saved.

Contract: FedAvg's.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.strategies.base.updates import moved, updates
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

Floats = NDArray[np.float64]
#: A mean update is at most this many times longer than all before it.
MOST = 5.0


@dataclass(frozen=True)
class FedOptOptions(Options):
    """Options of FedAdam, FedYogi and FedAdagrad."""

    server_learning_rate: float = option(
        0.01, "eta, the server's step along the mean update", low=0, open_low=True
    )
    beta_1: float = option(
        0.9,
        "decay of the mean update m; the paper uses 0 for FedAdagrad",
        low=0,
        high=1,
        open_high=True,
    )
    beta_2: float = option(
        0.99, "decay of its squares v; FedAdagrad does not use it", low=0, high=1, open_high=True
    )
    tau: float = option(0.001, "adaptivity: a smaller value adapts more", low=0, open_low=True)


class FedOpt(FedAvg):
    """Base of the three strategies, which differ in the update of the second moment."""

    capabilities = FedAvg.capabilities  # the step depends on the average only

    def __init__(
        self, options: FedOptOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FedOptOptions()
        # Moments of the learned arrays, concatenated; None before the first round.
        self.m: Floats | None = None
        self.v: Floats | None = None
        self.longest = 0.0  # mean update so far

    @abstractmethod
    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return the next v (d,), given the squared mean update ``square`` (d,)."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the models, then make the optimiser step from the model that was
        sent.
        """
        average, metrics = super().aggregate_train(server_round, replies)
        return (None if average is None else self.step(self.sent, average)), metrics

    def step(self, sent: ArrayRecord, average: ArrayRecord) -> ArrayRecord:
        """Return the model after one step of the server optimiser."""
        o = self.options
        (delta,) = updates(sent, [average])
        length = float(np.linalg.norm(delta))
        if length > (most := MOST * self.longest) > 0:
            log(WARNING, "the mean update is shortened from %.4g to %.4g", length, most)
            delta, length = delta * (most / length), most
        self.longest = max(self.longest, length)
        m = np.zeros_like(delta) if self.m is None else self.m
        v = np.full_like(delta, o.tau**2) if self.v is None else self.v
        self.m = o.beta_1 * m + (1 - o.beta_1) * delta
        self.v = self.second_moment(v, delta**2)
        return moved(sent, o.server_learning_rate * self.m / (np.sqrt(self.v) + o.tau), average)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return both moments, and the length of the longest mean update."""
        if self.m is None or self.v is None:
            return {}
        return {"m": self.m, "v": self.v, "longest": np.array(self.longest)}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.m, self.v = state.get("m"), state.get("v")
        self.longest = float(state.get("longest", 0.0))


class FedAdam(FedOpt):
    """FedAdam: v is a running mean of squares."""

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return ``beta_2 v + (1 - beta_2) Delta^2``."""
        return self.options.beta_2 * v + (1 - self.options.beta_2) * square


class FedYogi(FedOpt):
    """FedYogi: v moves towards the squares by steps that do not depend on the
    distance.
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return ``v - (1 - beta_2) Delta^2 sign(v - Delta^2)``."""
        return v - (1 - self.options.beta_2) * square * np.sign(v - square)


class FedAdagrad(FedOpt):
    """FedAdagrad: v is the sum of all squares."""

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return ``v + Delta^2``."""
        return v + square
