"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

from typing import Any

from fedapps.algorithms.contract.sent import FINETUNE_EPOCHS, FinetuneSent
from fedapps.clients.base.data import Split
from fedapps.clients.base.together import at_once
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays
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
        return answer(self.data, lambda own: self.losses(parameters, own, config))

    def losses(self, parameters: Arrays, split: Split, config: Config) -> list[float]:
        """Return the losses of the received model after each of ``FINETUNE_EPOCHS``."""
        models, losses = [], []
        with at_once():
            for epochs in FINETUNE_EPOCHS:
                set_arrays(self.model, parameters)
                self.take_own({**config, self.epochs_before_use: epochs})
                models.append(get_arrays(self.model))
        for model in models:
            set_arrays(self.model, model)
            losses.append(float(self.score(split)["loss"]))
        return losses

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning; return their number."""
        sent = FinetuneSent.from_config(config)
        own = {"learning-rate": sent.rate, "lr-decay": 1.0} if sent.rate else {}
        if sent.epochs:
            self.train({**config, **own, "local-epochs": sent.epochs})
        return {self.epochs_before_use: float(sent.epochs)}
