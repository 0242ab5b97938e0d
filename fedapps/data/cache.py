"""On-disk cache of decoded image sets, shared by the processes of a run.

An entry is a folder of .npy files and a JSON file, named by a fingerprint of the
source. It is written under a temporary name and renamed when complete, so that readers
never see a partial entry and writers do not interfere. The cache only saves time: any
problem with it is logged, and the caller decodes again.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 5
Entry = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]

logger = logging.getLogger(__name__)


def folder() -> Path:
    """Return the cache folder: `$FEDAPPS_CACHE`, else `fedapps` in the user's cache
    folder.
    """
    if own := os.environ.get("FEDAPPS_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedapps"


def fingerprint(source: str | Path, asked: dict[str, str]) -> str:
    """Return the name of the entry for a source and what is ``asked`` of it.

    A folder or file is identified by the names, sizes and modification times of its
    files and the names of its folders, so a changed one gets another entry; a hub data
    set by its name only, so that
    no network is needed: remove the cache to fetch a newer version.
    """
    files: list[tuple[str, int, int]] = []
    if isinstance(source, Path):
        for path in [source] if source.is_file() else sorted(source.rglob("*")):
            status = path.stat() if path.is_file() else None
            kept = (status.st_size, status.st_mtime_ns) if status else (0, 0)
            files.append((str(path.relative_to(source)), *kept))
    content = json.dumps([FORMAT, str(source), files, asked])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def load(key: str) -> Entry | None:
    """Return the arrays (memory-mapped, read-only) and facts stored under ``key``; None
    if they are missing or corrupt.
    """
    entry = folder() / key
    try:
        if not entry.is_dir():
            return None
        facts = json.loads((entry / "facts.json").read_text())
        arrays = {
            path.stem: np.load(path, mmap_mode="r", allow_pickle=False)
            for path in entry.glob("*.npy")
        }
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        if shapes != facts["shapes"]:
            raise ValueError(f"arrays {shapes}, expected {facts['shapes']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("ignoring the broken cache entry %s: %s", entry, error)
        return None
    return arrays, facts


def save(key: str, arrays: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> Entry | None:
    """Store arrays and facts under ``key`` and return them as :func:`load` does; None
    if they cannot be stored.
    """
    entry = folder() / key
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new-") as name:
            fresh = Path(name) / "entry"
            fresh.mkdir()
            for array_name, array in arrays.items():
                np.save(fresh / f"{array_name}.npy", array, allow_pickle=False)
            shapes = {array_name: list(array.shape) for array_name, array in arrays.items()}
            (fresh / "facts.json").write_text(json.dumps({**facts, "shapes": shapes}))
            if entry.is_dir() and load(key) is None:
                shutil.rmtree(entry, ignore_errors=True)
            try:
                fresh.rename(entry)
            except OSError:
                if not entry.is_dir():  # otherwise another process was first, with the same content
                    raise
    except OSError as error:
        logger.warning("decoded images are not kept in %s: %s", entry.parent, error)
        return None
    return load(key)
