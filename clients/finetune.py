"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

from algorithms.personal.sent import FinetuneSent
from clients.base.training import Config
from clients.families.personal_model import PersonalClient


class FinetuneClient(PersonalClient):
    """Trains as FedAvg's client, and trains the received model further before it is
    scored; keeps nothing.
    """

    epochs_before_use = FinetuneSent.key("epochs")
    reads = (FinetuneSent,)

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning."""
        sent = FinetuneSent.from_config(config)
        if sent.epochs:
            own = {"learning-rate": sent.rate, "lr-decay": 1.0} if sent.rate else {}
            self.train({**config, **own, "local-epochs": sent.epochs})
        return {}
