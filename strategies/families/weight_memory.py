"""What methods that decide weights keep of the clients between rounds: positions,
samples, absences, the weight rule and its state.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.fairness.rule import WeightRule, normalise
from fedapps.strategies.base.capabilities import load_state, state_of
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import Slots, pack_ids
from fedapps.strategies.base.wrapper import Wrapper

Floats = NDArray[np.float64]
#: Rounds in a row that a client may be away before its weight is forgotten.
FORGET_AFTER = 100


class WeightMemory(Wrapper):
    """Base of :class:`fedapps.strategies.families.reweighting.Reweighting`."""

    #: Whether the rule needs the clients' losses.
    asks_losses = True

    def __init__(self, strategy: Strategy, prior: str, forget_after: int) -> None:
        self.strategy, self.prior, self.forget_after = strategy, prior, forget_after
        #: Client ids by position: the weight rule identifies clients by position.
        self.clients = Slots()
        #: Training samples (K,) by position; NaN before a client's first reply.
        self.samples: Floats = np.zeros(0)
        self.rule: WeightRule | None = None
        self._away = np.zeros(0, np.int32)  # rounds in a row without a connection, by position
        self._met = 0  # the last round in which these were counted
        self._names: Mapping[int, ClientId] = {}
        self.loss_scale = 0.0  # the largest median loss of a round so far

    def new_rule(self, count: int) -> WeightRule | None:
        """Return the weight rule for ``count`` clients; ``None`` if the method keeps no
        state between rounds.
        """
        return None

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the client ids by position, the state of the weight rule and that of
        the wrapped strategy, if it has one.
        """
        state: dict[str, NDArray[Any]] = {
            "clients": pack_ids(self.clients),
            "away": self._away.copy(),
        }
        state["samples"] = self.samples.copy()
        if self.asks_losses:
            state["loss-scale"] = np.array(self.loss_scale)
        if self.rule is not None:
            state |= {f"maker.{name}": value for name, value in self.rule.state_dict().items()}
        return state | under("strategy.", state_of(self.strategy))

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.clients = Slots.unpacked(state["clients"])
        self._away = np.array(state.get("away", np.zeros(len(self.clients))), np.int32)
        self.samples = np.array(
            state.get("samples", np.full(len(self.clients), np.nan)), np.float64
        )
        self.loss_scale = float(state.get("loss-scale", 0.0))
        self.rule = self.new_rule(len(self.clients)) if self.clients else None
        if self.rule is not None:
            if self.prior == "samples":
                # set before the weights, which were saved relative to it
                self.rule.set_prior(self._prior())
            self.rule.load_state_dict(within("maker.", state))
        load_state(self.strategy, within("strategy.", state))

    def _prior(self) -> Floats:
        """Return all clients' shares of the samples (K,); a client that has not replied
        yet counts as the mean of the others.
        """
        known = ~np.isnan(self.samples)
        if not known.any():
            return np.full(len(self.samples), 1 / len(self.samples))
        return normalise(np.where(known, self.samples, self.samples[known].mean()))

    def _meet(self, grid: Grid, server_round: int) -> None:
        """Give new clients a position and forget those that have been away for too
        long.
        """
        self._names = clients_of(grid)
        everyone = self.clients.has_all(self._names)
        if server_round != self._met and self.clients:
            self._met = server_round
            self._away += 1
            here = (client for client in self._names.values() if client in self.clients)
            self._away[... if everyone else self.clients.at(here)] = 0
        gone = np.flatnonzero(self._away > self.forget_after)
        if len(gone) == len(self.clients):  # the first round, or no known client is left
            self.clients = Slots.of(self._names)
            self._away = np.zeros(len(self.clients), np.int32)
            self.samples = np.full(len(self.clients), np.nan)
            self.rule = self.new_rule(len(self.clients)) if self.clients else None
            return
        new = [] if everyone else self.clients.newcomers(self._names)
        if self.rule is not None and len(gone):
            self.rule.drop(gone)
        if self.rule is not None and new:
            self.rule.add(len(new))
        if len(gone) or new:
            self.samples = np.append(np.delete(self.samples, gone), np.full(len(new), np.nan))
            self._away = np.append(np.delete(self._away, gone), np.zeros(len(new), np.int32))
            self.clients = self.clients.changed(gone.tolist(), new)
