"""Names of the trackers, and a check that their packages are installed."""

import importlib.util

from fedapps.algorithms.common.options import names_in, nearest
from fedapps.errors import UserError

#: The package that each tracker needs; an extra of the tracker's name installs it.
TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def names_of(track: str) -> tuple[str, ...]:
    """Return the trackers that a setting names, separated by commas. Raises
    ``ValueError`` for an unknown name.
    """
    names = tuple(dict.fromkeys(names_in(track)))
    for name in names:
        if name not in TRACKERS:
            raise ValueError(
                f"track = {track!r}: {nearest(name, TRACKERS)}choose from {', '.join(TRACKERS)}, "
                "separated by commas"
            )
    return names


def check_installed(track: str) -> None:
    """Raise ``UserError`` if a tracker's package is missing, without importing any."""
    for name in names_of(track):
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise UserError(
                f"track = {track!r}: {TRACKERS[name]} is not installed: pip install "
                f"'fedapps[{name}]'"
            )
