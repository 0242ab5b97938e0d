"""A lock between the processes of one machine, for what they read, change and write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it. Raises ``OSError``, also on a file
    system without locks, as network drives can be.
    """
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise OSError(
                f"{path} cannot be locked: {error.strerror}: choose a folder on another file system"
            ) from None
        yield
