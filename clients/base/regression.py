"""Losses and scores for regression.

Targets (n, targets) are standardised by one scale that all clients share, as the
model's outputs are; losses are in these units. Scores are in the targets' own units,
over the whole set (``algorithms.common.target_errors``): ``rmse``, ``mae``, ``r2``
(unless the targets of the set are constant), and the list ``error-sums``, from which
the server computes the scores of all clients' samples together.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import outputs_of
from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import Objective
from fedapps.clients.base.scores import Scores, regression_scores, row_results


def mean_loss(outputs: Tensor, y: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the mean loss of outputs (n, targets), or (n,) of one target, for the
    targets ``y`` (n, targets).
    """
    return of(outputs.reshape(y.shape), y)


#: One object per loss, since compiled steps are cached by their criterion.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": partial(mean_loss, of=functional.mse_loss),
    "huber": partial(mean_loss, of=functional.huber_loss),
    "absolute": partial(mean_loss, of=functional.l1_loss),
}


def score(
    model: nn.Module,
    data: Split,
    loss: Callable[[Tensor, Tensor], Tensor],
    scale: Sequence[float],
    center: float,
) -> Scores:
    """Return loss, rmse, mae, r2 and error-sums over all samples of ``data``; ``scale``
    (targets,): units of a standardised 1; ``center``: the first target of a 0.
    """
    outputs = outputs_of(model, data.x).reshape(data.y.shape)
    units = np.array(scale, np.float64)
    predicted, targets = (part.cpu().double().numpy() * units for part in (outputs, data.y))
    squares = np.square(predicted - targets).mean(1)
    return {
        **regression_scores(predicted, targets, float(loss(outputs, data.y))),
        **row_results(data, center + targets[:, 0], center + predicted[:, 0], squares),
    }


def regression(
    loss: str = "squared", scale: Sequence[float] = (1.0,), center: float = 0.0
) -> Objective:
    """Return the objective of predicting numbers. ``loss``: squared, huber (beyond a
    standardised error of 1 absolute) or absolute. ``scale``, ``center``: as in
    :func:`score`.
    """
    of = LOSSES[loss]
    scored = partial(score, loss=of, scale=tuple(scale), center=center)
    return Objective(of, scored, by_sample=True)
