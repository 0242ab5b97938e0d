"""Partial sharing by name: the arrays whose names match are averaged, the others belong
to the clients.

FedPer, LG-FedAvg and FedBN are special cases, and so are low-rank adapters alone
(``share = "*lora_*"``) or biases alone (``"*.bias"``); the general form is that of
Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao, "Federated Learning with Partial Model
Personalization", ICML 2022, arXiv 2204.03809 (there FedSim). With ``share = "*"`` it is
FedAvg.

Contract: a training reply holds the arrays that were sent, and ``num-examples``. The
configuration holds ``partial-share`` and ``partial-keep``, patterns of names separated
by commas; an array is sent if its name matches one of the former and none of the
latter. The client keeps the others.
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, names_in, option
from fedapps.algorithms.contract.sent import PatternsSent
from fedapps.algorithms.personal.name_filter import travels
from fedapps.strategies.families.shared_part import SharedPart
from fedapps.strategies.fedavg import FedAvgArguments


@dataclass(frozen=True)
class PartialOptions(Options):
    """Options of partial sharing by name."""

    share: str = option(
        "*", 'arrays that are averaged: names separated by commas, in which "*" matches anything'
    )
    keep: str = option(
        "", "arrays that stay with the clients even if share matches them; same format"
    )


class Partial(SharedPart):
    """Strategy of partial sharing by name."""

    def __init__(
        self, options: PartialOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or PartialOptions()
        self._share, self._keep = names_in(self.options.share), names_in(self.options.keep)

    def travels(self, name: str) -> bool:
        """Return whether the array of this name is shared."""
        return travels(name, self._share, self._keep)

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the patterns."""
        return PatternsSent.of(self.options).to_config()

    evaluate_options = train_options
