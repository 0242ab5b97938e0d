"""The common base of weight rules with a memory: an interface, a prior and a cap.

Every rule is relative to a prior (K,), which is uniform by default. Weights start at
the prior and return to it where nothing is learned. A client that counts as two in the
prior moves like two clients with the same responses. A cap bounds every weight by a
multiple of the prior, which limits the gain of a client that reports an inflated loss.
Clients are identified by positions 0..K-1.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.fairness.simplex import Array, bounded, check_count, normalise, staying


class WeightRule(ABC):
    """Decides on the weights of K clients: ``p`` (K,), on the simplex.

    ``prior``: (K,), which sums to 1. ``cap``: the largest allowed multiple of the
    prior; 0: no cap.
    """

    p: Array

    def __init__(self, count: int, cap: float) -> None:
        check_count(count)
        check_cap(cap)
        self.cap = cap
        self.prior: Array = np.full(count, 1 / count)

    @property
    def count(self) -> int:
        """The number of clients K."""
        return len(self.prior)

    def capped(self, p: Array) -> Array:
        """Return the weights (K,) closest to ``p`` in relative entropy that are within
        the cap.
        """
        return bounded(p, self.cap * self.prior) if self.cap else p

    def set_prior(self, prior: Array) -> None:
        """Replace the prior; the weights keep their ratios to it."""
        self.prior = normalise(prior)

    @abstractmethod
    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the values (m,) of the clients at positions ``sampled`` (m,);
        return their new weights (m,), which sum to 1.
        """

    @abstractmethod
    def add(self, n: int) -> None:
        """Append ``n`` new clients, each with the mean prior and the mean weight of the
        present ones.
        """

    @abstractmethod
    def drop(self, positions: ArrayLike) -> None:
        """Remove clients; the weights of the others keep their proportions, and their
        positions close the gaps.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""


class Weights(WeightRule):
    """A rule that stores its weights ``p`` (K,) themselves."""

    def __init__(self, count: int, cap: float = 0.0) -> None:
        super().__init__(count, cap)
        self.p = self.prior.copy()

    def set_prior(self, prior: Array) -> None:
        """Replace the prior; the weights keep their ratios to it."""
        before = self.prior
        super().set_prior(prior)
        if not np.array_equal(before, self.prior):
            self.p = self.capped(normalise(self.p * (self.prior / before)))

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean prior and the mean weight."""
        self.prior, self.p = join(self.prior, n), join(self.p, n)

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients; the weights of the others keep their proportions, within the
        cap.
        """
        stay = staying(positions, self.count)
        self.prior = normalise(self.prior[stay])
        # If the clients that leave hold all the weight, return to the prior.
        self.p = self.capped(normalise(self.p[stay])) if self.p[stay].any() else self.prior.copy()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the weights."""
        return {"p": self.p.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included; the prior is uniform if
        K differs.
        """
        self.p = np.array(state["p"], np.float64)
        if len(self.p) != self.count:
            self.prior = np.full(len(self.p), 1 / len(self.p))


def join(p: Array, n: int) -> Array:
    """Return ``p`` (K,) extended by ``n`` entries of its mean and renormalised: (K +
    n,).
    """
    return normalise(np.append(p, np.full(n, p.mean())))


def check_cap(cap: float) -> None:
    """Raise ``ValueError`` unless ``cap`` is 0 (none) or at least 1: weights all below
    their prior cannot sum to 1.
    """
    if not (cap == 0 or 1 <= cap < math.inf):
        raise ValueError(f"cap = {cap:g}: choose 0 (none) or a multiple of the prior from 1 on")


@dataclass(frozen=True, kw_only=True)
class PriorOptions(Options):
    """The option of all weight rules."""

    prior: str = option(
        "uniform",
        "reference of the weights: equal for all clients, or their training samples",
        choices=["uniform", "samples"],
    )


@dataclass(frozen=True, kw_only=True)
class FairOptions(PriorOptions):
    """The options of weight rules that do not bound their weights themselves."""

    cap: float = option(
        0.0, "largest weight as a multiple of the prior, at least 1; 0: no limit", low=0
    )

    def check(self) -> None:
        """Check that weights within the cap can sum to 1."""
        check_cap(self.cap)
