"""Files that the user's net reads from the current folder while it is imported and
built: sizes, a vocabulary, weights. They go with the app, as one file of JSON, since
Flower packs only a few kinds of files. Where the app runs they lie beside the code
again, and its folder is the current one meanwhile.

What tasks read is not sent: it may be data.
"""

import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedapps.errors import UserError

#: The name of the file in the app, and the most bytes of all files: a Flower app has 10
#: MB, and base64 takes four characters for three bytes.
PACKED, MOST = "files_beside.json", 6_000_000
#: Of code, which is sent as such.
CODE = {".py", ".pyc", ".so"}

_read: dict[Path, None] = {}
_state = {"watching": 0, "hooked": False}


@contextmanager
def beside() -> Iterator[None]:
    """Remember the files that are opened, for :func:`files_read`; in an app, be in its
    folder, with the files that came with it.
    """
    if not _state["hooked"]:
        sys.addaudithook(_notice)
        _state["hooked"] = True
    app, before = Path(__file__).resolve().parents[2], Path.cwd()
    _state["watching"] += 1
    try:
        if (app / PACKED).is_file():
            _unpack(app)
            os.chdir(app)
        yield
    finally:
        os.chdir(before)
        _state["watching"] -= 1


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _state["watching"] and isinstance(arguments[0], str | os.PathLike):
        with suppress(OSError, ValueError):
            _read[Path(os.fsdecode(arguments[0])).absolute()] = None


def files_read(folder: Path) -> dict[str, Path]:
    """Return the files below ``folder`` that were read, by their path below it."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in map(Path.resolve, _read)
        if path.is_relative_to(folder)
        and path.suffix not in CODE
        and "site-packages" not in path.parts
        and path.is_file()
    }


def pack(files: Mapping[str, Path]) -> str:
    """Return the files as JSON. Raises ``UserError`` if they are too large."""
    sizes = {place: path.stat().st_size for place, path in files.items()}
    if sum(sizes.values()) > MOST:
        largest = max(sizes, key=lambda place: sizes[place])
        raise UserError(
            f"model.name: the net reads {largest}, of {sizes[largest] / 1e6:.1f} MB, and at most "
            f"{MOST / 1e6:g} MB of files are sent with the app: start from model.weights, or read "
            "it by a path that exists wherever clients run"
        )
    return json.dumps(
        {place: base64.b64encode(path.read_bytes()).decode() for place, path in files.items()}
    )


def _unpack(app: Path) -> None:
    for place, text in json.loads((app / PACKED).read_text(encoding="utf-8")).items():
        path = (app / place).resolve()
        if path.is_relative_to(app) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{os.getpid()}")  # other workers do the same
            draft.write_bytes(base64.b64decode(text))
            draft.replace(path)
