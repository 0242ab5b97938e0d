"""Wire format of arrays: NumPy's .npy format (version 1.0), read without parsing its
header as Python.

Flower decodes an array with ``numpy.load``, which spends about 80 microseconds on
header parsing whatever the size. Dtype and shape are sent beside the bytes, so the
header only has to be compared with the one they imply: 3 microseconds and no copy.
Likewise, ``numpy.save`` builds the header anew each time (25 microseconds) and copies
the values more than once. Methods with a wire format of their own (atoms, weak
learners) define ``pack`` / ``unpack`` pairs.

Received bytes are untrusted: the result is a numeric array or a ``WireError``, and
takes no more memory than the bytes themselves.
"""

import math
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY\x01\x00"


class WireError(ValueError):
    """A message holds malformed or unexpected data."""


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], bytes, int] | None:
    kind = np.dtype(dtype)
    if kind.kind not in "biufc" or kind.subdtype:
        return None
    return (
        kind,
        f"{{'descr': {np.lib.format.dtype_to_descr(kind)!r}, 'fortran_order': False, 'shape': "
        f"{shape!r}, }}".encode(),
        kind.itemsize * math.prod(shape),
    )


@lru_cache(maxsize=4096)
def _written(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, bytes]:
    if dtype.kind not in "biufc":
        raise ValueError(f"an array of type {dtype}: only arrays of numbers can be sent")
    out = BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)
    return str(dtype), out.getvalue()


def fields(values: NDArray[Any]) -> tuple[str, tuple[int, ...], str, bytes]:
    """Return the arguments of Flower's ``Array`` (dtype, shape, kind, .npy bytes), for
    ``Array(*fields(values))``.
    """
    dtype, header = _written(values.dtype, values.shape)
    return (
        dtype,
        values.shape,
        "numpy.ndarray",
        b"".join((header, np.asarray(values, order="C").data)),
    )


def read(array: Any) -> NDArray[Any]:
    """Return the values of a Flower ``Array`` (bytes ``data``, ``dtype``, ``shape``);
    read-only if no copy was needed.

    Raises ``WireError``, without allocating anything, for bytes that are not a numeric
    array or not as long as their header says.
    """
    try:
        dtype, shape = str(array.dtype), tuple(array.shape)
        if array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
            raise WireError(f"an array of kind {str(array.stype)[:40]!r}: it must be .npy bytes")
        plain = len(dtype) <= 16 and len(shape) <= 32 and set(map(type, shape)) <= {int}
        values = decode(array.data, dtype, shape) if plain else None
        if values is not None:
            return values
        if (values := _parse(array.data)).shape != shape:
            raise WireError(
                f"an array of shape {values.shape}, but the message declares {str(shape)[:80]}"
            )
        return values
    except WireError:
        raise
    # untrusted bytes may break NumPy's parser in ways that it does not document
    except Exception as error:
        raise WireError(
            f"bytes are not an array: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        ) from None


def decode(data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the array in .npy bytes as a read-only view, or ``None`` unless their
    header is the expected one for dtype and shape.

    ``None`` is not an error: the bytes may be of another version or in Fortran order,
    or malformed.
    """
    expected = _header(dtype, shape) if data[:8] == _MAGIC else None
    if expected is None:
        return None
    kind, text, size = expected
    start = 10 + int.from_bytes(data[8:10], "little")
    if data[10 : 10 + len(text)] != text or len(data) != start + size:
        return None
    return np.frombuffer(data, kind, offset=start).reshape(shape)


def _parse(data: bytes) -> NDArray[Any]:
    """Read .npy bytes by their own header; unlike ``numpy.load``, check its claimed
    size before anything is allocated.
    """
    file = BytesIO(data)
    version = np.lib.format.read_magic(file)
    parse = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if parse is None:
        raise WireError(f".npy format version {version} is not supported: use 1.0 or 2.0")
    shape, fortran, kind = parse(file)
    if kind.kind not in "biufc" or kind.subdtype:
        raise WireError(f"an array of type {str(kind)[:40]}: it must hold numbers")
    if min(shape, default=0) < 0 or len(data) - file.tell() != kind.itemsize * math.prod(shape):
        raise WireError(
            f"{len(data) - file.tell()} bytes for an array of shape {shape} and type {kind}"
        )
    values = np.frombuffer(data, kind, offset=file.tell())
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
