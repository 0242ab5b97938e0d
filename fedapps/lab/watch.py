"""Draws the report of a run again while the run goes on, from a separate process.

Until the run has ended, the report reloads itself in the browser. The page of a sweep
is drawn by the sweep; here each of its unfinished runs gets its report.
"""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.results.report import report_html
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder, is_number, read_run

#: The share of a core that drawing may use.
SHARE = 0.03
#: A run may have been killed if nothing changes for this many seconds, and for the time
#: of this many rounds.
QUIET, QUIET_ROUNDS = 60.0, 20
ENDED = math.inf  # when an ended run is drawn again
_WINDOW = 10  # rounds that the time left is estimated from
_FILES = ("settings.toml", "rounds.jsonl", "clients.csv", "curves.json", "summary.json")

Stamp = tuple[tuple[int, int], ...]  # time of change and size of each file


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of a sweep's runs, or the folder itself."""
    cells = folder / "cells"
    return sorted(cells.iterdir()) if cells.is_dir() else [folder]


def stamp_of(folder: Path) -> Stamp:
    """Return what changes whenever the files of a run do; () if it has none."""
    known = [path.stat() for name in _FILES if (path := folder / name).is_file()]
    return tuple((status.st_mtime_ns, status.st_size) for status in known)


def outlook(run: RunFolder, now: float) -> str:
    """Return a sentence on when an unfinished run will end. ``now``: seconds, Unix."""
    times = [row["seconds"] for row in run.rounds[-_WINDOW:] if is_number(row.get("seconds"))]
    written = max(stamp_of(run.path), default=(0, 0))[0] / 1e9
    if now - written > max(QUIET, QUIET_ROUNDS * max(times, default=0.0)):
        return "Nothing was written for a while: the run may have been stopped."
    if not times or run.num_rounds is None:
        return "The time left is not known yet."
    left = sum(times) / len(times) * max(0, run.num_rounds - run.rounds_completed)
    return f"About {seconds_text(left)} left. This page follows the run."


@dataclass
class Watch:
    """Keeps the reports of the runs in ``folder`` up to date."""

    folder: Path
    _drawn: dict[Path, tuple[Stamp, float]] = field(default_factory=dict)

    def draw(self, now: float) -> None:
        """Draw the report of each unfinished run that has changed, or has not been
        drawn for ``QUIET`` seconds, and of each that has ended since. ``now``: seconds,
        Unix.
        """
        for folder in runs_in(self.folder):
            stamp = stamp_of(folder)
            before, last = self._drawn.get(folder, ((), now))
            if stamp == before and now - last < QUIET:
                continue
            run = read_run(folder)
            goes_on = run.state == "running"
            if goes_on or (before and (folder / "report.html").exists()):
                put(run, outlook(run, now) if goes_on else "")
            self._drawn[folder] = stamp, now if goes_on else ENDED

    def close(self) -> None:
        """Draw the reports of unfinished runs as they stand, so that they no longer
        reload themselves.
        """
        for folder in [folder for folder, (_, last) in self._drawn.items() if last < ENDED]:
            put(read_run(folder), "")


def put(run: RunFolder, going: str) -> None:
    """Write the report under a name that the run does not use, then rename it: both may
    write at once.
    """
    page = run.path / "report.html.watch"
    write_text(page, report_html(run, going))
    page.replace(run.path / "report.html")


def watch(folder: Path, until_end: bool = False) -> int:
    """Watch a run or a sweep until Ctrl-C, or, with ``until_end``, until standard input
    ends. Raises ``UserError``.
    """
    folder = folder.expanduser().absolute()
    if not until_end and not any(map(stamp_of, runs_in(folder))):
        raise UserError(f"{folder} holds neither a run nor a sweep: give a results folder")
    if hasattr(os, "nice"):
        os.nice(10)  # the run comes first
    print(f"watch:   {(folder / 'report.html').as_uri()}", file=sys.stderr, flush=True)
    ended = threading.Event()

    def wait_for_input() -> None:
        sys.stdin.buffer.read()
        ended.set()

    if until_end:
        threading.Thread(target=wait_for_input, daemon=True).start()
    one, pause = Watch(folder), 1.0
    try:
        while not ended.wait(pause):
            began = time.thread_time()
            one.draw(time.time())
            pause = max(1.0, (time.thread_time() - began) / SHARE)
    except KeyboardInterrupt:
        print("stopped watching", file=sys.stderr)
    one.close()
    return 0


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Watch ``folder`` from a separate process. It ends with this process, even if this
    one is killed.
    """
    if not wanted:
        yield
        return
    command = [sys.executable, "-m", "fedapps", "watch", str(folder), "--until-end-of-input"]
    # a new session, so that Ctrl-C reaches only the run
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield  # leaving the block closes its standard input and waits for its end
