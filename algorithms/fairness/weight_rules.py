"""Client weights as functions of the losses: the weight rules of the methods AAggFF is compared with.

FedAvg, q-FedAvg, TERM and PropFair are one exponentiated-gradient step ``p_i ~ last_i exp(r_i / step)`` from the sample sizes n, with
different responses r to the losses F (AAggFF: Remark 3.1 and Table 3.2):

    FedAvg     r = 0              p ~ n
    q-FedAvg   r = q log F        p ~ n F^q
    TERM       r = F, step 1/l    p ~ n exp(l F)
    PropFair   r = -log(M - F)    p ~ n / (M - F)

AFL is projected gradient ascent on the losses; FedMGDA+ minimises the norm of the weighted sum of updates.

Sources: AAggFF: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter III. q-FedAvg: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
arXiv 1905.10497. TERM: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, arXiv 2007.01162. PropFair:
Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning", TMLR 2023, arXiv 2202.01666. AFL: Mohri, Sivek,
Suresh, "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146. FedMGDA+: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets
Multi-Objective Optimization", IEEE Transactions on Network Science and Engineering, 2022, arXiv 2006.11489.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from algorithms.common.checks import check_range
from algorithms.common.mirror import LOWEST_LOG_WEIGHT, check_distribution, project_simplex, project_simplex_entropy
from algorithms.fairness.portfolio import check_count, check_values, join, minimise_on_simplex, normalise, staying
from algorithms.fairness.responses import check_losses

Array = NDArray[np.float64]

# PropFair's safeguard: for F > M - 0.2, -log(1 - F/M) is replaced by F/M, whose slope is 1/M.
PROPFAIR_MARGIN = 0.2
# Relative to the largest squared norm: makes the Gram matrix positive definite, and spreads weight evenly over equal updates.
GRAM_RIDGE = 1e-10
LOWEST_WEIGHT = math.exp(LOWEST_LOG_WEIGHT)


def exponentiate(last: ArrayLike, responses: ArrayLike, step: float = 1.0) -> Array:
    """Return ``p_i ~ last_i exp(responses_i / step)``, normalised to sum 1 (3.2): one step of exponentiated gradient.

    ``last`` (n,) must be non-negative and not all 0, but need not sum to 1. A response of -inf gives a weight of 0; if that makes all
    weights 0, ``last`` is returned, normalised.
    """
    before, r = np.asarray(last, np.float64), np.asarray(responses, np.float64)
    if before.shape != r.shape or before.ndim != 1 or not (before >= 0).all() or not 0 < before.sum() < np.inf:
        raise ValueError(
            f"weights of shape {before.shape} and responses of {r.shape}: must be one row each, weights >= 0 and not all 0"
        )
    if np.isnan(r).any() or (r == np.inf).any():
        raise ValueError("responses hold NaN or inf: leave those clients out")
    check_range("step", step, 0, open_low=True)
    able = (before > 0) & (r > -np.inf)
    if not able.any():
        return np.asarray(before / before.sum())
    # The largest response is subtracted first, so that even a tiny step can only underflow, to a weight of 0.
    with np.errstate(divide="ignore", over="ignore"):
        return project_simplex_entropy(np.where(able, np.log(before) + (r - r[able].max()) / step, -np.inf))


def tilt(losses: ArrayLike, lambda_: float, prior: ArrayLike | None = None) -> Array:
    """Return TERM's weights (n,), ``prior_i exp(lambda_ F_i)`` normalised; ``prior`` None is uniform, as in the reference code.

    ``lambda_`` 0 keeps the prior, a large one puts all weight on the largest loss, a very negative one on the smallest.
    """
    values = check_losses(losses)
    check_range("lambda", lambda_)
    before = np.ones(len(values)) if prior is None else np.asarray(prior, np.float64)
    if lambda_ == 0:
        return exponentiate(before, np.zeros(len(values)))
    return exponentiate(before, np.sign(lambda_) * values, 1 / abs(lambda_))


def qfed_responses(losses: ArrayLike, q: float) -> Array:
    """Return q-FedAvg's responses (n,) ``q log F``; a loss of 0 is -inf for q > 0."""
    values = check_losses(losses)
    check_range("q", q, 0)
    with np.errstate(divide="ignore"):
        return q * np.log(values) if q > 0 else np.zeros(len(values))


def propfair_responses(losses: ArrayLike, bound: float) -> Array:
    """Return PropFair's responses (n,) ``-log(M - F)``, ``bound`` being M; by its safeguard ``-log M`` where F > M - 0.2.

    They are the log slope of PropFair's client objective, so a loss above M gets the weight of an ordinary one.
    """
    values = check_losses(losses)
    check_range("bound (M)", bound, 0, open_low=True)
    room = bound - values
    return np.asarray(-np.log(np.where(room >= PROPFAIR_MARGIN, room, bound)))


class _Weights:
    """Base for weight rules whose whole state is the weights ``p`` (K,) on the simplex."""

    p: Array

    @property
    def count(self) -> int:
        """The number of clients K."""
        return len(self.p)

    def add(self, n: int) -> None:
        """Append ``n`` new clients with the mean weight."""
        self.p = join(self.p, n)

    def drop(self, positions: ArrayLike) -> None:
        """Remove clients; the weights of the others keep their proportions."""
        self.p = normalise(self.p[staying(positions, self.count)])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the weights."""
        return {"p": self.p.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned, K included."""
        self.p = np.array(state["p"], np.float64)


class ExponentiatedGradient(_Weights):
    """Exponentiated gradient with memory (3.2): weights start at ``start`` (K,), None being uniform, and are multiplied in each round.

    Values are responses. The methods of Table 3.2 are its first round from the sample sizes, restarted in every round.
    """

    def __init__(self, count: int, step: float = 1.0, start: ArrayLike | None = None) -> None:
        check_count(count)
        check_range("step", step, 0, open_low=True)
        self.step = step
        self.p = np.full(count, 1 / count) if start is None else check_distribution("start", start).copy()
        if len(self.p) != count:
            raise ValueError(f"start has {len(self.p)} weights for {count} clients: must be one each")

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the responses (m,) of the clients at positions ``sampled`` (m,); return their new weights (m,), which sum to 1.

        The sampled clients redistribute their total weight among themselves; the others keep their weights.
        """
        positions, responses = check_values(sampled, values, self.count)
        weights = exponentiate(self.p[positions], responses, self.step)
        # A positive weight stays positive, however small, so that a later round can raise it again.
        self.p[positions] = np.where(weights > 0, np.maximum(self.p[positions].sum() * weights, LOWEST_WEIGHT), 0.0)
        return weights


class ProjectedAscent(_Weights):
    """AFL: projected gradient ascent on the simplex, ``p <- Pi(p + step F)``, with F = 0 outside the sample.

    All K weights are projected, so they sum to 1 whichever clients were sampled; a round uses those of its sample, renormalised.
    """

    def __init__(self, count: int, step: float) -> None:
        check_count(count)
        check_range("step", step, 0)
        self.step = step
        self.p = np.full(count, 1 / count)

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the losses (m,) of the clients at positions ``sampled`` (m,); return their new weights (m,), which sum to 1.

        The weights are uniform if all clients in the sample have weight 0.
        """
        positions, losses = check_values(sampled, values, self.count)
        check_losses(losses)
        climbed = self.p.copy()
        climbed[positions] += self.step * losses
        self.p = project_simplex(climbed)
        return normalise(self.p[positions])


def min_norm_in_box(gram: ArrayLike, static: ArrayLike, radius: float) -> Array:
    """Return ``argmin w' G w`` over the simplex with ``|w_i - static_i| <= radius`` (n,): FedMGDA+'s weights.

    ``gram`` (n, n): inner products of the updates, which FedMGDA+ scales to length 1. ``static`` (n,): weights on the simplex. Radius 0
    gives ``static``, radius 1 allows the whole simplex. ``static`` is also returned if the solver finds no feasible point because of
    rounding.
    """
    centre = check_distribution("static", static)
    products = np.asarray(gram, np.float64)
    if products.shape != (len(centre), len(centre)) or not np.isfinite(products).all():
        raise ValueError(f"gram has shape {products.shape}: must be {len(centre)} x {len(centre)}, all finite")
    check_range("radius", radius, 0, 1)
    centre = np.asarray(centre / centre.sum())
    size = products.diagonal().max()
    if radius == 0 or size <= 0:
        return centre
    hessian = (products + products.T) / (2 * size) + GRAM_RIDGE * np.eye(len(centre))
    try:
        return minimise_on_simplex(hessian, np.zeros(len(centre)), np.maximum(centre - radius, 0), np.minimum(centre + radius, 1))
    except ValueError:
        return centre
