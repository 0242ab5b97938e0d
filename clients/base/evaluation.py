"""Losses and metrics of clients: for classification, binary classification with one
logit, and next-token prediction.

``regression.py`` has those for regression, ``survival.py`` those for times.

Metrics are computed over the whole set, never as a mean over mini-batches.
The accuracy is a mean over ``test-samples`` samples. If the samples have groups,
``group-sums`` is the list of ``algorithms.fairness.groups``, flattened.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import exp

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.measures import (
    FloatArray,
    IntArray,
    calibration_errors,
    topk_accuracy,
)
from fedapps.algorithms.common.modules import evaluation_batch, outputs_of
from fedapps.algorithms.fairness.groups import group_sums
from fedapps.clients.base.data import Split
from fedapps.clients.base.scores import Scores as Scores, binary_scores, class_scores, row_results

# Targets with this value are ignored by torch's cross-entropy.
IGNORED = -100


def score(model: nn.Module, data: Split) -> Scores:
    """Return accuracy, ece, mce (15 bins), loss (mean cross-entropy), those of
    :func:`class_scores` and, of more than five classes, top5, over all of ``data``.
    """
    logits = outputs_of(model, data.x)
    labels = data.y.cpu().numpy()
    probabilities = logits.softmax(1).cpu().double().numpy()
    ece, mce = calibration_errors(probabilities, labels)
    classes, predicted = probabilities.shape[1], probabilities.argmax(1)
    return {
        "accuracy": topk_accuracy(probabilities, labels, 1),
        **({"top5": topk_accuracy(probabilities, labels, 5)} if classes > 5 else {}),
        "ece": ece,
        "mce": mce,
        "loss": float(functional.cross_entropy(logits, data.y)),
        "test-samples": len(labels),
        **class_scores(labels, predicted, classes),
        **_by_group(data, predicted, probabilities.max(1), classes),
        **row_results(data, labels, predicted == labels, _margins(logits, predicted)),
    }


def _margins(logits: Tensor, predicted: IntArray) -> FloatArray | IntArray:
    """Return the logits (n,) of label 1 of two classes; of more what is predicted."""
    two = logits.shape[1] == 2
    return (logits[:, 1] - logits[:, 0]).cpu().double().numpy() if two else predicted


def _by_group(data: Split, predicted: IntArray, confidence: FloatArray, classes: int) -> Scores:
    if data.groups is None:
        return {}
    sums = group_sums(data.y.cpu().numpy(), predicted, confidence, data.groups.numpy(), classes)
    return {"group-sums": sums.ravel().tolist()}


@dataclass(frozen=True)
class Objective:
    """A client's objective: ``loss(outputs, y)`` is minimised in training (a mean over
    samples), ``score(model, data)`` evaluates.

    ``score`` returns at least ``loss`` and a leading score
    (``algorithms.common.measures.LEADING``), over all samples of a split. ``whole``:
    the loss of a split is not the mean of those of its batches. ``by_sample``: it is a
    mean over samples of any number, so that the steps of several clients can be taken
    at once.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[nn.Module, Split], Scores]
    whole: bool = False
    by_sample: bool = False


CLASSIFICATION = Objective(functional.cross_entropy, score, by_sample=True)


# --- one logit ------------------------------------------------------------------------


def binary_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy for logits ``outputs`` (n, 1) or (n,) of label 1,
    that is of the softmax over (0, logit).
    """
    logits = outputs.reshape(-1)
    return functional.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))


def score_binary(model: nn.Module, data: Split) -> Scores:
    """Return accuracy, loss and auroc over all samples
    (:func:`fedapps.clients.base.scores.binary_scores`).
    """
    logits = outputs_of(model, data.x).reshape(-1)
    groups = None if data.groups is None else data.groups.numpy()
    values, labels = logits.cpu().double().numpy(), data.y.cpu().numpy()
    return {
        **binary_scores(values, labels, float(binary_loss(logits, data.y)), groups),
        **row_results(data, labels, (values > 0) == labels, values),
    }


BINARY = Objective(binary_loss, score_binary, by_sample=True)


# --- the next token -------------------------------------------------------------------


def token_loss(outputs: Tensor, y: Tensor, special: int) -> Tensor:
    """Return the mean cross-entropy of logits ``outputs`` (n, length, vocabulary) over
    the targets ``y`` (n, length) >= ``special``.
    """
    return functional.cross_entropy(
        outputs.flatten(0, 1), y.masked_fill(y < special, IGNORED).flatten(), ignore_index=IGNORED
    )


@torch.no_grad()
def score_tokens(model: nn.Module, data: Split, special: int) -> Scores:
    """Return accuracy, loss (per token) and perplexity = exp(loss) over all targets >=
    ``special``.
    """
    was_training = model.training
    model.eval()
    batch_size = evaluation_batch(model, data.x, usual=64)
    count = right = 0
    shares: list[Tensor] = []
    loss = 0.0
    for x, y in zip(data.x.split(batch_size), data.y.split(batch_size), strict=True):
        outputs, wanted = model(x), y >= special
        number = int(wanted.sum())
        count += number
        hits = ((outputs.argmax(2) == y) & wanted).sum(1)
        right += int(hits.sum())
        shares.append(hits / wanted.sum(1).clamp(min=1))
        loss += float(token_loss(outputs, y, special)) * number if number else 0.0
    model.train(was_training)
    if not count:
        raise ValueError(
            f"no target of at least {special} among {data.y.numel()}: nothing to score"
        )
    return {
        "accuracy": right / count,
        "loss": loss / count,
        "perplexity": exp(min(loss / count, 700)),
        **row_results(data, *[torch.cat(shares).cpu().numpy()] * 3),
    }


def next_token(special: int) -> Objective:
    """Return the objective of next-token prediction; tokens below ``special`` (padding,
    unknown) are not predicted.
    """
    return Objective(partial(token_loss, special=special), partial(score_tokens, special=special))


#: Next-token prediction where token 0 is padding.
NEXT_TOKEN = next_token(1)
