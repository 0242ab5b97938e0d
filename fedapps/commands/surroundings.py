"""What a command needs around it: streams that take every sign, and a folder for
caches.
"""

import os
import sys
import tempfile
from pathlib import Path

from fedapps.errors import UserError


def settle() -> None:
    """Replace signs that the terminal lacks, write nowhere where there is no terminal,
    and find a folder for caches. Raises ``UserError`` if there is none.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="replace")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - which returns "~" where there is none
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    if {"FEDAPPS_CACHE", "HF_HOME"} <= os.environ.keys() or (home.is_dir() and _usable(caches)):
        return
    remedy = "set FEDAPPS_CACHE and HF_HOME to folders for caches"
    try:
        place = Path(tempfile.gettempdir(), f"fedapps-{os.getuid()}")
        place.mkdir(mode=0o700, exist_ok=True)
        own = not place.is_symlink() and place.stat().st_uid == os.getuid()
    except OSError as error:
        raise UserError(f"{caches} cannot be written to, nor {error}: {remedy}") from None
    if not own:
        raise UserError(f"{caches} cannot be written to, and {place} is another user's: {remedy}")
    os.environ["XDG_CACHE_HOME"] = str(place / ".cache")
    if not home.is_dir():
        os.environ["HOME"] = str(place)
    print(f"fedapps: {caches} cannot be written to: caches are in {place}; {remedy}", file=sys.stderr)


def _usable(folder: Path) -> bool:
    """Return whether a folder can be written to, or made."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return folder.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
