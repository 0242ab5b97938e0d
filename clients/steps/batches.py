"""The mini-batches of a round, and a classifier trained on them.

Tensors are indexed once per epoch, and the order of operations is the same for every
method, so that a method whose extra terms vanish equals FedAvg to the last bit.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.schedule import passes
from fedapps.algorithms.common.steps import Eager, Epochs, Problem, in_batches
from fedapps.clients.base.data import Split
from fedapps.clients.base.training import TrainOptions, trainable
from fedapps.clients.steps.augmentation import augmented
from fedapps.clients.steps.sgd import descent, optimiser_of


def drawn(data: Split, rows: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the training samples (x, y) in these rows, augmented if the split says
    so.
    """
    at = torch.from_numpy(rows).to(data.y.device)
    return augmented(data.x.index_select(0, at), data.augment, rng), data.y.index_select(0, at)


def epochs(data: Split, options: TrainOptions, rng: np.random.Generator) -> Epochs:
    """Yield all samples (x, y), once for each of ``local_epochs`` epochs, each time in
    a new random order; of the last, if epochs are not whole, those of its steps.
    """
    whole, rest = passes(options.local_epochs, len(data), options.batch_size)
    for size in [len(data)] * whole + [rest] * bool(rest):
        yield drawn(data, rng.permutation(len(data))[:size], rng)


def mini_batches(
    data: Split, options: TrainOptions, rng: np.random.Generator, module: nn.Module
) -> Epochs:
    """Yield the mini-batches (x, y) of ``local_epochs`` epochs, each in a new random
    order, for a module (``algorithms.common.steps.batch_sizes``).
    """
    return in_batches(epochs(data, options, rng), options.batch_size, module)


def train_classifier(
    net: nn.Module, data: Split, options: TrainOptions, rng: np.random.Generator
) -> None:
    """Train a classifier in place, at the learning rate of the first round."""
    net.train()
    w = [p.detach() for p in trainable(net).values()]
    problem = Problem(net, lambda x, y: functional.cross_entropy(net(x), y))
    step, state = descent(optimiser_of(options), w, options.learning_rate)
    Eager.run(problem, step, state, epochs(data, options, rng), options.batch_size)
