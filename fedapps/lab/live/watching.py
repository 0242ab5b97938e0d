"""Starts the process that serves the page of a run or a sweep."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Serve a page that follows ``folder`` from a separate process. It ends with this
    process, even if this one is killed.
    """
    if not wanted:
        yield
        return
    command = [sys.executable, "-m", "fedapps", "watch", str(folder), "--until-end-of-input"]
    # a new session, so that Ctrl-C reaches only the run
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield  # leaving the block closes its standard input and waits for its end
