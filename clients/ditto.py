"""Ditto's client; source and equations: ``strategies/ditto.py``."""

from typing import Any

from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.personal import DittoSent
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.sgd import Penalty


class DittoClient(PersonalClient):
    """Trains the global model as FedAvg does, and a personal v on the loss plus
    ``(mu/2) ||v - w||^2``, w being the received model.
    """

    kept_as = "ditto"
    reads = (DittoSent,)
    differentiates_surrogate = True
    needs_all_steps = "its clients train a second model after the one that they send"
    _anchor: Tensors | None = None

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained global model; store v."""
        self._anchor = None
        reply = super().fit(parameters, config)
        set_arrays(self.model, parameters)
        self._anchor = [p.detach().clone() for p in trainable(self.model).values()]
        if (kept := self.kept(config, before=True)) is not None:
            set_arrays(self.model, kept)
        epochs = DittoSent.from_config(config).epochs
        own = self.train({**config, "local-epochs": epochs} if epochs else config)
        self.store.save(self.kept_as, get_arrays(self.model), config)
        return reply[0], reply[1], {**reply[2], "personal-loss": own}

    def train_alone(self, parameters: Arrays, config: Config) -> Arrays:
        """Train v for these local epochs, instead of its own number."""
        return super().train_alone(
            parameters, {**config, DittoSent.key("epochs"): config["local-epochs"]}
        )

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the gradient of the proximal term, ``mu (v - w)``, while v is
        trained.
        """
        mu = DittoSent.from_config(config).mu
        return Penalty(mu, self._anchor) if self._anchor else Penalty()
