"""A stand-in for Flower's program ``flwr-clientapp`` that keeps a process warm for it
(``warm_process.py``).
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedapps.deployment.certificates import private_folder
from fedapps.engines.processes import program
from fedapps.strategies.base.flower_private import CLIENT_PROGRAM

NAME = "flwr-clientapp"
#: The module that runs the site's own app, whatever app a run brings.
INSTALLED = "fedapps.runs.installed_app"


def make_warm(folder: Path, installed: bool = False) -> Path:
    """Write the stand-in into a folder that goes first on a SuperNode's PATH; return
    the folder. ``installed``: it runs the site's own app.
    """
    folder = private_folder(folder.expanduser().absolute())
    script = Path(__file__).with_name("warm_process.py")
    entry, cold = CLIENT_PROGRAM, str(program(NAME))
    if installed:
        entry, cold = f"{INSTALLED}:main", str(folder / "installed")
        _write(Path(cold), [sys.executable, "-P", "-m", INSTALLED])
    command = [
        sys.executable,
        "-P",
        "-S",
        str(script),
        "ask",
        str(folder / "socket"),
        entry,
        cold,
    ]
    _write(folder / NAME, command)
    return folder


def _write(path: Path, command: Sequence[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
