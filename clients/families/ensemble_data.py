"""Data of clients in ensemble methods: a histogram of outcomes for densities, or
labelled samples for torch classifiers.

Both implement ``clients.fedboost.EnsembleData``: ``loss_and_gradient(predictors,
alpha)`` on the training data and ``score(predictors, alpha)`` on the test data.
``predictors`` are stacked along axis 0: densities ``{"table": (h, V)}`` (or packed by
``algorithms.ensembles.sparse_tables``), networks ``{parameter name: (h, ...)}``;
``alpha`` (h,) are their weights.

Under the log loss every predictor is mixed with a uniform distribution of weight
``epsilon`` (the theory of Hamer et al. assumes positive probabilities), so that the
loss stays finite for outcomes that no predictor covers. The squared loss does not need
this.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.options import check_choice, check_range
from fedapps.algorithms.ensembles.mixture_losses import (
    log_loss,
    squared_loss_density,
    squared_norms,
)
from fedapps.algorithms.ensembles.sparse_tables import columns, is_packed, unpack
from fedapps.clients.base.options import Config

Predictors = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]
Answer = tuple[float, Floats, Floats]

LOSSES = ("log", "squared")


@dataclass(frozen=True)
class Histogram:
    """Relative frequencies ``weights`` (m,), which sum to 1, of distinct ``outcomes``
    (m,) in 0..size-1 among ``num_examples``.
    """

    outcomes: NDArray[np.int64]
    weights: Floats
    size: int
    num_examples: int

    @classmethod
    def of_counts(cls, counts: Mapping[int, int], size: int) -> "Histogram":
        """Return the histogram of counts by outcome; it may be empty. Raises
        ``ValueError`` for an outcome outside 0..size-1.
        """
        outcomes = np.array(sorted(counts), np.int64)
        if len(outcomes) and not 0 <= outcomes[0] <= outcomes[-1] < size:
            raise ValueError(
                f"outcomes {outcomes[0]}..{outcomes[-1]}, but the vocabulary has {size} entries"
            )
        numbers = np.array([counts[int(y)] for y in outcomes], np.float64)
        total = int(numbers.sum())
        return cls(outcomes, numbers / max(1, total), size, total)

    def dense(self) -> Floats:
        """Return the frequencies of all outcomes, shape (V,)."""
        out = np.zeros(self.size)
        out[self.outcomes] = self.weights
        return out


class DensityData:
    """A client's outcomes in a finite set, without inputs; the predictors are
    distributions over the set.
    """

    def __init__(
        self,
        train: Histogram,
        test: Histogram | None = None,
        epsilon: float = 0.01,
        loss: str = "log",
    ) -> None:
        """Without test data (``None`` or an empty histogram) the client is evaluated on
        its training data.
        """
        check_loss(loss, epsilon)
        if train.num_examples < 1:
            raise ValueError("no training data: give the client at least one outcome")
        self.train = train
        self.test = test if test is not None and test.num_examples else train
        self.epsilon = epsilon
        self.loss = loss

    @property
    def num_examples(self) -> int:
        """The number of training samples m_k."""
        return self.train.num_examples

    @property
    def num_test(self) -> int:
        """The number of samples that ``score`` looks at."""
        return self.test.num_examples

    def loss_and_gradient(self, predictors: Predictors, alpha: ArrayLike) -> Answer:
        """Return (loss, gradient (h,), norms (h,)) on the training data.

        ``norms``: mean over samples of ``||h_k(x)||^2``, for the bias correction of the
        squared loss; zeros under the log loss.
        """
        return self._on(self.train, predictors, np.asarray(alpha, np.float64))

    def score(self, predictors: Predictors, alpha: ArrayLike) -> dict[str, float]:
        """Return ``loss`` (and under the log loss ``perplexity``, its exponential) on
        the test data, and ``train-loss``.

        With several predictors also ``uniform-loss`` of their unweighted mean, and
        ``best-single-loss`` of the one that is best on this client's training data. A
        mixture computed in advance (``Library.mixture``) is scored as one predictor of
        weight 1.
        """
        weights = np.asarray(alpha, np.float64)
        out = self._named(self._on(self.test, predictors, weights)[0], "")
        out["train-loss"] = self._on(self.train, predictors, weights)[0]
        if len(weights) > 1:
            best = np.eye(len(weights))[np.argmin(self.singles(predictors))]
            uniform = np.full(len(weights), 1 / len(weights))
            for name, chosen in (("uniform-", uniform), ("best-single-", best)):
                out |= self._named(self._on(self.test, predictors, chosen)[0], name)
        return out

    def _on(self, data: Histogram, predictors: Predictors, alpha: Floats) -> Answer:
        if self.loss == "log":
            loss, gradient = log_loss(alpha, self.outputs(predictors, data), data.weights)
            return float(loss), gradient, np.zeros(len(alpha))
        tables = self._tables(predictors)
        loss, gradient = squared_loss_density(alpha, tables, data.dense())
        return float(loss), gradient, squared_norms(tables)

    def train_predictor(self, config: Config) -> dict[str, NDArray[Any]]:
        """Return the empirical distribution of this client's training samples,
        ``{"table": (V,)}``.
        """
        return {"table": self.train.dense().astype(np.float32)}

    def singles(self, predictors: Predictors) -> Floats:
        """Return the training loss of every predictor alone, shape (h,)."""
        if self.loss == "log":
            return np.asarray(-(np.log(self.outputs(predictors, self.train)) @ self.train.weights))
        tables = self._tables(predictors)
        hits = tables[:, self.train.outcomes] @ self.train.weights
        return np.asarray(squared_norms(tables) - 2 * hits + 1)

    def outputs(self, predictors: Predictors, data: Histogram) -> Floats:
        """Return the probability that each smoothed predictor assigns to each outcome
        in ``data``, shape (h, m).
        """
        if is_packed(predictors):
            self._check_size(int(predictors["size"][0]))
            outputs = columns(predictors, data.outcomes)
        else:
            outputs = self._tables(predictors)[:, data.outcomes].astype(np.float64)
        outputs *= 1 - self.epsilon
        outputs += self.epsilon / data.size
        return outputs

    def _tables(self, predictors: Predictors) -> NDArray[Any]:
        tables = unpack(predictors) if is_packed(predictors) else predictors["table"]
        if tables.ndim != 2:
            raise ValueError(
                f"a table of shape {tables.shape}: stack the predictors along the first axis, (h, "
                "V)"
            )
        self._check_size(tables.shape[1])
        return tables

    def _check_size(self, size: int) -> None:
        if size != self.train.size:
            raise ValueError(
                f"predictors over {size} outcomes, but the client counts {self.train.size}: use "
                "the same vocabulary"
            )

    def _named(self, loss: float, prefix: str) -> dict[str, float]:
        with np.errstate(over="ignore"):
            return {f"{prefix}loss": loss} | (
                {f"{prefix}perplexity": float(np.exp(loss))} if self.loss == "log" else {}
            )


def check_loss(loss: str, epsilon: float) -> None:
    """Raise ``ValueError`` unless ``loss`` and ``epsilon`` are allowed values."""
    check_choice("loss", loss, LOSSES)
    check_range("epsilon", epsilon, 0, 1, open_low=True, open_high=True)
