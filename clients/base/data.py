"""A client's data: its samples as tensors, split into training, validation and test sets."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Split:
    """One part of a client's samples: inputs ``x`` (n, ...) and labels ``y`` (n,), or (n, length) for sequences, int64.

    ``groups`` (n, G), bool, if measures by group are wanted: whether a sample is of a group; it may be of none.
    """

    x: torch.Tensor
    y: torch.Tensor
    groups: torch.Tensor | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.y.shape[0])

    def to(self, device: torch.device) -> "Split":
        """Return the split on a device."""
        return Split(self.x.to(device), self.y.to(device), self.groups)  # which only the measures need, in NumPy


@dataclass(frozen=True)
class ClientData:
    """A client's samples. ``validation`` is for model selection (of a mixing weight, for example); ``test`` for evaluation only."""

    train: Split
    validation: Split
    test: Split

    @property
    def nbytes(self) -> int:
        """The total size in bytes; a split that is used in two places counts once."""
        parts = {id(part): part for part in (self.train, self.validation, self.test)}
        return sum(part.x.nbytes + part.y.nbytes for part in parts.values())

    def to(self, device: torch.device) -> "ClientData":
        """Return all splits on a device; a split that is used in two places stays shared."""
        parts = (self.train, self.validation, self.test)
        moved = {id(part): part.to(device) for part in parts}
        return ClientData(*(moved[id(part)] for part in parts))
