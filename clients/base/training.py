"""What all gradient methods share: mini-batches, options, moving arrays. Their steps:
``algorithms.common.steps``.

Optimised for small models: tensors are indexed once per epoch, a step copies and
synchronises nothing, and one call updates all tensors. The order of operations is the
same for every method, so that a method whose extra terms vanish equals FedAvg to the
last bit.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from algorithms.common.modules import Arrays as Arrays
from algorithms.common.modules import get_arrays as get_arrays
from algorithms.common.modules import set_arrays as set_arrays
from algorithms.common.steps import SGD, Descent, Eager, Epochs, Problem, in_batches, no_surrogate
from clients.base.data import Split
from clients.base.options import Config as Config
from clients.base.options import TrainOptions as TrainOptions


def epochs(data: Split, options: TrainOptions, rng: np.random.Generator) -> Epochs:
    """Yield all samples (x, y), once for each of ``local_epochs`` epochs, each time in
    a new random order.
    """
    for _ in range(options.local_epochs):
        order = torch.from_numpy(rng.permutation(len(data))).to(data.y.device)
        yield data.x.index_select(0, order), data.y.index_select(0, order)


def mini_batches(data: Split, options: TrainOptions, rng: np.random.Generator) -> Epochs:
    """Yield the mini-batches (x, y) of ``local_epochs`` epochs, each in a new random
    order; the last of an epoch may be smaller.
    """
    return in_batches(epochs(data, options, rng), options.batch_size)


def train_classifier(
    net: nn.Module, data: Split, options: TrainOptions, rng: np.random.Generator
) -> None:
    """Train a classifier in place, at the learning rate of the first round."""
    net.train()
    w, sgd = (
        [p.detach() for p in trainable(net).values()],
        SGD(options.momentum, options.weight_decay),
    )
    problem = Problem(net, lambda x, y: functional.cross_entropy(net(x), y), no_surrogate)
    state = {"w": w, "velocity": sgd.velocity(w)}
    numbers = {"rate": options.learning_rate}
    Eager.run(
        problem,
        Descent(sgd),
        state,
        {},
        lambda _: numbers,
        epochs(data, options, rng),
        options.batch_size,
    )


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
