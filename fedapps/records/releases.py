"""The releases of a private run, counted on disk before each noisy model leaves the
server.

A run that is killed repeats the rounds after its last checkpoint with new noise, so
that clients have seen two noisy sums of one round. Both count.
"""

import json
import os
from pathlib import Path

from fedapps.records.files import append_text, flush

RELEASES = "releases.jsonl"


class Releases:
    """The count in ``folder``, one line per release, by the run ``run``. ``count``: the
    releases so far; an incomplete line counts as one.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path, self.run = folder / RELEASES, run
        before = self.path.read_bytes() if self.path.exists() else b""
        self.count = len(before.splitlines())
        self._torn = bool(before) and not before.endswith(b"\n")

    def add(self, server_round: int) -> None:
        """Count a release; on return the count is on disk. Raises ``OSError``."""
        facts = {"release": self.count + 1, "round": server_round, "run": self.run}
        # O_DSYNC: on disk when written, for two thirds of what fsync afterwards takes
        append_text(self.path, "\n" * self._torn + json.dumps(facts) + "\n", os.O_DSYNC)
        self.count, self._torn = self.count + 1, False
        if self.count == 1:  # the name of the file
            flush([self.path.parent])
