"""Values of an additive function at points, tensors or arrays: of the whole function,
or updated by one block.
"""

from collections.abc import Callable, Iterator, Mapping

from fedapps.algorithms.boosting.additive import Additive, Block
from fedapps.algorithms.boosting.functional import Values, clipped, like, module_of

#: (learners stacked (m, ...), points (n, ...)) -> values (m, n, outputs)
Predict = Callable[[Mapping[str, Values], Values], Values]
#: Largest number of learner values in memory at once.
BATCH = 4_000_000


def values_at(
    function: Additive, x: Values, outputs: int, predict: Predict, points: int = 4096
) -> Values:
    """Return the values (n, outputs) of a function at the points x (n, ...), computed
    in batches of ``points``.
    """
    xp = module_of(x)
    parts = [
        _values(function, x[start : start + points], outputs, predict)
        for start in range(0, len(x), points)
    ]
    return xp.concatenate(parts) if parts else zeros(x, outputs)


def zeros(x: Values, outputs: int) -> Values:
    """Return zeros (n, outputs), single precision, of the kind of the points x (n,
    ...).
    """
    xp = module_of(x)
    return xp.zeros((len(x), outputs), dtype=xp.float32, device=x.device)


def _values(function: Additive, x: Values, outputs: int, predict: Predict) -> Values:
    values = zeros(x, outputs)
    for block in function.blocks:
        values = advance(values, block, x, predict, function.clip)
    return values


def advance(
    values: Values, block: Block, x: Values, predict: Predict, clip: float | None = None
) -> Values:
    """Return the values (n, outputs) at x after a block, from those before it."""
    xp = module_of(x)
    values = block.shrink * values
    for start, learners in _chunks(
        block, max(1, BATCH // max(1, values.shape[0] * values.shape[1])), x
    ):
        outputs = clipped(predict(learners, x), clip)
        weights = xp.asarray(
            like(block.coefficients[start : start + len(outputs)], x), dtype=values.dtype
        )
        values = values + xp.tensordot(weights, xp.asarray(outputs, dtype=values.dtype), 1)
    return values


def _chunks(block: Block, size: int, x: Values) -> Iterator[tuple[int, dict[str, Values]]]:
    for start in range(0, len(block), size):
        yield (
            start,
            {name: like(array[start : start + size], x) for name, array in block.learners.items()},
        )
