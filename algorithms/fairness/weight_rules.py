"""Client weights as functions of the losses: the weight rules of the methods AAggFF is
compared with.

FedAvg, q-FedAvg, TERM and PropFair are one exponentiated-gradient step ``p_i ~ last_i
exp(r_i / step)`` from the sample sizes n, with different responses r to the losses F
(AAggFF: Remark 3.1 and Table 3.2):

    FedAvg     r = 0              p ~ n
    q-FedAvg   r = q log F        p ~ n F^q
    TERM       r = F, step 1/l    p ~ n exp(l F)
    PropFair   r = -log(M - F)    p ~ n / (M - F)

AFL is projected gradient ascent on the losses; FedMGDA+ minimises the norm of the
weighted sum of updates.

Sources: AAggFF: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. q-FedAvg: Li,
Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
arXiv 1905.10497. TERM: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk
Minimization", ICLR 2021, arXiv 2007.01162. PropFair: Zhang, Malekmohammadi, Chen, Yu,
"Proportional Fairness in Federated Learning", TMLR 2023, arXiv 2202.01666. AFL: Mohri,
Sivek, Suresh, "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146. FedMGDA+: Hu,
Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE
Transactions on Network Science and Engineering, 2022, arXiv 2006.11489.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedapps.algorithms.common.mirror import check_distribution, project_simplex_entropy
from fedapps.algorithms.common.options import check_range
from fedapps.algorithms.fairness.responses import check_losses
from fedapps.algorithms.fairness.rule import (
    Array,
    Weights,
    check_values,
    minimise_on_simplex,
    normalise,
    shifted,
)

# A loss of 0 is taken for this one, so that F^(q-1) is finite.
LEAST_LOSS = 1e-10
# Steps of AFL are cut here, far above any that mean something: sums over clients stay
# finite.
MOST = 1e200
# Relative to the largest squared norm: makes the Gram matrix positive definite, and
# spreads weight evenly over equal updates.
GRAM_RIDGE = 1e-10


def exponentiate(last: ArrayLike, responses: ArrayLike, step: float = 1.0) -> Array:
    """Return ``p_i ~ last_i exp(responses_i / step)``, normalised to sum 1 (3.2): one
    step of exponentiated gradient.

    ``last`` (n,) must be non-negative and not all 0, but need not sum to 1. A response
    of -inf gives a weight of 0; if that makes all weights 0, ``last`` is returned,
    normalised.
    """
    before, r = np.asarray(last, np.float64), np.asarray(responses, np.float64)
    if (
        before.shape != r.shape
        or before.ndim != 1
        or not (before >= 0).all()
        or not 0 < before.sum() < np.inf
    ):
        raise ValueError(
            f"weights of shape {before.shape} and responses of {r.shape}: must be one row each, "
            "weights >= 0 and not all 0"
        )
    if np.isnan(r).any() or (r == np.inf).any():
        raise ValueError("responses hold NaN or inf: leave those clients out")
    check_range("step", step, 0, open_low=True)
    able = (before > 0) & (r > -np.inf)
    if not able.any():
        return np.asarray(before / before.sum())
    # The largest response is subtracted first, so that even a tiny step can only
    # underflow, to a weight of 0.
    with np.errstate(divide="ignore", over="ignore"):
        return project_simplex_entropy(
            np.where(able, np.log(before) + (r - r[able].max()) / step, -np.inf)
        )


def tilt(losses: ArrayLike, lambda_: float, prior: ArrayLike | None = None) -> Array:
    """Return TERM's weights (n,), ``prior_i exp(lambda_ F_i)`` normalised; ``prior``
    None is uniform, as in the reference code.

    ``lambda_`` 0 keeps the prior, a large one puts all weight on the largest loss, a
    very negative one on the smallest.
    """
    values = check_losses(losses)
    check_range("lambda", lambda_)
    before = np.ones(len(values)) if prior is None else np.asarray(prior, np.float64)
    if lambda_ == 0:
        return exponentiate(before, np.zeros(len(values)))
    return exponentiate(before, np.sign(lambda_) * values, 1 / abs(lambda_))


def powers(losses: ArrayLike, q: float, prior: ArrayLike | None = None) -> Array:
    """Return q-FedAvg's weights (n,), ``prior_i F_i^q`` normalised; ``prior`` None is
    uniform. q = 0 keeps the prior.
    """
    values = check_losses(losses)
    check_range("q", q, 0)
    before = np.ones(len(values)) if prior is None else np.asarray(prior, np.float64)
    with np.errstate(divide="ignore"):
        return exponentiate(before, q * np.log(values) if q > 0 else np.zeros(len(values)))


def lipschitz_step(
    shares: ArrayLike, losses: ArrayLike, squares: ArrayLike, q: float, lipschitz: float
) -> float:
    """Return q-FedAvg's step, a multiple in (0, 1] of the mean update with the weights
    ``shares`` (n,), those of :func:`powers`.

    With the updates u_k of squared norms ``squares`` (n,) and the pseudo-gradients ``-L
    u_k``, the paper's step is ``L sum F_k^q u_k / sum h_k``, ``h_k = q F_k^(q-1) |L
    u_k|^2 + L F_k^q``. That is the mean update ``sum p_k u_k``, p ~ F^q, divided by ``1
    + q L sum p_k |u_k|^2 / F_k``. 1 for q = 0.
    """
    values = np.maximum(check_losses(losses), LEAST_LOSS)
    check_range("lipschitz", lipschitz, 0, open_low=True)
    p = np.asarray(shares, np.float64)
    used = p > 0
    with np.errstate(over="ignore"):
        return float(
            1
            / (
                1
                + q * lipschitz * (p[used] @ (np.asarray(squares, np.float64)[used] / values[used]))
            )
        )


class ProjectedAscent(Weights):
    """AFL: projected gradient ascent on the simplex, ``p <- Pi(p + step K prior (F -
    Fbar))``, with F = Fbar outside the sample.

    Fbar is the sample's mean loss by the prior. A number added to all losses changes
    nothing, so with all clients this is the ascent along F. Of a sample it has the same
    expectation as with F = 0 outside, up to a factor, and less variance; and a client
    that is away keeps its weight, which would sink below the others' by their mean loss
    in every round.

    Pi is the projection in the metric of the prior, ``argmin sum (w - v)^2 / prior``,
    within the cap; with a uniform prior the Euclidean one. All K weights are projected,
    so they sum to 1; a round uses those of its sample, renormalised.
    """

    def __init__(self, count: int, step: float, *, cap: float = 0.0) -> None:
        super().__init__(count, cap)
        check_range("step", step, 0)
        self.step = step

    def decide(self, sampled: ArrayLike, values: ArrayLike) -> Array:
        """Update with the losses (m,) of the clients at positions ``sampled`` (m,);
        return their new weights (m,), which sum to 1.

        The weights are the prior's if all clients in the sample have weight 0.
        """
        positions, losses = check_values(sampled, values, self.count)
        own = self.prior[positions]
        with np.errstate(over="ignore"):
            climb = np.clip(self.step * self.count * check_losses(losses), 0, MOST)
        climbed = self.p.copy()
        climbed[positions] += own * (climb - own @ climb / own.sum())
        self.p = shifted(climbed, self.prior, self.cap * self.prior if self.cap else None)
        weights = self.p[positions]
        return normalise(weights if weights.any() else own)


def min_norm_in_box(gram: ArrayLike, static: ArrayLike, radius: float) -> Array:
    """Return ``argmin w' G w`` over the simplex with ``|w_i - static_i| <= radius``
    (n,): FedMGDA+'s weights.

    ``gram`` (n, n): inner products of the updates, which FedMGDA+ scales to length 1.
    ``static`` (n,): weights on the simplex. Radius 0 gives ``static``, radius 1 allows
    the whole simplex. ``static`` is also returned if the solver finds no feasible point
    because of rounding.
    """
    centre = check_distribution("static", static)
    products = np.asarray(gram, np.float64)
    if products.shape != (len(centre), len(centre)) or not np.isfinite(products).all():
        raise ValueError(
            f"gram has shape {products.shape}: must be {len(centre)} x {len(centre)}, all finite"
        )
    check_range("radius", radius, 0, 1)
    centre = np.asarray(centre / centre.sum())
    size = products.diagonal().max()
    if radius == 0 or size <= 0:
        return centre
    hessian = (products + products.T) / (2 * size) + GRAM_RIDGE * np.eye(len(centre))
    try:
        return minimise_on_simplex(
            hessian,
            np.zeros(len(centre)),
            np.maximum(centre - radius, 0),
            np.minimum(centre + radius, 1),
        )
    except ValueError:
        return centre
