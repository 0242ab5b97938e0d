"""Samples with a class: scikit-learn's digits, or images or arrays of a local folder or
a hub set (``fedapps.data.sources``), also a synthetic set of fedevg, fedcgan or
fedcvae; and the server's public unlabelled images for distillation.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import names_in
from fedapps.algorithms.common.seeds import generator
from fedapps.data.cache import Entry
from fedapps.data.columns import (
    check_columns,
    check_persons,
    check_plain,
    grouped,
    groups_of,
    label_column,
    labels_of,
    numbered,
    parts_of,
)
from fedapps.data.flower_partitioners import LABEL, column_by
from fedapps.data.frame import Frame, left_out, some
from fedapps.data.options import DataOptions, PublicOptions
from fedapps.data.source import FILE, TRAIN, Columns, Samples, Source
from fedapps.data.sources import cached, digits_table, quiet
from fedapps.data.tables import features_of, labels_in, matching, resolved
from fedapps.errors import UserError, refuse_first

#: Settings of data in files, which the bundled digits do not have.
OF_FILES = (
    *("natural-id", "part", "categorical", "drop", "drop-clients", "features", "shape"),
    *("group", "group-split"),
)
IMAGE_NAMES = ("image", "img", "images", "x")
#: Number of patches cut from the photographs if ``public.samples`` is 0.
PATCHES = 4000
Shape = tuple[int, int, int]


def read_samples(
    options: DataOptions, targets: bool = False, source: Source | None = None
) -> Samples:
    """Read the samples of all splits; names of columns that are "" are detected.

    ``targets``: the label is a number to predict, or an array of them. ``source``: in
    place of the one in the options.

    Raises UserError, naming the setting at fault, for problems the user can fix.
    """
    source = source or Source.of(options)
    if options.partition != "natural" and options.natural_id:
        dropped = (
            (options.drop, options.natural_id) if options.natural_id != FILE else (options.drop,)
        )
        options = replace(options, natural_id="", drop=",".join(filter(None, dropped)))
    if source.name == "digits":
        return _digits(options)
    return Samples.of(
        *cached(
            source,
            _columns(options) | {"targets": str(targets), "client": source.client},
            lambda data, parts: decode(data, parts, source, options, targets),
        )
    )


def _columns(options: DataOptions) -> dict[str, str]:
    """Return the options by which samples are decoded."""
    return {
        "image": options.image,
        "label": options.label,
        "natural-id": options.natural_id,
        "part": options.part,
        "features": options.features,
        "shape": options.shape,
        "channels": options.channels,
        "resize": str(options.resize),
        "left-out": ",".join(options.told_apart),
        "group": options.group,
        "group-edges": options.group_edges,
        "group-split": options.group_split,
        "by": column_by(options),
        "categorical": options.categorical,
        "preset": options.preset,
        "natural": str(options.partition == "natural"),
    }


def _digits(options: DataOptions) -> Samples:
    of_files, by = "the digits have no such column", column_by(options)
    for key, value, reason in (
        *((key, getattr(options, key.replace("-", "_")), of_files) for key in OF_FILES),
        ("partition-arguments: partition_by", by if by not in ("", LABEL) else "", of_files),
        ("resize", options.resize, "the digits stay 8 x 8"),
        ("test", options.test, "the digits have one split"),
        ("validation-split", options.validation_split, "the digits have one split"),
    ):
        unset = "''" if isinstance(value, str) else 0
        refuse_first((value, f"data.{key} = {value!r}: {reason}: leave it {unset}"))
    rows = digits_table()
    # (1797, 1, 8, 8), values 0..16
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return Samples(pixels, rows[:, -1].astype(np.int64), 10, tuple(map(str, range(10))))


def decode(
    data: Frame,
    parts: npt.NDArray[np.int64],
    source: Source,
    options: DataOptions,
    targets: bool = False,
) -> Entry:
    """Turn samples, which are of the splits ``parts`` (N,), into the arrays and facts
    of :meth:`Samples.of`.
    """
    table = not source.is_site and is_table(data, source, options)
    if table:
        options = resolved(options, data.columns, options.partition != "natural")
    label, by = options.label, column_by(options)
    by = "" if by in (LABEL, label) else by
    labels = (labels_in(data.columns, label) if targets else (label,)) or ("",)
    for setting, column in (
        ("data.image", options.image),
        ("data.part", options.part),
        (source.client, options.natural_id),
        ("data.group", options.group),
        ("data.group-split", options.group_split),
        ("data.partition-arguments: partition_by", by),
        *(("data.label", name) for name in labels),
        *(("data.categorical", name) for name in names_in(options.categorical)),
        *(("data.drop", name) for name in names_in(options.drop)),
    ):
        check_columns(data, source, {setting: column})
    account: list[str] = []
    columns: Columns | None = None
    if table:
        x, columns = features_of(data, source, options)
    else:
        x, used, account = _inputs(data, source, options)
        columns = Columns() if x.dtype == np.float32 else None
        known = {label_column(data, source, n) for n in labels}.union(used, options.told_apart)
        account += left_out((n for n in data.columns if n not in known), "columns of no sample")
    arrays: dict[str, npt.NDArray[Any]] = {"x": x}
    names: dict[str, Sequence[str]] = {}
    if targets:
        from fedapps.data.arrays import targets_of  # imported here: no other set needs it

        arrays["targets"] = np.concatenate([targets_of(data, source, n) for n in labels], 1)
        arrays["labels"], classes = np.zeros(len(data), np.int64), ["0"]
    else:
        arrays["labels"], classes = labels_of(data, source, label)
    if options.natural_id:
        arrays["clients"], names["clients"] = groups_of(data, source, options.natural_id)
    if options.part:
        parts = parts_of(data, options.part)
    if (parts != TRAIN).any():
        arrays["parts"] = parts
    if options.group:
        check_plain(data, "data.group", options.group)
        groups = grouped(data.by_names(options.group), options.group, options.edges)
        arrays["groups"], names["groups"] = groups.codes, groups.names
    if options.group_split:
        arrays["persons"], names["persons"] = groups_of(data, source, options.group_split)
        check_persons(arrays["persons"], names["persons"], arrays["clients"], options.group_split)
    if by:
        values, place = numbered(data, by)  # names are numbered in their order
        arrays["by"] = values[place] if values.dtype.kind in "biuf" else place
    elif targets:
        arrays["by"] = arrays["targets"][:, 0]
    return arrays, {
        "names": names,
        "classes": classes,
        "numbers": columns and asdict(columns),
        "account": account,
    }


def is_table(data: Frame, source: Source, options: DataOptions) -> bool:
    """Return whether samples are rows of plain numbers, texts and classes: not images,
    and not arrays or the channels of arrays.
    """
    from fedapps.data.arrays import depths_of  # imported here: other sets do without

    depths = depths_of(data)
    others = (*options.told_apart, options.label)
    free = matching(data.columns, options.features, source, others)
    return not (options.image or options.shape or data.images or any(depths[n] for n in free))


def _inputs(
    data: Frame, source: Source, options: DataOptions
) -> tuple[npt.NDArray[Any], list[str], list[str]]:
    """Return the samples (N, C, H, W), the images of a set that has them, else its
    arrays, the columns that they are from, and what is to be said of them.
    """
    pictures = not options.features and bool(options.image or data.images)
    refuse_first(
        (
            pictures and options.shape,
            f"data.shape = {options.shape!r}: is for arrays, but {source} holds images: leave "
            f"it '' (or set {source.table}.resize)",
        ),
        (
            not pictures and options.resize,
            f"data.resize = {options.resize}: is for images, but {source} holds arrays or numbers: "
            "leave it 0",
        ),
    )
    if pictures:
        column = _find_image(data, source, options.image)
        from fedapps.data.pictures import read_pictures

        samples, said = read_pictures(data, column, source, options.resize)
        return samples, [column], said
    # imported here: no other set needs it
    from fedapps.data.arrays import number_columns, read_numbers

    others = (label_column(data, source, options.label), *options.told_apart)
    columns = number_columns(data, source, options.features, others)
    return read_numbers(data, columns, source, options.axes, options.channels), columns, []


def _find_image(data: Frame, source: Source, name: str) -> str:
    """Return the image column: the named one, else the only one, else the one with a
    common name.
    """
    columns, images = some(data.columns), sorted(data.images)
    usual = [column for column in IMAGE_NAMES if column in images]
    refuse_first(
        (
            name and name not in images,
            f"{source.table}.image = {name!r}: is not an image column; {source} has the "
            f"columns {columns}; arrays and numbers are named by data.features",
        ),
        (not images, f"{source.given}: holds no images; its columns are {columns}"),
        (
            not name and len(images) > 1 and not usual,
            f"{source.table}.image: {source} has several image columns, name one of "
            f"{', '.join(images)}",
        ),
    )
    return name or (images if len(images) == 1 else usual)[0]


def save_set(folder: Path, x: npt.NDArray[Any], y: npt.NDArray[Any], num_classes: int) -> None:
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
    source = Source(options.source, options.split, table="public")

    def decode_pixels(data: Frame, *_: Any) -> Entry:
        check_columns(data, source, {"public.image": options.image})
        column = _find_image(data, source, options.image)
        from fedapps.data.pictures import read_pictures  # imported here: others do without

        found, account = read_pictures(data, column, source, options.resize)
        return {"pixels": found}, {"account": account}

    wanted = {"image": options.image, "label": "none", "resize": str(options.resize)}
    pixels = cached(source, wanted, decode_pixels)[0]["pixels"]
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
