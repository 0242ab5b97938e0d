"""Buffers for model-sized intermediate results, reused from step to step.

The system takes back an array of more than 32 MB when it is freed, and pages in and
clears each new one. With a matrix of 3000 x 4000, that took half as long as the
arithmetic itself.
"""

import math
import threading
from typing import Any

import numpy as np

from fedapps.algorithms.frank_wolfe.domain import Array

#: How many numbers are squared at a time.
PIECE = 2**18


class _Room(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}


_room = _Room()


def scratch(x: Array, y: Array, number: int = 0) -> Any:
    """Return an uninitialised array for a result of x and y; the next call with the
    same ``number`` may return it again.

    The array belongs to the calling thread. Do not refer to it after the step.
    """
    kind = np.result_type(x, y)
    held = _room.arrays.get(number)
    if held is None or held.shape != x.shape or held.dtype != kind:
        held = _room.arrays[number] = np.empty(x.shape, kind)
    return held


def distance(x: Array, y: Array) -> float:
    """Return ``||x - y||``, summed in double precision."""
    rest = np.subtract(x, y, out=scratch(x, y)).reshape(-1)
    return math.sqrt(
        float(
            sum(
                np.sum(np.square(rest[i : i + PIECE], dtype=np.float64))
                for i in range(0, rest.size, PIECE)
            )
        )
    )
