"""Reads the state of a run or a sweep from its files while they are being written."""

import time
from pathlib import Path

from fedapps.records.reader import RunFolder, is_number

FILES = (
    "settings.toml",
    "rounds.jsonl",
    "clients.csv",
    "weights.csv",
    "curves.json",
    "summary.json",
)
# A run may have been killed if nothing changes for this many seconds, and for the time
# of this many rounds.
QUIET = 60.0
_QUIET_ROUNDS = 20
_WINDOW = 10  # rounds that the time left is estimated from


def runs_of(folder: Path) -> dict[str, Path]:
    """Return the folders of a sweep's runs by name; {} if ``folder`` holds no sweep."""
    cells = folder / "cells"
    runs = sorted(path for path in cells.iterdir() if path.is_dir()) if cells.is_dir() else []
    return {path.name: path for path in runs}


def is_watchable(folder: Path) -> bool:
    """Return whether a folder holds a run or a sweep, even if it has only begun."""
    return (folder / "cells").is_dir() or any(
        (folder / name).is_file() for name in (*FILES, "run.log")
    )


def seconds_left(run: RunFolder) -> float | None:
    """Return the estimated seconds left, from the last rounds; ``None`` if unknown."""
    times = _seconds(run)
    if not times or run.num_rounds is None:
        return None
    return float(sum(times) / len(times) * max(0, run.num_rounds - run.rounds_completed))


def patience(run: RunFolder) -> float:
    """Return the seconds without news after which a run may have been killed."""
    return max(QUIET, _QUIET_ROUNDS * max(_seconds(run), default=0.0))


def last_written(folder: Path) -> float:
    """Return the time of a run's last change (seconds, Unix), or now if there
    is none.
    """
    times = [path.stat().st_mtime for name in FILES if (path := folder / name).is_file()]
    return max(times, default=time.time())


def is_quiet(run: RunFolder, now: float) -> bool:
    """Return whether an unfinished run has written nothing for longer than its rounds
    usually take. ``now``: seconds, Unix.
    """
    return run.state == "running" and now - last_written(run.path) > patience(run)


def stamp_of(folder: Path) -> str:
    """Return a text that changes whenever the files of a run or of a sweep do."""
    parts = []
    for one in (folder, *runs_of(folder).values()):
        for name in (*FILES, "sweep.json"):
            try:
                status = (one / name).stat()
            except OSError:
                continue
            parts.append((one.name, name, status.st_mtime_ns, status.st_size))
    return f"{hash(tuple(parts)) & 0xFFFFFFFFFFFFFFFF:016x}"


def _seconds(run: RunFolder) -> list[float]:
    """Return the time of the last rounds."""
    return [
        record["seconds"] for record in run.rounds[-_WINDOW:] if is_number(record.get("seconds"))
    ]
