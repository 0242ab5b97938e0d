"""A stand-in for Flower's program ``flwr-clientapp`` that keeps a process warm for it
(``warm_process.py``).
"""

import shlex
import sys
from pathlib import Path

from fedapps.deployment.certificates import private_folder
from fedapps.engines.processes import program
from strategies.base.flower_private import CLIENT_PROGRAM

NAME = "flwr-clientapp"


def make_warm(folder: Path) -> Path:
    """Write the stand-in into a folder that goes first on a SuperNode's PATH; return
    the folder.
    """
    folder = private_folder(folder.expanduser().absolute())
    script = Path(__file__).with_name("warm_process.py")
    command = [
        sys.executable,
        "-P",
        "-S",
        str(script),
        "ask",
        str(folder / "socket"),
        CLIENT_PROGRAM,
        str(program(NAME)),
    ]
    path = folder / NAME
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return folder
