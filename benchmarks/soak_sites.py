"""The faults of ``soak.py`` that hit the processes of a deployment."""

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.soak_faults import NO_LIMIT, file_limit
from fedapps.deployment.certificates import CA, make_site_key
from fedapps.deployment.local import Deployment, Site
from fedapps.engines.processes import free_port, marked
from fedapps.errors import RunFailed, UserError
from fedapps.records.writer import read_rounds

# how long a disk is full, and how long a duplicate at most stays
FULL_SECONDS, DOUBLE_SECONDS = 12, 40


class Attacker:
    """Attacks the processes of a deployment while the run goes on."""

    def __init__(self, deployment: "Deployment", folder: Path) -> None:
        from fedapps.deployment.local import Site

        self.deployment, self.folder = deployment, folder
        self.sites = list(deployment.sites.values())
        self.doubles: list[Site] = []
        for site in self.sites:  # with a key of their own, since a key is a node
            double = Site(deployment, f"double-{site.name}", site.config, free_port())
            make_site_key(double.folder / "key")
            shutil.copy(deployment.certificates / CA, double.folder)
            deployment.sites[double.name] = double
            self.doubles.append(double)
        deployment.register()
        for double in self.doubles:
            del deployment.sites[double.name]
        self.threads: list[threading.Thread] = []
        self.hung: dict[int, list[int]] = {}  # by the round in which they hang
        self.away: dict[int, set[int]] = {}  # client -> rounds in which it may be missing
        self.hit = 0  # the round in which the SuperLink was killed last

    def act(self, number: int, kind: str, victim: int, process: int) -> None:
        """Cause the fault of round ``number``, which has just begun."""
        site = self.sites[victim]
        self.away.setdefault(victim, set()).update(
            {number + 1, number + 2} if kind in ("client", "late", "node") else ()
        )
        if kind == "node":
            site.kill()
            self._beside(self._come_back, site, victim, number)
        elif kind == "late":
            self.hung[number] = marked(site.mark)
            for one in self.hung[number]:
                os.kill(one, signal.SIGSTOP)
        elif kind == "duplicate":
            self._beside(self._double, self.doubles[victim])
        elif kind == "disk":
            self._beside(self._fill, [process, *self._server()])
        elif kind == "restart":
            self.settle()
            self.hit = len(read_rounds(self.folder)) + 1
            self.deployment.superlink.kill()
        elif kind == "command":
            self.hit = len(read_rounds(self.folder)) + 1
            os.kill(process, signal.SIGKILL)

    def after(self, number: int) -> None:
        """Continue the processes that hung in rounds up to ``number``."""
        for one in [
            one for hung in list(self.hung) if hung <= number for one in self.hung.pop(hung)
        ]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)

    def settle(self) -> None:
        """Wait until all attacked processes are back."""
        self.after(10**9)
        for thread in self.threads:
            thread.join()

    def _beside(self, work: Any, *arguments: Any) -> None:
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self.threads[-1].start()

    def _come_back(self, site: "Site", victim: int, number: int) -> None:

        for _ in range(10):
            try:
                site.start()
                break
            except (
                RunFailed,
                UserError,
            ):  # as long as the SuperLink believes that the old one is alive
                site.kill()
                time.sleep(3)
        self.away[victim].update(range(number + 1, len(read_rounds(self.folder)) + 4))

    def _double(self, double: "Site") -> None:
        before, deadline = said_twice(self.folder), time.monotonic() + DOUBLE_SECONDS
        double.start()
        while said_twice(self.folder) == before and time.monotonic() < deadline:
            time.sleep(0.5)
        double.end()

    def _fill(self, processes: list[int]) -> None:
        for limit in (0, NO_LIMIT):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    file_limit(limit, process)
            time.sleep(FULL_SECONDS if limit == 0 else 0)

    def _server(self) -> list[int]:
        processes = marked(self.deployment.superlink.mark)
        return [
            one
            for one in processes
            if b"flwr-serverapp" in Path(f"/proc/{one}/cmdline").read_bytes()
        ]


def said_twice(folder: Path) -> int:
    """Return how often the log reports a duplicate."""
    return (
        (folder / "run.log").read_text(errors="replace").count("two nodes say that they are client")
    )
