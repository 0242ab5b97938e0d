"""Encoded pictures as pixels of 8 bits: scaled by their mode, upright, of one size."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedapps.data.frame import Frame
from fedapps.data.source import Source
from fedapps.errors import UserError

#: PIL's modes of greyscale without transparency, as 8 bits and deeper.
GREY, DEEP = ("1", "L"), ("I", "I;16", "I;16L", "I;16B", "I;16N")
#: Pictures of 16 bits that use no more than this part of them are nearly black.
DARK = 2**16 // 16


def read_pictures(
    data: Frame, column: str, source: Source, resize: int
) -> tuple[npt.NDArray[np.uint8], list[str]]:
    """Return the pictures (N, C, H, W) in a column, one channel if all are greyscale,
    else three, and lines about those that are not as others. Raises ``UserError``.
    """
    pixels: npt.NDArray[np.uint8] | None = None
    seen: Counter[str] = Counter()
    brightest = 0
    for row, stored in enumerate(data.columns[column]):
        cell = stored.as_py() or {"bytes": b"", "path": None}
        try:
            content: bytes | None = cell["bytes"]
            with Image.open(cell["path"] if content is None else io.BytesIO(content)) as opened:
                if opened.mode in DEEP:
                    brightest = max(brightest, int(np.asarray(opened).max()))
                picture = _upright(opened, seen)
                if resize:
                    picture = ImageOps.fit(picture, (resize, resize), Image.Resampling.BILINEAR)
                array = np.asarray(picture)
        except Exception as error:  # corrupt files raise exceptions of many types
            what = "it holds no image" if isinstance(error, UnidentifiedImageError) else error
            raise UserError(
                f"{source.given}: {_called(row, cell, source)} cannot be decoded: {what}: mend or "
                "remove it"
            ) from error
        array = array[:, :, None] if array.ndim == 2 else array
        if pixels is None:
            pixels = np.empty((len(data), *array.shape), np.uint8)
        if array.shape[:2] != pixels.shape[1:3]:
            sizes = f"{pixels.shape[1]} x {pixels.shape[2]} and {array.shape[0]} x {array.shape[1]}"
            raise UserError(
                f"{source.given}: images differ in size ({sizes} in "
                f"{_called(row, cell, source)}): set {source.table}.resize"
            )
        if array.shape[2] > pixels.shape[3]:  # the first colour image after greyscale ones
            pixels = np.repeat(pixels, 3, axis=3)
        pixels[row] = array  # a greyscale image is broadcast to all three channels
    assert pixels is not None  # there is at least one row
    lines = [f"{count} of {len(data)} images {what}" for what, count in seen.items()]
    if 0 < brightest < DARK:
        lines.append(f"images of 16 bits go up to {brightest} only: they are nearly black")
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), lines


def _upright(opened: Image.Image, seen: Counter[str]) -> Image.Image:
    """Return a picture in greyscale or colour of 8 bits, turned as its EXIF data say.
    Raises ``ValueError``.
    """
    if getattr(opened, "n_frames", 1) > 1:
        seen["have several frames: the first is read"] += 1
    turned = ImageOps.exif_transpose(opened)
    if turned.size != opened.size or opened.getexif().get(0x0112, 1) != 1:
        seen["are turned upright (EXIF)"] += 1
    mode = turned.mode
    if mode in DEEP:
        values = np.asarray(turned).astype(np.int64)
        if values.min() < 0 or values.max() >= 2**16:
            raise ValueError("its numbers are outside of 16 bits")
        seen["have 16 bits: scaled to 8"] += 1
        return Image.fromarray(np.round(values / 257).astype(np.uint8))
    if mode == "F":
        floats = np.asarray(turned)
        if not (floats.min() >= 0 and floats.max() <= 1):
            raise ValueError("its floats are outside of 0 to 1")
        return Image.fromarray(np.round(floats * 255).astype(np.uint8))
    grey = mode in ("LA", "La")
    if turned.has_transparency_data:
        layer = turned.convert("RGBA")
        if np.asarray(layer)[:, :, 3].min() < 255:
            seen["are transparent: laid on white"] += 1
            ground = Image.new("RGBA", layer.size, "white")
            laid = Image.alpha_composite(ground, layer).convert("RGB")
            if not np.ptp(np.asarray(laid), (0, 1)).any():
                raise ValueError("only its transparency holds a shape")
            return laid.convert("L") if grey else laid
    return turned.convert("L" if grey or mode in GREY else "RGB")


def _called(row: int, cell: dict[str, Any], source: Source) -> str:
    """Return how messages call an image: its number, and its file, unless it is a
    site's: the server reads those messages.
    """
    path = "" if source.is_site else cell["path"] or ""
    file = "/".join(Path(path).parts[-3:])
    return f"image {row}" + f" ({file})" * bool(file)
