"""The synthetic set that a run made: a labelled picture, and a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.images import save_set
from fedapps.strategies.base.rounds import Ending, Observer

if TYPE_CHECKING:
    from PIL.Image import Image

    from fedapps.strategies.base.capabilities import MakingSamples

PICTURE = "synthetic/images.png"
MAX_COLUMNS = 16  # images per class in the picture
SIDE = 480  # pixels, about


class SyntheticSet(Observer):
    """Writes the last set of ``strategy`` into ``folder``/synthetic, unless the run
    failed.
    """

    def __init__(self, folder: Path, strategy: "MakingSamples") -> None:
        self.folder, self.strategy = folder, strategy

    def end(self, ending: Ending) -> None:
        """Write the set and its picture."""
        if ending.error or ending.arrays is None:
            return
        x, y = self.strategy.samples(ending.arrays)
        save_set(self.folder / "synthetic" / "set", x, y, len(set(self.strategy.labels)))
        grid(x, y).save(self.folder / PICTURE)


def grid(x: NDArray[Any], y: NDArray[Any]) -> "Image":
    """Return images x (M, C, H, W) in [0, 1] as one picture: one row per class, with
    its label on the left.
    """
    from PIL import Image, ImageDraw

    classes, (channels, height, width) = np.unique(y), x.shape[1:]
    columns = min(MAX_COLUMNS, max(int((y == label).sum()) for label in classes))
    scale = max(1, round(SIDE / max(len(classes) * height, columns * width)))
    high, wide, left = height * scale + 2, width * scale + 2, 28
    size = left + columns * wide, len(classes) * high
    picture = Image.new("L" if channels == 1 else "RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    pixels = (
        np.round(np.clip(x, 0, 1) * 255)
        .astype(np.uint8)
        .transpose(0, 2, 3, 1)
        .repeat(scale, 1)
        .repeat(scale, 2)
    )
    for row, label in enumerate(classes):
        draw.text((8, row * high + high // 2 - 6), str(label), fill="black")
        for column, image in enumerate(pixels[y == label][:columns]):
            tile = Image.fromarray(image[:, :, 0] if channels == 1 else image)
            picture.paste(tile, (left + column * wide, row * high))
    return picture
