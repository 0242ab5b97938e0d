"""WarmStart: a few rounds of one strategy, then another strategy from the resulting
model.

    WarmStart(FFGBDistill(distiller), 1, FedDyn())
        WarmStart(YourStrategy(), 3, flwr.serverapp.strategy.FedAdam(...))

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, section 5, "FFGB as Warm Start": one round of functional
boosting gives a good initial model for parameter averaging. Works with any two
strategies whose models have the same arrays, from this package, from Flower or your
own.

Contract: that of the strategy in charge of the round. Every configuration names it as
``warm-start-half``, "first" or "then", for clients that differ between the two
(``clients.WarmStartClient``). Round numbers are not reset.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, check_range, option
from fedapps.algorithms.common.prefixes import within
from fedapps.algorithms.contract.sent import WarmStartSent
from fedapps.strategies.base.capabilities import (
    Capabilities,
    DecidingWeights,
    counted_models,
    declared,
    is_finished,
    load_state,
    needs_alike,
    own_measures,
    require_declaration,
    state_of,
)
from fedapps.strategies.base.messages import innermost
from fedapps.strategies.base.runs_rounds import RunsRounds


@dataclass(frozen=True)
class WarmStartOptions(Options):
    """Options of a warm start."""

    first: str = option(
        "ffgb-distill", "method of the first rounds; both methods read their own option tables"
    )
    rounds: int = option(1, "rounds of the first method", low=1)
    then: str = option("fedavg", "method of the other rounds")


class WarmStart(RunsRounds):
    """Strategy that runs ``first`` for ``rounds`` rounds, then ``then``."""

    def __init__(self, first: Strategy, rounds: int, then: Strategy) -> None:
        check_range("rounds", rounds, 1)
        for half in (first, then):
            require_declaration(half, "WarmStart")
        self.first, self.rounds, self.then = first, rounds, then
        self.current = first
        # by phase: name -> value before (None: absent)
        self._written: dict[str, dict[str, Any]] = {"train": {}, "evaluate": {}}

    def half(self, server_round: int) -> Strategy:
        """Return the strategy of a round and make it the current one."""
        self.current = self.first if server_round <= self.rounds else self.then
        return self.current

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the strategy of the round."""
        with self._announced(server_round, config, "train") as strategy:
            return list(strategy.configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the strategy of the round."""
        return self.half(server_round).aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the strategy of the round."""
        with self._announced(server_round, config, "evaluate") as strategy:
            return list(strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Delegate to the strategy of the round."""
        return self.half(server_round).aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Print the summaries of both strategies."""
        self.first.summary()
        self.then.summary()

    # --- interface to the round loop and the recorder ---------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """Replies are those of the current strategy; a composition of two strategies is
        not an average.
        """
        current = declared(self.current) or Capabilities()
        return replace(current, aggregation="single replies", subset=False)

    @property
    def weighted_by_key(self) -> str | None:
        """The metric by which the current strategy weights replies."""
        return getattr(innermost(self.current), "weighted_by_key", None)

    @property
    def takes_any_metrics(self) -> bool:
        """Whether the current strategy takes replies with different metrics."""
        return not needs_alike(self.current)

    @property
    def models_sent(self) -> dict[str, int]:
        """The models sent in the last round, if the current strategy counts them."""
        return counted_models(self.current)

    @property
    def own_measures(self) -> Mapping[str, float]:
        """The current strategy's own measures."""
        return own_measures(self.current)

    @property
    def finished(self) -> bool:
        """Whether the second strategy has ended the run."""
        return self.current is self.then and is_finished(self.then)

    @property
    def last_weights(self) -> dict[int | str, float]:
        """The weights decided by the current strategy; empty if it decides none."""
        return dict(self.current.last_weights) if isinstance(self.current, DecidingWeights) else {}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the states of both strategies."""
        halves = {"first": self.first, "then": self.then}
        return {
            f"{name}.{key}": value
            for name, half in halves.items()
            for key, value in state_of(half).items()
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name, half in {"first": self.first, "then": self.then}.items():
            load_state(half, within(f"{name}.", state))

    @contextmanager
    def _announced(self, server_round: int, config: ConfigRecord, phase: str) -> Iterator[Strategy]:
        """Yield the strategy of the round, named in ``config``; entries written by the
        first strategy are removed for the second.
        """
        strategy, written = self.half(server_round), self._written[phase]
        if strategy is self.then:
            for name, value in written.items():
                config.pop(name, None)
                config.update({name: value} if value is not None else {})
            written.clear()
        half = "first" if strategy is self.first else "then"
        config.update(WarmStartSent(half).to_config())
        before = dict(config)
        yield strategy
        if strategy is self.first:
            for name in config:
                if config[name] != before.get(name):
                    written.setdefault(name, before.get(name))
