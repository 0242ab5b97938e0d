"""One writer per results folder, by ``flock``: the lock ends with its process, however
that ends. Readers never take it.

``run.lock`` is held by the process that runs the rounds, ``launch.lock`` by the command
that started it. Through Flower these are two processes, and the first can outlive the
second. The files hold the holder's process id, command and run id; they are removed
when the lock is released.

Flower's ServerApp and a command on another machine are kept apart by NFS, too (Linux
turns ``flock`` into a lock of the server). On a file system without locks a warning is
logged, and the run ids in rounds.jsonl and checkpoints show a second writer.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import sys
import time
import uuid
import weakref
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any, Self

from flwr.common import log

from fedapps.errors import RunFailed, UserError
from fedapps.formats import one_line

WRITER, LAUNCHER = "run.lock", "launch.lock"
LOCKS = (WRITER, LAUNCHER)
#: Key of the run id in the rows of rounds.jsonl. Two equal runs differ in it.
RUN_ID = "run"
#: What a file system without locks answers.
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
#: Seconds to wait for a lock: reading the holder's name takes it for a moment.
LOOK_SECONDS, POLL_SECONDS = 0.3, 0.1


class FolderLost(RunFailed):
    """The results folder was removed or replaced while the run was writing to it."""


class Held(UserError):
    """Another process writes to the folder; ``holder``: what it wrote into the lock."""

    def __init__(self, folder: Path, holder: Mapping[str, Any]) -> None:
        known = {key: one_line(str(value), 200) for key, value in holder.items()}
        machine = known.get("machine", platform.node())
        place = "" if machine == platform.node() else f" on {machine}"
        super().__init__(
            f"{folder}: another run is writing to it (process {known.get('pid', 'unknown')}{place}"
            f", `{known.get('command', 'unknown')}`, run {known.get(RUN_ID, 'unknown')}): wait for "
            "its end or stop it, or choose another --out"
        )


class FolderLock:
    """The lock ``name`` of a results folder, as a context manager.

    ``flower_run``: the id of the run in Flower, if that runs it; otherwise the run gets
    a new one. ``wait``: seconds to wait for the present holder. Entering raises
    ``Held``, or ``UserError`` if the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        name: str = WRITER,
        flower_run: str = "",
        wait: float = LOOK_SECONDS,
    ) -> None:
        self.folder, self.path, self.wait = folder, folder / name, wait
        self.flower_run, self.run = flower_run, flower_run or uuid.uuid4().hex[:12]
        self.file: int | None = None

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self.wait
        while not self._taken():
            if time.monotonic() > deadline:
                raise Held(self.folder, holder_of(self.path))
            time.sleep(POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                if self._in_place():
                    self.path.unlink()
            self.forget()

    def forget(self) -> None:
        """Close the file; a process that was forked does not hold the lock."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def check(self) -> None:
        """Raise ``FolderLost`` if the lock is no longer in its place: another run may
        hold a new one.
        """
        if self.file is not None and not self._in_place():
            raise FolderLost(
                f"{self.folder} was removed or replaced while the run was writing to it: start "
                "the run again, and leave its folder alone until it ends"
            )

    def _in_place(self) -> bool:
        assert self.file is not None
        try:
            return os.path.samestat(os.fstat(self.file), self.path.lstat())
        except OSError:
            return False

    def _facts(self) -> dict[str, Any]:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:1000]
        facts = {"pid": os.getpid(), "machine": platform.node(), RUN_ID: self.run}
        if not self.flower_run:
            return facts | {"command": command}
        # Flower's program: its own arguments hold a token
        launcher = holder_of(self.folder / LAUNCHER)
        return facts | {
            "command": launcher.get("command", "flwr run"),
            "launcher": launcher.get("pid", 0),
        }

    def _taken(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise UserError(f"--out {self.folder}: cannot write to it: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            os.close(file)
            if error.errno not in UNSUPPORTED:
                raise UserError(f"{self.path}: cannot be locked: {error.strerror}") from None
            log(
                WARNING,
                "%s is on a file system without locks (%s): start only one run in it at a time",
                self.folder,
                error.strerror,
            )
            return True
        self.file = file
        if not self._in_place():  # the former holder has just removed it
            self.forget()
            return self._taken()
        _HELD.add(self)
        facts = json.dumps(self._facts())
        with contextlib.suppress(OSError):  # a full disk: the lock holds without them
            os.ftruncate(file, 0)
            os.pwrite(file, facts.encode(), 0)
        return True


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def holder_of(path: Path) -> dict[str, Any]:
    """Return what the process that holds a lock wrote into it; {} if none holds it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return {}
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            facts = json.loads(os.read(file, 10_000))
            return facts if isinstance(facts, dict) else {}
    except OSError:
        pass
    finally:
        os.close(file)
    return {}
