"""Augmentation of the images of training batches: each is shifted by up to four pixels
and mirrored in half of the cases, as ``RandomCrop(padding=4)`` and
``RandomHorizontalFlip()`` of torchvision do, but all images of an epoch at once.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

#: Zeros around an image before it is cropped to its size again.
PADDING = 4


def augmented(x: Tensor, how: str, rng: np.random.Generator) -> Tensor:
    """Return images x (n, C, H, W) augmented as ``how`` says ("none", "crop-flip"),
    each with draws of its own.
    """
    if how == "none":
        return x
    offsets = rng.integers(0, 2 * PADDING + 1, (2, len(x)))
    flips = rng.integers(0, 2, len(x)) == 1
    top, left = torch.from_numpy(offsets).to(x.device)
    return crop_and_flip(x, top, left, torch.from_numpy(flips).to(x.device))


def crop_and_flip(x: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    """Return padded images x (n, C, H, W), cut to their size from row ``top`` (n,) and
    column ``left`` (n,) on; then mirrored where ``flip`` (n,), bool.
    """
    n, c, i, j = (torch.arange(size, device=x.device) for size in x.shape)
    rows = top[:, None] + i
    columns = left[:, None] + torch.where(flip[:, None], j.flip(0), j)
    padded = functional.pad(x, [PADDING] * 4)
    return padded[n[:, None, None, None], c[:, None, None], rows[:, None, :, None],
                  columns[:, None, None, :]]  # fmt: skip
