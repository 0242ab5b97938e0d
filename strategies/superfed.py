"""SuPerFed: a federated and a personal model at each client, randomly mixed in training so that a low-loss path connects them.

Sources: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv 2109.07628; Hahn,
"Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II,
Algorithms 2.3 and 2.4, equations (2.3)-(2.6). The server averages the federated models theta_f as FedAvg does and tells the clients
when mixing starts: after the first L = start * num_rounds rounds. Mixing "model" is SuPerFed-MM (one lambda per mini-batch), "layer" is
SuPerFed-LM (one per layer and mini-batch). The proximal term is squared; see ``clients/superfed.py``.

Contract: FedAvg's. The client trains the received theta_f, which it returns, and a theta_l of its own, which it keeps and never sends,
at random mixtures of the two; the training configuration holds ``proximal-mu``, ``superfed-nu`` and ``superfed-mixing`` ("model",
"layer", or "none" in the first L rounds).
"""

from dataclasses import dataclass
from typing import Any

from algorithms.common.checks import check_choice
from algorithms.common.options import Options, option
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class SuPerFedOptions(Options):
    """Options of SuPerFed."""

    mu: float = option(0.01, "weight of the proximal term", low=0)
    nu: float = option(1.0, "weight of the squared cosine between federated and personal model", low=0)
    start: float = option(0.4, "L / T, the share of the rounds before mixing starts", low=0, high=1)


class SuPerFed(FedAvg):
    """SuPerFed-MM (``mixing="model"``) and SuPerFed-LM (``mixing="layer"``) strategy."""

    def __init__(self, options: SuPerFedOptions | None = None, mixing: str = "model", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("mixing", mixing, ["model", "layer"])
        self.options = options or SuPerFedOptions()
        self.mixing = mixing

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send mu, nu and the kind of mixing. The paper's ``t < L`` counts rounds from 0: the first L rounds do not mix."""
        mixing = self.mixing if server_round > int(self.options.start * num_rounds) else "none"
        return {"proximal-mu": self.options.mu, "superfed-nu": self.options.nu, "superfed-mixing": mixing}
