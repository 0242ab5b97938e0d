"""The process beside a run, or a sweep, that serves the page which follows it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Let a process of its own serve a page that follows what is in ``folder``; it ends
    with this one, however that ends.
    """
    if not wanted:
        yield
        return
    command = [sys.executable, "-m", "fedapps", "watch", str(folder), "--until-end-of-input"]
    # Ctrl-C is for the run
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield  # then its standard input is closed, and its end waited for
