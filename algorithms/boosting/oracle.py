"""Interface of a weak-learning oracle: an object with ``fit`` and ``predict`` whose
learners pack to named arrays of a fixed shape.

Points and values are PyTorch tensors or NumPy arrays; an oracle returns the kind that
it receives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.functional import Values, module_of

#: A packed learner: arrays by name, the same names and shapes for every learner of an
#: oracle.
Learner = dict[str, NDArray[Any]]
#: Numbers held in memory at once while learners are evaluated.
BATCH = 16_000_000


@dataclass(frozen=True)
class Target:
    """The target of an oracle: ``values`` (n, outputs) at the points and, where it is
    known, the ``function`` itself.
    """

    values: Values
    function: Callable[[Values], Values] | None = None


class Oracle(Protocol):
    """A weak-learning oracle Q."""

    def fit(self, x: Values, target: Target, rng: np.random.Generator) -> Learner:
        """Return a learner fitted to the target at the points x (n, ...). Raises
        ``Diverged`` if values become non-finite.
        """

    def predict(self, learners: Mapping[str, Values], x: Values) -> Values:
        """Return the values (m, n, outputs) of m learners, stacked along their first
        axis, at the points x (n, ...).
        """


def in_chunks(
    one: Callable[[Mapping[str, Values], Values], Values],
    learners: Mapping[str, Values],
    x: Values,
    width: int,
) -> Values:
    """Return ``one(learners, x)`` (m, n, outputs), computed in chunks of about
    ``BATCH`` numbers.

    ``width``: how many numbers one learner needs for one point.
    """
    xp = module_of(x)
    points = max(1, BATCH // width)
    some = max(1, BATCH // (width * max(1, min(len(x), points))))
    count = len(next(iter(learners.values())))
    groups = [
        {name: array[i : i + some] for name, array in learners.items()}
        for i in range(0, count, some)
    ]
    parts = [x[i : i + points] for i in range(0, max(1, len(x)), points)]
    return xp.concatenate(
        [xp.concatenate([one(group, part) for part in parts], 1) for group in groups]
    )
