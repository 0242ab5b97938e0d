"""Fine-tuning's client; contract: ``strategies/finetune.py``."""

import math

from algorithms.personal.sent import FinetuneSent
from clients.base.training import Config, get_arrays, set_arrays
from clients.families.personal_model import PersonalClient

#: Numbers of epochs that a client tries, in this order.
TRIED = (1, 2, 4, 8)


class FinetuneClient(PersonalClient):
    """Trains as FedAvg's client, and trains the received model further before it is
    scored; keeps nothing.

    With -1 epochs it tries those of ``TRIED``, each from the received model, and stops
    at the first whose validation loss is not lower than the best so far; it uses the
    best, which may be the received model. A client without validation samples takes
    one epoch.
    """

    epochs_before_use = FinetuneSent.key("epochs")
    reads = (FinetuneSent,)

    def take_own(self, config: Config) -> dict[str, float]:
        """Train ``self.model`` for the epochs of fine-tuning; return their number if
        the client has chosen it.
        """
        sent = FinetuneSent.from_config(config)
        own = {"learning-rate": sent.rate, "lr-decay": 1.0} if sent.rate else {}
        if sent.epochs >= 0:
            self.tune({**config, **own}, sent.epochs)
            return {}
        return {"finetune-epochs": float(self.choose({**config, **own}))}

    def tune(self, config: Config, epochs: int) -> None:
        """Train ``self.model`` for some epochs."""
        if epochs:
            self.train({**config, "local-epochs": epochs})

    def choose(self, config: Config) -> int:
        """Turn ``self.model`` into the best model by validation loss; return its
        number of epochs.
        """
        if self.data.validation is self.data.train or not len(self.data.validation):
            self.tune(config, 1)
            return 1
        received = get_arrays(self.model)
        best, chosen, least = received, 0, self.mean_loss(self.data.validation)
        for epochs in TRIED:
            set_arrays(self.model, received)
            self.tune(config, epochs)
            loss = self.mean_loss(self.data.validation)
            if not loss < (math.inf if math.isnan(least) else least):
                break
            best, chosen, least = get_arrays(self.model), epochs, loss
        set_arrays(self.model, best)
        return chosen
