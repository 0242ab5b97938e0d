"""A library of densities and clients with frequencies, whose losses and gradients are
known by hand.
"""

import numpy as np


class Tables:
    """A library of densities over a small set, in memory."""

    def __init__(self, tables):
        self.tables = np.asarray(tables, float)
        self.q = len(self.tables)

    def take(self, ids):
        return {"table": self.tables[ids]}

    def hash_of(self, predictor):
        return f"{predictor:016x}"

    def mixture(self, alpha):
        return {"table": alpha @ self.tables}


class Frequencies:
    """A client's outcomes as frequencies; log loss."""

    def __init__(self, frequencies, num_examples=10):
        self.frequencies, self.num_examples = np.asarray(frequencies, float), num_examples
        self.num_test = num_examples

    def loss_and_gradient(self, predictors, alpha):
        table = predictors["table"]
        mixed = alpha @ table
        gradient = -(table * (self.frequencies / mixed)).sum(1)
        return float(-(self.frequencies * np.log(mixed)).sum()), gradient, (table**2).sum(1)

    def score(self, predictors, alpha):
        return {"loss": float(-(self.frequencies * np.log(alpha @ predictors["table"])).sum())}
