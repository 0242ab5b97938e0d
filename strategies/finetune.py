"""Fine-tuning: FedAvg, after which each client trains the model for some local epochs
before it uses it; the baseline of personalised methods.

Nothing else is kept or sent. Sources: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage,
"Federated Evaluation of On-device Personalization", 2019, arXiv 1910.10252; Yu,
Bagdasaryan, Shmatikov, "Salvaging Federated Learning by Local Adaptation", 2020, arXiv
2002.04758.

Contract: FedAvg's. The configuration of an evaluation holds ``finetune-epochs`` and
``finetune-rate``, the learning rate (0: that of the round), and the options of local
training. With -1 epochs a client's number is chosen by its validation losses, shrunk
towards those of all clients (``strategies/families/pooled_choice.py``), which is this
project's own rule: a message with ``finetune-epochs`` = -1 asks for the losses after
each of ``FINETUNE_EPOCHS``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FINETUNE_EPOCHS, FinetuneSent, Reads
from fedapps.strategies.families.pooled_choice import PooledChoice
from fedapps.strategies.fedavg import FedAvgArguments


@dataclass(frozen=True)
class FinetuneOptions(Options):
    """Options of fine-tuning."""

    epochs: int = option(
        -1,
        "local epochs before the model is used; -1: 0, 1, 2, 4 or 8, by validation losses of the "
        "client and of all",
        low=-1,
    )
    rate: float = option(0.0, "learning rate of these epochs; 0: that of the round", low=0)


class Finetune(PooledChoice):
    """Strategy of fine-tuning; the averaging is FedAvg's."""

    client_half: Reads = (FinetuneSent,)
    unasked = "epochs=1"

    def __init__(
        self, options: FinetuneOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FinetuneOptions()

    @property
    def candidates(self) -> Sequence[float]:
        """The numbers of epochs, unless one is given."""
        return FINETUNE_EPOCHS if self.options.epochs < 0 else ()

    def question(self) -> dict[str, Any]:
        """Ask for the losses after every number of epochs."""
        return replace(FinetuneSent.of(self.options), epochs=-1).to_config()

    def answer(self, chosen: Any) -> dict[str, Any]:
        """Send the number of epochs: 1 if nobody has validation samples."""
        return {FinetuneSent.key("epochs"): 1 if chosen is None else chosen}

    def chosen_of(self, metrics: Mapping[str, Any]) -> Any:
        """Return the number of epochs."""
        return int(float(metrics[FinetuneSent.key("epochs")]))

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send how long to train before scoring, and at which rate."""
        return FinetuneSent.of(self.options).to_config()
