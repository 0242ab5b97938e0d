"""FedFW's client: keeps its own iterate and sends the atoms of its Frank-Wolfe steps.

The step itself is ``algorithms.frank_wolfe.steps.client_step``. State between rounds:
x_i; y_i for FedFW+, starting at 0; the averaged gradient if gradients are stochastic;
the last atom if it warm-starts the oracle. A client without state, new or lost, starts
at the received x_bar and reports ``fresh``.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022,
Algorithms 1 and 2 and equation (3).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import FedFWExtras, FedFWSent
from fedapps.algorithms.frank_wolfe.domain import Array, Atom, Parts, RankOne
from fedapps.algorithms.frank_wolfe.steps import (
    Step,
    average_gradient,
    client_step,
    dual_step,
    scratch,
)
from fedapps.clients.base.options import Config
from fedapps.clients.families.problems import ConstrainedClient

NAME = "frank-wolfe"


@dataclass
class _State:
    x: Array
    y: Array | None
    average: Array | None
    atom: Atom | None = None


class FedFWClient(ConstrainedClient):
    """Client of FedFW, FedFW+ and naive Frank-Wolfe; the server's configuration selects
    the variant.
    """

    reads = (FedFWSent, FedFWExtras)
    _dual_mean: Array | None = None

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Separate x_bar from the mean of the dual variables, if that was sent
        (``dual-mean``).
        """
        self._dual_mean = None
        if FedFWExtras.from_config(config).dual_mean:
            last = -self.domain.num_layers
            parameters, self._dual_mean = parameters[:last], self.domain.join(parameters[last:])
        return super().fit(parameters, config)

    def step(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Take the round's steps; return their atoms, or x_i, and y_i for FedFW+, if
        the server asks for them (``resync``).
        """
        sent = FedFWSent.from_config(config)
        naive = sent.variant == "naive-fw"
        kept = None if naive else self._load(sent, config)
        state = kept or _State(
            x_bar.copy(),
            np.zeros_like(x_bar) if sent.variant == "fedfw-plus" else None,
            np.zeros_like(x_bar) if sent.stochastic else None,
        )
        packed: Arrays = []
        dual = None
        if state.y is not None:
            dual_step(state.y, state.x, x_bar, sent.dual_step)
            mean = self._dual_mean
            dual = (
                state.y
                if mean is None
                else np.subtract(state.y, mean, out=scratch(state.y, mean, 2))
            )
        for k, numbers in enumerate(zip(sent.etas, sent.lambdas, sent.rhos, strict=True)):
            gradient = self.gradient(state.x, config, sent.batch_size, k)
            step = Step(numbers[0], 0.0 if naive else numbers[1], numbers[2])
            if state.average is not None:
                _average(state, gradient, 1.0 if kept is None and k == 0 else step.rho)
                gradient = state.average
            state.atom = client_step(
                self.domain,
                state.x,
                x_bar,
                gradient,
                sent.num_clients,
                step,
                dual=dual,
                warm=state.atom,
            )
            packed += state.atom.pack()
        if naive:
            return packed, {}
        self._save(state, config)
        fresh = {"fresh": 1} if kept is None else {}
        if not FedFWExtras.from_config(config).resync:
            return packed, fresh
        own = [state.x] if state.y is None else [state.x, state.y]
        return [array for part in own for array in self.domain.split(part)], fresh

    def point(self, config: Config) -> Array | None:
        """Return x_i."""
        kept = self.store.load(NAME, config, before=False)
        return kept[0] if kept else None

    def _load(self, sent: FedFWSent, config: Config) -> _State | None:
        kept = self.store.load(NAME, config, before=True)
        if kept is None:
            return None
        if kept[0].shape != self.domain.shape:
            raise ValueError(
                f"client {self.client_id} has stored a point of shape {kept[0].shape}: use another "
                "results folder"
            )
        x, *rest = kept
        y = rest.pop(0) if sent.variant == "fedfw-plus" else None
        average = rest.pop(0) if sent.stochastic else None
        return _State(x, y, average, self.domain.unpack(rest) if rest else None)

    def _save(self, state: _State, config: Config) -> None:
        arrays = [array for array in (state.x, state.y, state.average) if array is not None]
        # found by an iterative oracle, which it warm-starts
        if isinstance(state.atom, RankOne | Parts):
            arrays += state.atom.pack()
        self.store.save(NAME, arrays, config)


def _average(state: _State, gradient: Any, rho: float) -> None:
    assert state.average is not None
    if hasattr(gradient, "add_to"):
        state.average *= 1 - rho
        gradient.add_to(state.average, rho)
    else:
        average_gradient(state.average, gradient, rho)
