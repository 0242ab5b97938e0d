"""Pictures of a synthetic set during the run: a labelled grid every few rounds, an
animation of the grids, and the final set as a data set.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.images import save_set
from fedapps.strategies.base.observer import Ending, Observer

if TYPE_CHECKING:  # reports import this module and need no Flower
    from PIL.Image import Image

    from fedapps.strategies.base.capabilities import MakingSamples
    from fedapps.strategies.base.rounds import Round

FOLDER = "synthetic"
ANIMATION, SET = "rounds.png", "set"
#: Maximum numbers of frames of the animation, and of images per class in a grid.
MAX_FRAMES, MAX_COLUMNS = 24, 16
SIDE = 480  # pixels, about


class ImageGrids(Observer):
    """Draws the set of ``strategy`` into ``folder``/synthetic. ``done``:
    the number of rounds before a resume.
    """

    def __init__(
        self, folder: Path, strategy: "MakingSamples", every: int, num_classes: int, done: int = 0
    ) -> None:
        self.folder, self.strategy, self.every, self.num_classes = (
            folder / FOLDER,
            strategy,
            every,
            num_classes,
        )
        for path in grids(folder):
            if int(path.stem.partition("-")[2]) > done:
                path.unlink()

    def __call__(self, now: "Round") -> None:
        """Draw a grid if one is due in this round."""
        if now.number == now.num_rounds or (self.every and now.number % self.every == 0):
            self.folder.mkdir(exist_ok=True)
            x, y = self.strategy.samples(now.arrays)
            grid(x, y, f"round {now.number}").save(self.folder / f"round-{now.number:06d}.png")

    def end(self, ending: Ending) -> None:
        """Write the animation, and the set of the last round, unless the run failed."""
        from PIL import Image

        if ending.error or ending.arrays is None:
            return
        self.folder.mkdir(exist_ok=True)
        x, y = self.strategy.samples(ending.arrays)
        save_set(self.folder / SET, x, y, self.num_classes)
        paths = grids(self.folder.parent)
        picked = [
            paths[i * (len(paths) - 1) // max(1, min(len(paths), MAX_FRAMES) - 1)]
            for i in range(min(len(paths), MAX_FRAMES))
        ]
        frames = []
        for path in picked:
            with Image.open(path) as picture:
                frames.append(picture.copy())
        if len(frames) > 1:
            times = [400] * (len(frames) - 1) + [2000]
            frames[0].save(
                self.folder / ANIMATION,
                save_all=True,
                append_images=frames[1:],
                duration=times,
                loop=0,
            )


def grids(folder: Path) -> list[Path]:
    """Return the grids of a run's folder, by round."""
    return sorted((folder / FOLDER).glob("round-[0-9]*.png"))


def grid(x: NDArray[Any], y: NDArray[Any], heading: str) -> "Image":
    """Return images x (M, C, H, W) in [0, 1] as one picture: one row per class, with
    its label on the left, and ``heading`` above.
    """
    from PIL import Image, ImageDraw

    classes, (channels, height, width) = np.unique(y), x.shape[1:]
    columns = min(MAX_COLUMNS, max(int((y == label).sum()) for label in classes))
    scale = max(1, round(SIDE / max(len(classes) * height, columns * width)))
    high, wide, left, top = height * scale + 2, width * scale + 2, 28, 20
    picture = Image.new(
        "L" if channels == 1 else "RGB", (left + columns * wide, top + len(classes) * high), "white"
    )
    draw = ImageDraw.Draw(picture)
    draw.text((left, 4), heading, fill="black")
    pixels = (
        np.round(np.clip(x, 0, 1) * 255)
        .astype(np.uint8)
        .transpose(0, 2, 3, 1)
        .repeat(scale, 1)
        .repeat(scale, 2)
    )
    for row, label in enumerate(classes):
        draw.text((8, top + row * high + high // 2 - 6), str(label), fill="black")
        for column, image in enumerate(pixels[y == label][:columns]):
            tile = Image.fromarray(image[:, :, 0] if channels == 1 else image)
            picture.paste(tile, (left + column * wide, top + row * high))
    return picture
