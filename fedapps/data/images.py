"""Samples with a class: scikit-learn's digits, or images or arrays of a local folder or
a hub set (``fedapps.data.sources``).
"""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.data.cache import Entry
from fedapps.data.options import DataOptions
from fedapps.data.samples import Categorical, Columns, Samples
from fedapps.data.sources import (
    TRAIN,
    cached,
    check_columns,
    column_of,
    digits_table,
    groups_of,
    label_column,
    labels_of,
    parts_of,
)
from fedapps.errors import UserError

# The `datasets` library is imported where it is used: it takes a second, which a worker
# with a warm cache avoids.
IMAGE_NAMES = ("image", "img", "images", "x")


def read_samples(options: DataOptions, targets: bool = False) -> Samples:
    """Read the samples of ``data.split`` and ``data.test``; names of columns that are
    "" are detected, a natural id is then not read.

    ``targets``: the label is a number to predict, or an array of them.

    Raises UserError, naming the setting at fault, for problems the user can fix.
    """
    if options.source == "digits":
        return _digits(options)
    asked = _asked(options) | ({"targets": "1"} if targets else {})
    arrays, facts = cached(
        options.source, asked, lambda data, parts: _decode(data, parts, options, targets)
    )
    return Samples(
        arrays["x"],
        np.array(arrays["labels"]),
        facts["num-classes"],
        tuple(facts["classes"]),
        clients=categorical(arrays, facts) if options.natural_id else None,
        parts=parts_in(arrays),
        numbers=(
            Columns(tuple(facts["columns"]), tuple(facts["texts"])) if facts["numbers"] else None
        ),
        targets=np.array(arrays["targets"]) if targets else None,
    )


def categorical(arrays: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> Categorical:
    """Return the natural client of each sample, from what ``decode`` made."""
    return Categorical(np.array(arrays["natural"]), tuple(facts["names"]))


def parts_in(arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64] | None:
    """Return the part of each sample, from what ``decode`` made; None if all are to
    train on.
    """
    parts = np.array(arrays["parts"])
    return None if (parts == TRAIN).all() else parts


def _asked(options: DataOptions) -> dict[str, str]:
    """Return what the decoded arrays depend on beside the files."""
    asked = {
        "split": options.split,
        "image": options.image,
        "label": options.label,
        "natural-id": options.natural_id,
    }
    others = {
        "test": options.test,
        "validation-split": options.validation_split,
        "part": options.part,
        "config": options.config,
        "features": options.features,
        "shape": options.shape,
    }
    if options.channels != "first":
        others["channels"] = options.channels
    if options.resize:
        others["resize"] = str(options.resize)
    if left_out := ",".join(
        name for name in options.told_apart if name not in (options.natural_id, options.part)
    ):
        others["left-out"] = left_out
    return asked | {key: value for key, value in others.items() if value}


def read_pixels(source: str, split: str, image: str = "", resize: int = 0) -> npt.NDArray[np.uint8]:
    """Read only the images (N, C, H, W) of a public set; ``image``: their column, "" to
    detect it.

    Raises UserError, naming the setting under ``public.`` at fault.
    """

    def decode(data: Any, *_: Any) -> Entry:
        check_columns(data, source, {"data.image": image})
        return {
            "pixels": _pixels(data, _find_image(data.features, source, image), source, resize)
        }, {}

    try:
        arrays, _ = cached(
            source, {"split": split, "image": image, "label": "none", "resize": str(resize)}, decode
        )
    except UserError as error:
        raise UserError(str(error).replace("data.", "public.")) from error
    return arrays["pixels"]


def read_named(
    options: DataOptions, client: str = ""
) -> tuple[npt.NDArray[Any], list[str], list[str]]:
    """Read samples (N, C, H, W), the label name of each, as given in the data set, and
    what each has in the column ``client``.

    The split ``data.test`` is not read. ``client``: "@file" is the name of a sample's
    file, "" none. Raises UserError, naming the settings ``data.`` and ``sites.client``.
    """

    def decode(data: Any, *_: Any) -> Entry:
        import datasets

        named = {
            "data.image": options.image,
            "data.label": options.label,
            "data.natural-id": client,
        }
        check_columns(data, options.source, named)
        column = label_column(data.features, options.source, options.label)
        values, place = np.unique(column_of(data, column), return_inverse=True)
        declared = data.features[column]
        # The library numbers samples without a label -1.
        names = [
            declared.int2str(int(v))
            if isinstance(declared, datasets.ClassLabel) and v >= 0
            else str(v)
            for v in values
        ]
        owner, owners = groups_of(data, client) if client else (np.zeros(len(data), np.int64), [""])
        arrays = {"x": _inputs(data, read), "labels": place.astype(np.int64), "owner": owner}
        return arrays, {"names": names, "owners": owners}

    read = replace(options, test="", natural_id=client, partition="iid")
    try:
        arrays, facts = cached(options.source, _asked(read) | {"named": "2"}, decode)
    except UserError as error:
        raise UserError(str(error).replace("data.natural-id", "sites.client")) from error
    labels, owners = (
        [facts[names][at] for at in arrays[key].tolist()]
        for names, key in (("names", "labels"), ("owners", "owner"))
    )
    return arrays["x"], labels, owners


def _digits(options: DataOptions) -> Samples:
    for key, value in (
        ("natural-id", options.natural_id),
        ("part", options.part),
        ("features", options.features),
        ("shape", options.shape),
    ):
        if value:
            raise UserError(f"data.{key} = {value!r}: the digits have no such column: leave it ''")
    if options.resize:
        raise UserError(f"data.resize = {options.resize}: the digits stay 8 x 8: leave it 0")
    for key, value in (("test", options.test), ("validation-split", options.validation_split)):
        if value:
            raise UserError(f"data.{key} = {value!r}: the digits have one split: leave it ''")
    rows = digits_table()
    # (1797, 1, 8, 8), values 0..16
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return Samples(pixels, rows[:, -1].astype(np.int64), 10, tuple(map(str, range(10))))


def _decode(
    data: Any, parts: npt.NDArray[np.int64], options: DataOptions, targets: bool = False
) -> Entry:
    """Turn a `datasets.Dataset`, whose samples are of the splits ``parts`` (N,), into
    arrays and facts.
    """
    source = options.source
    named = {
        "data.image": options.image,
        "data.label": options.label,
        "data.natural-id": options.natural_id,
        "data.part": options.part,
    }
    check_columns(data, source, named)
    arrays: dict[str, npt.NDArray[Any]] = {}
    if targets:
        from fedapps.data.arrays import targets_of  # imported here: no other set needs it

        arrays["targets"] = targets_of(data, source, options.label)
        labels, classes = np.zeros(len(data), np.int64), ["0"]
    else:
        labels, classes = labels_of(data, source, options.label)
    arrays |= {"x": _inputs(data, options), "labels": labels}
    names: list[str] = []
    if options.natural_id:
        arrays["natural"], names = groups_of(data, options.natural_id)
    if options.part:
        parts = parts_of(data, options.part)
    arrays["parts"] = parts
    numbers = arrays["x"].dtype == np.float32
    columns, texts = _found(data, options) if numbers else ([], [])
    facts = {"num-classes": len(classes), "names": names, "numbers": numbers, "classes": classes}
    return arrays, facts | {"columns": columns, "texts": texts}


def _found(data: Any, options: DataOptions) -> tuple[list[str], list[str]]:
    """Return the columns of numbers that make a sample, and those of text beside them;
    nothing where columns are named.
    """
    from fedapps.data.arrays import depths_of, number_columns

    others = (label_column(data.features, options.source, options.label), *options.told_apart)
    columns = number_columns(data, options.source, options.features, others)
    if options.features or any(depths_of(data)[name] for name in columns):
        return [], []
    text = ("string", "large_string")
    return columns, [
        name
        for name, kind in data.features.items()
        if name not in others and getattr(kind, "dtype", "") in text
    ]


def _inputs(data: Any, options: DataOptions) -> npt.NDArray[Any]:
    """Return the samples (N, C, H, W): the images of a set that has them, else its
    arrays or numbers.
    """
    source = options.source
    if not options.features and (
        options.image or any(_is_image(feature) for feature in data.features.values())
    ):
        if options.shape:
            raise UserError(
                f"data.shape = {options.shape!r}: is for arrays, but {source} holds images: leave "
                "it '' (or set data.resize)"
            )
        return _pixels(
            data, _find_image(data.features, source, options.image), source, options.resize
        )
    # imported here: no other set needs it
    from fedapps.data.arrays import number_columns, read_numbers

    if options.resize:
        raise UserError(
            f"data.resize = {options.resize}: is for images, but {source} holds arrays or numbers: "
            "leave it 0"
        )
    label = label_column(data.features, source, options.label)
    columns = number_columns(data, source, options.features, (label, *options.told_apart))
    return read_numbers(data, columns, source, options.axes, options.channels)


def _is_image(feature: Any) -> bool:
    import datasets

    # In Parquet files written without the library's metadata, an image is a struct of
    # bytes and path.
    return isinstance(feature, datasets.Image) or (isinstance(feature, dict) and "bytes" in feature)


def _find_image(features: Any, source: str, name: str) -> str:
    """Return the image column: the named one, else the only one, else the one with a
    common name.
    """
    columns = ", ".join(features)
    if name:
        if not _is_image(features[name]):
            raise UserError(
                f"data.image = {name!r}: is not an image column; {source} has the columns "
                f"{columns}; arrays and numbers are "
                "named by data.features"
            )
        return name
    found = [column for column in features if _is_image(features[column])]
    if not found:
        raise UserError(f"data.source = {source!r}: holds no images; its columns are {columns}")
    usual = [column for column in IMAGE_NAMES if column in found]
    if len(found) > 1 and not usual:
        raise UserError(
            f"data.image: {source} has several image columns, name one of {', '.join(found)}"
        )
    return found[0] if len(found) == 1 else usual[0]


def _pixels(data: Any, column: str, source: str, resize: int) -> npt.NDArray[np.uint8]:
    """Decode a column of encoded images to (N, C, H, W): one channel if all are
    greyscale, else three.
    """
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
                    picture = (
                        opened
                        if opened.mode in ("L", "RGB")
                        else opened.convert(_plain_mode(opened.mode))
                    )
                    if resize:
                        picture = ImageOps.fit(picture, (resize, resize), Image.Resampling.BILINEAR)
                    array = np.asarray(picture)
            except Exception as error:  # corrupt files raise exceptions of many types
                raise UserError(
                    f"data.source = {source!r}: image {row} cannot be decoded: {error}"
                ) from error
            array = array[:, :, None] if array.ndim == 2 else array
            if pixels is None:
                pixels = np.empty((len(data), *array.shape), np.uint8)
            if array.shape[:2] != pixels.shape[1:3]:
                sizes = (
                    f"{pixels.shape[1]} x {pixels.shape[2]} and {array.shape[0]} x {array.shape[1]}"
                )
                raise UserError(
                    f"data.source = {source!r}: images differ in size ({sizes} in image {row}): "
                    "set data.resize"
                )
            if array.shape[2] > pixels.shape[3]:  # the first colour image after greyscale ones
                pixels = np.repeat(pixels, 3, axis=3)
            pixels[row] = array  # a greyscale image is broadcast to all three channels
            row += 1
    assert pixels is not None  # there is at least one row
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _plain_mode(mode: str) -> str:
    """Return the PIL mode to convert to: greyscale for one-bit and greyscale-alpha
    images, else colour.
    """
    return "L" if mode in ("1", "LA", "La") else "RGB"
