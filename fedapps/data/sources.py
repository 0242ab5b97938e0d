"""Reads splits of local folders, files and hub sets, and caches the decoded arrays.

``cached`` decodes a set once and stores the arrays on disk (``fedapps.data.cache``),
because every worker process of a simulation needs them: it then memory-maps the files
instead of decoding tens of thousands of PNGs again. A cached set is read without
network access; otherwise the hub must answer within seconds or the run stops.
"""

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import nearest
from fedapps.data import cache
from fedapps.data.frame import Frame, joined, left_out
from fedapps.data.source import FILE, PART_NAMES, TEST, TRAIN, VALIDATION, Source
from fedapps.errors import UserError, reason, refuse_first

# The `datasets` library is imported where it is used: it takes a second, which a worker
# with a warm cache avoids.
HUB_SECONDS = 8.0


def cached(
    source: Source,
    wanted: dict[str, str],
    decode: Callable[[Frame, npt.NDArray[np.int64]], cache.Entry],
) -> cache.Entry:
    """Return the arrays and facts that ``decode`` makes of a source, from the cache if
    they are there; ``account`` among the facts says what was read.

    ``wanted``: everything else the arrays depend on. The further splits of the source
    are appended to the first: ``decode`` also gets the part (N,) of each sample, TRAIN,
    VALIDATION or TEST. Raises UserError if the set cannot be loaded.
    """
    path = source.local_path()
    splits = {"split": source.split, "test": source.test, "validation": source.validation_split}
    key = cache.fingerprint(
        source.name if path is None else path, {"config": source.config, **splits, **wanted}
    )
    if kept := cache.load(key):
        return kept
    entry = _decoded(source, FILE in wanted.values(), decode)
    import pyarrow as pa  # late: a worker with a warm cache does without

    pa.default_memory_pool().release_unused()  # what the columns took
    return cache.save(key, *entry) or entry


def _decoded(
    source: Source, by_file: bool, decode: Callable[[Frame, npt.NDArray[np.int64]], cache.Entry]
) -> cache.Entry:
    """Return what ``decode`` makes of the splits of a source, with an ``account``."""
    frames, parts = [], []
    for field, setting, part in (
        ("split", source.split_setting, TRAIN),
        ("test", "data.test", TEST),
        ("validation_split", "data.validation-split", VALIDATION),
    ):
        if name := getattr(source, field):
            swapped = {field: source.split, "split": name, "split_setting": setting}
            frame = open_split(replace(source, **swapped), by_file)
            frames.append((f"the split {name!r}", frame))
            parts.append(np.full(len(frame), part))
    data = joined(frames, source.given)
    arrays, facts = decode(data, np.concatenate(parts))
    facts["account"] = [*data.account, *facts.get("account", ())]
    return arrays, facts


def open_split(source: Source, by_file: bool = False) -> Frame:
    """Return the samples in the split of a source. Raises UserError if it cannot be
    loaded.

    ``by_file``: with a column ``@file`` that names each sample's file in a local
    folder.
    """
    path = source.local_path()
    if by_file:
        return one_by_one(path, source)
    return _from_hub(source) if path is None else from_path(path, source)


def bundled(name: str, delimiter: str | None = None) -> npt.NDArray[np.float64]:
    """Return the numbers in a file that scikit-learn brings.

    It is read directly: importing scikit-learn takes 1.5 seconds, which a SuperNode
    would spend on every message.
    """
    spec: Any = importlib.util.find_spec("sklearn")  # finds it without importing it
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / name, delimiter=delimiter)


def digits_table() -> npt.NDArray[np.float64]:
    """Return scikit-learn's handwritten digits (1797, 65): 64 values of 0..16, then the
    digit.
    """
    return bundled("digits.csv.gz", ",")


def from_path(path: Path, source: Source) -> Frame:
    """Return a split of local files, of what `save_to_disk` wrote, or of the copy of a
    hub set whose card says which files are which split.
    """
    from fedapps.data.local_files import check_one_table, read_local

    card = path / "README.md"
    carded = card.is_file() and "configs:" in card.read_text(errors="replace")
    saved = path / "dataset_dict.json", path / "state.json"
    if not (carded or any(one.exists() for one in saved)):
        return read_local(path, source)
    import datasets

    try:
        if carded:
            return load_quietly(str(path), source.split, source.config)
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _unreadable(source, error) from error
    if not isinstance(found, datasets.DatasetDict):
        check_one_table(source)
        return Frame.of_dataset(found)
    if source.split not in found:
        raise UserError(f"{source.given_split}: {source} has {', '.join(found)}")
    return Frame.of_dataset(found[source.split])


def one_by_one(folder: Path | None, source: Source) -> Frame:
    """Return the samples of a folder with a file, or a folder, of each client: the
    name, without its ending, is the client's, in a column ``@file``.

    ``train/ann.csv`` and ``test/ann.csv`` are of one client. Without folders of the
    splits' names all entries of the folder are of ``train``, and of an ``ann.npz`` its
    arrays ``x_train`` and ``x_test`` are those of the splits. Raises ``UserError``.
    """
    import pyarrow as pa  # late, as all readers: a worker with a warm cache does without

    from fedapps.data.local_files import ARRAYS, KINDS, MEDIA, client_of, files_in, kind_of

    if folder is None or not folder.is_dir():
        near = nearest(source.name, [one.name for one in Path().iterdir()]).strip()
        hint = f": {near}" * (bool(near) and folder is None)
        raise UserError(
            f"{source.client} = {FILE!r}: {source.given} is not a folder with one file per "
            f"client{hint}"
        )
    # a server may have written it
    if source.split == ".." or source.split != Path(source.split).name:
        raise UserError(f"{source.given_split}: no name of a split")
    inside = folder / source.split
    if inside.is_dir():
        folder, source = inside, replace(source, split="train")
    parts: list[tuple[str, Frame]] = []
    empty: list[str] = []
    strange: list[str] = []
    said: list[str] = []
    for entry in sorted(folder.glob("[!.]*")):
        files = files_in(entry) if entry.is_dir() else [entry]
        kinds = {"", *(() if entry.is_dir() else (*MEDIA, "text"))}
        if set(map(kind_of, files)) <= kinds:
            (strange if files else empty).append(entry.name)
            continue
        if entry.is_file() and kind_of(entry) != ARRAYS and source.split != "train":
            raise UserError(
                f"{source.given_split}: no folder {source.split} lies beside {entry.name}, with "
                "its samples of that split"
            )
        given = replace(source, name=str(entry))
        if set(map(kind_of, files)) != {ARRAYS}:  # whose names say which are of a split
            given = replace(given, test="", validation_split="")
        frame = from_path(entry, given)
        said += frame.account[1:]
        if not len(frame):
            empty.append(entry.name)
            continue
        named = frame.by_name()
        client = pa.chunked_array([[client_of(entry)] * len(frame)], pa.string())
        parts.append((entry.name, replace(named, columns={**named.columns, FILE: client})))
    said += left_out(strange, "no file that is read") + left_out(empty, "without samples")
    refuse_first(
        (
            not parts,
            f"{source.client} = {FILE!r}: {folder} holds no file of a client: {', '.join(KINDS)}"
            + "".join(f"; {line}" for line in said),
        ),
        (
            all(client_of(Path(name)).lower() in PART_NAMES for name, _ in parts),
            f"{source.client} = {FILE!r}: the files in {folder} have the names of parts, not of "
            "clients: put the clients' files into folders of these names",
        ),
    )
    line = f"{folder.name}: {sum(len(part) for _, part in parts)} rows of {len(parts)} clients"
    return replace(joined(parts, source.setting), account=(line, *dict.fromkeys(said)))


def _from_hub(source: Source) -> Frame:
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


def load_quietly(path: str, split: str, config: str) -> Frame:
    """Return what `datasets.load_dataset` reads, without its progress bars."""
    import datasets

    with quiet():
        return Frame.of_dataset(datasets.load_dataset(path, config or None, split=split))


def _ask_hub(source: Source) -> None:
    """Raise UserError unless the hub confirms within HUB_SECONDS that it has the data
    set.

    The request runs in a thread because its own timeout does not cover the DNS look-up.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    answer: Future[object] = Future()

    def ask() -> None:
        try:
            answer.set_result(api.dataset_info(source.name, timeout=HUB_SECONDS / 2))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer.result(HUB_SECONDS)
    except (RepositoryNotFoundError, HFValidationError):
        hint = nearest(source.name, ["digits"]).strip() or "use its owner/name, a folder, or digits"
        raise UserError(
            f"{source.given}: no such folder, nor such a data set on the hub: {hint}"
        ) from None
    except Exception as error:
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
    return UserError(f"{source.given}, {source.given_split}: cannot be read: {reason(cause)}")
