"""Names of the trackers, what they need, and whether it is installed."""

import importlib.util

from algorithms.common.checks import nearest
from fedapps.errors import UserError

#: The tracker and the package it needs, which an extra of the same name installs.
TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def names_of(track: str) -> tuple[str, ...]:
    """Return the trackers named by a setting, separated by commas. Raises
    ``ValueError`` for one that there is not.
    """
    names = tuple(dict.fromkeys(name for part in track.split(",") if (name := part.strip())))
    for name in names:
        if name not in TRACKERS:
            raise ValueError(
                f"track = {track!r}: {nearest(name, TRACKERS)}choose among {', '.join(TRACKERS)}, "
                "with commas between them"
            )
    return names


def check_installed(track: str) -> None:
    """Raise ``UserError`` if a tracker's package is missing; none is imported."""
    for name in names_of(track):
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise UserError(
                f"track = {track!r}: {TRACKERS[name]} is not installed: pip install "
                f"'fedapps[{name}]'"
            )
