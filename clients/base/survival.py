"""The Cox partial likelihood of a client, and its scores.

``y`` (n, 2) holds times and events (1; 0: censored), float64, which only order and mark
the samples; a model's output f is the logarithm of a hazard ratio. The loss

    L = 1/n sum_{i: e_i = 1} [log sum_{j: t_j >= t_i} exp(f_j) - f_i]

is the negative logarithm of the partial likelihood, with ties as Breslow has them, a
sample. Risk sets are a client's own: the sum of n_k L_k over clients is the likelihood
of a Cox model stratified by client, whose baseline hazards may differ. Of a mini-batch
it is another estimate, from risk sets within the batch, so that the default is a batch
of all rows. Without events L and its gradient are 0.

Sources: Cox, "Regression Models and Life-Tables", JRSS B 34(2), 1972, equation (12);
Breslow, discussion of it, p. 216. Per client as in Ogier du Terrail, Ayed, Cyffers,
Grimberg, He, Loeb, ..., Andreux (24 authors), "FLamby", NeurIPS 2022, arXiv 2210.04620,
appendix on Fed-TCGA-BRCA, whose loss takes tied events in the order of the rows.
"""

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.measures import PAIRS
from fedapps.algorithms.common.modules import outputs_of
from fedapps.algorithms.common.survival import concordance, pair_counts
from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import Objective
from fedapps.clients.base.scores import Scores, row_results


def cox_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return L of log hazard ratios ``outputs`` (n, 1) or (n,); ``y`` (n, 2)."""
    order = torch.argsort(y[:, 0], descending=True, stable=True)
    risks, earlier = outputs.reshape(-1)[order], -y[order, 0]
    # up to the last of those with the same time: the risk set of t_i
    last = torch.searchsorted(earlier, earlier, right=True) - 1
    at_risk = torch.logcumsumexp(risks, 0)[last]
    return ((at_risk - risks) * y[order, 1].to(risks.dtype)).mean()


def score(model: nn.Module, data: Split) -> Scores:
    """Return loss, concordance (unless no pair is comparable) and pair-counts
    (``algorithms.common.survival``).
    """
    outputs = outputs_of(model, data.x).reshape(-1)
    out: Scores = {"loss": float(cox_loss(outputs, data.y)), "test-samples": len(data)}
    risks = outputs.cpu().double().numpy()
    times, events = data.y.cpu().double().numpy().T
    pairs = pair_counts(times, events, risks)
    out[PAIRS] = list(pairs)
    if (c := concordance(pairs)) is not None:
        out["concordance"] = c
    return out | row_results(data, times, events, risks)


#: The objective of ranking times.
SURVIVAL = Objective(cox_loss, score, whole=True)
