"""Data loader: reads one split of a local folder or hub data set, checks its columns
and caches the decoded arrays.

``cached`` decodes a set once and stores the arrays on disk (``fedapps.data.cache``),
because every worker process of a simulation needs them: it then memory-maps the files
instead of decoding tens of thousands of PNGs again. A cached set is read without
network access; otherwise the hub must answer within seconds or the run stops.
"""

import difflib
import importlib.util
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from algorithms.common.checks import nearest
from fedapps.data import cache
from fedapps.data.client_files import FILE, one_by_one
from fedapps.errors import UserError

# The `datasets` library is imported where it is used: it takes a second, which a worker
# with a warm cache avoids.
LABEL_NAMES = (
    "label",
    "labels",
    "fine_label",
    "character",
    "y",
    "target",
    "class",
    "digit",
    "activity",
)
HUB_SECONDS = 8.0
#: What predicts numbers.
REGRESSION = "task = 'regression'"
#: The parts of a set: samples to train on, to validate with, to be scored on.
TRAIN, VALIDATION, TEST = range(3)
#: Endings of files, which no hub set's name has: one that is not there is not looked
#: for elsewhere.
ENDINGS = (".csv", ".tsv", ".parquet", ".arrow", ".json", ".jsonl", ".npz", ".npy", ".txt", ".zip")


def is_local(source: str) -> bool:
    """Return whether a source is a folder or file, not a hub name: it exists, or is
    written as a path or a file.
    """
    return (
        source.startswith(("/", "./", "../", "~"))
        or source in (".", "..")
        or source.endswith(ENDINGS)
        or Path(source).exists()
    )


def cached(
    source: str, asked: dict[str, str], decode: Callable[[Any, npt.NDArray[np.int64]], cache.Entry]
) -> cache.Entry:
    """Return the arrays and facts that ``decode`` makes of a split (a
    `datasets.Dataset`), from the cache if they are there.

    ``asked``: the ``split`` and everything else the arrays depend on. ``test`` and
    ``validation-split``, if they are among them, are further splits, appended to the
    first: ``decode`` also gets the part (N,) of each sample, TRAIN, VALIDATION or TEST.
    Raises UserError if the set cannot be loaded.
    """
    path = local_path(source)
    key = cache.fingerprint(path if path is not None else source, asked)
    kept = cache.load(key)
    if kept is None:
        config, by_file = asked.get("config", ""), FILE in asked.values()
        data = open_split(source, asked["split"], config, by_file=by_file)
        parts = np.full(len(data), TRAIN)
        for setting, part in (("test", TEST), ("validation-split", VALIDATION)):
            if name := asked.get(setting, ""):
                more = open_split(source, name, config, f"data.{setting}", by_file)
                data = _joined(data, more, source, asked["split"], setting, name)
                parts = np.append(parts, np.full(len(more), part))
        arrays, facts = decode(data, parts)
        kept = cache.save(key, arrays, facts) or (arrays, facts)
    return kept


def open_split(
    source: str, split: str, config: str = "", setting: str = "data.split", by_file: bool = False
) -> Any:
    """Return a split of a local or hub data set as a `datasets.Dataset`. Raises
    UserError if it cannot be loaded.

    ``setting``: the setting that names the split, for error messages; its table is that
    of the source, too. ``by_file``: with a column ``@file`` that names each sample's
    file in a local folder.
    """
    try:
        path = local_path(source)
        if by_file:
            if path is None or not path.is_dir():
                raise UserError(
                    f"data.natural-id = {FILE!r}: data.source = {source!r} is no folder with a "
                    "file a client"
                )
            return one_by_one(
                path, split, lambda part, name: _from_path(part, str(part), name, config)
            )
        return (
            _from_hub(source, split, config)
            if path is None
            else _from_path(path, source, split, config)
        )
    except UserError as error:
        table = setting.partition(".")[0]
        raise UserError(
            str(error).replace("data.split", setting).replace("data.so", f"{table}.so")
        ) from error


def _joined(data: Any, more: Any, source: str, split: str, setting: str, name: str) -> Any:
    import datasets

    if differing := set(data.column_names) ^ set(more.column_names):
        raise UserError(
            f"data.{setting} = {name!r}: column {min(differing)!r} of {source} is in only one of "
            f"the splits {split!r} and {name!r}: "
            "give both the same"
        )
    try:
        return datasets.concatenate_datasets([data, more])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"data.{setting} = {name!r}: its columns have other types than those of {split!r}: "
            f"{_line(error)}"
        ) from error


def local_path(source: str) -> Path | None:
    """Return the folder or file of a source; None for a hub name. Raises ``UserError``
    if it does not exist.
    """
    if source == "digits":
        raise UserError(
            "data.source = 'digits': this task cannot use them: name a folder or a hub data set"
        )
    path = Path(source).expanduser().resolve() if is_local(source) else None
    if path is not None and not path.exists():
        what = "file" if source.endswith(ENDINGS) else "folder"
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, beside).strip()
        raise UserError(
            f"data.source = {source!r}: there is no such {what}{f': {hint}' if hint else ''}"
        )
    return path


def digits_table() -> npt.NDArray[np.float64]:
    """Return scikit-learn's handwritten digits (1797, 65): 64 values of 0..16, then the
    digit.

    The file is read directly: importing scikit-learn takes 1.5 seconds, which a
    SuperNode would spend on every message.
    """
    spec = importlib.util.find_spec("sklearn")  # finds it without importing it
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",")


def _from_path(path: Path, source: str, split: str, config: str) -> Any:
    """Load a split from a file, from files of one kind in a folder, or from what
    `save_to_disk` wrote.
    """
    import datasets

    from fedapps.data.local_files import numpy_table, reader_of

    try:
        if path.is_file():
            table = numpy_table(path, split)
            return (
                _load_dataset(reader_of(path), split, "", {split: str(path)})
                if table is None
                else table
            )
        if (path / "dataset_dict.json").exists():
            parts = datasets.load_from_disk(str(path))
            if split not in parts:
                raise UserError(f"data.split = {split!r}: {source} has {', '.join(parts)}")
            return parts[split]
        if (path / "state.json").exists():
            return datasets.load_from_disk(str(path))
        table = numpy_table(path, split)
        return _load_dataset(str(path), _renamed(path, split), config) if table is None else table
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(_unreadable(source, split, error)) from error


def _renamed(path: Path, split: str) -> str:
    """Return the name by which the library knows a split of a folder: files called
    valid, val or dev are its ``validation``.

    Unless a README.md says which files are which split, as in a copy of a hub set with
    its card.
    """
    card = path / "README.md"
    if card.is_file() and "configs:" in card.read_text(errors="replace"):
        return split
    return re.sub(r"\b(valid|val|dev)\b", "validation", split)


def _from_hub(source: str, split: str, config: str) -> Any:
    """Load a split of a hub data set: from the library's own cache if it is there, else
    from the hub.
    """
    import datasets

    offline = datasets.config.HF_HUB_OFFLINE
    # The library also caches local folders, by their last name only: a bare name in its
    # cache may be one of those.
    if "/" in source:
        try:
            datasets.config.HF_HUB_OFFLINE = True
            return _load_dataset(source, split, config)
        except (ConnectionError, FileNotFoundError):
            pass  # not in the cache
        except Exception as error:
            raise UserError(_unreadable(source, split, error)) from error
        finally:
            datasets.config.HF_HUB_OFFLINE = offline
    _ask_hub(source)
    try:
        return _load_dataset(source, split, config)
    # the library raises network, server and file errors of several types
    except Exception as error:
        raise UserError(_unreadable(source, split, error)) from error


def _load_dataset(
    path: str, split: str, config: str = "", files: dict[str, str] | None = None
) -> Any:
    """Call `datasets.load_dataset` without its progress bars, which would disturb the
    run's own.
    """
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, config or None, split=split, data_files=files)
    finally:
        if shown:
            datasets.enable_progress_bars()


def _ask_hub(name: str) -> None:
    """Raise UserError unless the hub confirms within HUB_SECONDS that it has the data
    set ``name``.

    The request runs in a thread because its own timeout does not cover the DNS look-up.
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
        raise UserError(
            f"data.source = {name!r}: no such folder, nor such a data set on the hub: {hint}"
        )
    if error is not None:
        raise UserError(
            f"data.source = {name!r}: no such folder, and the hub at {api.endpoint} is not "
            "reachable "
            f"({type(error).__name__}): check the network, or name a folder (./{name})"
        ) from error


def _unreadable(source: str, split: str, error: Exception) -> str:
    if "onfig name is missing" in str(error):
        names = re.search(r"\[.*?\]", str(error))
        return (
            f"data.config = '': {source} has several configurations, name one of "
            f"{names.group()[1:-1] if names else 'them'}"
        )
    cause = error.__cause__ or error  # the library's own error says nothing
    if isinstance(cause, UnicodeDecodeError):
        return f"data.source = {source!r}: is no UTF-8: save it as that ({_line(cause)})"
    if "corresponds to no data" in str(error) or type(cause).__name__ in (
        "EmptyDataError",
        "StopIteration",
    ):
        return f"data.source = {source!r}, data.split = {split!r}: has no rows"
    return f"data.source = {source!r}, data.split = {split!r}: cannot be read: {_line(cause)}"


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def check_columns(data: Any, source: str, columns: dict[str, str]) -> None:
    """Raise UserError unless the data have samples and the columns named by settings
    (setting -> column; "" is none).
    """
    if len(data) == 0:
        raise UserError(f"data.source = {source!r}: has no samples in this split")
    names = data.column_names
    if len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), "")):
        raise UserError(
            f"data.source = {source!r}: its columns are separated by {sign!r}: save it with commas"
        )
    for setting, column in columns.items():
        if column and column not in data.column_names:
            raise UserError(
                f"{setting} = {column!r}: {source} has the columns {', '.join(data.column_names)}"
            )


def labels_of(data: Any, source: str, label: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the class indices (N,) in a column ("": detected by name) and what the
    classes are called.
    """
    import datasets

    label = label_column(data.features, source, label)
    if not isinstance(data.features[label], datasets.ClassLabel | datasets.Value):
        raise UserError(
            f"data.label = {label!r}: holds no plain value per sample, name another of "
            f"{', '.join(data.features)}"
        )
    # Labels of a ClassLabel are class indices already; others (letters, 1..26) are
    # numbered in sorted order.
    raw = column_of(data, label)
    declared = data.features[label]
    if isinstance(declared, datasets.ClassLabel):
        if raw.min() < 0:
            raise UserError(
                f"data.label = {label!r}: {source} has samples without a label in this split"
            )
        return raw.astype(np.int64), [str(name) for name in declared.names]
    if raw.dtype.kind == "f" and (raw != np.floor(raw)).any():
        raise UserError(
            f"data.label = {label!r}: holds fractions in {source}, which are no classes: name "
            "another column, "
            f"or predict numbers: {REGRESSION}"
        )
    values, labels = np.unique(raw, return_inverse=True)
    if len(values) > max(20, len(raw) // 2):
        raise UserError(
            f"data.label = {label!r}: has {len(values)} different values in {len(raw)} samples of "
            f"{source}: name a column of classes"
            + (f", or predict numbers: {REGRESSION}" if values.dtype.kind in "iuf" else "")
        )
    return labels.astype(np.int64), _named(values)


def groups_of(data: Any, column: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the natural client (N,) of every sample, as an index into the list of
    names, and this list.
    """
    import datasets

    if not isinstance(data.features[column], datasets.ClassLabel | datasets.Value):
        raise UserError(
            f"data.natural-id = {column!r}: holds no plain value per sample, name another of "
            f"{', '.join(data.features)}"
        )
    ids, natural = np.unique(column_of(data, column), return_inverse=True)
    return natural.astype(np.int64), _named(ids)


#: What a column may call the parts of a set.
PART_NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}


def parts_of(data: Any, column: str) -> npt.NDArray[np.int64]:
    """Return the part (N,) of each sample that a column names: TRAIN, VALIDATION or
    TEST. Raises ``UserError``.
    """
    feature = data.features[column]
    values = column_of(data, column)
    words = [
        feature.int2str(int(value)) if hasattr(feature, "int2str") and value >= 0 else str(value)
        for value in values
    ]
    strange = sorted({word for word in words if word.strip().lower() not in PART_NAMES})
    if strange:
        raise UserError(
            f"data.part = {column!r}: holds {strange[0]!r}: the parts are {', '.join(PART_NAMES)}"
        )
    parts = np.array([PART_NAMES[word.strip().lower()] for word in words])
    if not (parts == TRAIN).any():
        raise UserError(f"data.part = {column!r}: no sample of it is for training (train)")
    return parts


def _named(values: npt.NDArray[Any]) -> list[str]:
    """Return values as text, whole numbers among floats without a point: 1.0 is client
    1.
    """
    return [
        f"{value:.15g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()
    ]


def label_column(features: Any, source: str, name: str) -> str:
    """Return the label column: the named one, else one with a common name, else the
    only ClassLabel. It may hold arrays.
    """
    import datasets

    classes = [column for column in features if isinstance(features[column], datasets.ClassLabel)]
    usual = [column for column in LABEL_NAMES if column in features]
    if not name and not usual and len(classes) != 1:
        raise UserError(
            f"data.label: no label column found in {source}, name one of {', '.join(features)}, as "
            f"data.label={list(features)[-1]}"
        )
    return name or (usual or classes)[0]


def column_of(data: Any, name: str) -> npt.NDArray[Any]:
    """Return the values (N,) of a column. Raises ``UserError`` if some are missing."""
    column = data.with_format("arrow")[name][:]
    missing = column.null_count
    values = np.asarray(
        column.to_pylist()
        if missing or column.type in ("string", "large_string")
        else column.to_numpy()
    )
    if values.dtype.kind == "f":
        missing += int(np.isnan(values).sum())
    if missing:
        empty = [value is None or value != value for value in values.tolist()]
        raise UserError(
            f"column {name!r}: {missing} samples have no value in it (first: row "
            f"{empty.index(True)}): fill or drop them"
        )
    return values
