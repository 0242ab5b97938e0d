"""Ensembles of frozen predictors: sampling of the predictors to send, and losses and
gradients of their mixture.

The model is ``h_alpha = sum_k alpha_k h_k``, alpha on the simplex. A round samples a
set H of predictors, k with inclusion probability gamma_k, and uses the weights
``alpha~_k = alpha_k / gamma_k`` on H, whose mixture has expectation h_alpha. This
module has the inclusion probabilities, the sampling, the losses at weights that need
not sum to 1, the gradient of the log loss at weights divided by their sum, and the bias
correction of the squared loss's gradient. q is the number of predictors, h of sampled
predictors, m of samples, L of outputs, V of outcomes.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, equations (6)-(10). Its section 4.2 prints alpha_l for
h_l in the gradient of the squared loss, and a correction (10) without the factor 2 and
with alpha_l^2 h_l for alpha_l ||h_l||^2.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.mirror import Array, check_distribution
from fedapps.algorithms.common.options import check_choice

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]

#: Relative error of float32 outputs, generously.
SLACK = 1e-3
#: No log loss favours a predictor as if its weight were less.
LEAST_WEIGHT = 1e-4
#: Least inclusion probability of a weighted draw.
FLOOR = 1e-3
SAMPLINGS = ("none", "uniform", "weighted")


def inclusion(alpha: ArrayLike, budget: float, sampling: str = "weighted") -> Array:
    """Return the inclusion probabilities gamma (q,); they sum to at most ``budget`` =
    C, the expected number of predictors sent.

    ``sampling``: "none" is 1 each, whatever the budget; "uniform" is C/q; "weighted" is
    ``min(1, alpha_k C)``, equation (8), but at least ``FLOOR`` (itself at most C/q): a
    predictor whose weight reached 0 could otherwise never be sampled again. If the
    floor would raise the sum above C, the parts above the floor are reduced in
    proportion. Raises ``ValueError`` unless alpha is a distribution and 0 < C <= q.
    """
    weights = check_distribution("alpha", alpha)
    q = len(weights)
    check_choice("sampling", sampling, SAMPLINGS)
    if sampling == "none":
        return np.ones(q)
    if not 0 < budget <= q:
        raise ValueError(
            f"budget = {budget}, but there are {q} predictors: choose a number above 0 and at most "
            f"{q}"
        )
    if sampling == "uniform":
        return np.full(q, budget / q)
    low = min(FLOOR, budget / q)
    gamma = np.clip(weights * budget, low, 1.0)
    excess = gamma.sum() - budget
    if excess > 0:
        room = gamma - low
        gamma -= room * min(1.0, excess / room.sum()) if room.any() else 0.0
    return gamma


def draw_independent(gamma: ArrayLike, rng: np.random.Generator) -> Ids:
    """Return the sampled ids in ascending order, each k included independently with
    probability gamma_k.

    An empty sample is redrawn, since an empty ensemble has no log loss. This raises
    every inclusion probability by the factor 1/(1 - prod_k(1 - gamma_k)), at most 1 +
    e^-C/(1 - e^-C) for sum gamma = C: 1.16 for C = 2, 1.0003 for C = 8.
    """
    chances = _chances(gamma)
    while True:
        ids = np.flatnonzero(rng.random(len(chances)) < chances)
        if len(ids):
            return ids


def draw_exact(gamma: ArrayLike, budget: float, rng: np.random.Generator) -> Ids:
    """Return the ids of a sample of fixed size with the same inclusion probabilities,
    in ascending order.

    Systematic sampling in random order: the size is ``sum gamma`` if that is an integer
    (C, unless ``min(1, alpha_k C)`` was capped), else one of the two neighbouring
    integers; never 0. The ensemble stays unbiased; in the corrected gradient, which
    assumes independent inclusion, the terms of pairs of predictors are off by a factor
    of about 1 - 1/C + 1/q. Raises ``ValueError`` if the probabilities sum to more than
    ``budget``.
    """
    chances = _chances(gamma)
    total = float(chances.sum())
    if total > budget * (1 + 1e-9):
        raise ValueError(
            f"inclusion probabilities sum to {total:g}, but the budget is {budget}: lower them"
        )
    # Those with probability 1 are taken apart: by rounding, an interval of length 1
    # could contain two of the equally spaced points.
    certain = np.flatnonzero(chances >= 1)
    order = rng.permutation(np.flatnonzero(chances < 1))
    ends = np.cumsum(chances[order])
    length = float(ends[-1]) if len(ends) else 0.0
    if abs(length - round(length)) < 1e-9 * max(1.0, length):
        length = float(round(length))  # C points for a sum of C, despite rounding errors
    while True:
        start = rng.random()
        points = start + np.arange(int(length) + (start < length - int(length)))
        # the last may be rounded up to it
        hit = np.minimum(np.searchsorted(ends, points, side="right"), len(ends) - 1)
        ids = np.sort(np.concatenate([certain, order[hit]]))
        if len(ids):
            return ids


def sampled_weights(alpha: ArrayLike, ids: Ids, gamma: ArrayLike) -> Array:
    """Return ``alpha~ = alpha_k / gamma_k`` (h,) of the sampled ids, given alpha and
    gamma (q,); equation (6).
    """
    return np.asarray(np.asarray(alpha, np.float64)[ids] / _chances(gamma)[ids])


def log_loss(alpha: ArrayLike, outputs: Floats, weights: ArrayLike) -> tuple[float, Array]:
    """Return ``-sum_i w_i log h_alpha(y_i)`` and its gradient (h,) with respect to
    ``alpha`` (h,).

    ``outputs`` (h, m): the probability each predictor assigns to the outcome observed
    in sample i; ``weights`` (m,) sum to 1. For densities over V outcomes, ``outputs``
    are their tables (h, V) and ``weights`` the frequencies; outcomes that never
    occurred may be left out. float32 outputs are multiplied without a float64 copy.
    Raises ``ValueError`` if an observed outcome has probability 0: mix the densities
    with a uniform distribution first.
    """
    coefficients, shares = _mixture_inputs(alpha, outputs, 2), _shares(weights, outputs.shape[1])
    seen = shares > 0
    mixture = (coefficients @ outputs).astype(np.float64)
    if not (mixture[seen] > 0).all():
        raise ValueError(
            "the ensemble gives an outcome that occurred probability 0: mix the densities with a "
            "uniform share (epsilon above 0)"
        )
    loss = -float(shares[seen] @ np.log(mixture[seen]))
    # Outcomes that did not occur contribute nothing to the gradient, whatever their
    # probability.
    ratios = np.divide(shares, mixture, out=np.zeros_like(shares), where=seen)
    return loss, -(outputs @ ratios.astype(outputs.dtype)).astype(np.float64)


def squared_loss(
    alpha: ArrayLike, outputs: Floats, targets: ArrayLike, weights: ArrayLike
) -> tuple[float, Array]:
    """Return ``sum_i w_i ||h_alpha(x_i) - y_i||^2`` and its gradient ``2 sum_i w_i
    <h_alpha(x_i) - y_i, h_l(x_i)>`` (h,).

    ``alpha`` (h,), ``outputs`` (h, m, L), ``targets`` (m, L), ``weights`` (m,) that sum
    to 1.
    """
    coefficients, shares = _mixture_inputs(alpha, outputs, 3), _shares(weights, outputs.shape[1])
    wanted = np.asarray(targets, np.float64)
    if wanted.shape != outputs.shape[1:]:
        raise ValueError(
            f"targets have shape {wanted.shape}, but the predictors' outputs {outputs.shape[1:]}: "
            "must be equal"
        )
    flat = outputs.reshape(len(outputs), wanted.size)
    residual = (coefficients @ flat).reshape(wanted.shape) - wanted
    weighted = shares[:, None] * residual
    loss = float((weighted * residual).sum())
    return loss, 2 * (flat @ weighted.ravel().astype(outputs.dtype)).astype(np.float64)


def squared_loss_density(
    alpha: ArrayLike, tables: Floats, frequencies: ArrayLike
) -> tuple[float, Array]:
    """Return the squared loss of a density against one-hot outcomes, and its gradient
    (h,).

    ``alpha`` (h,), ``tables`` (h, V), ``frequencies`` f (V,) of the outcomes: the mean
    over y ~ f of ``||h_alpha - e_y||^2`` is ``||h_alpha||^2 - 2 <h_alpha, f> + 1``.
    """
    coefficients, shares = _mixture_inputs(alpha, tables, 2), _shares(frequencies, tables.shape[1])
    mixture = (coefficients @ tables).astype(np.float64)
    loss = float(mixture @ mixture - 2 * (mixture @ shares) + 1)
    return loss, 2 * (tables @ (mixture - shares).astype(tables.dtype)).astype(np.float64)


def squared_norms(outputs: Floats, weights: ArrayLike | None = None) -> Array:
    """Return ``||h_l||^2`` (h,) of tables (h, V), or its mean over samples for outputs
    (h, m, L) and ``weights`` (m,).
    """
    if outputs.ndim == 2:
        return np.asarray(np.einsum("hv,hv->h", outputs, outputs, dtype=np.float64))
    if outputs.ndim != 3 or weights is None:
        raise ValueError(
            f"outputs have shape {outputs.shape}: must be (h, V), or (h, m, L) with weights (m,)"
        )
    per_sample = np.einsum("hml,hml->hm", outputs, outputs)
    return np.asarray(per_sample.astype(np.float64) @ _shares(weights, outputs.shape[1]))


def centred(gradient: ArrayLike, weights: ArrayLike) -> Array:
    """Return ``g - <alpha~, g> / sum alpha~`` (h,), given the log loss's gradient g in
    ``weights`` = alpha~ (h,), which sum above 0.

    It is the gradient of ``L(alpha~ / sum alpha~)``, the log loss of the sampled
    predictors as a distribution, since ``L(alpha~ / s) = L(alpha~) + log s`` and
    ``<alpha~, g> = -1``. It is linear in g, so it may be taken before or after a
    weighted sum over clients. All entries of g itself are negative, so every drawn
    predictor would gain weight over the others.
    """
    slope, sent = np.asarray(gradient, np.float64), np.asarray(weights, np.float64)
    return np.asarray(slope - (sent @ slope) / sent.sum())


def gradient_fault(gradient: ArrayLike, weights: ArrayLike, loss: str) -> str:
    """Return why ``gradient`` (h,) cannot be that of any samples' ``loss``, "log" or
    "squared", at ``weights`` = alpha~ (h,) of predictors whose outputs are
    distributions; "" if it can.

    Log loss: ``g_l = -sum_i w_i h_l(y_i) / h_alpha(y_i)``, so no entry is positive and
    ``<alpha~, g> = -1``. Squared loss: ``|g_l| = 2 |<h_alpha - y, h_l>| <= 2 (s + 1)``,
    s being the sum of alpha~, since no distribution is longer than 1. Shorter gradients
    pass: they may have been clipped. A log loss does not bound the entry of a predictor
    whose weight is 0; no predictor counts as more than 1 / ``LEAST_WEIGHT`` times as
    good as the mixture.
    """
    slope, sent = np.asarray(gradient, np.float64), np.asarray(weights, np.float64)
    low, high = float(slope.min(initial=0.0)), float(slope.max(initial=0.0))
    if loss == "squared":
        most = 2 * (float(sent.sum()) + 1) * (1 + SLACK)
        return f"{max(-low, high):.3g} in a gradient, above {most:.3g}" * (max(-low, high) > most)
    if high > SLACK:
        return f"{high:.3g} in the gradient of a log loss: no entry is above 0"
    if low < -1 / LEAST_WEIGHT:
        return f"{low:.3g} in the gradient of a log loss: none is below {-1 / LEAST_WEIGHT:g}"
    total = float(sent @ slope)
    return f"weights times gradient is {total:.3g}, of a log loss -1" * (total < -1 - SLACK)


def chain_rule(gradient: ArrayLike, gamma: ArrayLike) -> Array:
    """Return the gradient in alpha, given that in ``alpha~ = alpha / gamma``; all
    arrays are of the sampled ids, (h,).
    """
    return np.asarray(np.asarray(gradient, np.float64) / _chances(gamma))


def bias_correction(alpha: ArrayLike, norms: ArrayLike, gamma: ArrayLike) -> Array:
    """Return ``b_l = 2 alpha_l ||h_l||^2 (1/gamma_l - 1) / gamma_l``, the corrected
    (10); all arrays are of the sampled ids, (h,).

    ``norms``: squared norms, as from :func:`squared_norms`. For the squared loss and
    independent sampling, the gradient of :func:`chain_rule` minus b is unbiased for the
    full gradient. b is linear in the norms: average them over the clients with the
    weights of the gradients and correct once.
    """
    chances = _chances(gamma)
    return np.asarray(
        2
        * np.asarray(alpha, np.float64)
        * np.asarray(norms, np.float64)
        * (1 / chances - 1)
        / chances
    )


def _chances(gamma: ArrayLike) -> Array:
    chances = np.asarray(gamma, np.float64)
    if (
        chances.ndim != 1
        or not ((chances >= 0) & (chances <= 1)).all()
        or (chances.size and not chances.any())
    ):
        raise ValueError(
            f"gamma of shape {chances.shape}: must be one row of probabilities in [0, 1], not all "
            "of them 0"
        )
    return chances


def _mixture_inputs(alpha: ArrayLike, outputs: Floats, dimensions: int) -> Floats:
    """Return alpha in the dtype of the outputs, so that a product does not convert all
    of them.
    """
    coefficients = np.asarray(alpha, np.float64)
    if not np.issubdtype(outputs.dtype, np.floating):
        raise ValueError(
            f"the predictors' outputs are {outputs.dtype}: must be floating point; convert them"
        )
    if outputs.ndim != dimensions or coefficients.shape != outputs.shape[:1]:
        raise ValueError(
            f"{coefficients.shape} weights for outputs of shape {outputs.shape}: give one "
            "weight per predictor"
        )
    if not np.isfinite(coefficients).all():
        raise ValueError(
            f"alpha has {np.count_nonzero(~np.isfinite(coefficients))} entries that are not "
            "finite: leave it out"
        )
    return coefficients.astype(outputs.dtype)


def _shares(weights: ArrayLike, count: int) -> Array:
    shares = check_distribution("weights of the samples", weights)
    if len(shares) != count:
        raise ValueError(
            f"{len(shares)} frequencies or weights, but predictors of output size {count}: must be "
            "equal"
        )
    return shares
