"""Clients in NumPy and around scikit-learn, plain and with the methods of
``own_apps.py``: ``Softmax`` and ``Sklearn`` are the apps before a change.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from fedapps.clients import MessageStore, terms

# --- NumPy ----------------------------------------------------------------------------


class ArrayClient(NumPyClient):
    """What the clients in NumPy and scikit-learn have: data, and a store."""

    def __init__(self, store: MessageStore, *data: Any) -> None:
        self.store = store
        self.x, self.y, self.test_x, self.test_y = data


class Softmax(ArrayClient):
    """Softmax regression, 20 steps a round."""

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the server's weights."""
        p = probabilities(self.test_x @ parameters[0])
        return 0.0, len(p), {"eval_acc": np.mean(p.argmax(1) == self.test_y)}

    def gradient(self, weights: Any) -> Any:
        """Return the gradient of the mean loss."""
        return self.x.T @ (probabilities(self.x @ weights) - np.eye(10)[self.y]) / len(self.y)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
        return [weights], len(self.y), {}


class ProximalSoftmax(Softmax):
    """FedProx."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        for _ in range(20):
            (term,) = terms.proximal_term([weights], parameters, config["proximal-mu"])
            weights = weights - config["lr"] * (self.gradient(weights) + term)
        return [weights], len(self.y), {"method": "fedprox"}


class ScaffoldSoftmax(Softmax):
    """SCAFFOLD."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        start, c = terms.scaffold_received(parameters)
        own = self.store.load("control", config, before=True) or terms.zeros(c)
        (weights,), (term,) = start, terms.scaffold_term(c, own)
        for _ in range(20):
            weights = weights - config["lr"] * (self.gradient(weights) + term)
        own, reply = terms.scaffold_finished(start, [weights], c, own, k_eta=20 * config["lr"])
        self.store.save("control", own, config)
        return reply, len(self.y), {"method": "scaffold"}


class DittoSoftmax(Softmax):
    """Ditto."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights, and the personal ones."""
        (weights,) = parameters
        (own,) = self.store.load("own", config, before=True) or parameters
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
            (term,) = terms.proximal_term([own], parameters, config["ditto-mu"])
            own = own - config["lr"] * (self.gradient(own) + term)
        self.store.save("own", [own], config)
        return [weights], len(self.y), {"method": "ditto"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the personal weights."""
        return super().evaluate(self.store.load("own", config, before=False), config)


class FairSoftmax(Softmax):
    """AAggFF."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        p = probabilities(self.x @ weights)
        before = -np.log(p[np.arange(len(p)), self.y]).mean()
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
        return [weights], len(self.y), {"loss-before": before}


def probabilities(scores: Any) -> Any:
    """Return the probabilities of each row of scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


# --- scikit-learn: terms are added between two calls of partial_fit -------------------


class Sklearn(ArrayClient):
    """SGDClassifier, weights (65, 10): two epochs of ``partial_fit`` in pieces of 64
    samples, each sample a step.
    """

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the server's weights."""
        right = self.model(parameters[0], 0.1).score(self.test_x, self.test_y)
        return 0.0, len(self.test_y), {"eval_acc": right}

    def model(self, weights: Any, rate: float) -> SGDClassifier:
        """Return a classifier with these weights."""
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, random_state=0)
        model.partial_fit(self.x[:1], self.y[:1], classes=range(10))
        model.coef_, model.intercept_ = weights[:-1].T.copy(), weights[-1].copy()
        return model

    def pieces(self) -> list[Any]:
        """Return the rows of the calls of ``partial_fit``."""
        return np.array_split(np.tile(np.arange(len(self.y)), 2), -(-2 * len(self.y) // 64))

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        model = self.model(parameters[0], config["lr"])
        for rows in self.pieces():
            model.partial_fit(self.x[rows], self.y[rows])
        return [weights_of(model)], len(self.y), {}


class ProximalSklearn(Sklearn):
    """FedProx."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        model = self.model(parameters[0], config["lr"])
        for rows in self.pieces():
            term = terms.proximal_term([weights_of(model)], parameters, config["proximal-mu"])
            model.partial_fit(self.x[rows], self.y[rows])
            step(model, term, len(rows) * config["lr"])
        return [weights_of(model)], len(self.y), {"method": "fedprox"}


class ScaffoldSklearn(Sklearn):
    """SCAFFOLD."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        start, c = terms.scaffold_received(parameters)
        own = self.store.load("control", config, before=True) or terms.zeros(c)
        model = self.model(start[0], config["lr"])
        for rows in self.pieces():
            model.partial_fit(self.x[rows], self.y[rows])
            step(model, terms.scaffold_term(c, own), len(rows) * config["lr"])
        k_eta = 2 * len(self.y) * config["lr"]
        own, reply = terms.scaffold_finished(start, [weights_of(model)], c, own, k_eta)
        self.store.save("control", own, config)
        return reply, len(self.y), {"method": "scaffold"}


class DittoSklearn(Sklearn):
    """Ditto."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights, and the personal ones."""
        model = self.model(parameters[0], config["lr"])
        (kept,) = self.store.load("own", config, before=True) or parameters
        own = self.model(kept, config["lr"])
        for rows in self.pieces():
            model.partial_fit(self.x[rows], self.y[rows])
            term = terms.proximal_term([weights_of(own)], parameters, config["ditto-mu"])
            own.partial_fit(self.x[rows], self.y[rows])
            step(own, term, len(rows) * config["lr"])
        self.store.save("own", [weights_of(own)], config)
        return [weights_of(model)], len(self.y), {"method": "ditto"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the personal weights."""
        return super().evaluate(self.store.load("own", config, before=False), config)


class FairSklearn(Sklearn):
    """AAggFF."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        model = self.model(parameters[0], config["lr"])
        before = log_loss(self.y, model.predict_proba(self.x), labels=range(10))
        for rows in self.pieces():
            model.partial_fit(self.x[rows], self.y[rows])
        return [weights_of(model)], len(self.y), {"loss-before": before}


def weights_of(model: SGDClassifier) -> Any:
    """Return a classifier's weights (65, 10)."""
    return np.vstack([model.coef_.T, model.intercept_])


def step(model: SGDClassifier, term: Sequence[Any], length: float) -> None:
    """Move a classifier against a term."""
    model.coef_ -= length * term[0][:-1].T
    model.intercept_ -= length * term[0][-1]


SOFTMAX: dict[str, type[ArrayClient]] = {
    "FedAvg": Softmax,
    "FedProx": ProximalSoftmax,
    "SCAFFOLD": ScaffoldSoftmax,
    "Ditto": DittoSoftmax,
    "AAggFF-S": FairSoftmax,
}
SKLEARN: dict[str, type[ArrayClient]] = {
    "FedAvg": Sklearn,
    "FedProx": ProximalSklearn,
    "SCAFFOLD": ScaffoldSklearn,
    "Ditto": DittoSklearn,
    "AAggFF-S": FairSklearn,
}
