"""A client's data: its samples as tensors, or arrays, split into training, validation
and test sets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a client with trees has its samples as arrays and does not need PyTorch
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """One part of a client's samples: inputs ``x`` (n, ...) and labels ``y`` (n,), or
    (n, length) for sequences, int64.

    For regression, ``y`` is (n, targets), float32; for survival times and events (n,
    2), float64.

    ``groups`` (n, G), bool, if measures by group are wanted: whether a sample belongs
    to a group; it may belong to none. ``rows``: the result at each sample is
    reported, too (``clients.base.scores.row_results``). ``augment``: how
    ``clients.steps.batches`` augments images when it draws training batches, "none" or
    "crop-flip"; ``x`` itself stays as it is.
    """

    x: "torch.Tensor"
    y: "torch.Tensor"
    groups: "torch.Tensor | None" = None
    rows: bool = False
    augment: str = "none"

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.y.shape[0])

    def to(self, device: "torch.device") -> "Split":
        """Return the split on a device."""
        # which only the measures need, in NumPy
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class ClientData:
    """A client's samples. ``validation`` is for model selection (of a mixing weight,
    for example); ``test`` for evaluation only.
    """

    train: Split
    validation: Split
    test: Split

    @property
    def nbytes(self) -> int:
        """The total size in bytes; a split that is used in two places counts once."""
        parts = {id(part): part for part in (self.train, self.validation, self.test)}
        return sum(part.x.nbytes + part.y.nbytes for part in parts.values())

    def to(self, device: "torch.device") -> "ClientData":
        """Return all splits on a device; a split that is used in two places stays
        shared.
        """
        return ClientData(*_each(self, lambda part: part.to(device)))


@dataclass(frozen=True)
class ArraySplit:
    """One part of a client's samples as NumPy arrays, like :class:`Split`."""

    x: NDArray[Any]
    y: NDArray[Any]
    groups: NDArray[np.bool_] | None = None
    rows: bool = False

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.y)

    def vectors(self) -> "ArraySplit":
        """Return the same with inputs (n, features)."""
        return replace(self, x=self.x.reshape(len(self.y), math.prod(self.x.shape[1:])))

    def tensors(self) -> Split:
        """Return the same as tensors."""
        import torch

        groups = None if self.groups is None else torch.from_numpy(self.groups)
        return Split(torch.from_numpy(self.x), torch.from_numpy(self.y), groups, self.rows)


@dataclass(frozen=True)
class ArrayData:
    """A client's samples as NumPy arrays, like :class:`ClientData`."""

    train: ArraySplit
    validation: ArraySplit
    test: ArraySplit

    def vectors(self) -> "ArrayData":
        """Return the same with inputs (n, features); a split that is used in two places
        stays shared.
        """
        return ArrayData(*_each(self, ArraySplit.vectors))

    def tensors(self) -> ClientData:
        """Return the same as tensors; a split that is used in two places stays
        shared.
        """
        return ClientData(*_each(self, ArraySplit.tensors))


def _each(data: Any, function: Callable[[Any], T]) -> list[T]:
    """Return the results for the three splits; of one that is used in two places, one
    result.
    """
    parts = (data.train, data.validation, data.test)
    made = {id(part): function(part) for part in parts}
    return [made[id(part)] for part in parts]
