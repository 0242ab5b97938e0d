"""Clients with one quadratic each, by default two that differ: the result of every
method is known in closed form.
"""

import torch

from fedapps.clients import ClientData, Split

CURVATURE, TARGET = [1.0, 10.0], [0.0, 1.0]
CONFIG = {
    "learning-rate": 0.02,
    "lr-decay": 1.0,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "batch-size": 10,
}


class Scalar(torch.nn.Module):
    def __init__(self, size=1):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(size))


def quadratic(kind, i, store=None, curvature=CURVATURE, target=TARGET, samples=1):
    """Return a client of ``kind`` with the loss ``h_i/2 (w - t_i)^2``."""

    class Quadratic(kind):
        def loss(self, x, y):
            return (curvature[i] / 2 * (self.model.w - target[i]) ** 2).sum()

        def evaluate(self, parameters, config):
            return float(parameters[0][0]), 1, {}

    part = Split(torch.zeros(samples, 1), torch.zeros(samples, dtype=torch.int64))
    return Quadratic(lambda seed: Scalar(), ClientData(part, part, part), i, store)
