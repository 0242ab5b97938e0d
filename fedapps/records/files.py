"""Files of a results folder. If the disk is full, existing files stay intact, and new
text waits until there is space.
"""

import csv
import io
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


class Files:
    """Texts for files in ``folder``. ``replace`` and ``append`` collect them, ``write``
    puts them on disk. ``check`` raises an error if the folder is no longer the one to
    write to.
    """

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        self.folder, self.check = folder, check
        self._whole: dict[str, str] = {}
        self._more: dict[str, str] = {}

    @property
    def behind(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._whole or self._more)

    def begun(self, name: str) -> bool:
        """Return whether a file has been written or is about to be."""
        return name in self._whole or name in self._more or (self.folder / name).exists()

    def replace(self, name: str, text: str) -> None:
        """Let a file hold ``text`` and nothing else."""
        self._whole[name] = text
        self._more.pop(name, None)

    def append(self, name: str, text: str) -> None:
        """Let a file end with ``text``."""
        where = self._whole if name in self._whole else self._more
        where[name] = where.get(name, "") + text

    def write(self) -> None:
        """Write all waiting texts. Raises ``OSError`` if one could not be written; it
        keeps waiting.
        """
        self.check()
        failed: OSError | None = None
        for waiting, put in ((self._whole, write_text), (self._more, append_text)):
            for name, text in list(waiting.items()):
                try:
                    put(self.folder / name, text)
                    del waiting[name]
                except OSError as error:
                    failed = failed or error
        if failed:
            raise failed


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old or the new text, never a part of
    it.
    """
    replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary file, then rename it to ``path``. An error leaves
    no temporary file.
    """
    partial = path.with_name(path.name + ".partial")
    if partial.is_symlink():  # it would lead the text elsewhere
        partial.unlink()
    try:
        write(partial)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    partial.replace(path)


def flush(paths: Iterable[Path]) -> None:
    """Wait until files, and the entries of folders, are on disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_text(path: Path, text: str, flags: int = 0) -> None:
    """Append to a file; an error restores its former length. ``flags``: more of
    ``os.open``, such as ``os.O_DSYNC``.
    """

    def opened(name: str, usual: int) -> int:
        return os.open(name, usual | flags, 0o666)

    with open(path, "ab", buffering=0, opener=opened) as file:
        size = file.seek(0, os.SEEK_END)
        data = memoryview(text.encode())
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as the text of a CSV file."""
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()
