"""Prototypes that are trained: outputs of a small net, one for each class, which tell
the classes apart of prototypes that clients made.

Source: Zhang, Liu, Hua, Cao, "FedTGP: Trainable Global Prototypes with
Adaptive-Margin-Enhanced Contrastive Learning for Data and Model Heterogeneity in
Federated Learning", AAAI 2024, arXiv 2401.03230, equations (7) to (9).
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import torch_seeded

Floats = NDArray[np.float32]
BATCH = 10


def prototype_net(classes: int, size: int, seed: int) -> nn.Sequential:
    """Return a net from classes (n,) to prototypes (n, size), drawn by the seed."""
    with torch_seeded(seed):
        return nn.Sequential(
            nn.Embedding(classes, size), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)
        )


def adaptive_margin(seen: Tensor, labels: Tensor, most: float) -> float:
    """Return the largest distance between class means of prototypes ``seen`` (n, D) of
    classes ``labels`` (n,), at most ``most``.
    """
    means = torch.stack([seen[labels == label].mean(0) for label in labels.unique()])
    return min(float(torch.cdist(means, means).max()), most)


def contrast(prototypes: Tensor, seen: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Return the mean cross-entropy of the labels of ``seen`` (n, D) under the softmax
    of minus the distances to the ``prototypes`` (C, D), that to the own class longer by
    ``margin``.
    """
    own = functional.one_hot(labels, len(prototypes))
    return functional.cross_entropy(-torch.cdist(seen, prototypes) - margin * own, labels)


def trained_prototypes(
    theta: Mapping[str, Floats],
    net: nn.Module,
    seen: Floats,
    labels: NDArray[np.int64],
    most: float,
    steps: tuple[int, float],
    rng: np.random.Generator,
) -> tuple[dict[str, Floats], Floats]:
    """Train the net from its arrays ``theta`` (none: as it is) by SGD on clients'
    prototypes (n, D) and their classes (n,); return its arrays and the prototypes
    (C, D). ``most``: of the margin; ``steps``: epochs and rate.
    """
    if theta:
        net.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in theta.items()})
    x, y = torch.from_numpy(seen), torch.from_numpy(labels)
    everyone = torch.arange(len(net.get_parameter("0.weight")))  # the embedding's rows
    margin, (epochs, rate) = adaptive_margin(x, y, most), steps
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(epochs):
        for batch in torch.from_numpy(rng.permutation(len(x))).split(BATCH):
            optimiser.zero_grad()
            contrast(net(everyone), x[batch], y[batch], margin).backward()
            optimiser.step()
    arrays = {name: t.detach().numpy().copy() for name, t in net.state_dict().items()}
    return arrays, net(everyone).detach().numpy()
