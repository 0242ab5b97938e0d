"""SuPerFed's mixed model, and the cosine penalty that keeps its two endpoints apart
(mode connectivity).

The mixed model is ``theta(lambda) = (1 - lambda) theta_f + lambda theta_l``, theta_f
being the federated and theta_l the personal model. The printed denominator of the
cosine repeats one norm; ``||theta_f|| ||theta_l||`` is meant.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II, equations
(2.3)-(2.6).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-12


def draw_lambda(rng: np.random.Generator, mixing: str, num_layers: int) -> NDArray[np.float64]:
    """Return one mixing weight per layer, shape (num_layers,).

    ``mixing``: "model" (SuPerFed-MM) draws one weight from U(0, 1) for all layers,
    "layer" (SuPerFed-LM) one for each independently.
    """
    if mixing == "model":
        return np.full(num_layers, rng.random())
    if mixing == "layer":
        return rng.random(num_layers)
    raise ValueError(f"mixing = {mixing!r}: choose 'model' or 'layer'")


def layer_of(names: list[str]) -> list[int]:
    """Return the layer index of every parameter name; a layer is the module that owns
    the parameter, in order of appearance.
    """
    layers: dict[str, int] = {}
    return [layers.setdefault(name.rpartition(".")[0], len(layers)) for name in names]


def cosine_squared_gradient(inner: Any, norm_f: Any, norm_l: Any) -> tuple[Any, Any, Any]:
    """Return (a, b, c) with ``d cos^2 / d f = a l - b f`` and ``d cos^2 / d l = a f - c
    l``.

    ``cos^2 = <f, l>^2 / (||f||^2 ||l||^2 + 1e-12)``; the arguments are the inner
    product and the two squared norms, numbers or tensors of one. This saves a second
    backward pass.
    """
    ratio = inner / (norm_f * norm_l + EPSILON)
    return 2 * ratio, 2 * ratio * ratio * norm_l, 2 * ratio * ratio * norm_f
