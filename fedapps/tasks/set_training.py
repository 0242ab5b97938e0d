"""Training of a classifier on a synthetic set of images, with augmentation; conversion
of the set to tensors.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.clients.base.data import Split
from fedapps.data.source import Samples
from fedapps.errors import UserError

BATCH = 50


def fit(model: nn.Module, samples: Split, steps: int, rng: np.random.Generator) -> None:
    """Train a classifier in place with Adam on augmented batches; cosine learning-rate
    schedule down to 0.
    """
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    size = min(BATCH, len(samples))
    model.train()
    with torch_seeded(int(rng.integers(2**63))):
        order = np.empty(0, np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.concatenate([order, rng.permutation(len(samples))])
            rows, order = torch.from_numpy(order[:size]).to(samples.y.device), order[size:]
            loss = functional.cross_entropy(model(augmented(samples.x[rows], rng)), samples.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            falling.step()


def augmented(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images (n, C, H, W) rotated by up to 15 degrees, scaled by up to 15 % and
    shifted by up to a fourteenth of their side.
    """
    angle, scale = rng.uniform(-np.pi / 12, np.pi / 12, len(x)), rng.uniform(0.85, 1.15, len(x))
    matrix = np.zeros((len(x), 2, 3))
    matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle) * scale
    matrix[:, 1, 0] = np.sin(angle) * scale
    matrix[:, 0, 1] = -matrix[:, 1, 0]
    matrix[:, :, 2] = rng.uniform(-1 / 7, 1 / 7, (len(x), 2))  # in units where the side is 2
    grid = functional.affine_grid(
        torch.from_numpy(matrix).to(x), list(x.shape), align_corners=False
    )
    return functional.grid_sample(x, grid, align_corners=False)


def check_fits(images: Samples, shape: tuple[int, int, int], num_classes: int, what: str) -> None:
    """Raise ``UserError``, with a message that begins with ``what``, unless a set has
    ``shape`` (C, H, W) and no more classes.
    """
    got = images.x.shape[1:]
    if got != shape:
        sizes = [
            f"{s[1]} x {s[2]} with {s[0]} channel{'s' if s[0] > 1 else ''}" for s in (got, shape)
        ]
        raise UserError(
            f"{what}: its images are {sizes[0]}, the task's {sizes[1]}: make it with the same "
            "data.source and data.resize"
        )
    if images.num_classes > num_classes:
        raise UserError(
            f"{what}: has {images.num_classes} classes, the task {num_classes}: name another set"
        )


def tensors(images: Samples, device: torch.device) -> Split:
    """Return a set as float32 images in [0, 1] and int64 labels, on a device."""
    values = images.x.astype(np.float32) / (255 if images.x.dtype == np.uint8 else 1)
    return Split(torch.from_numpy(values), torch.from_numpy(images.labels)).to(device)
