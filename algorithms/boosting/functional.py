"""Boosting in function space: functional gradients, the local steps, clipping, the
residual.

A function is represented by its values (n, outputs) at n points. One output means
binary classification: the logit of label 1. Values and labels are PyTorch tensors or
NumPy arrays, both of the same kind: a client with trees does not need PyTorch.

Sources: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, Algorithms 1 and 2; its first version (2021, arXiv 2103.06972v1)
for the clipped variant (FFGB.C, Algorithm 3); ``lipschitz.py`` for FFGB.L.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A torch tensor or a NumPy array.
Values = Any


def module_of(values: Values) -> Any:
    """Return the module for these values, ``numpy`` or ``torch``; the functions used
    here have the same names in both.
    """
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def on_cpu(values: Values) -> Values:
    """Return the values on the CPU, where NumPy can read them."""
    return values if isinstance(values, np.ndarray) else values.detach().cpu()


def like(array: Any, values: Values) -> Values:
    """Return a NumPy array as the kind of ``values``, on its device."""
    return (
        array
        if isinstance(values, np.ndarray)
        else module_of(values).tensor(array, device=values.device)
    )


# --- losses ---------------------------------------------------------------------------


def check_labels(labels: Values, outputs: int) -> None:
    """Raise ``ValueError`` unless the labels (n,) are integers below the number of
    classes that ``outputs`` can distinguish.
    """
    classes = max(2, outputs)
    if "float" in str(labels.dtype) or (
        len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        shown = f"{labels.min().item()}..{labels.max().item()} of type {labels.dtype}"
        raise ValueError(
            f"labels {shown}, but the function has outputs for {classes} classes: labels "
            f"are whole, 0 to {classes - 1}"
        )


def coded(labels: Values, outputs: int) -> Values:
    """Return labels (n,) as regression targets (n, outputs): one-hot, or -1 and 1 if
    there is one output, whose sign then decides.
    """
    xp = module_of(labels)
    if outputs == 1:
        return xp.asarray(2.0 * labels - 1.0, dtype=xp.float32)[:, None]
    return xp.asarray(labels[:, None] == xp.arange(outputs, device=labels.device), dtype=xp.float32)


@dataclass(frozen=True)
class Loss:
    """A loss: its pointwise ``gradient(values, labels)`` (n, outputs), and
    ``mean(values, labels)`` over the points.
    """

    gradient: Callable[[Values, Values], Values]
    mean: Callable[[Values, Values], Values]


def _cross_entropy_gradient(values: Values, labels: Values) -> Values:
    xp = module_of(values)
    if values.shape[1] == 1:
        # sigmoid(v) - y
        return 0.5 + 0.5 * xp.tanh(0.5 * values) - xp.asarray(labels[:, None], dtype=values.dtype)
    powers = xp.exp(values - xp.amax(values, axis=1, keepdims=True))
    return powers / powers.sum(axis=1)[:, None] - xp.asarray(
        coded(labels, values.shape[1]), dtype=values.dtype
    )


def _cross_entropy(values: Values, labels: Values) -> Values:
    xp = module_of(values)
    if values.shape[1] == 1:
        logits = values[:, 0]
        return (
            xp.logaddexp(xp.zeros_like(logits), logits)
            - logits * xp.asarray(labels, dtype=values.dtype)
        ).mean()
    highest = xp.amax(values, axis=1, keepdims=True)
    whole = highest[:, 0] + xp.log(xp.exp(values - highest).sum(axis=1))
    return (whole - values[xp.arange(len(labels), device=values.device), labels]).mean()


def _square(values: Values, labels: Values) -> Values:
    rest = values - coded(labels, values.shape[1])
    return 0.5 * (rest * rest).sum(axis=1).mean()


LOSSES = {
    "cross-entropy": Loss(_cross_entropy_gradient, _cross_entropy),
    "square": Loss(lambda values, labels: values - coded(labels, values.shape[1]), _square),
}

# --- the local steps of a round -------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The local steps of a round.

    ``sign``: 1 if learners fit a gradient, which is subtracted; -1 if they fit the
    target values (FFGB.L). ``residual``: whether a learner's residual is added to the
    target of the next one. ``clip`` (G^2) bounds the learner outputs, ``clip_residual``
    (G^1) the residual; ``None`` means no clipping.
    """

    etas: Sequence[float]
    mu: float
    sign: int = 1
    residual: bool = True
    clip: float | None = None
    clip_residual: float | None = None


def clipped(values: Values, bound: float | None) -> Values:
    """Return the values clipped elementwise to [-bound, bound]; ``None`` is no
    bound.
    """
    return values if bound is None else module_of(values).clip(values, -bound, bound)


def boost(
    start: Values,
    direction: Callable[[Values], Values],
    fit: Callable[[Values], tuple[Any, Values]],
    plan: Plan,
) -> tuple[list[Any], Values, Values]:
    """Run the local steps from the values ``start`` (n, outputs); return (learners,
    values g^{K+1}, residual Delta^K).

    ``direction(g)``: the functional gradient at g. ``fit(target)``: the oracle; returns
    a learner and its values (n, outputs).
    """
    g, delta, learners = start, module_of(start).zeros_like(start), []
    for eta in plan.etas:
        wanted = direction(g)
        learner, h = fit(delta + wanted)  # h^k = Q(Delta^{k-1} + grad R[g^k])
        learners.append(learner)
        g = g - eta * (plan.sign * clipped(h, plan.clip) + plan.mu * g)
        if plan.residual:
            delta = clipped(delta + wanted - h, plan.clip_residual)
    return learners, g, delta
