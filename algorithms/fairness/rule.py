"""The common base of weight rules with a memory: an interface, a prior and a cap.

Every rule is relative to a prior (K,), which is uniform by default. Weights start at
the prior and return to it where nothing is learned. A client that counts as two in the
prior moves like two clients with the same responses. A cap bounds every weight by a
multiple of the prior, which limits the gain of a client that reports an inflated loss.
Clients are identified by positions 0..K-1.

Weight rules use two projections, each with a bound on every weight, ``w <= limits``.
The one in relative entropy scales the weights below their bounds (:func:`bounded`); the
Euclidean one in the metric of a prior shifts them (:func:`shifted`). Both fix the
weights above their bounds and repeat with the others. That only raises the others, so a
fixed weight stays above its bound, and the result is the exact projection.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.mirror import Array as Array
from fedapps.algorithms.common.options import Options, option

Positions = NDArray[np.int64]

# Tolerance for rounding errors where weights reach their bounds.
EXCESS = 1e-12
# Constants of the solver: an equality constraint, the status of an optimal solution.
EQUALITY, SOLVED, NOT_CONVEX = 5, 1, -5


def bounded(weights: ArrayLike, limits: ArrayLike) -> Array:
    """Return the weights (n,) closest in relative entropy to ``weights`` (n,) on the
    simplex, with w <= ``limits`` (n,).

    ``min(c w, limits)`` with c such that the sum is 1. If all others are 0, the rest is
    shared in proportion to the limits. Raises ``ValueError`` if the limits sum to less
    than 1.
    """
    p, most = normalise(np.asarray(weights, np.float64)), np.asarray(limits, np.float64)

    def share(free: NDArray[np.bool_], mass: float) -> Array:
        own = p[free] if p[free].any() else most[free]
        return np.asarray(own * (mass / own.sum()))

    return _filled(p, most, share)


def share(ratios: Array, masses: Array, cap: float) -> float:
    """Return c with ``sum masses min(c ratios, cap) = 1``: the one number on which all
    of :func:`bounded` depends.

    ``ratios`` (n,) > 0: of weights to ``masses`` (n,), which sum to 1. ``cap``: at
    least 1, or 0 for none.
    """
    scale = 1 / float(masses @ ratios)
    full = np.zeros(0, bool)
    while cap and scale * ratios.max() > cap * (1 + EXCESS):
        over = scale * ratios > cap * (1 + EXCESS)
        if len(full) and not (over & ~full).any():
            break
        full = over if not len(full) else full | over
        if full.all():
            break
        left = ~full
        scale = max(0.0, 1 - cap * float(masses[full].sum())) / float(masses[left] @ ratios[left])
    return scale


def shifted(values: ArrayLike, prior: ArrayLike, limits: ArrayLike | None = None) -> Array:
    """Return ``argmin sum (w - values)^2 / prior`` (n,) over the simplex with w <=
    ``limits`` (n,), ``prior`` (n,) > 0 with sum 1.

    ``w = prior max(values / prior - tau, 0)``, cut at the limits. A uniform prior gives
    the Euclidean projection. By sorting.
    """
    weights = np.asarray(prior, np.float64)
    ratios = np.asarray(values, np.float64) / weights

    def share(free: NDArray[np.bool_], mass: float) -> Array:
        u, q = ratios[free], weights[free]
        top = int(u.argmax())
        # Values further below the largest than this end at 0. They are cut first, so
        # that large values lose nothing to rounding.
        u = np.maximum(u - u[top], -mass / q[top])
        order = np.argsort(-u, kind="stable")
        sums = np.cumsum(q[order])
        taus = (np.cumsum(q[order] * u[order]) - mass) / sums
        positive = int(np.count_nonzero(u[order] > taus))  # the condition holds for a prefix only
        return np.asarray(q * np.maximum(u - taus[max(positive, 1) - 1], 0.0))

    start = share(np.ones(len(weights), bool), 1.0)
    return start if limits is None else _filled(start, np.asarray(limits, np.float64), share)


def _filled(
    start: Array, limits: Array, share: Callable[[NDArray[np.bool_], float], Array]
) -> Array:
    """Return ``start`` with the weights above their limits fixed at the limits, and the
    excess shared among the others by ``share``.
    """
    if limits.sum() < 1 - EXCESS:
        raise ValueError(f"limits sum to {limits.sum():g}: must be at least 1")
    w, full = start, np.zeros(len(start), bool)
    while (over := ~full & (w > limits * (1 + EXCESS))).any():
        full |= over
        w = limits.copy()
        if full.all():
            return normalise(w)
        w[~full] = share(~full, max(0.0, 1 - limits[full].sum()))
    return w


def minimise_on_simplex(
    hessian: Array, linear: Array, low: ArrayLike = 0.0, high: ArrayLike | None = None
) -> Array:
    """Return ``argmin p'Hp/2 - b'p`` over ``sum p = 1, low <= p <= high``, H (n, n)
    positive definite and b (n,).

    Raises ``ValueError`` if no such p exists or H is not positive definite. About n^3
    operations.
    """
    import daqp  # imported here: only the servers of AAggFF-S and FedMGDA+ need it

    n = len(linear)
    least = np.broadcast_to(np.asarray(low, np.float64), n)
    most = np.broadcast_to(np.asarray(np.inf if high is None else high, np.float64), n)
    kinds = np.append(np.zeros(n, np.int32), np.int32(EQUALITY))
    solution, _, status, _ = daqp.solve(
        np.ascontiguousarray(hessian, np.float64),
        -np.asarray(linear, np.float64),
        np.ones((1, n)),
        np.append(most, 1.0),
        np.append(least, 1.0),
        kinds,
        iter_limit=100 * (n + 10),
    )
    if status != SOLVED:
        reason = (
            "H is not positive definite" if status == NOT_CONVEX else "no solution within bounds"
        )
        raise ValueError(f"minimum on the simplex: {reason} (status {status} of the solver)")
    # Correct rounding errors: the lower bounds then hold exactly, the sum to machine
    # precision.
    above = np.maximum(solution - least, 0.0)
    return least + above * ((1 - least.sum()) / above.sum()) if above.any() else least.copy()


def normalise(p: Array) -> Array:
    """Return the non-negative ``p`` (K,) divided by its sum; uniform weights if it is
    all zeros.
    """
    total = p.sum()
    return p / total if total > 0 else np.full(len(p), 1 / len(p))


def staying(positions: ArrayLike, count: int) -> Positions:
    """Return the positions that remain without ``positions``; raise ``ValueError`` if
    one is unknown or none remains.
    """
    leaving = check_positions(positions, count)
    if len(leaving) == count:
        raise ValueError(f"all {count} clients leave: at least one must stay, make a new rule")
    return np.delete(np.arange(count), leaving)


def check_count(count: int) -> None:
    """Raise ``ValueError`` unless there is at least one client."""
    if count < 1:
        raise ValueError(f"count = {count}: must be at least one client")


def check_positions(positions: ArrayLike, count: int) -> Positions:
    """Return ``positions`` (m,) as int64; raise ``ValueError`` if one is not in
    0..``count`` - 1 or is repeated.
    """
    row = np.asarray(positions)
    if row.ndim != 1 or (len(row) > 0 and not np.issubdtype(row.dtype, np.integer)):
        raise ValueError(
            f"positions of shape {row.shape} and type {row.dtype}: must be one row of integers"
        )
    ordered = np.sort(row)
    if len(row) > 0 and (ordered[0] < 0 or ordered[-1] >= count):
        raise ValueError(
            f"positions reach from {ordered[0]} to {ordered[-1]}: must lie in 0..{count - 1}"
        )
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError("a position is repeated: each client responds once per round")
    return row.astype(np.int64)


def check_values(sampled: ArrayLike, values: ArrayLike, count: int) -> tuple[Positions, Array]:
    """Return a round's positions (m,) and values (m,), m > 0; raise ``ValueError``
    unless each position has one finite value.
    """
    positions, row = check_positions(sampled, count), np.asarray(values, np.float64)
    if row.shape != positions.shape or len(row) == 0:
        raise ValueError(
            f"values of shape {row.shape} for {len(positions)} clients: must be one each, at least "
            "one"
        )
    if not np.isfinite(row).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(row))} values are not finite: leave those clients out"
        )
    return positions, row


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
