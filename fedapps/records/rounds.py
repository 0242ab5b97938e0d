"""What a results folder holds of its run while that goes on, and before it is resumed:
the records of its rounds, its status, and whether given settings and data continue it.

Digests stand for the settings, by which a server and its sites name the same run, and
for the data.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.formats import one_line
from fedapps.records.files import write_text
from fedapps.records.reader import parse_round, read_json
from fedapps.toml_text import Value, file_text, read_toml

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


#: Key in the record of the first round: the clients that never take part in training.
NEW_CLIENTS = "new-clients"


class RoundReader:
    """Reads the records appended to a rounds.jsonl since the last call."""

    def __init__(self) -> None:
        self.offset, self._inode = 0, -1

    def read(self, path: Path) -> list[dict[str, Any]]:
        """Return the new complete records. A file that was replaced or truncated (a
        resumed run) is read from the start again.
        """
        try:
            with path.open("rb") as file:
                status = path.stat()
                if status.st_ino != self._inode or status.st_size < self.offset:
                    self.offset, self._inode = 0, status.st_ino
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        complete = data.rfind(b"\n") + 1
        self.offset += complete
        return [
            record
            for line in data[:complete].split(b"\n")
            if (record := parse_round(line)) is not None
        ]


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines of rounds.jsonl."""
    path = folder / "rounds.jsonl"
    lines = file_text(path).splitlines(keepends=True) if path.exists() else []
    rows = [(line, parse_round(line)) for line in lines if line.endswith("\n")]
    if unreadable := next((line for line, row in rows if row is None), ""):
        raise UserError(
            f"{path}: a line is not the record of a round ({one_line(unreadable, 60)}): start "
            "again with --overwrite"
        )
    return [row for _, row in rows if row is not None]


def new_clients_of(folder: Path) -> list[int | str]:
    """Return the ids of the run's new clients, which the record of the first round
    holds.
    """
    return next((row[NEW_CLIENTS] for row in read_rounds(folder) if NEW_CLIENTS in row), [])


def status_of(folder: Path) -> str | None:
    """Return the final status recorded in ``folder``; ``None`` while the run is
    running.
    """
    path = folder / "summary.json"
    status = str(read_json(path).get("status", "running"))
    return None if status == "running" else status


def all_written(folder: Path) -> bool:
    """Return whether the report is newer than the final summary; a run writes its
    report last.
    """
    try:
        return (folder / "report.html").stat().st_mtime_ns >= (
            folder / "summary.json"
        ).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def set_status(folder: Path, status: str, error: str = "") -> None:
    """Set the recorded status of a run from outside, because its process was killed
    before it could, or will be restarted.
    """
    path = folder / "summary.json"
    if path.exists():
        summary = read_json(path)
        write_text(
            path,
            json.dumps(
                summary | {"status": status} | ({"error": error} if error else {}), indent=1
            ),
        )


def check_resumable(
    folder: Path, config: Mapping[str, Value], defaults: Mapping[str, Value]
) -> None:
    """Raise ``UserError`` unless ``folder`` holds a run with the settings ``config``.
    ``defaults``: the default of every setting.
    """
    if not (folder / "settings.toml").exists():
        raise UserError(
            f"{folder} holds no run to resume: omit --resume, or give the run's folder with --out"
        )
    before = {
        k: v
        for k, v in read_toml(folder / "settings.toml").items()
        if not k.startswith("versions.")
    }
    # settings that are newer than the run have their defaults
    before = {key: value for key, value in defaults.items() if key in config} | before
    for key in sorted(set(before) | set(config)):
        if key not in FREE and before.get(key) != config.get(key):
            raise UserError(
                f"{folder} was run with {key} = {before.get(key)!r}, but now {key} = "
                f"{config.get(key)!r}. Resume with the same settings, or start a new run in "
                "another folder."
            )
