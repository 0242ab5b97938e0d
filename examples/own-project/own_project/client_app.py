"""Your client, in plain NumPy. Of fedapps: one import, the last line, FedProx's
proximal term, and the name of the method in the reply.
"""

import numpy as np
from flwr.client import NumPyClient
from sklearn.datasets import load_digits

from fedapps.clients import to_client_app


class SoftmaxClient(NumPyClient):
    """Softmax regression on the digits ``x`` (n, 64), labels ``y``: every other one
    trains, the rest tests.
    """

    def __init__(self, x, y):
        self.x, self.y, self.test_x, self.test_y = x[::2], y[::2], x[1::2], y[1::2]

    def fit(self, parameters, config):
        """Take 20 gradient steps from the server's weights (64, 10)."""
        (start,) = parameters
        weights = start.copy()
        for _ in range(20):
            gradient = self.x.T @ (softmax(self.x @ weights) - np.eye(10)[self.y]) / len(self.y)
            weights -= 0.5 * (gradient + config["proximal-mu"] * (weights - start))
        return [weights], len(self.y), {"method": "fedprox"}

    def evaluate(self, parameters, config):
        """Score the server's weights."""
        p = softmax(self.test_x @ parameters[0])
        loss = -np.log(p[np.arange(len(p)), self.test_y]).mean()
        return loss, len(p), {"accuracy": np.mean(p.argmax(1) == self.test_y)}


def softmax(scores):
    """Return the probabilities of each row of scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def digits_of(context):
    """Return what this client holds: two blocks of the digits sorted by class, so two
    to four classes.
    """
    client, n = context.node_config["partition-id"], context.node_config["num-partitions"]
    x, y = load_digits(return_X_y=True)
    blocks = np.array_split(np.argsort(y, kind="stable"), 2 * n)
    rows = np.random.default_rng(client).permutation(
        np.concatenate([blocks[client], blocks[n + client]])
    )
    return x[rows] / 16, y[rows]


app = to_client_app(lambda context: SoftmaxClient(*digits_of(context)))
