"""What a sweep keeps of a finished run. It always keeps the numbers: settings, rounds,
clients, weights, curves, summary.

With personal models, a run stores one model per client. A finished run does not need
them any more, so they are deleted unless ``sweep.keep`` names them. Nothing is deleted
from an unfinished run, which continues from its checkpoint.
"""

import shutil
from collections.abc import Collection
from pathlib import Path

from fedapps.lab.sweeps.pool import finished

#: The parts that ``sweep.keep`` can name, and their files and folders in a run.
PARTS = {
    "model": ("model.safetensors",),
    "clients": ("clients",),
    "checkpoint": ("checkpoint",),
    "synthetic": ("synthetic",),
    "plots": ("plots", "report.html"),
}


def prune(folder: Path, keep: Collection[str]) -> None:
    """Delete the parts of a finished run that ``keep`` does not name. Other folders are
    left as they are.
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
