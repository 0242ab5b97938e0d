"""Client weights as an online portfolio: the two weight rules of AAggFF, and helpers shared by all weight rules.

In every round the clients respond with r (larger: worse served), the decision loss is ``-log(1 + <p, r>)``, and a weight rule
returns the next weights p on the simplex. :class:`OnlineNewtonStep` (AAggFF-S) needs the responses of all clients in every round,
:class:`LinearisedFTRL` (AAggFF-D) those of a uniform sample. Clients are identified by positions 0..K-1; the caller maps them to ids.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter III, (3.7), (3.10) to (3.12), Theorems 3.1 and 3.2, Lemma 3.5. ONS: Agarwal, Hazan, Kale, Schapire,
"Algorithms for Portfolio Management based on the Newton Method", ICML 2006, DOI 10.1145/1143844.1143846; as
follow-the-regularised-leader: Orabona, "A Modern Introduction to Online Learning", 2019, arXiv 1912.13213, chapter 7.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from algorithms.common.checks import check_choice, check_range
from algorithms.common.mirror import project_simplex_entropy
from algorithms.fairness.responses import check_bounds, decision_gradient

Array = NDArray[np.float64]
Positions = NDArray[np.int64]

RIDGES = ("paper", "reference")
# Tolerance for rounding errors in a caller's responses, relative to the upper bound.
SLACK = 1e-9


class WeightRule(Protocol):
    """Decides on the weights of K clients."""

    @property
    def count(self) -> int:
        """The number of clients K."""

    @property
    def p(self) -> Array:
        """Weights (K,) on the simplex."""

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the values (m,) of the clients at positions ``sampled`` (m,); return their new weights (m,), which sum to 1."""

    def add(self, n: int) -> None:
        """Append ``n`` new clients, each with the mean weight of the present ones."""

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients; the weights of the others keep their proportions, and their positions close the gaps."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""


class OnlineNewtonStep:
    """AAggFF-S: the online Newton step as follow-the-regularised-leader (3.7), for full participation in every round.

    ``p = argmin sum_t <p, g_t> + (alpha/2) |p|^2 + (beta/2) sum_t <g_t, p - p_t>^2`` on the simplex, that is ``min p'Hp/2 - b'p``
    with ``H = alpha I + beta sum g g'``, ``b = -sum g + beta sum g <g, p_t>``; ``alpha = 4 K L``, ``beta = 1 / (4 L)`` and
    ``L = C2 / (1 + C1)``.

    ``low``, ``high``: C1 and C2 of the responses; ``high`` None is 1/K and follows K. ``ridge`` "paper" is (3.7); "reference" leaves
    the term with p_t out of b and uses ``H = alpha (1 + beta) I + beta sum g g'``: milder weights, the form behind the printed tables.

    Theorem 3.1 bounds the regret of "paper" by ``2 L K (1 + log(1 + T / 16K))``. Its proof (Lemma 3.10) needs ``beta <= 1/2``, that is
    ``L >= 1/2``; the default of 1/K is below that for K > 2, and some sequences of a few thousand rounds violate the bound.

    A new client is given the history of the mean client: in every past round, the mean of the present clients' gradients, as if it had
    given the average response with weight 0. With a history of zeros it would count as the best served of all and receive no
    weight for many rounds.
    """

    def __init__(self, count: int, low: float = 0.0, high: float | None = None, ridge: str = "paper") -> None:
        check_count(count)
        check_bounds(low, 1 / count if high is None else high)
        check_choice("ridge", ridge, RIDGES)
        self.low, self.ridge, self._high = low, ridge, high
        self.p: Array = np.full(count, 1 / count)
        # sum g g', sum g, sum g <g, p_t>: alpha and beta follow K, so they are multiplied in when p is decided.
        self.outer: Array = np.zeros((count, count))
        self.slope: Array = np.zeros(count)
        self.cross: Array = np.zeros(count)

    @property
    def count(self) -> int:
        """The number of clients K."""
        return len(self.p)

    @property
    def high(self) -> float:
        """C2: the largest response."""
        return 1 / self.count if self._high is None else self._high

    @property
    def lipschitz(self) -> float:
        """L = ``C2 / (1 + C1)``: the largest possible entry of a gradient (Lemma 3.1)."""
        return self.high / (1 + self.low)

    def program(self) -> tuple[Array, Array]:
        """Return H (K, K) and b (K,) of the quadratic program."""
        alpha, beta = 4 * self.count * self.lipschitz, 1 / (4 * self.lipschitz)
        if self.ridge == "reference":
            return alpha * (1 + beta) * np.eye(self.count) + beta * self.outer, -self.slope
        return alpha * np.eye(self.count) + beta * self.outer, beta * self.cross - self.slope

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the responses (K,) of all clients, at positions ``sampled`` (K,); return their new weights, which sum to 1.

        Raises ``ValueError`` if a client is missing or a response lies outside [low, high].
        """
        positions, responses = check_values(sampled, values, self.count)
        if len(positions) < self.count:
            raise ValueError(
                f"{len(positions)} of {self.count} clients responded: AAggFF-S needs all in every round, use AAggFF-D for samples"
            )
        check_responses(responses, self.low, self.high)
        r = np.empty(self.count)
        r[positions] = responses
        g = decision_gradient(self.p, r)
        self.outer += np.outer(g, g)
        self.slope += g
        self.cross += g * (g @ self.p)
        self.p = minimise_on_simplex(*self.program())
        return self.p[positions]

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean weight and, for past rounds, the mean gradient."""
        spread = np.vstack([np.eye(self.count), np.full((n, self.count), 1 / self.count)])
        self.outer, self.slope, self.cross = spread @ self.outer @ spread.T, spread @ self.slope, spread @ self.cross
        self.p = join(self.p, n)

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients and their entries of H and b; the weights of the others keep their proportions."""
        stay = staying(positions, self.count)
        self.outer, self.slope, self.cross = self.outer[np.ix_(stay, stay)], self.slope[stay], self.cross[stay]
        self.p = normalise(self.p[stay])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return p and the sums over past rounds."""
        return {"p": self.p, "outer": self.outer.copy(), "slope": self.slope.copy(), "cross": self.cross.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included."""
        self.p, self.outer, self.slope, self.cross = (
            np.array(state[name], np.float64) for name in ("p", "outer", "slope", "cross")
        )


class LinearisedFTRL:
    """AAggFF-D: follow the entropy-regularised leader on linearised decision losses (3.9), for uniform samples of many clients.

    Missing responses are imputed with the doubly robust estimator ``r~_i = (1 - 1_i / C) rbar + (1_i / C) r_i`` (3.10), rbar being the
    sample mean and C the sampling ratio; the gradient is linearised in the responses at rbar (3.11), and
    ``p ~ exp(-sqrt(ln K) sum_t g_t / (L sqrt(t + 1)))`` with ``L = C2/(1+C1) + 2 (C2-C1) / (C (1+C1))`` (3.12), renormalised over
    the sample.

    The term of (3.11) with p adds the same number to all coordinates, and all coordinates outside the sample are equal: both cancel
    in the softmax. So only the scores of sampled clients change, by ``(r_i - rbar) / (C (1 + rbar))``: O(|S|) per round and eight
    bytes per client. With a sample of one client the score does not change: the response is the sample mean.

    With ``ratio`` 1 and full participation nothing is estimated: the gradient is exact and ``L = C2 / (1 + C1)``, the setting of
    Theorem 3.2 (in which linearised gradients can have linear regret).

    ``ratio``: C in (0, 1]. ``low``, ``high``: C1 and C2 of the responses; ``high`` None is C.
    """

    def __init__(self, count: int, ratio: float, low: float = 0.0, high: float | None = None) -> None:
        check_count(count)
        check_range("ratio", ratio, 0, 1, open_low=True)
        self.ratio, self.low, self.high = ratio, low, ratio if high is None else high
        check_bounds(self.low, self.high)
        self.rounds = 0
        self.scores: Array = np.zeros(count)

    @property
    def count(self) -> int:
        """The number of clients K."""
        return len(self.scores)

    @property
    def lipschitz(self) -> float:
        """L: the largest possible entry of a gradient estimate (Lemma 3.5; Lemma 3.1 for full participation)."""
        exact = self.high / (1 + self.low)
        return exact if self.ratio == 1 else exact + 2 * (self.high - self.low) / (self.ratio * (1 + self.low))

    @property
    def rate(self) -> float:
        """The factor of the scores in the softmax; 0 for a single client."""
        return math.sqrt(math.log(self.count)) / (self.lipschitz * math.sqrt(self.rounds + 1))

    @property
    def p(self) -> Array:
        """Weights (K,) of all clients, computed in O(K)."""
        return project_simplex_entropy(self.rate * self.scores)

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the responses (m,) of the clients at positions ``sampled`` (m,); return their new weights (m,), which sum to 1.

        Raises ``ValueError`` if a position is unknown or repeated, or a response lies outside [low, high].
        """
        positions, responses = check_values(sampled, values, self.count)
        check_responses(responses, self.low, self.high)
        mean = responses.mean()
        exact = self.ratio == 1 and len(positions) == self.count
        wealth = float(self.p[positions] @ responses) if exact else mean
        self.scores[positions] += (responses - mean) / (self.ratio * (1 + wealth))
        self.rounds += 1
        return project_simplex_entropy(self.rate * self.scores[positions])

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean weight, in O(K)."""
        logits = self.rate * self.scores
        top = logits.max()
        self._set(np.append(logits, np.full(n, top + math.log(np.exp(logits - top).mean()))))

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients, in O(K); the weights of the others keep their proportions."""
        self._set((self.rate * self.scores)[staying(positions, self.count)])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the scores and the number of past rounds."""
        return {"scores": self.scores.copy(), "rounds": np.array(self.rounds)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included."""
        self.scores, self.rounds = np.array(state["scores"], np.float64), int(state["rounds"])

    def _set(self, logits: Array) -> None:
        """Set the scores so that the weights are the softmax of ``logits``: the rate changes with K."""
        self.scores = np.zeros(len(logits))
        if self.rate > 0:
            self.scores = (logits - logits.max()) / self.rate


def minimise_on_simplex(hessian: Array, linear: Array, low: ArrayLike = 0.0, high: ArrayLike | None = None) -> Array:
    """Return ``argmin p'Hp/2 - b'p`` over ``sum p = 1, low <= p <= high``, H (n, n) positive definite and b (n,).

    Raises ``ValueError`` if no such p exists or H is not positive definite. About n^3 operations.
    """
    n = len(linear)
    least = np.broadcast_to(np.asarray(low, np.float64), n)
    rows, bounds = [np.ones((n, 1)), np.eye(n)], [np.ones(1), least]
    if high is not None:
        rows.append(-np.eye(n))
        bounds.append(-np.broadcast_to(np.asarray(high, np.float64), n))
    import quadprog  # imported here: only the servers of AAggFF-S and FedMGDA+ need it

    found = quadprog.solve_qp(hessian, linear, np.hstack(rows), np.concatenate(bounds), 1)[0]
    # Correct rounding errors: the lower bounds then hold exactly, the sum to machine precision.
    above = np.maximum(found - least, 0.0)
    return least + above * ((1 - least.sum()) / above.sum()) if above.any() else least.copy()


def join(p: Array, n: int) -> Array:
    """Return ``p`` (K,) extended by ``n`` entries of its mean weight and renormalised: (K + n,)."""
    return normalise(np.append(p, np.full(n, p.mean())))


def normalise(p: Array) -> Array:
    """Return the non-negative ``p`` (K,) divided by its sum; uniform weights if it is all zeros."""
    total = p.sum()
    return p / total if total > 0 else np.full(len(p), 1 / len(p))


def staying(positions: ArrayLike, count: int) -> Positions:
    """Return the positions that remain without ``positions``; raise ``ValueError`` if one is unknown or none remains."""
    leaving = check_positions(positions, count)
    if len(leaving) == count:
        raise ValueError(f"all {count} clients leave: at least one must stay, make a new rule")
    return np.delete(np.arange(count), leaving)


def check_count(count: int) -> None:
    """Raise ``ValueError`` unless there is at least one client."""
    if count < 1:
        raise ValueError(f"count = {count}: must be at least one client")


def check_positions(positions: ArrayLike, count: int) -> Positions:
    """Return ``positions`` (m,) as int64; raise ``ValueError`` if one is not in 0..``count`` - 1 or is repeated."""
    row = np.asarray(positions)
    if row.ndim != 1 or (len(row) > 0 and not np.issubdtype(row.dtype, np.integer)):
        raise ValueError(f"positions of shape {row.shape} and type {row.dtype}: must be one row of integers")
    ordered = np.sort(row)
    if len(row) > 0 and (ordered[0] < 0 or ordered[-1] >= count):
        raise ValueError(f"positions reach from {ordered[0]} to {ordered[-1]}: must lie in 0..{count - 1}")
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError("a position is named twice: each client responds once a round")
    return row.astype(np.int64)


def check_values(sampled: ArrayLike, values: ArrayLike, count: int) -> tuple[Positions, Array]:
    """Return a round's positions (m,) and values (m,), m > 0; raise ``ValueError`` unless each position has one finite value."""
    positions, row = check_positions(sampled, count), np.asarray(values, np.float64)
    if row.shape != positions.shape or len(row) == 0:
        raise ValueError(f"values of shape {row.shape} for {len(positions)} clients: must be one each, at least one")
    if not np.isfinite(row).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(row))} values are not finite: leave those clients out")
    return positions, row


def check_responses(responses: Array, low: float, high: float) -> None:
    """Raise ``ValueError`` unless responses lie in [low, high], as step sizes and regret bounds assume."""
    least, most = responses.min(), responses.max()
    if least < low - SLACK * high or most > high * (1 + SLACK):
        raise ValueError(
            f"responses reach from {least:g} to {most:g}: must lie in [{low:g}, {high:g}], see algorithms.fairness.responses.respond"
        )
