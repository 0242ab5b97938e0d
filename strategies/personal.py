"""The server halves of methods whose clients keep models of their own: APFL, Ditto and pFedMe.

All three average what clients send, as FedAvg does (pFedMe mixes the average with the old model), and tell the clients the method's
constants. What a client keeps never leaves it.

- APFL, Deng, Kamani, Mahdavi 2020, "Adaptive Personalized Federated Learning", Algorithm 1;
- Ditto, Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", Algorithm 1;
- pFedMe, Dinh, Tran, Nguyen 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1.

Contract: FedAvg's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from algorithms.common.checks import check_range
from strategies.base.updates import moved, updates
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class APFLOptions:
    """``alpha``: weight of the client's own model in its mixture. ``adaptive``: the client learns alpha, starting there."""

    alpha: float = 0.25
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, 0, 1)


class APFL(FedAvg):
    """Server half of APFL."""

    def __init__(self, options: APFLOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or APFLOptions()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send alpha and whether it is learned."""
        return {"apfl-alpha": self.options.alpha, "apfl-adaptive": self.options.adaptive}

    def evaluate_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send the alpha of a client that has not learned one."""
        return {"apfl-alpha": self.options.alpha}


@dataclass(frozen=True)
class DittoOptions:
    """``mu``: weight of the pull to the global model. ``epochs``: on the personal model (0: as many as on the global one)."""

    mu: float = 1.0
    epochs: int = 5

    def __post_init__(self) -> None:
        check_range("mu", self.mu, 0)
        check_range("epochs", self.epochs, 0)


class Ditto(FedAvg):
    """Server half of Ditto."""

    def __init__(self, options: DittoOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or DittoOptions()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send mu and the epochs."""
        return {"ditto-mu": self.options.mu, "ditto-epochs": self.options.epochs}


@dataclass(frozen=True)
class PFedMeOptions:
    """``lambda_``: of the Moreau envelope. ``inner_steps``: on theta_i for one of w_i. ``rate``: of w_i (0: that of theta_i).

    ``beta``: the model becomes ``(1 - beta) w + beta mean(w_i)``.
    """

    lambda_: float = 15.0
    inner_steps: int = 5
    rate: float = 0.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_range("lambda", self.lambda_, 0, open_low=True)
        check_range("inner-steps", self.inner_steps, 1)
        check_range("rate", self.rate, 0)
        check_range("beta", self.beta, 0, open_low=True)


class PFedMe(FedAvg):
    """Server half of pFedMe."""

    averages_by_weight = False

    def __init__(self, options: PFedMeOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or PFedMeOptions()
        self._sent = ArrayRecord()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send the constants."""
        o = self.options
        return {"pfedme-lambda": o.lambda_, "pfedme-inner-steps": o.inner_steps, "pfedme-rate": o.rate}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Remember what is sent."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Go the share beta of the way to the average."""
        average, metrics = super().aggregate_train(server_round, replies)
        if average is None or self.options.beta == 1:
            return average, metrics
        (change,) = updates(self._sent, [average])
        return moved(self._sent, self.options.beta * change, average), metrics
