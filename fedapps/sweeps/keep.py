"""What a sweep keeps of a finished run. Its numbers always: settings, rounds, clients,
weights, curves, summary.

Where clients keep models a run has as many of them on its disk as it has clients; once
the run is finished only whoever wants to look at them needs them. A run that is not
finished loses nothing, since it goes on from its checkpoint.
"""

import shutil
from collections.abc import Collection
from pathlib import Path

from fedapps.sweeps.pool import finished

#: What ``sweep.keep`` can name, and the files and folders of a run that belong to it.
PARTS = {
    "model": ("model.safetensors",),
    "clients": ("clients",),
    "checkpoint": ("checkpoint",),
    "synthetic": ("synthetic",),
    "plots": ("plots", "report.html"),
}


def prune(folder: Path, keep: Collection[str]) -> None:
    """Delete the parts of a finished run that ``keep`` does not name; do nothing to any
    other folder.
    """
    if not finished(folder):
        return
    for part, names in PARTS.items():
        for name in () if part in keep else names:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
