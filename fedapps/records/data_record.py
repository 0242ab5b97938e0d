"""What a run is: digests of its settings, by which a server and its sites name the same
run, and of its data, and what was read of these.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.records.files import write_text
from fedapps.toml_text import Value

NAME = "dataset.json"
# Settings that do not affect the results, so a resumed run may change them.
FREE = (
    "out",
    "resume",
    "timeout",
    "checkpoint-every",
    "until",
    "min-replies",
    "max-failed-rounds",
    "train.compile",
    "track",
    "track-to",
    "audit-log",
)


def settings_digest(config: Mapping[str, Value]) -> str:
    """Return a digest of a run's settings but the ``FREE`` ones: 16 letters of
    SHA-256.
    """
    kept = {key: value for key, value in config.items() if key not in FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def data_paths(config: Mapping[str, Any]) -> list[Path]:
    """Return the files and folders that a run reads its data from."""
    values = [
        value
        for key, value in config.items()
        if key.rpartition(".")[2] in ("source", "synthetic", "test", "library")
    ]
    return [Path(value) for value in values if isinstance(value, str) and value.startswith("/")]


def record_data(folder: Path, config: Mapping[str, Any], account: Sequence[str]) -> None:
    """Write the digests of the files of a new run, and the account of its data."""
    files = {str(path): digest(path) for path in data_paths(config)}
    found = {"files": files, "account": account}
    write_text(folder / NAME, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def check_same_data(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if files have changed since a run began; not if its folder,
    an older one, does not say.
    """
    before: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if (folder / NAME).is_file():
            before = dict(json.loads((folder / NAME).read_text(encoding="utf-8"))["files"])
    for path in data_paths(config):
        if before.get(str(path), now := digest(path)) != now:
            raise UserError(
                f"{path} has changed since the first rounds of {folder}, which had other data: put "
                "it back, or start a new run in another folder"
            )


def digest(path: Path) -> str:
    """Return a digest of the names and the contents of all files below a path; hidden
    ones are not read.
    """
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            status = file.stat()
            found.update(str(name).encode())
            found.update(_content(file, status.st_size, status.st_mtime_ns))
    return found.hexdigest()[:32]


@cache
def _content(file: Path, size: int, changed: int) -> bytes:
    """Return the digest of a file of this size and time: the runs of a sweep have the
    same data, which one process reads once.
    """
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
