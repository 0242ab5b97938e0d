"""SuPerFed: a federated and a personal model at each client, mixed at random in training, so that a good path connects them.

Source: the dissertation's Chapter II, Algorithms 2.3 and 2.4, equations (2.3)-(2.6). This half averages the federated models theta_f,
as FedAvg does, and tells the clients when the mixing starts: from round L = start * num_rounds on. Mixing "model" is SuPerFed-MM (one
lambda a mini-batch), "layer" is SuPerFed-LM (one a layer and mini-batch). Squared proximal term; see ``clients/superfed.py``.

Contract: FedAvg's. The client keeps its personal model and never sends it; it finds ``proximal-mu``, ``superfed-nu`` and
``superfed-mixing`` ("none" before round L) in the training configuration.
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
    """Server half of SuPerFed-MM (``mixing="model"``) and SuPerFed-LM (``mixing="layer"``)."""

    def __init__(self, options: SuPerFedOptions | None = None, mixing: str = "model", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("mixing", mixing, ["model", "layer"])
        self.options = options or SuPerFedOptions()
        self.mixing = mixing

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send mu, nu and how to mix. The printed ``t < L`` counts rounds from 0: the first L rounds do not mix."""
        mixing = self.mixing if server_round > int(self.options.start * num_rounds) else "none"
        return {"proximal-mu": self.options.mu, "superfed-nu": self.options.nu, "superfed-mixing": mixing}
