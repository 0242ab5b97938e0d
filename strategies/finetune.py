"""Fine-tuning: FedAvg, after which each client trains the model for some local epochs
before it uses it; the baseline of personalised methods.

Nothing else is kept or sent. Sources: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage,
"Federated Evaluation of On-device Personalization", 2019, arXiv 1910.10252; Yu,
Bagdasaryan, Shmatikov, "Salvaging Federated Learning by Local Adaptation", 2020, arXiv
2002.04758.

Contract: FedAvg's. The configuration of an evaluation holds ``finetune-epochs`` and
``finetune-rate``, the learning rate (0: that of the round), and the options of local
training. With ``finetune-epochs`` = -1 each client chooses the number of epochs by its
validation loss (``clients/finetune.py``), which is this project's own rule.
"""

from dataclasses import dataclass
from typing import Unpack

from algorithms.common.options import Options, option
from algorithms.common.sent import Reads
from algorithms.personal.sent import FinetuneSent
from strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class FinetuneOptions(Options):
    """Options of fine-tuning."""

    epochs: int = option(
        -1,
        "local epochs before the model is used; -1: 0, 1, 2, 4 or 8, by a client's validation loss",
        low=-1,
    )
    rate: float = option(0.0, "learning rate of these epochs; 0: that of the round", low=0)


class Finetune(FedAvg):
    """Strategy of fine-tuning; the averaging is FedAvg's."""

    client_half: Reads = (FinetuneSent,)

    def __init__(
        self, options: FinetuneOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FinetuneOptions()

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send how long to train before scoring, and at which rate."""
        return FinetuneSent.of(self.options).to_config()
