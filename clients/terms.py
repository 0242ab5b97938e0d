"""SCAFFOLD, FedDyn, Ditto and FedProx as functions of arrays, for clients without
PyTorch: NumPy, JAX.

Models, gradients and what a client keeps are lists of arrays, one per array of the
model, in the model's order. Every function returns new arrays. Your ``fit`` does the
steps, adds a term to each gradient, and acknowledges the method:

    from fedapps.clients import terms

    def fit(self, parameters, config):
        model, c = terms.scaffold_received(parameters)
        own = self.store.load("control", config, before=True) or terms.zeros(model)
        y = model
        for _ in range(steps):
            gradient = terms.added(self.gradient(y), terms.scaffold_term(c, own))
            y = [w - rate * g for w, g in zip(y, gradient)]
        own, reply = terms.scaffold_finished(model, y, c, own, steps * rate)
        self.store.save("control", own, config)
        return reply, number, {"method": "scaffold"}

Sources and equations: ``strategies/scaffold.py``, ``strategies/feddyn.py``,
``strategies/ditto.py``.
"""

from collections.abc import Sequence
from typing import Any

from fedapps.algorithms.common.schedule import effective_steps as effective_steps

#: Arrays of NumPy, JAX or any other library with arithmetic on them.
Arrays = Sequence[Any]


def zeros(model: Arrays) -> list[Any]:
    """Return what a client keeps before its first round: zeros of the model's
    shapes.
    """
    return [0 * array for array in model]


def added(gradient: Arrays, term: Arrays) -> list[Any]:
    """Return the gradient with a term added."""
    return [g + t for g, t in zip(gradient, term, strict=True)]


def proximal_term(model: Arrays, anchor: Arrays, mu: float) -> list[Any]:
    """Return ``mu (model - anchor)``, the gradient of ``(mu/2) ||model - anchor||^2``.

    FedProx: the model that trains, the received one, ``proximal-mu`` of the
    configuration. Ditto: the personal model, the received one, ``ditto-mu``; the model
    that you send is trained as before.
    """
    return [mu * (w - a) for w, a in zip(model, anchor, strict=True)]


def feddyn_term(model: Arrays, received: Arrays, own: Arrays, alpha: float) -> list[Any]:
    """Return ``alpha (model - received) - g_i``; ``own``: the kept g_i, ``alpha``:
    ``feddyn-alpha`` of the configuration.
    """
    return [alpha * (w - start) - g for w, start, g in zip(model, received, own, strict=True)]


def feddyn_finished(model: Arrays, received: Arrays, own: Arrays, alpha: float) -> list[Any]:
    """Return the new g_i after the last step, ``g_i - alpha (model - received)``."""
    return [g - alpha * (w - start) for w, start, g in zip(model, received, own, strict=True)]


def scaffold_received(parameters: Arrays) -> tuple[list[Any], list[Any]]:
    """Return the model and c, which SCAFFOLD sends one after the other."""
    half = len(parameters) // 2
    return list(parameters[:half]), list(parameters[half:])


def scaffold_term(c: Arrays, own: Arrays) -> list[Any]:
    """Return ``c - c_i``; ``own``: the kept c_i."""
    return [ours - theirs for ours, theirs in zip(c, own, strict=True)]


def scaffold_finished(
    received: Arrays, model: Arrays, c: Arrays, own: Arrays, k_eta: float
) -> tuple[list[Any], list[Any]]:
    """Return the new c_i, and the reply: the model, and for every array the mean
    direction ``(received - model) / (K eta)``.

    ``k_eta``: how far a gradient of 1 in every step moves a weight: the number of steps
    times the learning rate; with momentum see :func:`effective_steps`.
    """
    direction = [(x - y) / k_eta for x, y in zip(received, model, strict=True)]
    new = [mine - ours + d for mine, ours, d in zip(own, c, direction, strict=True)]
    return new, [*model, *direction]
