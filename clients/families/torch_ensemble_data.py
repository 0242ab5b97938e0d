"""Labelled samples of a client in ensemble methods, whose predictors are nets;
``ensemble_data.py`` has histograms, without PyTorch.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.func import functional_call

from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.contract.sent import RoundFacts
from fedapps.algorithms.ensembles.mixture_losses import log_loss, squared_loss, squared_norms
from fedapps.clients.base.data import Split
from fedapps.clients.base.training import Config, TrainOptions, get_arrays, set_arrays
from fedapps.clients.families.ensemble_data import Answer, Floats, Predictors, check_loss
from fedapps.clients.steps.batches import train_classifier


class TorchEnsembleData:
    """A client's labelled samples; the predictors are parameters of one torch
    classifier, and their softmax outputs are mixed.
    """

    def __init__(
        self, model: nn.Module, train: Split, test: Split, loss: str = "log", epsilon: float = 0.01
    ) -> None:
        check_loss(loss, epsilon)
        self.model = model.eval()
        self.train = train
        self.test = test
        self.loss = loss
        self.epsilon = epsilon

    @property
    def num_examples(self) -> int:
        """The number of training samples m_k."""
        return len(self.train)

    @property
    def num_test(self) -> int:
        """The number of samples that ``score`` looks at."""
        return len(self.test)

    def loss_and_gradient(self, predictors: Predictors, alpha: ArrayLike) -> Answer:
        """Return (loss, gradient (h,), norms (h,)) on the training data, as
        ``DensityData`` does.
        """
        return self._on(
            self.probabilities(predictors, self.train), self.train, np.asarray(alpha, np.float64)
        )

    def score(self, predictors: Predictors, alpha: ArrayLike) -> dict[str, Any]:
        """Return ``loss`` and ``accuracy`` on the test data, and ``train-loss``.

        With several predictors also loss and accuracy of their unweighted mean
        (``uniform-``), and of the one with the smallest loss on this client's training
        data (``best-single-``); and of each alone its loss on the training data and its
        accuracy (``single-train-loss``, ``single-accuracy``), from which the server
        computes which one is best for all clients.
        """
        weights = np.asarray(alpha, np.float64)
        seen, unseen = (
            self.probabilities(predictors, self.train),
            self.probabilities(predictors, self.test),
        )
        chosen = {"": weights}
        if len(weights) > 1:
            singles = np.eye(len(weights))
            losses = [self._on(seen, self.train, single)[0] for single in singles]
            chosen |= {
                "uniform-": np.full(len(weights), 1 / len(weights)),
                "best-single-": singles[int(np.argmin(losses))],
            }
        out: dict[str, Any] = {"train-loss": self._on(seen, self.train, weights)[0]}
        labels = self.test.y.cpu().numpy()
        if len(weights) > 1:
            out |= {
                "single-train-loss": losses,
                "single-accuracy": (unseen.argmax(2) == labels).mean(1).tolist(),
            }
        for name, alpha_ in chosen.items():
            out[f"{name}loss"] = self._on(unseen, self.test, alpha_)[0]
            out[f"{name}accuracy"] = float(
                np.mean(np.tensordot(alpha_, unseen, 1).argmax(1) == labels)
            )
        return out

    def train_predictor(self, config: Config) -> dict[str, NDArray[Any]]:
        """Return the parameters of a net trained on this client's samples with the
        ``train`` options of the configuration.
        """
        net, before = self.model, get_arrays(self.model)  # shared by the clients of a process
        draws = torch.Generator().manual_seed(
            derived_seed(RoundFacts.from_config(config).seed, "predictor")
        )
        for tensor in net.parameters():
            start = torch.zeros(tensor.shape)  # drawn alike on every device
            if tensor.dim() > 1:
                nn.init.xavier_normal_(start, generator=draws)
            tensor.data.copy_(start)
        rng = generator(RoundFacts.from_config(config).seed, "predictor batches")
        try:
            train_classifier(net, self.train, TrainOptions.from_config(config), rng)
            return dict(zip(net.state_dict(), get_arrays(net), strict=True))
        finally:
            set_arrays(net.eval(), before)

    @torch.no_grad()
    def probabilities(self, predictors: Predictors, data: Split) -> Floats:
        """Return the predictors' class probabilities (h, n, L). Raises ``ValueError``
        if they are not parameters of the model.
        """
        state = self.model.state_dict()
        shapes = {name: tuple(values.shape) for name, values in state.items()}
        given = {name: tuple(array.shape[1:]) for name, array in predictors.items()}
        if given != shapes:
            name = next(name for name in [*shapes, *given] if given.get(name) != shapes.get(name))
            raise ValueError(
                f"array {name!r} of a predictor has shape {given.get(name)}, the client's model "
                f"{shapes.get(name)}"
            )
        out = []
        for k in range(len(next(iter(predictors.values())))):
            own = {
                name: torch.from_numpy(np.array(array[k])).to(state[name].device)
                for name, array in predictors.items()
            }
            out.append(
                functional_call(self.model, own, (data.x,)).softmax(1).double().cpu().numpy()
            )
        return np.stack(out)

    def _on(self, probabilities: Floats, data: Split, alpha: Floats) -> Answer:
        labels, (h, n, classes) = data.y.cpu().numpy(), probabilities.shape
        if alpha.shape != (h,):
            raise ValueError(f"{alpha.size} weights for {h} predictors: send one each")
        weights = np.full(n, 1 / n)
        if self.loss == "log":
            outputs = (1 - self.epsilon) * probabilities[
                :, np.arange(n), labels
            ] + self.epsilon / classes
            loss, gradient = log_loss(alpha, outputs, weights)
            return float(loss), gradient, np.zeros(h)
        loss, gradient = squared_loss(alpha, probabilities, np.eye(classes)[labels], weights)
        return float(loss), gradient, squared_norms(probabilities, weights)
