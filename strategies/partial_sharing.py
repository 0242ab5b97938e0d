"""Methods that share one part of the model and leave the other with the clients: FedPer, LG-FedAvg, FedRep.

- FedPer, Arivazhagan et al. 2019, "Federated Learning with Personalization Layers": the body is averaged, the head stays;
- LG-FedAvg, Liang et al. 2020, "Think Locally, Act Globally": the head is averaged, the body stays;
- FedRep, Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", Algorithm 1: shares as FedPer
  does, but a client first fits its head to the received body, then makes the body's steps with that head.

What is kept does not travel, in either direction. Which arrays are the head, the model says (``model.head``).

Contract: a training reply holds the arrays that were sent, and ``num-examples``. The client finds ``share`` ("body" or "head") in the
configuration; clients of FedRep also ``fedrep-head-epochs`` and ``fedrep-body-epochs``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from algorithms.common.checks import check_choice
from algorithms.common.options import Options, option
from strategies.fedavg import FedAvg


class PartialSharing(FedAvg):
    """Server half of FedPer (``share="body"``) and LG-FedAvg (``share="head"``).

    ``head``: prefixes of the names of the head's arrays. The run's model keeps, of the part that is not shared, what it started with.
    """

    capabilities = FedAvg.capabilities  # of the part that travels

    def __init__(self, head: Sequence[str], share: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("share", share, ["body", "head"])
        self.head, self.share = tuple(head), share
        self._model = ArrayRecord()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send which part it is."""
        return {"share": self.share}

    def evaluate_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send which part it is."""
        return {"share": self.share}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Send the shared part."""
        self._model = arrays
        return super().configure_train(server_round, self.shared(arrays), config, grid)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Send the shared part."""
        return super().configure_evaluate(server_round, self.shared(arrays), config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the shared part."""
        average, metrics = super().aggregate_train(server_round, replies)
        return None if average is None else ArrayRecord({**self._model, **average}), metrics

    def shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the part that travels. Raises ``ValueError`` where there is none, or nothing would stay."""
        self.check(list(arrays))
        return ArrayRecord({name: array for name, array in arrays.items() if self.travels(name)})

    def travels(self, name: str) -> bool:
        """Whether the array of this name is shared."""
        return name.startswith(self.head) == (self.share == "head")

    def check(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` unless some of these arrays are shared and some are not."""
        number = sum(map(self.travels, names))
        if not 0 < number < len(names):
            layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise ValueError(
                f"the {self.share} is shared, which is {number} of {len(names)} arrays where the head is {', '.join(self.head)}: "
                f"choose a model with a body and a head, or a head among the layers {layers}"
            )


@dataclass(frozen=True)
class FedRepOptions(Options):
    """Options of FedRep."""

    head_epochs: int = option(0, "local epochs on the head, which come first; 0: train.local-epochs", low=0)
    body_epochs: int = option(5, "local epochs on the body, which follow", low=1)


class FedRep(PartialSharing):
    """Server half of FedRep."""

    def __init__(self, head: Sequence[str], options: FedRepOptions | None = None, **kwargs: Any) -> None:
        super().__init__(head, "body", **kwargs)
        self.options = options or FedRepOptions()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send the epochs, too."""
        epochs = {"fedrep-head-epochs": self.options.head_epochs, "fedrep-body-epochs": self.options.body_epochs}
        return {**super().train_options(server_round, num_rounds), **epochs}
