"""Image sets as arrays: scikit-learn's digits, a local folder, or a hub data set (see ``fedapps.data.sources``)."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.data.cache import Entry
from fedapps.data.sources import cached, check_columns, column_of, digits_table, groups_of, label_column, labels_of
from fedapps.errors import UserError

# The `datasets` library is imported where it is used: it takes a second, which a worker with a warm cache avoids.
IMAGE_NAMES = ("image", "img", "images", "x")


@dataclass(frozen=True)
class Images:
    """A labelled image set. Sounds are images with one row; texts have tokens in place of pixels.

    ``pixels`` (N, C, H, W) is uint8 in 0..255, float32 in [0, 1] or int16 (sound), or (N, length) is int64 (tokens); ``labels`` (N,) is
    int64 in 0..num_classes-1. ``natural`` (N,), if requested, is the natural client of each sample, as an index into ``names``;
    ``group`` (N,) likewise its group among ``group_names``, -1 for none.
    """

    pixels: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    num_classes: int
    natural: npt.NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    group: npt.NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()


def read_images(source: str, split: str, image: str = "", label: str = "", natural_id: str = "", resize: int = 0) -> Images:
    """Read one split of an image set; ``image``, ``label``, ``natural_id`` are column names ("": detect it, or none).

    ``resize``: crop the largest centred square of every image and resize it to this side; 0: leave the images as they are.
    Raises UserError, naming the setting at fault, for problems the user can fix.
    """
    if source == "digits":
        if natural_id:
            raise UserError(f"data.natural-id = {natural_id!r}: the digits have no such column")
        if resize:
            raise UserError(f"data.resize = {resize}: the digits stay 8 x 8: leave it 0")
        return _digits()
    asked = {"split": split, "image": image, "label": label, "natural-id": natural_id}
    if resize:
        asked["resize"] = str(resize)
    arrays, facts = cached(source, asked, lambda data: _decode(data, source, image, label, natural_id, resize))
    return Images(
        arrays["pixels"],
        np.array(arrays["labels"]),
        facts["num-classes"],
        np.array(arrays["natural"]) if natural_id else None,
        tuple(facts["names"]),
    )


def read_pixels(source: str, split: str, image: str = "", resize: int = 0) -> npt.NDArray[np.uint8]:
    """Read only the images (N, C, H, W) of a public set; arguments as in :func:`read_images`.

    Raises UserError, naming the setting under ``public.`` at fault.
    """

    def decode(data: Any) -> Entry:
        check_columns(data, source, {"data.image": image})
        return {"pixels": _pixels(data, _find_image(data.features, source, image), source, resize)}, {}

    try:
        arrays, _ = cached(source, {"split": split, "image": image, "label": "none", "resize": str(resize)}, decode)
    except UserError as error:
        raise UserError(str(error).replace("data.", "public.")) from error
    return arrays["pixels"]


def read_named(source: str, split: str, image: str = "", label: str = "", resize: int = 0) -> tuple[npt.NDArray[Any], list[str]]:
    """Read images (N, C, H, W) and the label name of each, as given in the data set; arguments as in :func:`read_images`."""

    def decode(data: Any) -> Entry:
        import datasets

        check_columns(data, source, {"data.image": image, "data.label": label})
        column = label_column(data.features, source, label)
        values, place = np.unique(column_of(data, column), return_inverse=True)
        declared = data.features[column]
        # The library numbers samples without a label -1.
        names = [declared.int2str(int(v)) if isinstance(declared, datasets.ClassLabel) and v >= 0 else str(v) for v in values]
        pixels = _pixels(data, _find_image(data.features, source, image), source, resize)
        return {"pixels": pixels, "labels": place.astype(np.int64)}, {"names": names}

    arrays, facts = cached(source, {"split": split, "image": image, "label": label, "resize": str(resize), "named": "1"}, decode)
    return arrays["pixels"], [facts["names"][place] for place in arrays["labels"].tolist()]


def _digits() -> Images:
    rows = digits_table()
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)  # (1797, 1, 8, 8), values 0..16
    return Images(pixels, rows[:, -1].astype(np.int64), 10)


def _decode(
    data: Any, source: str, image: str, label: str, natural_id: str, resize: int
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Turn a `datasets.Dataset` into arrays (pixels, labels, natural) and facts (num-classes, names)."""
    check_columns(data, source, {"data.image": image, "data.label": label, "data.natural-id": natural_id})
    image = _find_image(data.features, source, image)
    labels, num_classes = labels_of(data, source, label)
    arrays: dict[str, npt.NDArray[Any]] = {"pixels": _pixels(data, image, source, resize), "labels": labels}
    names: list[str] = []
    if natural_id:
        arrays["natural"], names = groups_of(data, natural_id)
    return arrays, {"num-classes": num_classes, "names": names}


def _find_image(features: Any, source: str, name: str) -> str:
    """Return the image column: the named one, else the only one, else the one with a common name."""
    import datasets

    def is_image(feature: Any) -> bool:
        # In Parquet files written without the library's metadata, an image is a struct of bytes and path.
        return isinstance(feature, datasets.Image) or (isinstance(feature, dict) and "bytes" in feature)

    columns = ", ".join(features)
    if name:
        if not is_image(features[name]):
            raise UserError(f"data.image = {name!r}: is not an image column; {source} has the columns {columns}")
        return name
    found = [column for column in features if is_image(features[column])]
    if not found:
        raise UserError(f"data.source = {source!r}: holds no images; its columns are {columns}")
    usual = [column for column in IMAGE_NAMES if column in found]
    if len(found) > 1 and not usual:
        raise UserError(f"data.image: {source} has several image columns, name one of {', '.join(found)}")
    return found[0] if len(found) == 1 else usual[0]


def _pixels(data: Any, column: str, source: str, resize: int) -> npt.NDArray[np.uint8]:
    """Decode a column of encoded images to (N, C, H, W): one channel if all are greyscale, else three."""
    import datasets
    from PIL import Image, ImageOps

    data = data.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    pixels: npt.NDArray[np.uint8] | None = None
    row = 0
    for table in data.with_format("arrow").iter(batch_size=1000):
        for cell in table[column].to_pylist():
            try:
                content: bytes | None = cell["bytes"]
                with Image.open(cell["path"] if content is None else io.BytesIO(content)) as opened:
                    picture = opened if opened.mode in ("L", "RGB") else opened.convert(_plain_mode(opened.mode))
                    if resize:
                        picture = ImageOps.fit(picture, (resize, resize), Image.Resampling.BILINEAR)
                    array = np.asarray(picture)
            except Exception as error:  # corrupt files raise exceptions of many types
                raise UserError(f"data.source = {source!r}: image {row} cannot be decoded: {error}") from error
            array = array[:, :, None] if array.ndim == 2 else array
            if pixels is None:
                pixels = np.empty((len(data), *array.shape), np.uint8)
            if array.shape[:2] != pixels.shape[1:3]:
                sizes = f"{pixels.shape[1]} x {pixels.shape[2]} and {array.shape[0]} x {array.shape[1]}"
                raise UserError(f"data.source = {source!r}: images differ in size ({sizes} in image {row}): set data.resize")
            if array.shape[2] > pixels.shape[3]:  # the first colour image after greyscale ones
                pixels = np.repeat(pixels, 3, axis=3)
            pixels[row] = array  # a greyscale image is broadcast to all three channels
            row += 1
    assert pixels is not None  # there is at least one row
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _plain_mode(mode: str) -> str:
    """Return the PIL mode to convert to: greyscale for one-bit and greyscale-alpha images, else colour."""
    return "L" if mode in ("1", "LA", "La") else "RGB"
