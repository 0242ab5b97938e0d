"""Samples with a class: scikit-learn's digits, or images or arrays of a local folder or
a hub set (``fedapps.data.sources``).
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import names_in
from fedapps.data.cache import Entry
from fedapps.data.columns import (
    check_columns,
    groups_of,
    label_column,
    labels_of,
    numbered,
    parts_of,
)
from fedapps.data.frame import Frame, left_out
from fedapps.data.options import DataOptions, PublicOptions
from fedapps.data.samples import Categorical, Columns, Samples
from fedapps.data.source import TRAIN, Source
from fedapps.data.sources import cached, digits_table
from fedapps.data.tables import (
    ROW_NUMBERS,
    features_of,
    labels_in,
    matching,
    resolved,
)
from fedapps.errors import UserError

IMAGE_NAMES = ("image", "img", "images", "x")


def read_samples(
    options: DataOptions, targets: bool = False, source: Source | None = None
) -> Samples:
    """Read the samples of ``data.split`` and ``data.test``; names of columns that are
    "" are detected, a natural id is then not read.

    ``targets``: the label is a number to predict, or an array of them. ``source``: in
    place of the one in the options.

    Raises UserError, naming the setting at fault, for problems the user can fix.
    """
    source = source or Source.of(options)
    if source.name == "digits":
        return _digits(options)
    wanted = _columns(options) | ({"targets": "1"} if targets else {})
    arrays, facts = cached(
        source, wanted, lambda data, parts: _decode(data, parts, source, options, targets)
    )
    columns: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in facts["columns"].items()
    }
    return Samples(
        arrays["x"],
        np.array(arrays["labels"]),
        facts["num-classes"],
        tuple(facts["classes"]),
        clients=categorical(arrays, facts) if facts["names"] else None,
        parts=parts_in(arrays),
        numbers=Columns(**columns) if facts["numbers"] else None,
        targets=np.array(arrays["targets"]) if targets else None,
        account=tuple(facts["account"]),
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
        "categorical": options.categorical,
        "preset": options.preset,
        "natural": str(options.partition == "natural"),
    }


def read_pixels(options: PublicOptions) -> npt.NDArray[np.uint8]:
    """Read only the images (N, C, H, W) of a public set.

    Raises UserError, naming the setting under ``public.`` at fault.
    """
    source = Source(options.source, options.split, table="public")

    def decode(data: Frame, *_: Any) -> Entry:
        check_columns(data, source, {"public.image": options.image})
        column = _find_image(data, source, options.image)
        from fedapps.data.pictures import read_pictures  # imported here: others do without

        pixels, account = read_pictures(data, column, source, options.resize)
        return {"pixels": pixels}, {"account": account}

    wanted = {"image": options.image, "label": "none", "resize": str(options.resize)}
    arrays, _ = cached(source, wanted, decode)
    return arrays["pixels"]


def read_named(
    options: DataOptions, client: str = ""
) -> tuple[npt.NDArray[Any], list[str], list[str]]:
    """Read samples (N, C, H, W), the label name of each, as given in the data set, and
    what each has in the column ``client``.

    The split ``data.test`` is not read. ``client``: "@file" is the name of a sample's
    file, "" none. Raises UserError, naming the settings ``data.`` and ``sites.client``.
    """
    source = replace(Source.of(options), test="", client="sites.client")
    read = replace(options, test="", natural_id=client, partition="iid")

    def decode(data: Frame, *_: Any) -> Entry:
        named = {"data.image": options.image, "data.label": options.label, source.client: client}
        check_columns(data, source, named)
        column = label_column(data, source, options.label)
        called, place = numbered(data.by_name(), column)
        owner, owners = (
            groups_of(data, source, client) if client else (np.zeros(len(data), np.int64), [""])
        )
        samples = _inputs(data, source, read)[0]
        arrays = {"x": samples, "labels": place, "owner": owner}
        return arrays, {"names": [str(name) for name in called], "owners": owners}

    arrays, facts = cached(source, _columns(read) | {"named": "2"}, decode)
    labels, owners = (
        [facts[names][at] for at in arrays[key].tolist()]
        for names, key in (("names", "labels"), ("owners", "owner"))
    )
    return arrays["x"], labels, owners


def _digits(options: DataOptions) -> Samples:
    of_files = "the digits have no such column"
    for key, value, reason in (
        ("natural-id", options.natural_id, of_files),
        ("part", options.part, of_files),
        ("categorical", options.categorical, of_files),
        ("drop", options.drop, of_files),
        ("drop-clients", options.drop_clients, of_files),
        ("features", options.features, of_files),
        ("shape", options.shape, of_files),
        ("resize", options.resize, "the digits stay 8 x 8"),
        ("test", options.test, "the digits have one split"),
        ("validation-split", options.validation_split, "the digits have one split"),
    ):
        if value:
            unset = "''" if isinstance(value, str) else 0
            raise UserError(f"data.{key} = {value!r}: {reason}: leave it {unset}")
    rows = digits_table()
    # (1797, 1, 8, 8), values 0..16
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return Samples(pixels, rows[:, -1].astype(np.int64), 10, tuple(map(str, range(10))))


def _decode(
    data: Frame,
    parts: npt.NDArray[np.int64],
    source: Source,
    options: DataOptions,
    targets: bool = False,
) -> Entry:
    """Turn samples, which are of the splits ``parts`` (N,), into arrays and facts."""
    table = is_table(data, source, options)
    if table:
        options = resolved(options, data.column_names, options.partition != "natural")
    label = options.label
    named = {"data.image": options.image, "data.part": options.part}
    named |= {source.client: options.natural_id}
    named |= {} if targets and table else {"data.label": label}
    check_columns(data, source, named)
    for key in ("categorical", "drop"):
        for name in names_in(getattr(options, key)):
            check_columns(data, source, {f"data.{key}": name})
    arrays: dict[str, npt.NDArray[Any]] = {}
    labels_wanted: tuple[str, ...] = (label,)
    if targets:
        from fedapps.data.arrays import targets_of  # imported here: no other set needs it

        labels_wanted = labels_in(data.columns, label) or ("",)
        for name in labels_wanted:
            check_columns(data, source, {"data.label": name})
        arrays["targets"] = np.concatenate(
            [targets_of(data, source, name) for name in labels_wanted], 1
        )
        labels, classes = np.zeros(len(data), np.int64), ["0"]
    else:
        labels, classes = labels_of(data, source, label)
    if table:
        samples, columns = features_of(data, source, options)
        account: list[str] = []
    else:
        samples, used, account = _inputs(data, source, options)
        columns = Columns()
        own = {label_column(data, source, name) for name in labels_wanted}
        known = {*own, *used, *options.told_apart}
        account += left_out((n for n in data.columns if n not in known), "columns of no sample")
    arrays |= {"x": samples, "labels": labels}
    names: list[str] = []
    if options.natural_id:
        arrays["natural"], names = groups_of(data, source, options.natural_id)
    if options.part:
        parts = parts_of(data, options.part)
    arrays["parts"] = parts
    return arrays, {
        "num-classes": len(classes),
        "names": names,
        "numbers": samples.dtype == np.float32,
        "classes": classes,
        "columns": asdict(columns),
        "account": account,
    }


def is_table(data: Frame, source: Source, options: DataOptions) -> bool:
    """Return whether samples are rows of plain numbers, texts and classes: not images,
    and not arrays or the channels of arrays.
    """
    if options.image or options.shape or data.images:
        return False
    from fedapps.data.arrays import depths_of  # imported here: other sets do without

    depths = depths_of(data)
    others = {*options.told_apart, options.label, *ROW_NUMBERS}
    free = (
        matching(data.column_names, options.features, source)
        if options.features
        else [name for name in depths if name not in others]
    )
    return not any(depths[name] for name in free)


def _inputs(
    data: Frame, source: Source, options: DataOptions
) -> tuple[npt.NDArray[Any], list[str], list[str]]:
    """Return the samples (N, C, H, W), the images of a set that has them, else its
    arrays, the columns that they are from, and what is to be said of them.
    """
    if not options.features and (options.image or data.images):
        if options.shape:
            raise UserError(
                f"data.shape = {options.shape!r}: is for arrays, but {source} holds images: leave "
                f"it '' (or set {source.table}.resize)"
            )
        column = _find_image(data, source, options.image)
        from fedapps.data.pictures import read_pictures

        samples, said = read_pictures(data, column, source, options.resize)
        return samples, [column], said
    # imported here: no other set needs it
    from fedapps.data.arrays import number_columns, read_numbers

    if options.resize:
        raise UserError(
            f"data.resize = {options.resize}: is for images, but {source} holds arrays or numbers: "
            "leave it 0"
        )
    others = (label_column(data, source, options.label), *options.told_apart)
    columns = number_columns(data, source, options.features, others)
    samples = read_numbers(data, columns, source, options.axes, options.channels)
    return samples, columns, []


def _find_image(data: Frame, source: Source, name: str) -> str:
    """Return the image column: the named one, else the only one, else the one with a
    common name.
    """
    columns, images = ", ".join(data.columns), sorted(data.images)
    if name:
        if name not in images:
            raise UserError(
                f"{source.table}.image = {name!r}: is not an image column; {source} has the "
                f"columns {columns}; arrays and numbers are named by data.features"
            )
        return name
    if not images:
        raise UserError(f"{source.given}: holds no images; its columns are {columns}")
    usual = [column for column in IMAGE_NAMES if column in images]
    if len(images) > 1 and not usual:
        raise UserError(
            f"{source.table}.image: {source} has several image columns, name one of "
            f"{', '.join(images)}"
        )
    return images[0] if len(images) == 1 else usual[0]
