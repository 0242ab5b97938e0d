"""A stand-in for Flower's program ``flwr-clientapp``: it runs the app that is installed
at the site, whatever app a run brings.
"""

import shlex
import sys
from pathlib import Path

from fedapps.deployment.certificates import private_folder

NAME = "flwr-clientapp"
INSTALLED = "fedapps.runs.installed_app"


def make_installed(folder: Path) -> Path:
    """Write the stand-in into a folder that goes first on a SuperNode's PATH, where
    Flower finds the program; return the folder.
    """
    folder = private_folder(folder.expanduser().absolute())
    command = shlex.join([sys.executable, "-P", "-m", INSTALLED])
    (folder / NAME).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    (folder / NAME).chmod(0o700)
    return folder
