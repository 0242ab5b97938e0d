"""Memory that the processes of one run share, and messages whose arrays lie in it.

A message is pickled, but for the bytes of its arrays: these are copied once into shared
memory, and once out of it (pickle protocol 5, PEP 574). Only a process and the workers
that it started itself exchange such messages; nothing from outside is read here.
"""

import mmap
import os
import pickle
import tempfile
from collections.abc import Mapping
from io import BytesIO
from multiprocessing.reduction import DupFd
from typing import Any

from flwr.app import Array

#: Start and length of some bytes in a segment.
Place = tuple[int, int]
#: A pickled object, and the places of the bytes of its arrays.
Packed = tuple[bytes, list[Place]]
_FIRST_SIZE, _ALIGNED = 2**16, 64


class Segment:
    """Memory shared between processes, which grows when needed. One process writes.

    It has no name, so that nothing remains of it when its processes are killed, and it
    is not bounded by the size of /dev/shm, which is 64 MB in many containers.
    """

    def __init__(self) -> None:
        self._open(_file())

    def _open(self, file: int) -> None:
        self.file, self.used = file, 0
        if os.fstat(file).st_size < _FIRST_SIZE:
            os.ftruncate(file, _FIRST_SIZE)
        self.map = self._mapped()

    def _mapped(self) -> mmap.mmap:
        return mmap.mmap(self.file, os.fstat(self.file).st_size)

    def __getstate__(self) -> object:
        """Return the file, for a process that is being spawned."""
        return DupFd(self.file)

    def __setstate__(self, file: Any) -> None:
        self._open(file.detach())

    def put(self, data: Any) -> Place:
        """Write bytes; return their place."""
        start, end = self.used, self.used + len(data)
        if end > len(self.map):
            os.ftruncate(self.file, max(end, 2 * len(self.map)))
            self.map = self._mapped()
        self.map[start:end] = data
        self.used = -(-end // _ALIGNED) * _ALIGNED
        return start, end - start

    def get(self, place: Place) -> bytes:
        """Return a copy of the bytes at a place, which the other process may have
        written beyond the former end.
        """
        start, length = place
        if start + length > len(self.map):
            self.map = self._mapped()
        return self.map[start : start + length]

    def clear(self) -> None:
        """Give all places free."""
        self.used = 0

    def close(self) -> None:
        """Release the memory of this process."""
        self.map.close()
        os.close(self.file)


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedapps")
    with tempfile.TemporaryFile() as file:  # macOS: a file without a name
        return os.dup(file.fileno())


def _parts(array: Array) -> tuple[Any, tuple[type], Mapping[str, Any]]:
    """Reduce an array so that its bytes are left out of the pickle."""
    state = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    return Array.__new__, (Array,), state | {"data": pickle.PickleBuffer(array.data)}


class _Pickler(pickle.Pickler):
    dispatch_table = {Array: _parts}  # noqa: RUF012 - the name that pickle reads


def pack(thing: Any, segment: Segment) -> Packed:
    """Return an object of Flower's records and plain values as a message; write the
    bytes of its arrays into the segment.
    """
    places: list[Place] = []
    out = BytesIO()
    # a callback that returns a false value leaves the buffer out
    _Pickler(out, 5, buffer_callback=lambda buffer: places.append(segment.put(buffer.raw()))).dump(
        thing
    )
    return out.getvalue(), places


def unpack(packed: Packed, segment: Segment) -> Any:
    """Return the object of a message. It has its own copies of all arrays."""
    stream, places = packed
    return pickle.loads(stream, buffers=(segment.get(place) for place in places))
