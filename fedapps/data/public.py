"""The server's public unlabelled images for distillation: a folder or hub data set,
whose labels are not read, or bundled photos.
"""

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.seeds import generator
from fedapps.data.images import read_pixels
from fedapps.data.options import PublicOptions
from fedapps.errors import UserError, refuse_first

#: Number of patches cut from the photographs if ``public.samples`` is 0.
PATCHES = 4000
Shape = tuple[int, int, int]


def load_public(
    options: PublicOptions, shape: Shape, task: str, seed: int
) -> npt.NDArray[np.float32]:
    """Return the public images (m, C, H, W) in [0, 1], of the task's ``shape`` (C, H,
    W). Raises ``UserError``.
    """
    photos = options.source in ("auto", "photos")
    refuse_first(
        (
            options.source == "auto" and task != "digits",
            "public.source = 'auto': this method distils on unlabelled images, and only the "
            "digits have some by themselves: "
            "name a folder or a hub data set of images like the clients', or 'photos'",
        ),
        (
            photos and (shape[0] not in (1, 3) or shape[1] == 1),
            f"public.source = 'photos': are images, but the task's samples are {_size(shape)}: "
            "name another source",
        ),
        (
            photos and options.resize,
            f"public.resize = {options.resize}: patches of the photographs have the task's "
            "shape: leave it 0",
        ),
    )
    if photos:
        return patches(options.samples or PATCHES, shape, generator(seed, "photos"))
    pixels = read_pixels(options)
    if 0 < options.samples < len(pixels):
        pixels = pixels[np.arange(options.samples) * len(pixels) // options.samples]
    values = pixels.astype(np.float32) / np.float32(255)
    if options.resize and values.shape[1] != shape[0]:
        values = np.repeat(values.mean(1, keepdims=True), shape[0], axis=1)
    if values.shape[1:] != shape:
        raise UserError(
            f"public.source = {options.source!r}: its images are {_size(values.shape[1:])}, the "
            f"task's {_size(shape)}: "
            + (
                f"set public.resize = {shape[1]}"
                if shape[1] == shape[2]
                else "name a set of the same shape"
            )
        )
    return np.ascontiguousarray(values)


def patches(count: int, shape: Shape, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return ``count`` square patches of two photographs, of random position and size,
    as images of ``shape`` (C, H, W) in [0, 1].

    Their contrast is stretched, which makes edges resemble strokes of a pen.
    """
    from PIL import Image  # imported here: no other run needs these
    from sklearn.datasets import load_sample_images

    channels, height, width = shape
    photos = [
        Image.fromarray(photo).convert("L" if channels == 1 else "RGB")
        for photo in load_sample_images().images
    ]
    out = np.empty((count, height, width, channels), np.float32)
    for row in range(count):
        photo = photos[int(rng.integers(len(photos)))]
        side = int(rng.integers(max(height, width), min(photo.size) // 2))
        left, top = (int(rng.integers(length - side)) for length in photo.size)
        cutting = photo.resize(
            (width, height), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
        )
        values = np.asarray(cutting, np.float32).reshape(height, width, -1)
        low, high = values.min(), values.max()
        out[row] = (values - low) / max(high - low, 1)
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[2]} with {shape[0]} channel{'s' if shape[0] > 1 else ''}"
