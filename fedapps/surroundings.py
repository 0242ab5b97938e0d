"""What a command needs around it: streams that take every sign, and a folder for
caches.
"""

import os
import sys
import tempfile
from pathlib import Path

from fedapps.errors import UserError


def settle() -> None:
    """Replace signs that the terminal lacks, write nowhere if the streams are closed,
    and find a folder for caches. Raises ``UserError`` if there is none.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")
    settle_caches()


def settle_caches() -> None:
    """Let caches be in the temporary folder, and say so, if the user has no home or
    cannot write to it, as in a container with a random user.
    """
    home = Path(os.path.expanduser("~"))  # "~" where there is none
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    if {"FEDAPPS_CACHE", "HF_HOME"} <= os.environ.keys() or (home.is_dir() and _usable(caches)):
        return
    why, remedy = f"{caches} cannot be written to", "set FEDAPPS_CACHE and HF_HOME"
    try:
        place = Path(tempfile.gettempdir(), f"fedapps-{os.getuid()}")
        place.mkdir(mode=0o700, exist_ok=True)
        own = not place.is_symlink() and place.stat().st_uid == os.getuid()
    except OSError as error:
        raise UserError(f"{why}, nor is there a temporary folder ({error}): {remedy}") from None
    if not own:
        raise UserError(f"{why}, and {place} is another user's: {remedy}")
    os.environ["XDG_CACHE_HOME"] = str(place / ".cache")
    if not home.is_dir():
        os.environ["HOME"] = str(place)
    print(f"fedapps: {why}: caches are in {place}; to keep them, {remedy}", file=sys.stderr)


def _usable(folder: Path) -> bool:
    """Return whether a folder can be written to, or made."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return folder.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
