"""Client weights as an online portfolio: the two weight rules of AAggFF.

In every round the clients respond with r (larger: worse served), the decision loss is
``-log(1 + <p, r>)``, and a weight rule returns the next weights p on the simplex.
:class:`OnlineNewtonStep` (AAggFF-S) needs the responses of all clients in every round,
:class:`LinearisedFTRL` (AAggFF-D) those of a uniform sample. Clients are identified by
positions 0..K-1; the caller maps them to ids.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III, (3.7), (3.10)
to (3.12), Theorems 3.1 and 3.2, Lemma 3.5. ONS: Agarwal, Hazan, Kale, Schapire,
"Algorithms for Portfolio Management based on the Newton Method", ICML 2006, DOI
10.1145/1143844.1143846; as follow-the-regularised-leader: Orabona, "A Modern
Introduction to Online Learning", 2019, arXiv 1912.13213, chapter 7.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.mirror import LOWEST_LOG_WEIGHT, project_simplex_entropy
from fedapps.algorithms.common.options import check_choice, check_range
from fedapps.algorithms.fairness.responses import check_bounds, decision_gradient
from fedapps.algorithms.fairness.rule import (
    Array,
    Positions,
    WeightRule,
    Weights,
    check_values,
    join,
    minimise_on_simplex,
    normalise,
    share,
    staying,
)

RIDGES = ("paper", "reference")
STEPS = ("sampled", "paper")
# Tolerance for rounding errors in a caller's responses, relative to the upper bound.
SLACK = 1e-9


class OnlineNewtonStep(Weights):
    """AAggFF-S: the online Newton step as follow-the-regularised-leader (3.7), for full
    participation in every round.

    ``p = argmin sum_t <p, g_t> + (alpha/2) |p|^2 + (beta/2) sum_t <g_t, p - p_t>^2`` on
    the simplex, that is ``min p'Hp/2 - b'p`` with ``H = alpha I + beta sum g g'``, ``b
    = -sum g + beta sum g <g, p_t>``; ``alpha = 4 K L``, ``beta = 1 / (4 L)`` and ``L =
    C2 / (1 + C1)``.

    With a prior p0 the ridge is ``(alpha/2K) sum (p - p0)^2 / p0``, which is the same
    for a uniform one; its linear part is constant on the simplex, so only the diagonal
    of H changes. ``rate`` multiplies the sums over the rounds: 0 is the prior, 1 the
    paper. The cap is a bound of the program.

    ``low``, ``high``: C1 and C2 of the responses; ``high`` None is 1/K and follows K.
    ``ridge`` "paper" is (3.7); "reference" leaves the term with p_t out of b and uses
    ``H = alpha (1 + beta) I + beta sum g g'``: milder weights, the form behind the
    printed tables.

    Theorem 3.1 bounds the regret of "paper" by ``2 L K (1 + log(1 + T / 16K))``. Its
    proof (Lemma 3.10) needs ``beta <= 1/2``, that is ``L >= 1/2``; the default of 1/K
    is below that for K > 2, and some sequences of a few thousand rounds violate the
    bound.

    A new client is given the history of the mean client: in every past round, the mean
    of the present clients' gradients, as if it had given the average response with
    weight 0. With a history of zeros it would count as the best served of all and
    receive no weight for many rounds.
    """

    def __init__(
        self,
        count: int,
        low: float = 0.0,
        high: float | None = None,
        ridge: str = "paper",
        *,
        rate: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        super().__init__(count, cap)
        check_bounds(low, 1 / count if high is None else high)
        check_choice("ridge", ridge, RIDGES)
        check_range("rate", rate, 0)
        self.low, self.ridge, self.rate, self._high = low, ridge, rate, high
        # sum g g', sum g, sum g <g, p_t>: alpha and beta follow K, so they are
        # multiplied in when p is decided.
        self.outer: Array = np.zeros((count, count))
        self.slope: Array = np.zeros(count)
        self.cross: Array = np.zeros(count)

    @property
    def high(self) -> float:
        """C2: the largest response."""
        return 1 / self.count if self._high is None else self._high

    @property
    def lipschitz(self) -> float:
        """L = ``C2 / (1 + C1)``: the largest possible entry of a gradient (Lemma
        3.1).
        """
        return self.high / (1 + self.low)

    def program(self) -> tuple[Array, Array]:
        """Return H (K, K) and b (K,) of the quadratic program."""
        alpha, beta = 4 * self.count * self.lipschitz, 1 / (4 * self.lipschitz)
        linear = beta * self.cross - self.slope
        if self.ridge == "reference":
            alpha, linear = alpha * (1 + beta), -self.slope
        return np.diag(
            alpha / (self.count * self.prior)
        ) + self.rate * beta * self.outer, self.rate * linear

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the responses (K,) of all clients, at positions ``sampled`` (K,);
        return their new weights, which sum to 1.

        Raises ``ValueError`` if a client is missing or a response lies outside [low,
        high].
        """
        positions, responses = check_values(sampled, values, self.count)
        if len(positions) < self.count:
            raise ValueError(
                f"{len(positions)} of {self.count} clients responded: AAggFF-S needs all in every "
                "round, use AAggFF-D for samples"
            )
        check_responses(responses, self.low, self.high)
        r = np.empty(self.count)
        r[positions] = responses
        g = decision_gradient(self.p, r)
        self.outer += np.outer(g, g)
        self.slope += g
        self.cross += g * (g @ self.p)
        if self.cap == 1:
            # the only point within the cap, which the solver may miss by rounding
            self.p = self.prior.copy()
        else:
            self.p = self.capped(
                minimise_on_simplex(
                    *self.program(), high=self.cap * self.prior if self.cap else None
                )
            )
        return self.p[positions]

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean weight and, for past rounds, the mean
        gradient.
        """
        spread = np.vstack([np.eye(self.count), np.tile(self.prior, (n, 1))])
        self.outer, self.slope, self.cross = (
            spread @ self.outer @ spread.T,
            spread @ self.slope,
            spread @ self.cross,
        )
        super().add(n)

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients and their entries of H and b; the weights of the others keep
        their proportions.
        """
        stay = staying(positions, self.count)
        self.outer, self.slope, self.cross = (
            self.outer[np.ix_(stay, stay)],
            self.slope[stay],
            self.cross[stay],
        )
        super().drop(positions)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return p and the sums over past rounds."""
        return {
            **super().state_dict(),
            "outer": self.outer.copy(),
            "slope": self.slope.copy(),
            "cross": self.cross.copy(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included."""
        super().load_state_dict(state)
        self.outer, self.slope, self.cross = (
            np.array(state[name], np.float64) for name in ("outer", "slope", "cross")
        )


class LinearisedFTRL(WeightRule):
    """AAggFF-D: follow the entropy-regularised leader on linearised decision losses
    (3.9), for uniform samples of many clients.

    Missing responses are imputed with the doubly robust estimator ``r~_i = (1 - 1_i /
    C) rbar + (1_i / C) r_i`` (3.10), rbar being the sample mean and C the sampling
    ratio; the gradient is linearised in the responses at rbar (3.11), and ``p ~
    exp(-sqrt(ln K) sum_t g_t / (L sqrt(t + 1)))`` with ``L = C2/(1+C1) + 2 (C2-C1) / (C
    (1+C1))`` (3.12), renormalised over the sample.

    The term of (3.11) with p adds the same number to all coordinates, and all
    coordinates outside the sample are equal: both cancel in the softmax. So only the
    scores of sampled clients change, by ``(r_i - rbar) / (C (1 + rbar))``: O(|S|) per
    round and eight bytes per client. Weights of a few are computed by :meth:`at` from
    the scores that are not 0; all that are 0 count as one. With a sample of one client
    the score does not change: the response is the sample mean.

    With ``ratio`` 1 and full participation nothing is estimated: the gradient is exact
    and ``L = C2 / (1 + C1)``, the setting of Theorem 3.2 (in which linearised gradients
    can have linear regret).

    The step of (3.12), ``sqrt(ln K) / (L sqrt(t + 1))`` ("paper"), is for gradients
    that are L large everywhere in every round. With K = 689 clients, five per round, no
    weight moves: a client is sampled in one round of 138. The step "sampled" is
    ``sqrt(ln K) / G min(1, 2 / sqrt(C (t + 1)))``: a term common to all coordinates
    cancels, so a score changes by at most ``G = (C2-C1) / (C (1+C1))``, and the
    variance of the changes, on which the regret depends, is at most ``C G^2 / 4`` a
    round for weights near uniform. ``rate`` multiplies either step: 0 is the prior, 1
    with "paper" the paper.

    With a prior p0 the regulariser is the relative entropy to p0, so ``p ~ p0
    exp(...)``; with a cap, ``min(c p0 exp(...), cap p0)``.

    ``ratio``: C in (0, 1]. ``low``, ``high``: C1 and C2 of the responses; ``high`` None
    is C.
    """

    def __init__(
        self,
        count: int,
        ratio: float,
        low: float = 0.0,
        high: float | None = None,
        *,
        step: str = "paper",
        rate: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        super().__init__(count, cap)
        check_range("ratio", ratio, 0, 1, open_low=True)
        check_choice("step", step, STEPS)
        check_range("rate", rate, 0)
        self.ratio, self.low, self.high = ratio, low, ratio if high is None else high
        check_bounds(self.low, self.high)
        self.step, self.multiple = step, rate
        self.rounds = 0
        self.scores: Array = np.zeros(count)

    @property
    def lipschitz(self) -> float:
        """L: the largest possible entry of a gradient estimate (Lemma 3.5; Lemma 3.1
        for full participation).
        """
        exact = self.high / (1 + self.low)
        return (
            exact
            if self.ratio == 1
            else exact + 2 * (self.high - self.low) / (self.ratio * (1 + self.low))
        )

    @property
    def rate(self) -> float:
        """The factor of the scores in the softmax; 0 for a single client."""
        largest, root = self.lipschitz, 1 / math.sqrt(self.rounds + 1)
        if self.step == "sampled":
            largest = (self.high - self.low) / (self.ratio * (1 + self.low))  # G
            root = min(1.0, 2 * root / math.sqrt(self.ratio))
        return self.multiple * math.sqrt(math.log(self.count)) / largest * root

    @property
    def p(self) -> Array:  # type: ignore[override]
        """Weights (K,) of all clients, computed in O(K)."""
        return self.capped(project_simplex_entropy(np.log(self.prior) + self.rate * self.scores))

    def at(self, positions: Positions) -> Array:
        """Return the weights ``p[positions]`` (m,) without computing all: clients with
        score 0 have the same share of their prior.

        ``p = prior min(c exp(rate score), cap)``, c such that the sum over all is 1.
        """
        everyone = np.count_nonzero(self.scores) == self.count
        moved = slice(None) if everyone else np.flatnonzero(self.scores)
        masses, ratios = self.prior[moved], self.rate * self.scores[moved]
        # the prior of all with score 0
        still = 0.0 if everyone else max(0.0, 1.0 - float(masses.sum()))
        if still:
            masses, ratios = np.append(masses, still), np.append(ratios, 0.0)
        ratios -= (top := ratios.max())
        np.exp(np.maximum(ratios, LOWEST_LOG_WEIGHT, out=ratios), out=ratios)
        own = share(ratios, masses, self.cap) * np.exp(
            np.maximum(self.rate * self.scores[positions] - top, LOWEST_LOG_WEIGHT)
        )
        return np.asarray(self.prior[positions] * (np.minimum(own, self.cap) if self.cap else own))

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the responses (m,) of the clients at positions ``sampled`` (m,);
        return their new weights (m,), which sum to 1.

        Raises ``ValueError`` if a position is unknown or repeated, or a response lies
        outside [low, high].
        """
        positions, responses = check_values(sampled, values, self.count)
        check_responses(responses, self.low, self.high)
        mean = responses.mean()
        exact = self.ratio == 1 and len(positions) == self.count
        wealth = float(self.p[positions] @ responses) if exact else mean
        self.scores[positions] += (responses - mean) / (self.ratio * (1 + wealth))
        self.rounds += 1
        if self.cap:
            return normalise(self.at(positions))
        return project_simplex_entropy(
            np.log(self.prior[positions]) + self.rate * self.scores[positions]
        )

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean prior and the mean weight, in O(K)."""
        logits = self.rate * self.scores
        top = logits.max()
        mean = top + math.log(self.prior @ np.exp(logits - top))
        self.prior = join(self.prior, n)
        self._set(np.append(logits, np.full(n, mean)))

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients, in O(K); the weights of the others keep their proportions."""
        stay, logits = staying(positions, self.count), self.rate * self.scores
        self.prior = normalise(self.prior[stay])
        self._set(logits[stay])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the scores and the number of past rounds."""
        return {"scores": self.scores.copy(), "rounds": np.array(self.rounds)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included."""
        self.scores, self.rounds = np.array(state["scores"], np.float64), int(state["rounds"])
        if len(self.scores) != self.count:
            self.prior = np.full(len(self.scores), 1 / len(self.scores))

    def _set(self, logits: Array) -> None:
        """Set the scores so that the weights are the softmax of ``logits``: the rate
        changes with K.
        """
        self.scores = np.zeros(len(logits))
        if self.rate > 0:
            self.scores = (logits - logits.max()) / self.rate


def check_responses(responses: Array, low: float, high: float) -> None:
    """Raise ``ValueError`` unless responses lie in [low, high], as step sizes and
    regret bounds assume.
    """
    least, most = responses.min(), responses.max()
    if least < low - SLACK * high or most > high * (1 + SLACK):
        raise ValueError(
            f"responses reach from {least:g} to {most:g}: must lie in [{low:g}, {high:g}], see "
            "fedapps.algorithms.fairness.responses.respond"
        )
