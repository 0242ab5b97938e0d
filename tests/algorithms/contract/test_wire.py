import io
import pickle
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from fedapps.algorithms.contract.wire import WireError, decode, fields, read
from tests.helpers import refused


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4), (2, 3, 4), (1, 0, 2)])
def test_equals_numpys_own_reading(dtype, shape):
    array = (np.random.default_rng(0).random(shape) * 9).astype(dtype)
    got = decode(npy(array), dtype, shape)
    assert got is not None
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, np.load(io.BytesIO(npy(array))))
    assert not got.flags.writeable or got.size == 0


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (npy(np.ones(3)), "float32", (3,)),
        (npy(np.ones(3)), "float64", (4,)),
        (npy(np.ones((2, 3))), "float64", (3, 2)),
        (npy(np.asfortranarray(np.ones((2, 3)))), "float64", (2, 3)),
        (npy(np.ones(3))[:-1], "float64", (3,)),
        (npy(np.ones(3)) + b"x", "float64", (3,)),
        (npy(np.ones(3).astype(">f8")), "float64", (3,)),
        (b"", "float64", (3,)),
        (b"\x93NUMPY\x01\x00", "float64", (3,)),
        (b"\x80\x04junk", "object", (1,)),
        (npy(np.ones(1)), "object", (1,)),
    ],
)
def test_anything_else_is_left_to_numpy(data, dtype, shape):
    assert decode(data, dtype, shape) is None


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool", ">f8"]
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (1, 0, 2)])
def test_writing_equals_numpys_own(dtype, shape):
    array = np.array(np.random.default_rng(0).random(shape) * 9, dtype)
    assert fields(array) == (dtype, shape, "numpy.ndarray", npy(array))
    if len(shape) == 2:
        assert fields(np.asfortranarray(array))[3] == npy(array)


def test_only_numbers_are_written():
    refused(lambda: fields(np.array(["a"], object)), "only arrays of numbers can be sent")


def wire(data, dtype="float64", shape=(3,), stype="numpy.ndarray"):
    return SimpleNamespace(data=data, dtype=dtype, shape=shape, stype=stype)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">f8"),
        np.array(5, ">i4"),
        np.zeros((0, 2), order="F"),
    ],
)
def test_what_numpy_writes_in_other_ways_is_read_too(array):
    got = read(wire(npy(array), str(array.dtype), array.shape))
    np.testing.assert_array_equal(got, array)
    assert got.dtype == array.dtype


def claims(shape, kind="<f8", payload=b"\x00" * 24):
    """Return .npy bytes whose header claims a shape and type, whatever follows it."""
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + payload


@pytest.mark.parametrize("shape", [(2**40,), (2**32, 2**32), (2**63,), (-1,), (3, -1), (10**30,)])
def test_a_header_that_claims_more_than_there_is_costs_no_memory(shape):
    """numpy.load allocates what the header claims: 8 TB here. Sizes that overflow a
    product to 0 or 3 are no way around it.
    """
    tracemalloc.start()
    for announced in (shape, (3,)):
        refused(lambda: read(wire(claims(shape), shape=announced)), "", WireError)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "bad",
    [
        wire(npy(np.ones(3)), shape=(4,)),
        wire(npy(np.ones(3)), shape=("3",)),
        wire(npy(np.ones(3)), shape=(3.0, [])),
        wire(npy(np.ones(3)), stype="pickle"),
        wire(None),
        wire(pickle.dumps(print)),
        wire(claims((3,), "|O"), "object"),
        wire(claims((3,), "<U2"), "<U2"),
        wire(claims((1,), "i8,i8"), "i8,i8", (1,)),
        wire(claims((3,), [("a", "<f8")])),
        wire(npy(np.ones(3)), dtype="x" * 10**6, shape=(4,)),
        wire(npy(np.ones(3)), shape=(1,) * 100),
        wire(b"\x93NUMPY\x03\x00" + npy(np.ones(3))[8:]),
    ],
)
def test_what_is_no_array_of_numbers_is_an_error_of_our_own(bad):
    refused(lambda: read(bad), "", WireError)
