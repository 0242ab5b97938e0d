"""A synthetic set of images on disk, as ``datasets.load_from_disk`` reads it: what
fedevg, fedcgan and fedcvae leave behind.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.samples import Samples
from fedapps.data.source import Source
from fedapps.data.sources import quiet


def save_set(folder: Path, x: NDArray[Any], y: NDArray[Any], num_classes: int) -> None:
    """Write images (M, C, H, W) in [0, 1] and labels (M,) as what
    ``datasets.load_from_disk`` reads: ``image``, ``label``.
    """
    import datasets  # late: it takes a second
    from PIL import Image

    pixels = np.round(np.clip(x, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    pictures = [Image.fromarray(p[:, :, 0] if p.shape[2] == 1 else p) for p in pixels]
    labels = datasets.ClassLabel(names=[str(label) for label in range(num_classes)])
    features = datasets.Features({"image": datasets.Image(), "label": labels})
    made = datasets.Dataset.from_dict({"image": pictures, "label": y.tolist()}, features)
    with quiet():
        made.save_to_disk(str(folder))


def read_set(source: str) -> Samples:
    """Return the set in a folder. ``UserError`` names the setting
    ``data.synthetic``.
    """
    return read_samples(DataOptions(), source=Source(source, key="synthetic"))
