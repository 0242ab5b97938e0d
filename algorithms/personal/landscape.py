"""Filter-normalised random directions in parameter space. The loss along them shows how
flat a minimum is.

A ReLU net is the same function when one layer is scaled up and the next one down, so
the length of a step has no meaning. Every filter of a random direction is therefore
scaled to the norm of the net's filter: d_ij <- d_ij ||theta_ij|| / ||d_ij||. Biases,
and scales and shifts of normalisation layers, do not move.

Source: Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural
Nets", NeurIPS 2018, arXiv 1712.09913, section 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Named = Mapping[str, NDArray[Any]]


def filter_normalised(arrays: Named, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return a direction with the names, shapes and dtypes of ``arrays``.

    The first axis of a weight indexes its filters (the outputs of a dense layer). The
    direction is 0 for arrays with fewer than two axes and for integer arrays. Draws
    depend on names and shapes only, so nets of one architecture get the same direction
    up to scaling.
    """
    return {name: _scaled(theta, rng) for name, theta in arrays.items()}


def _scaled(theta: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if theta.ndim < 2 or theta.dtype.kind != "f":
        return np.zeros_like(theta)
    d = rng.normal(size=theta.shape).reshape(len(theta), -1)
    wanted = np.linalg.norm(theta.reshape(len(theta), -1), axis=1, keepdims=True)
    return np.asarray(d * (wanted / np.linalg.norm(d, axis=1, keepdims=True)), theta.dtype).reshape(
        theta.shape
    )


def on_plane(
    arrays: Named, first: Named, second: Named, a: float, b: float
) -> dict[str, NDArray[Any]]:
    """Return ``theta + a d_1 + b d_2``, array by array; arrays that are not floating
    point stay as they are.
    """
    return {
        name: np.asarray(theta + a * first[name] + b * second[name], theta.dtype)
        if theta.dtype.kind == "f"
        else theta
        for name, theta in arrays.items()
    }
