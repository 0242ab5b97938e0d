"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

from typing import Any

from algorithms.personal.sent import FINETUNE_EPOCHS, FinetuneSent
from clients.base.scores import candidate_metrics
from clients.base.training import Arrays, Config, set_arrays
from clients.families.personal_model import PersonalClient


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
        losses = (self.loss_after(parameters, epochs, config) for epochs in FINETUNE_EPOCHS)
        return candidate_metrics(self.data, losses)

    def loss_after(self, parameters: Arrays, epochs: int, config: Config) -> float:
        """Return the validation loss of the received model after some epochs."""
        set_arrays(self.model, parameters)
        self.take_own({**config, self.epochs_before_use: epochs})
        return self.mean_loss(self.data.validation)

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning."""
        sent = FinetuneSent.from_config(config)
        own = {"learning-rate": sent.rate, "lr-decay": 1.0} if sent.rate else {}
        if sent.epochs:
            self.train({**config, **own, "local-epochs": sent.epochs})
        return {}
