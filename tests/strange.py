"""Replies that a client could send by mistake or on purpose: seeded mutations of the
bytes and the structure of a valid reply.
"""

from contextlib import suppress

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

DTYPES = [
    "float64",
    "<f4",
    "int64",
    "complex64",
    "object",
    "V8",
    "U5",
    "i8,i8",
    "(3,)f4",
    "float128",
    "",
    "x" * 500,
    "datetime64[s]",
]
SHAPES = [
    (),
    (0,),
    (-1,),
    (3, -2),
    (2**40, 2**40),
    (2**62,),
    (1,) * 40,
    (1,) * 70,
    ("a",),
    (1.5,),
    (None,),
    (True,),
    ([1],),
    ({},),
]
NUMBERS = [
    0,
    -1,
    2**62,
    -(2**62),
    1e300,
    1e30,
    1e16,
    float("nan"),
    float("inf"),
    -0.0,
    5e-324,
    [],
    [1.0, 2.0],
    [0] * 1000,
    [float("nan")],
]
VALUES = ["", "a\nb", b"\x00\xff", True, [], ["x"], [1, 2], 2**62, 1e300]


def mutate(content, rng):
    """Return a copy of a message's content, changed in one to three ways. Arrays that
    are not changed are those of the original.
    """
    content = copied(content)
    for _ in range(rng.integers(1, 4)):
        kinds = [bytes_, header, values, structure, metrics, info]
        kinds[rng.integers(len(kinds))](content, rng)
    return content


def copied(content):
    """Return a copy of a content that shares nothing but arrays, and lists among
    metrics, neither of which is changed in place.
    """
    content = content.copy()
    for name, record in content.items():
        content[name] = record.copy()
    return content


def mutate_bytes(data, rng):
    """Return bytes with a few of them changed, or cut, or longer."""
    out = bytearray(data)
    kind = rng.integers(5)
    if kind == 0:
        del out[rng.integers(len(out) + 1) :]
    elif kind == 1:
        out += rng.bytes(int(rng.integers(1, 50)))
    elif kind == 2:
        out = bytearray(rng.bytes(int(rng.integers(0, 200))))
    else:
        head = min(len(out), 128) if kind == 3 else len(out)
        for _ in range(rng.integers(1, 9)) if head else []:
            out[rng.integers(head)] = rng.integers(256)
    return bytes(out)


def _pick(items, rng):
    return items[rng.integers(len(items))]


def _array(content, rng):
    """Return a record and the name of one of its arrays, or nothing."""
    records = [
        record for record in content.values() if isinstance(record, ArrayRecord) and len(record)
    ]
    return (record := _pick(records, rng), _pick(list(record), rng)) if records else (None, "")


def bytes_(content, rng):
    record, name = _array(content, rng)
    if record:
        old = record[name]
        record[name] = Array(
            dtype=old.dtype, shape=old.shape, stype=old.stype, data=mutate_bytes(old.data, rng)
        )


def header(content, rng):
    record, name = _array(content, rng)
    if record:
        old = record[name]
        dtype = _pick([old.dtype, *DTYPES], rng)
        shape = _pick([tuple(old.shape), *SHAPES], rng)
        stype = _pick([old.stype] * 5 + ["pickle", ""], rng)
        with suppress(TypeError):  # the Array itself refuses some of them
            record[name] = Array(dtype=dtype, shape=shape, stype=stype, data=old.data)


def values(content, rng):
    record, name = _array(content, rng)
    if record:
        shape = tuple(s for s in record[name].shape if type(s) is int and 0 <= s < 10**5)[:4]
        shape = _pick([shape, shape, shape, (3,), (), (0,), (*shape, 1), shape[::-1]], rng)
        kind = _pick(["f4", "f8", "f2", "i8", "i4", "u1", "?", "c8"], rng)
        filling = _pick([0.0, 1.0, -1.0, 1e30, 1e-30, np.nan, np.inf, 7.0, 1e14], rng)
        with np.errstate(all="ignore"):
            new = np.full(shape, filling).astype(kind)
            record[name] = Array(
                np.asarray(new if rng.random() < 0.5 else new + rng.normal(size=shape).astype(kind))
            )


def structure(content, rng):
    record, name = _array(content, rng)
    kind = rng.integers(8)
    if kind == 0:
        content.clear()
    elif kind == 1 and record:
        content["again"] = record.copy()
    elif kind == 2 and len(content):
        del content[_pick(list(content), rng)]
    elif kind == 3 and record:
        del record[name]
    elif kind == 4 and record:
        record["more"] = Array(rng.normal(size=4))
    elif kind == 5 and record:
        arrays = dict(record)
        record.clear()
        for key in sorted(arrays, key=lambda _: rng.random()):
            record[key] = arrays[key]
    elif kind == 6 and record:
        record["\n<b>"] = record[name]
        del record[name]
    else:
        content["arrays"] = ArrayRecord()


def metrics(content, rng):
    records = [record for record in content.values() if isinstance(record, MetricRecord)]
    record = _pick(records, rng) if records else MetricRecord()
    name = _pick([*record, "loss", "num-examples", "accuracy", "lambda-grid", "a\n<b>"], rng)
    if rng.random() < 0.2:
        record.pop(name, None)
    else:
        record[name] = _pick(NUMBERS, rng)
    content["metrics"] = record


def info(content, rng):
    records = [record for record in content.values() if isinstance(record, ConfigRecord)]
    record = _pick(records, rng) if records else ConfigRecord()
    record[_pick([*record, "predictor-arrays", "x"], rng)] = _pick(VALUES, rng)
    content["info"] = record
