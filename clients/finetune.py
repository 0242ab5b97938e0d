"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

from functools import partial
from typing import Any

from fedapps.algorithms.contract.sent import FINETUNE_EPOCHS, FinetuneSent
from fedapps.clients.base.data import Split
from fedapps.clients.base.together import branches
from fedapps.clients.base.training import Arrays, Config, set_arrays
from fedapps.clients.families.candidates import answer
from fedapps.clients.families.personal_model import PersonalClient


class FinetuneClient(PersonalClient):
    """Trains as FedAvg's client, and trains the received model further before it is
    scored; keeps nothing.
    """

    epochs_before_use = FinetuneSent.key("epochs")
    reads = (FinetuneSent,)

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the fine-tuned model, or, if the server asks for them
        (-1 epochs), the validation losses after each of ``FINETUNE_EPOCHS``.
        """
        if FinetuneSent.from_config(config).epochs >= 0:
            return super().evaluate(parameters, config)
        return answer(
            self.data,
            lambda own: branches(
                [partial(self.loss_after, parameters, e, own, config) for e in FINETUNE_EPOCHS]
            ),
        )

    def loss_after(self, parameters: Arrays, epochs: int, split: Split, config: Config) -> float:
        """Return the loss of the received model after some epochs."""
        set_arrays(self.model, parameters)
        self.take_own({**config, self.epochs_before_use: epochs})
        return float(self.score(split)["loss"])

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning; return their number."""
        sent = FinetuneSent.from_config(config)
        own = {"learning-rate": sent.rate, "lr-decay": 1.0} if sent.rate else {}
        if sent.epochs:
            self.train({**config, **own, "local-epochs": sent.epochs})
        return {self.epochs_before_use: float(sent.epochs)}
