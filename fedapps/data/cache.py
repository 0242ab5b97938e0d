"""Decoded image sets on disk, shared by the processes of a run.

An entry is a folder of .npy files and a JSON file, named by a fingerprint of the source. It is written under
another name and renamed when complete, so that readers never see half of one, and two writers cannot disturb each
other. The cache only ever saves time: whatever is wrong with it is logged and the caller decodes again.
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

FORMAT = 1
Entry = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]

logger = logging.getLogger(__name__)


def folder() -> Path:
    """Return the folder of all entries: `$FEDAPPS_CACHE`, else `fedapps` in the user's cache folder."""
    if own := os.environ.get("FEDAPPS_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedapps"


def fingerprint(source: str | Path, asked: dict[str, str]) -> str:
    """Return the name of an entry.

    A folder counts with the names, sizes and times of its files, so a changed folder is another entry; a hub data
    set counts with its name only, so that no network is needed: remove the cache to fetch a newer version.
    """
    files: list[tuple[str, int, int]] = []
    if isinstance(source, Path):
        for path in sorted(source.rglob("*")):
            if path.is_file():
                status = path.stat()
                files.append((str(path.relative_to(source)), status.st_size, status.st_mtime_ns))
    content = json.dumps([FORMAT, str(source), files, asked])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def load(key: str) -> Entry | None:
    """Return the arrays (mapped, read-only) and facts kept under ``key``; None if there are none or they are broken."""
    entry = folder() / key
    try:
        if not entry.is_dir():
            return None
        facts = json.loads((entry / "facts.json").read_text())
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in entry.glob("*.npy")}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        if shapes != facts["shapes"]:
            raise ValueError(f"arrays {shapes}, expected {facts['shapes']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("ignoring the broken cache entry %s: %s", entry, error)
        return None
    return arrays, facts


def save(key: str, arrays: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> Entry | None:
    """Keep arrays and facts under ``key`` and return them as :func:`load` does; None if that cannot be done."""
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
                if not entry.is_dir():  # else another process was first, with the same content
                    raise
    except OSError as error:
        logger.warning("decoded images are not kept in %s: %s", entry.parent, error)
        return None
    return load(key)
