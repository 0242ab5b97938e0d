"""The additive model of functional boosting: ``f^{t+1} = c_t f^t + sum_j w_j h_j``, one
block of learners per round.

Given the values of f^t at some points, only the blocks from t on are needed to update
them. Learners are packed as named arrays, stacked along their first axis; an oracle's
``predict`` evaluates them (``algorithms.boosting.weak_learners``).

Its values at points, tensors or arrays, are those of the whole function, or updated by
one block.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.functional import Values, clipped, like, module_of

Learners = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Block:
    """One round's update of the function: multiply it by ``shrink``, then add
    ``coefficients`` (m,) times the m learners.
    """

    shrink: float
    coefficients: NDArray[np.float64]
    learners: Learners

    def __post_init__(self) -> None:
        sizes = {name: len(array) for name, array in self.learners.items()}
        if set(sizes.values()) - {len(self.coefficients)}:
            raise ValueError(
                f"{len(self.coefficients)} coefficients for learners whose arrays hold {sizes}: "
                "one for each"
            )

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self.coefficients)


@dataclass
class Additive:
    """The additive function; 0 without blocks. ``clip``: learner outputs are clipped to
    [-clip, clip] before summing (FFGB.C).
    """

    clip: float | None = None
    blocks: list[Block] = field(default_factory=list)

    @property
    def version(self) -> int:
        """The number of blocks: t of f^t."""
        return len(self.blocks)

    def __len__(self) -> int:
        """Return the number of learners."""
        return sum(map(len, self.blocks))

    # --- as named arrays --------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the function as named arrays: those of :meth:`head` and those of every
        block.
        """
        out = self.head()
        for number, block in enumerate(self.blocks):
            out |= named(number, block)
        return out

    def head(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that belong to no single block: ``shrinks`` (t,) and, if
        learners are clipped, ``clip``.
        """
        out = {"shrinks": np.array([block.shrink for block in self.blocks], np.float64)}
        return out if self.clip is None else out | {"clip": np.array([self.clip])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Additive":
        """Rebuild the function from the arrays of :meth:`to_arrays`; raises
        ``ValueError`` if they are not such arrays.
        """
        if "shrinks" not in arrays:
            raise ValueError(
                f"no array 'shrinks' among {list(arrays)[:4]}: this is not the model of a boosted "
                "function"
            )
        of_blocks: list[dict[str, NDArray[Any]]] = [{} for _ in arrays["shrinks"]]
        for name, array in arrays.items():
            if name.startswith("block."):
                _, number, rest = name.split(".", 2)
                of_blocks[int(number)][rest] = array
        blocks = [
            Block(float(shrink), own.pop("coefficients"), own)
            for shrink, own in zip(arrays["shrinks"], of_blocks, strict=True)
        ]
        return cls(float(arrays["clip"][0]) if "clip" in arrays else None, blocks)


def named(number: int, block: Block) -> dict[str, NDArray[Any]]:
    """Return the arrays of block ``number`` under their names in
    :meth:`Additive.to_arrays`.
    """
    return {
        f"block.{number:06d}.{name}": array
        for name, array in {"coefficients": block.coefficients, **block.learners}.items()
    }


def stacked(groups: Sequence[Learners]) -> dict[str, NDArray[Any]]:
    """Concatenate groups of stacked learners; raises ``ValueError`` if their arrays
    differ in name, dtype or shape.
    """
    for group in groups[1:]:
        if shapes(group) != shapes(groups[0]):
            raise ValueError(
                f"learners of arrays {shapes(group)} beside {shapes(groups[0])}: all must be of "
                "one kind"
            )
    return (
        {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
        if groups
        else {}
    )


def shapes(learners: Learners) -> dict[str, tuple[Any, ...]]:
    """Return name -> (dtype, shape) of a single learner's arrays."""
    return {name: (str(array.dtype), *array.shape[1:]) for name, array in learners.items()}


# --- as part of a message -------------------------------------------------------------


def pack_blocks(blocks: Sequence[Block]) -> tuple[list[NDArray[Any]], list[str]]:
    """Return blocks as arrays (``shrinks``, ``sizes`` (t,), coefficients, stacked
    learners) and the names of the learners' arrays.
    """
    learners = stacked([block.learners for block in blocks if len(block)])
    coefficients = np.concatenate([np.zeros(0), *(block.coefficients for block in blocks)])
    facts = [
        np.array([block.shrink for block in blocks], np.float64),
        np.array([len(block) for block in blocks], np.int64),
    ]
    return [*facts, coefficients, *learners.values()], list(learners)


def unpack_blocks(arrays: Sequence[NDArray[Any]], names: Sequence[str]) -> list[Block]:
    """Undo :func:`pack_blocks`; raises ``ValueError`` for malformed arrays."""
    shrinks, sizes, coefficients, *rest = arrays
    rows = shrinks.ndim == sizes.ndim == coefficients.ndim == 1 and all(
        array.ndim for array in rest
    )
    kinds = shrinks.dtype.kind + sizes.dtype.kind + coefficients.dtype.kind
    if not rows or kinds != "fif" or (sizes < 0).any():
        raise ValueError(
            f"packed blocks: arrays of kinds {kinds!r}, or not in rows: shrinks, sizes, "
            "coefficients, learners"
        )
    learners, ends = dict(zip(names, rest, strict=True)), np.cumsum(sizes)
    parts = [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]
    return [
        Block(
            float(shrink),
            coefficients[part],
            {name: array[part] for name, array in learners.items()},
        )
        for shrink, part in zip(shrinks, parts, strict=True)
    ]


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
