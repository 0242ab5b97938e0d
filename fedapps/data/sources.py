"""Reads splits of local folders, files and hub sets, and caches the decoded arrays.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.checks import nearest
from fedapps.data import cache
from fedapps.data.client_files import one_by_one
from fedapps.data.local_files import numpy_table, reader_of, separator
from fedapps.data.source import FILE, TEST, TRAIN, VALIDATION, Source
from fedapps.errors import UserError, reason

# The `datasets` library is imported where it is used: it takes a second, which a worker
# with a warm cache avoids.
HUB_SECONDS = 8.0


def cached(
    source: Source,
    wanted: dict[str, str],
    decode: Callable[[Any, npt.NDArray[np.int64]], cache.Entry],
) -> cache.Entry:
    """Return the arrays and facts that ``decode`` makes of a source (a
    `datasets.Dataset`), from the cache if they are there.

    ``wanted``: everything else the arrays depend on. The further splits of the source
    are appended to the first: ``decode`` also gets the part (N,) of each sample, TRAIN,
    VALIDATION or TEST. Raises UserError if the set cannot be loaded.
    """
    path = source.local_path()
    splits = {"split": source.split, "test": source.test, "validation": source.validation_split}
    key = cache.fingerprint(
        source.name if path is None else path, {"config": source.config, **splits, **wanted}
    )
    kept = cache.load(key)
    if kept is None:
        by_file = FILE in wanted.values()
        data = open_split(source, by_file)
        parts = np.full(len(data), TRAIN)
        for setting, name, part in (
            ("data.test", source.test, TEST),
            ("data.validation-split", source.validation_split, VALIDATION),
        ):
            if name:
                other = replace(source, split=name, split_setting=setting)
                more = open_split(other, by_file)
                data = _joined(data, more, source, other)
                parts = np.append(parts, np.full(len(more), part))
        arrays, facts = decode(data, parts)
        kept = cache.save(key, arrays, facts) or (arrays, facts)
    return kept


def open_split(source: Source, by_file: bool = False) -> Any:
    """Return the split of a source as a `datasets.Dataset`. Raises UserError if it
    cannot be loaded.

    ``by_file``: with a column ``@file`` that names each sample's file in a local
    folder.
    """
    path = source.local_path()
    if by_file:
        if path is None or not path.is_dir():
            near = nearest(source.name, [one.name for one in Path().iterdir()]).strip()
            hint = f": {near}" * (bool(near) and path is None)
            raise UserError(
                f"{source.client} = {FILE!r}: {source.given} is not a folder with one file per "
                f"client{hint}"
            )
        return one_by_one(path, source, _from_path)
    return _from_hub(source) if path is None else _from_path(path, source)


def _joined(data: Any, more: Any, source: Source, other: Source) -> Any:
    import datasets

    if differing := set(data.column_names) ^ set(more.column_names):
        raise UserError(
            f"{other.given_split}: column {min(differing)!r} of {source} is in only one of "
            f"the splits {source.split!r} and {other.split!r}: give both the same"
        )
    try:
        return datasets.concatenate_datasets([data, more])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{other.given_split}: its columns have other types than those of "
            f"{source.split!r}: {reason(error)}"
        ) from error


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


def _from_path(path: Path, source: Source) -> Any:
    """Load a split from a file, from files of one kind in a folder, or from what
    `save_to_disk` wrote.
    """
    import datasets

    split = source.split
    try:
        if (path / "dataset_dict.json").exists():
            parts = datasets.load_from_disk(str(path))
            if split not in parts:
                raise UserError(f"{source.given_split}: {source} has {', '.join(parts)}")
            return parts[split]
        if (path / "state.json").exists():
            _check_one_table(source)
            return datasets.load_from_disk(str(path))
        table = numpy_table(path, source)
        if table is not None:
            return table
        if path.is_file():
            _check_one_table(source)
            kind = reader_of(path, source)
            more = {"sep": separator(path)} if kind == "csv" else {}
            return load_quietly(kind, split, data_files={split: str(path)}, **more)
        return load_quietly(str(path), _renamed(path, split), source.config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _unreadable(source, error) from error


def _check_one_table(source: Source) -> None:
    """Raise ``UserError`` for another split or a configuration of a single table: it
    would be read once more, as test samples that are also trained on.
    """
    for key, value in (
        ("test", source.test),
        ("validation-split", source.validation_split),
        ("config", source.config),
    ):
        if value:
            raise UserError(
                f"{source.table}.{key} = {value!r}: {source} is a single table: name the column "
                "with the part of each sample (data.part), or a folder with one file per split"
            )


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


def _from_hub(source: Source) -> Any:
    """Load a split of a hub data set: from the library's own cache if it is there, else
    from the hub.
    """
    import datasets

    offline = datasets.config.HF_HUB_OFFLINE
    # The library also caches local folders, by their last name only: a bare name in its
    # cache may be one of those.
    if "/" in source.name:
        try:
            datasets.config.HF_HUB_OFFLINE = True
            return load_quietly(source.name, source.split, source.config)
        except (ConnectionError, FileNotFoundError):
            pass  # not in the cache
        except Exception as error:
            raise _unreadable(source, error) from error
        finally:
            datasets.config.HF_HUB_OFFLINE = offline
    _ask_hub(source)
    try:
        return load_quietly(source.name, source.split, source.config)
    # the library raises network, server and file errors of several types
    except Exception as error:
        raise _unreadable(source, error) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Switch the library's progress bars off, which would disturb the run's own."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def load_quietly(path: str, split: str, config: str = "", **more: Any) -> Any:
    """Call `datasets.load_dataset` without its progress bars."""
    import datasets

    with quiet():
        return datasets.load_dataset(path, config or None, split=split, **more)


def _ask_hub(source: Source) -> None:
    """Raise UserError unless the hub confirms within HUB_SECONDS that it has the data
    set.

    The request runs in a thread because its own timeout does not cover the DNS look-up.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            api.dataset_info(source.name, timeout=HUB_SECONDS / 2)
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    error = outcome[0] if outcome else TimeoutError("no answer")
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        near = difflib.get_close_matches(source.name, ["digits"], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "use its owner/name, a folder, or digits"
        raise UserError(f"{source.given}: no such folder, nor such a data set on the hub: {hint}")
    if error is not None:
        raise UserError(
            f"{source.given}: no such folder, and the hub at {api.endpoint} is not reachable "
            f"({type(error).__name__}): check the network, or name a folder (./{source})"
        ) from error


def _unreadable(source: Source, error: Exception) -> UserError:
    if "onfig name is missing" in str(error):
        names = re.search(r"\[.*?\]", str(error))
        return UserError(
            f"{source.table}.config = '': {source} has several configurations, name one of "
            f"{names.group()[1:-1] if names else 'them'}"
        )
    cause = error.__cause__ or error  # the library's own error says nothing
    if isinstance(cause, UnicodeDecodeError):
        return UserError(f"{source.given}: is no UTF-8: save it as that ({reason(cause)})")
    if "corresponds to no data" in str(error) or type(cause).__name__ in (
        "EmptyDataError",
        "StopIteration",
    ):
        return UserError(f"{source.given}, {source.given_split}: has no rows")
    return UserError(f"{source.given}, {source.given_split}: cannot be read: {reason(cause)}")
