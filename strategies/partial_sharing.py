"""Methods that average one part of the model and keep the other part at the clients:
FedPer, LG-FedAvg, FedRep.

- FedPer averages the body; the head is personal. Source: Arivazhagan, Aggarwal, Singh,
  Choudhary, "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818.
- LG-FedAvg averages the head; the body is personal. Source: Liang, Liu, Ziyin, Allen,
  Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally: Federated
  Learning with Local and Global Representations", 2020, arXiv 2001.01523.
- FedRep shares the body like FedPer, but a client first fits its head to the received
  body, then trains the body with that head fixed. Source: Collins, Hassani, Mokhtari,
  Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
  ICML 2021, arXiv 2102.07078, Algorithm 1.

The personal part is sent in neither direction. The model defines which arrays are the
head (``model.head``).

Contract: a training reply holds the arrays that were sent, and ``num-examples``. The
configuration holds ``share`` ("body" or "head") and, for FedRep, ``fedrep-head-epochs``
(0: as many as in other methods) and ``fedrep-body-epochs``. The client keeps the other
part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, check_choice, option
from fedapps.algorithms.contract.sent import FedRepSent, Reads, ShareSent
from fedapps.strategies.families.shared_part import SharedPart
from fedapps.strategies.fedavg import FedAvgArguments


class PartialSharing(SharedPart):
    """FedPer (``share="body"``) and LG-FedAvg (``share="head"``) strategy.

    ``head``: name prefixes of the head's arrays. In the server's model, the part that
    is not shared keeps its initial values.
    """

    def __init__(self, head: Sequence[str], share: str, **kwargs: Unpack[FedAvgArguments]) -> None:
        super().__init__(**kwargs)
        check_choice("share", share, ["body", "head"])
        self.head, self.share = tuple(head), share

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send which part is shared."""
        return ShareSent(self.share).to_config()

    evaluate_options = train_options

    def travels(self, name: str) -> bool:
        """Return whether the array of this name is shared."""
        return name.startswith(self.head) == (self.share == "head")

    def check(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` unless some, but not all, of these arrays are shared."""
        number = sum(map(self.travels, names))
        if not 0 < number < len(names):
            layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise ValueError(
                f"the {self.share}, which is shared, has {number} of the model's {len(names)} "
                "arrays "
                f"(head: {', '.join(self.head)}): choose a model with a body and a head, or a head "
                f"among the layers {layers}"
            )


@dataclass(frozen=True)
class FedRepOptions(Options):
    """Options of FedRep."""

    head_epochs: int = option(
        0, "local epochs on the head, which come first; 0: train.local-epochs", low=0
    )
    body_epochs: int = option(5, "local epochs on the body, which follow", low=1)


class FedRep(PartialSharing):
    """FedRep strategy."""

    client_half: Reads = (FedRepSent,)

    def __init__(
        self,
        head: Sequence[str],
        options: FedRepOptions | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(head, "body", **kwargs)
        self.options = options or FedRepOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the shared part's name and the numbers of epochs."""
        shared = super().train_options(server_round, num_rounds)
        return {**shared, **FedRepSent.of(self.options).to_config()}
