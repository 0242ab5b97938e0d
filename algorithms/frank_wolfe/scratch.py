"""Room for model-sized intermediate results, kept from step to step.

An array of more than 32 MB goes back to the system when it is freed, and each new one
is paged in and cleared again: on a matrix of 3000 x 4000 that took half as long again
as the arithmetic.
"""

import math
import threading
from typing import Any

import numpy as np

from algorithms.frank_wolfe.atoms import Array

#: Numbers that are squared at once.
PIECE = 2**18


class _Room(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}


_room = _Room()


def scratch(x: Array, y: Array, number: int = 0) -> Any:
    """Return an array for a result of x and y, with any content; the next call with the
    same ``number`` may return it again.

    It belongs to the calling thread. Nothing that outlives a step may refer to it.
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
