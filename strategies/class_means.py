"""Class means: one synthetic image per class, the mean of all clients' training images
of that class. The baseline of sets of images that cost more.

A client with n samples replies with 1/n of two sums over them, of the images by class
and of their numbers. The averages weighted by n are these sums over all clients, but
for one factor, so their ratio is the mean. Only weighted sums are used, and one round
with all clients is enough; a later one replaces it.

Contract. A training message holds ``sums`` (K, C, H, W) and ``shares`` (K,), of which
the client uses the shapes. The reply holds its own, and ``num-examples``. Evaluation:
``strategies.families.sample_sets``.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedapps.algorithms.contract.wire import read
from fedapps.strategies.families.sample_sets import Arrays, Evaluator, Synthetic
from fedapps.strategies.fedavg import FedAvgArguments


class ClassMeans(Synthetic):
    """Class means strategy. ``shape``: of an image, (C, H, W)."""

    def __init__(
        self,
        shape: Sequence[int],
        num_classes: int,
        evaluator: Evaluator,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(evaluator, num_classes, num_classes, seed, **kwargs)
        self.shape = tuple(shape)

    def first_arrays(self) -> Arrays:
        """Return sums and shares with a mean of 0 for each class."""
        number = len(self.labels)
        return {
            "sums": np.zeros((number, *self.shape), np.float32),
            "shares": np.full(number, 1 / number, np.float32),
        }

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the means of the classes that any client has samples of.

        They are bounded to [-1, 1], which matters only if noise was added to the sums.
        """
        sums, shares = read(arrays["sums"]), read(arrays["shares"])
        known = shares > 0
        if not known.any():
            raise ValueError("no class has a positive share: choose less noise")
        means = sums[known] / shares[known].reshape(-1, *[1] * len(self.shape))
        return np.clip(means, -1, 1).astype(np.float32), self.labels[known]
