"""Ditto's client; source and equations: ``strategies/ditto.py``."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.sent import DITTO_MUS, DittoSent
from fedapps.clients.base.data import Split
from fedapps.clients.base.together import branches
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.candidates import answer
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
        """Return the trained global model; store v, one for each mu to choose from."""
        self._anchor, sent = None, DittoSent.from_config(config)
        mus = DITTO_MUS if sent.choose else (sent.mu,)
        fits: list[Callable[[], Any]] = [partial(super().fit, parameters, config)]
        fits += [partial(self.personal, mu, parameters, config) for mu in mus]
        reply, *trained = branches(fits)
        for name, v, _ in trained:
            self.store.save(name, v, config)
        loss = trained[mus.index(sent.mu)][-1]
        return reply[0], reply[1], {**reply[2], "personal-loss": loss}

    def personal(self, mu: float, parameters: Arrays, config: Config) -> tuple[str, Arrays, float]:
        """Return the name of the v of mu in the store, v after its training, and the
        loss.
        """
        sent = DittoSent.from_config(config)
        own = {**config, DittoSent.key("mu"): mu}
        own |= {"local-epochs": sent.epochs} if sent.epochs else {}
        set_arrays(self.model, parameters)
        self._anchor = [p.detach().clone() for p in trainable(self.model).values()]
        if (kept := self.kept(own, before=True)) is not None:
            set_arrays(self.model, kept)
        loss = self.train(own)
        return self.kept_as, get_arrays(self.model), loss

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the personal model with the mu that was sent, or, if
        the server asks for them, the validation losses with each.
        """
        if DittoSent.from_config(config).mu >= 0:
            return super().evaluate(parameters, config)
        return answer(
            self.data, lambda own: [self.loss_with(parameters, mu, own, config) for mu in DITTO_MUS]
        )

    def loss_with(self, parameters: Arrays, mu: float, split: Split, config: Config) -> float:
        """Return the loss of the personal model that was trained with mu."""
        set_arrays(self.model, parameters)
        self.take_own({**config, DittoSent.key("mu"): mu})
        return float(self.score(split)["loss"])

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` into the personal model; return mu if it was chosen."""
        super().take_own(config)
        sent = DittoSent.from_config(config)
        return {DittoSent.key("mu"): sent.mu} if sent.choose else {}

    def kept(self, config: Config, before: bool) -> Arrays | None:
        """Return the stored v of the mu in the configuration."""
        sent = DittoSent.from_config(config)
        self.kept_as = f"ditto-{sent.mu:g}" if sent.choose else "ditto"
        return super().kept(config, before)

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
