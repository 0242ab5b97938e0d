"""Ditto: FedAvg, and for each client a personal model with a proximal term towards the
global one.

Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv 2012.04221, Algorithm 1.

As there (Appendix D), clients choose mu of 0.1, 1 and 2 by validation samples; here
their losses are shrunk towards those of all (``strategies/families/pooled_choice.py``).

Contract: FedAvg's. The client also trains a personal v, with ``(mu/2) ||v - w||^2``
added to its loss, w being the received model; it keeps v, is evaluated with it and
never sends it. The configurations hold ``ditto-mu`` and ``ditto-epochs``, the epochs on
v (0: as many as on w). With ``ditto-choose`` it trains a v with each of ``DITTO_MUS``,
and mu = -1 in an evaluation asks for their losses; a client with one v ignores both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import DITTO_MUS, DittoSent, Reads
from fedapps.strategies.families.pooled_choice import PooledChoice
from fedapps.strategies.fedavg import FedAvgArguments


@dataclass(frozen=True)
class DittoOptions(Options):
    """Options of Ditto."""

    mu: float = option(
        -1.0,
        "weight of the pull (mu/2) ||v - w||^2 of the personal model to the global one; -1: 0.1, "
        "1 or 2, by validation losses of the client and of all",
        low=-1,
    )
    epochs: int = option(5, "local epochs on a personal model; 0: train.local-epochs", low=0)

    def check(self) -> None:
        """Refuse other negative weights."""
        if -1 < self.mu < 0:
            raise ValueError(f"mu = {self.mu}: must be at least 0, or -1")


class Ditto(PooledChoice):
    """Ditto strategy; the averaging is FedAvg's."""

    client_half: Reads = (DittoSent,)
    unasked = "mu=1"

    def __init__(
        self, options: DittoOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or DittoOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send mu and the number of epochs on the personal model."""
        return self._sent.to_config()

    evaluate_options = train_options

    @property
    def _sent(self) -> DittoSent:
        o = self.options
        return DittoSent(1.0, o.epochs, True) if o.mu < 0 else DittoSent(o.mu, o.epochs)

    @property
    def candidates(self) -> Sequence[float]:
        """The weights, unless one is given."""
        return DITTO_MUS if self.options.mu < 0 else ()

    def question(self) -> dict[str, Any]:
        """Ask for the losses with every weight."""
        return replace(self._sent, mu=-1.0).to_config()

    def answer(self, chosen: Any) -> dict[str, Any]:
        """Send the weight: 1 if nobody has validation samples, as in the paper."""
        return {DittoSent.key("mu"): 1.0 if chosen is None else chosen}

    def chosen_of(self, metrics: Mapping[str, Any]) -> Any:
        """Return the weight."""
        return float(metrics[DittoSent.key("mu")])
