"""Image classification sets as arrays: scikit-learn's digits, a local folder, or a data set of the hub.

``read_images`` decodes a set once and keeps the arrays on disk (``fedapps.image_cache``), because every worker
process of a simulation needs them: it then maps the file instead of decoding tens of thousands of PNGs again. A set
that is in a cache is read without the network; otherwise the hub must answer within seconds or the run stops.
"""

import difflib
import importlib.util
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps import image_cache
from fedapps.errors import UserError

# The `datasets` library is imported where it is used: it takes a second, which a worker with a warm cache saves.
LABEL_NAMES = ("label", "labels", "fine_label", "character", "y", "target", "class", "digit")
IMAGE_NAMES = ("image", "img", "images", "x")
HUB_SECONDS = 8.0


@dataclass(frozen=True)
class Images:
    """A labelled image set. Sounds are images of one row, texts have their tokens in place of pixels.

    ``pixels`` (N, C, H, W) is uint8 in 0..255, float32 in [0, 1] or int16 (sound), or (N, length) is int64 (tokens); ``labels`` (N,) is
    int64 in 0..num_classes-1.
    ``natural`` (N,) says to which natural client (an index into ``names``) a sample belongs, if that was asked for.
    """

    pixels: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    num_classes: int
    natural: npt.NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()


def is_folder(source: str) -> bool:
    """Tell a folder from a hub name: it exists, or is written as a path."""
    return source.startswith(("/", "./", "../", "~")) or source in (".", "..") or Path(source).is_dir()


def read_images(source: str, split: str, image: str = "", label: str = "", natural_id: str = "", resize: int = 0) -> Images:
    """Read one split of an image set; ``image``, ``label``, ``natural_id`` name columns ("" = find it, or none).

    ``resize``: cut the largest square from the middle of every image and bring it to this side; 0: leave the images as they are.
    Raises UserError, naming the setting at fault, for whatever the user can mend.
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
    """Read the images (N, C, H, W) of a public set and none of its other columns; arguments as in :func:`read_images`.

    Raises UserError, naming the setting under ``public.`` at fault.
    """

    def decode(data: Any) -> image_cache.Entry:
        check_columns(data, source, {"data.image": image})
        return {"pixels": _pixels(data, _find_image(data.features, source, image), source, resize)}, {}

    try:
        arrays, _ = cached(source, {"split": split, "image": image, "label": "none", "resize": str(resize)}, decode)
    except UserError as error:
        raise UserError(str(error).replace("data.", "public.")) from error
    return arrays["pixels"]


def read_named(source: str, split: str, image: str = "", label: str = "", resize: int = 0) -> tuple[npt.NDArray[Any], list[str]]:
    """Read a set of images (N, C, H, W) and, of each, its label as it is written there; arguments as in :func:`read_images`."""

    def decode(data: Any) -> image_cache.Entry:
        import datasets

        check_columns(data, source, {"data.image": image, "data.label": label})
        column = _find_label(data.features, source, label)
        values, place = np.unique(_column(data, column), return_inverse=True)
        declared = data.features[column]
        # A class without a name is numbered -1 by the library.
        names = [declared.int2str(int(v)) if isinstance(declared, datasets.ClassLabel) and v >= 0 else str(v) for v in values]
        pixels = _pixels(data, _find_image(data.features, source, image), source, resize)
        return {"pixels": pixels, "labels": place.astype(np.int64)}, {"names": names}

    arrays, facts = cached(source, {"split": split, "image": image, "label": label, "resize": str(resize), "named": "1"}, decode)
    return arrays["pixels"], [facts["names"][place] for place in arrays["labels"].tolist()]


def load_split(source: str, split: str, table: str = "data") -> Any:
    """Return one split of a folder or of a hub data set, as a `datasets.Dataset`. ``table``: that of the settings, for UserErrors."""
    try:
        if not is_folder(source):
            return _from_hub(source, split)
        folder = Path(source).expanduser().resolve()
        if not folder.is_dir():
            raise UserError(f"data.source = {source!r}: there is no such folder")
        return _from_folder(folder, source, split)
    except UserError as error:
        raise UserError(str(error).replace("data.so", f"{table}.so").replace("data.sp", f"{table}.sp")) from error


def cached(source: str, asked: dict[str, str], decode: Callable[[Any], image_cache.Entry]) -> image_cache.Entry:
    """Return arrays and facts that ``decode`` makes of a split (a `datasets.Dataset`); the second time from the cache.

    ``asked``: its ``split``, and whatever else the arrays depend on. Raises UserError if the set cannot be had.
    """
    folder = _folder(source)
    key = image_cache.fingerprint(folder if folder is not None else source, asked)
    kept = image_cache.load(key)
    if kept is None:
        arrays, facts = decode(open_split(source, asked["split"]))
        kept = image_cache.save(key, arrays, facts) or (arrays, facts)
    return kept


def open_split(source: str, split: str) -> Any:
    """Return a split of a folder or of a hub data set as `datasets.Dataset`. Raises UserError if it cannot be had."""
    folder = _folder(source)
    return _from_folder(folder, source, split) if folder is not None else _from_hub(source, split)


def _folder(source: str) -> Path | None:
    if source == "digits":
        raise UserError("data.source = 'digits': this task cannot use them: name a folder or a hub data set")
    folder = Path(source).expanduser().resolve() if is_folder(source) else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"data.source = {source!r}: there is no such folder")
    return folder


def _digits() -> Images:
    rows = digits_table()
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)  # (1797, 1, 8, 8), values 0..16
    return Images(pixels, rows[:, -1].astype(np.int64), 10)


def digits_table() -> npt.NDArray[np.float64]:
    """Return scikit-learn's handwritten digits (1797, 65): 64 values of 0..16, then the digit.

    The file is read where it lies: importing scikit-learn takes a second and a half, which a SuperNode would pay for every message.
    """
    spec = importlib.util.find_spec("sklearn")  # finds it without importing it
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",")


def _from_folder(folder: Path, source: str, split: str) -> Any:
    """Load a split from parquet files, a folder of images, or what `save_to_disk` wrote."""
    import datasets

    try:
        if (folder / "dataset_dict.json").exists():
            parts = datasets.load_from_disk(str(folder))
            if split not in parts:
                raise UserError(f"data.split = {split!r}: {source} has {', '.join(parts)}")
            return parts[split]
        if (folder / "state.json").exists():
            return datasets.load_from_disk(str(folder))
        return _load_dataset(str(folder), split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(_unreadable(source, split, error)) from error


def _from_hub(source: str, split: str) -> Any:
    """Load a split of a hub data set: from the library's own cache if it is there, else from the hub."""
    import datasets

    offline = datasets.config.HF_HUB_OFFLINE
    # The library also keeps local folders, by their last name only: a bare name in its cache may be any of those.
    if "/" in source:
        try:
            datasets.config.HF_HUB_OFFLINE = True
            return _load_dataset(source, split)
        except (ConnectionError, FileNotFoundError):
            pass  # not in the cache
        except Exception as error:
            raise UserError(_unreadable(source, split, error)) from error
        finally:
            datasets.config.HF_HUB_OFFLINE = offline
    _ask_hub(source)
    try:
        return _load_dataset(source, split)
    except Exception as error:  # the library lets network, server and file errors of several kinds through
        raise UserError(_unreadable(source, split, error)) from error


def _load_dataset(path: str, split: str) -> Any:
    """Call `datasets.load_dataset` without its progress bars: they would tear up the run's own."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, split=split)
    finally:
        if shown:
            datasets.enable_progress_bars()


def _ask_hub(name: str) -> None:
    """Raise UserError unless the hub knows the data set ``name`` and says so within HUB_SECONDS.

    The request runs in a thread of its own because its own time limits leave out the look-up of the host's name.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            api.dataset_info(name, timeout=HUB_SECONDS / 2)
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    error = outcome[0] if outcome else TimeoutError("no answer")
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        near = difflib.get_close_matches(name, ["digits"], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "use its owner/name, a folder, or digits"
        raise UserError(f"data.source = {name!r}: no such folder, nor such a data set on the hub: {hint}")
    if error is not None:
        raise UserError(
            f"data.source = {name!r}: no such folder, and the hub at {api.endpoint} is not reachable "
            f"({type(error).__name__}): check the network, or name a folder (./{name})"
        ) from error


def _unreadable(source: str, split: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"data.source = {source!r}, data.split = {split!r}: cannot be read: {reason[:300]}"


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


def check_columns(data: Any, source: str, columns: dict[str, str]) -> None:
    """Raise UserError unless the columns that settings name (setting -> column; "" is none) are there, and samples."""
    if len(data) == 0:
        raise UserError(f"data.source = {source!r}: has no samples in this split")
    for setting, column in columns.items():
        if column and column not in data.column_names:
            raise UserError(f"{setting} = {column!r}: {source} has the columns {', '.join(data.column_names)}")


def labels_of(data: Any, source: str, label: str) -> tuple[npt.NDArray[np.int64], int]:
    """Return the class numbers (N,) in a column ("": found by its name) and how many classes there are."""
    import datasets

    label = _find_label(data.features, source, label)
    # Labels given by a ClassLabel are class numbers already; others (letters, 1..26) are numbered in sorted order.
    raw = _column(data, label)
    declared = data.features[label]
    if isinstance(declared, datasets.ClassLabel):
        labels, num_classes = raw.astype(np.int64), int(declared.num_classes)
        if labels.min() < 0:
            raise UserError(f"data.label = {label!r}: {source} has samples without a label in this split")
    else:
        values, labels = np.unique(raw, return_inverse=True)
        num_classes = len(values)
    return labels.astype(np.int64), num_classes


def groups_of(data: Any, column: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the natural client (N,) of every sample, as an index into the names returned beside it."""
    ids, natural = np.unique(_column(data, column), return_inverse=True)
    return natural.astype(np.int64), [str(value) for value in ids]


def _find_image(features: Any, source: str, name: str) -> str:
    """Return the image column: the named one, else the only one, else the one with a usual name."""
    import datasets

    def is_image(feature: Any) -> bool:
        # Parquet files written without the library's metadata show an image as a struct of bytes and path.
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


def _find_label(features: Any, source: str, name: str) -> str:
    """Return the label column: the named one, else one with a usual name, else the only ClassLabel."""
    import datasets

    classes = [column for column in features if isinstance(features[column], datasets.ClassLabel)]
    usual = [column for column in LABEL_NAMES if column in features]
    if not name and not usual and len(classes) != 1:
        raise UserError(f"data.label: no label column found in {source}, name one of {', '.join(features)}")
    column = name or (usual or classes)[0]
    if not isinstance(features[column], datasets.ClassLabel | datasets.Value):
        raise UserError(f"data.label = {column!r}: holds no plain value per sample, name another of {', '.join(features)}")
    return column


def _column(data: Any, name: str) -> npt.NDArray[Any]:
    values = data[name][:]
    if any(value is None for value in values):
        raise UserError(f"column {name!r}: {sum(value is None for value in values)} samples have no value in it")
    return np.asarray(values)


def _pixels(data: Any, column: str, source: str, resize: int) -> npt.NDArray[np.uint8]:
    """Decode a column of encoded images to (N, C, H, W): one channel if all are grey, else three."""
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
            except Exception as error:  # a damaged file shows itself in many kinds of error
                raise UserError(f"data.source = {source!r}: image {row} cannot be decoded: {error}") from error
            array = array[:, :, None] if array.ndim == 2 else array
            if pixels is None:
                pixels = np.empty((len(data), *array.shape), np.uint8)
            if array.shape[:2] != pixels.shape[1:3]:
                sizes = f"{pixels.shape[1]} x {pixels.shape[2]} and {array.shape[0]} x {array.shape[1]}"
                raise UserError(f"data.source = {source!r}: images differ in size ({sizes} in image {row}): set data.resize")
            if array.shape[2] > pixels.shape[3]:  # the first colour image after grey ones
                pixels = np.repeat(pixels, 3, axis=3)
            pixels[row] = array  # a grey image fills all three channels
            row += 1
    assert pixels is not None  # there is at least one row
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _plain_mode(mode: str) -> str:
    """Return the mode to convert to: grey for one-bit, grey and grey-alpha images, else colour."""
    return "L" if mode in ("1", "LA", "La") else "RGB"
