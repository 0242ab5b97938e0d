"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

from clients.base.training import Config
from clients.families.personal_model import PersonalClient


class FinetuneClient(PersonalClient):
    """Trains as FedAvg's client, and trains the received model further before it is
    scored; keeps nothing.
    """

    epochs_before_use = "finetune-epochs"

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning."""
        if epochs := int(config["finetune-epochs"]):
            rate = float(config["finetune-rate"])
            own = {"learning-rate": rate, "lr-decay": 1.0} if rate else {}
            self.train({**config, **own, "local-epochs": epochs})
        return {}
