"""WarmStart: a few rounds of one strategy, then another one from the model that it reached.

    WarmStart(FFGBDistill(distiller), 1, FedDyn())        WarmStart(YourStrategy(), 3, flwr.serverapp.strategy.FedAdam(...))

Source of the idea: Shen et al. 2022, section 5, "FFGB as Warm Start": one round of functional boosting gives a good initial model for
parameter averaging. Works with any two strategies whose model is the same arrays, of this package, of Flower, or yours.

Contract: that of the strategy whose round it is. Every configuration says which by ``warm-start-half``, "first" or "then", for
clients whose two halves differ (``clients.WarmStartClient``). Rounds are counted through.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from algorithms.common.checks import check_range
from algorithms.common.options import Options, option
from strategies.base.capabilities import (
    Capabilities,
    DecidingWeights,
    declared,
    is_finished,
    load_state,
    require_declaration,
    state_of,
)
from strategies.base.messages import innermost
from strategies.base.rounds import run_rounds

HALF = "warm-start-half"


@dataclass(frozen=True)
class WarmStartOptions(Options):
    """Options of a warm start."""

    first: str = option("ffgb-distill", "method of the first rounds; it and the other one take their own tables")
    rounds: int = option(1, "rounds of the first method", low=1)
    then: str = option("fedavg", "method of the other rounds")


class WarmStart(Strategy):
    """Runs ``first`` for ``rounds`` rounds, then ``then``."""

    def __init__(self, first: Strategy, rounds: int, then: Strategy) -> None:
        check_range("rounds", rounds, 1)
        for half in (first, then):
            require_declaration(half, "WarmStart")
        self.first, self.rounds, self.then = first, rounds, then
        self.current = first

    def half(self, server_round: int) -> Strategy:
        """Return the strategy of a round, from now on the current one."""
        self.current = self.first if server_round <= self.rounds else self.then
        return self.current

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Leave it to the strategy of the round."""
        return self._announced(server_round, config).configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Leave it to the strategy of the round."""
        return self.half(server_round).aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Leave it to the strategy of the round."""
        return self._announced(server_round, config).configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave it to the strategy of the round."""
        return self.half(server_round).aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Print the summaries of both."""
        self.first.summary()
        self.then.summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds; arguments as in :func:`strategies.base.rounds.run_rounds`."""
        return run_rounds(self, *args, **kwargs)

    # --- what the round loop and the recorder ask of a strategy ---------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """Replies are those of the current strategy; two strategies are no average."""
        found = declared(self.current)
        return Capabilities(found.replies if found else "other", "single replies")

    @property
    def weighted_by_key(self) -> str | None:
        """By which metric the current strategy weighs replies."""
        return getattr(innermost(self.current), "weighted_by_key", None)

    @property
    def finished(self) -> bool:
        """Whether the second strategy says that the run is over."""
        return self.current is self.then and is_finished(self.then)

    @property
    def last_weights(self) -> dict[int | str, float]:
        """The weights that the current strategy decided, if it does."""
        return dict(self.current.last_weights) if isinstance(self.current, DecidingWeights) else {}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state of those that have one."""
        halves = {"first": self.first, "then": self.then}
        return {f"{name}.{key}": value for name, half in halves.items() for key, value in state_of(half).items()}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name, half in {"first": self.first, "then": self.then}.items():
            prefix = f"{name}."
            load_state(half, {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})

    def _announced(self, server_round: int, config: ConfigRecord) -> Strategy:
        strategy = self.half(server_round)
        config[HALF] = "first" if strategy is self.first else "then"
        return strategy
