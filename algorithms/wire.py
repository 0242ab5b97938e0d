"""How an array lies in a message: NumPy's .npy format (version 1), read without parsing its header as Python.

Flower decodes an array through ``numpy.load``, about 80 microseconds of header parsing whatever the size. The type and shape are
known beside the bytes, so the header only has to be compared with the one they imply: 3 microseconds and no copy. Methods
with a wire format of their own (atoms, weak learners) put their ``pack`` / ``unpack`` pairs here too.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY\x01\x00"


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], bytes] | None:
    kind = np.dtype(dtype)
    if kind.hasobject or kind.names:
        return None
    return kind, f"{{'descr': {np.lib.format.dtype_to_descr(kind)!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()


def read(array: Any) -> NDArray[Any]:
    """Return the values of a Flower ``Array`` (bytes ``data``, ``dtype``, ``shape``); read-only where they need no copy."""
    values = decode(array.data, array.dtype, tuple(array.shape)) if array.stype == "numpy.ndarray" else None
    return array.numpy() if values is None else values


def decode(data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the array that .npy bytes hold, read-only and without a copy, or ``None`` if they are not plainly of this type and shape.

    ``None`` is no error: let ``numpy.load(allow_pickle=False)`` decide then (other versions, Fortran order, or broken bytes).
    """
    expected = _header(dtype, shape) if data[:8] == _MAGIC else None
    if expected is None:
        return None
    kind, text = expected
    start = 10 + int.from_bytes(data[8:10], "little")
    if data[10 : 10 + len(text)] != text or len(data) != start + kind.itemsize * int(np.prod(shape, dtype=np.int64)):
        return None
    return np.frombuffer(data, kind, offset=start).reshape(shape)
