"""Per-FedAvg: federated meta-learning of a model that is good after one gradient step
on a client's own data.

Source: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948,
Algorithm 1. A client descends ``F_k(w) = f_k(w - alpha grad f_k(w))``, whose gradient
is

    (I - alpha hess f_k(w)) grad f_k(w - alpha grad f_k(w))

First order: the Hessian is left out (Per-FedAvg (FO)). Hessian-free: its product with
the last factor v is the difference of two gradients, ``(grad f_k(w + delta v) - grad
f_k(w - delta v)) / (2 delta)`` (Per-FedAvg (HF)).

Contract: FedAvg's. The configuration holds ``per-fedavg-alpha`` and
``per-fedavg-hessian`` ("none" or "differences"); that of an evaluation
``per-fedavg-alpha`` and ``per-fedavg-steps``, the full gradient steps at rate alpha
before the model is scored.
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import PerFedAvgScoring, PerFedAvgTraining, Reads
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class PerFedAvgOptions(Options):
    """Options of Per-FedAvg."""

    alpha: float = option(0.01, "rate of the steps that adapt the model; 0: FedAvg", low=0)
    hessian: str = option(
        "none",
        "leave the Hessian out, or use the difference of two gradients (twice as many gradients)",
        choices=["none", "differences"],
    )
    steps: int = option(
        1, "steps along the full gradient with which the model is adapted before use", low=0
    )


class PerFedAvg(FedAvg):
    """Per-FedAvg strategy; the averaging is FedAvg's."""

    client_half: Reads = (PerFedAvgTraining,)

    def __init__(
        self, options: PerFedAvgOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or PerFedAvgOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the rate of adaptation and how the Hessian is treated."""
        return PerFedAvgTraining.of(self.options).to_config()

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the rate and the number of steps of adaptation."""
        return PerFedAvgScoring.of(self.options).to_config()
