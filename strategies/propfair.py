"""PropFair: clients minimise ``-log(M - F)``, which maximises the product of the
clients' utilities M - F (Nash bargaining).

Source: Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning",
TMLR 2023, arXiv 2202.01666, Algorithm 1. A client's steps are taken on ``-log(1 - l /
M)`` of the mini-batch loss l; the server does what the wrapped strategy does, in the
paper FedAvg. The gradient is divided by M - l: a large M needs a learning rate M times
as large for the same steps.

    PropFair(FedAvg())        PropFair(Scaffold())        TERM(PropFair(FedAdam()))

Contract: that of the wrapped strategy; the client minimises that loss with M =
``propfair-m`` of the configuration.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import PropFairSent, Reads
from fedapps.strategies.base.capabilities import (
    Capabilities,
    require_declaration,
)
from fedapps.strategies.base.wrapper import Wrapper


@dataclass(frozen=True)
class PropFairOptions(Options):
    """Options of PropFair."""

    m: float = option(3.0, "baseline M, above the losses that clients have", low=0, open_low=True)


class PropFair(Wrapper):
    """PropFair around ``strategy``, which does not change: only the clients' loss
    does.
    """

    client_half: Reads = (PropFairSent,)

    def __init__(self, strategy: Strategy, options: PropFairOptions | None = None) -> None:
        self._declared = require_declaration(strategy, "PropFair")
        self.strategy = strategy
        self.options = options or PropFairOptions()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped strategy."""
        return self._declared

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send M in addition to what the wrapped strategy sends."""
        self.enter_loop(arrays, grid)
        config.update(PropFairSent(self.options.m).to_config())
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send M as in training: a client may train before it is scored."""
        config.update(PropFairSent(self.options.m).to_config())
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_train(server_round, self.answered(replies))
