"""Scaling of samples: images to [0, 1], sounds to [-1, 1], numbers to mean 0 and
deviation 1 a channel.

The mean and deviation over several clients follow from three sums of each one, over its
own training samples: the number of values, their sum and that of their squares. Nothing
else of the data is used, so that these sums are all that clients of a real federation
would have to send (2 C + 1 numbers). In a simulation every process adds them up from
the partition, and nothing is sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedapps.data.source import Columns, Samples

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Moments:
    """Sums over the values of each channel: ``count`` of them, ``total`` and
    ``squares`` (C, 1, 1), or (1, 1, d) for vectors; ``size``: also of missing values.
    """

    count: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    size: int

    @classmethod
    def of(cls, x: Floats) -> "Moments":
        """Return those of samples (n, C, H, W). The features of a vector (1, 1, d) are
        channels of their own.
        """
        axes = (0,) if x.shape[1:3] == (1, 1) else (0, 2, 3)
        known = ~np.isnan(x)
        x = np.where(known, x, 0)
        total = x.sum(axes, np.float64, keepdims=True)[0]
        squares = np.square(x, dtype=np.float64).sum(axes, keepdims=True)[0]
        return cls(known.sum(axes, keepdims=True)[0], total, squares, x.size // total.size)


@dataclass(frozen=True)
class Scale:
    """``mean`` and ``deviation`` of each channel, of the shape of :class:`Moments`; a
    channel that is constant has deviation 1.
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def of_sums(cls, clients: Iterable[Moments]) -> "Scale":
        """Return mean and deviation over all values, given the sums of each client."""
        parts = list(clients)
        known = sum(part.count for part in parts)
        count = np.maximum(known, 1)
        mean = sum(part.total for part in parts) / count
        variance = sum(part.squares for part in parts) / count - np.square(mean)
        # What rounding leaves of a constant is no deviation.
        constant = variance <= 1e-13 * np.maximum(np.square(mean), 1e-30)
        deviation = np.where(constant, 1, np.sqrt(np.maximum(variance, 0)))
        return cls(np.asarray(mean, np.float32), deviation.astype(np.float32))

    def of(self, x: Floats) -> Floats:
        """Return samples with mean 0 and deviation 1, where they were those of this
        scale.
        """
        return (x - self.mean) / self.deviation


#: Before their mean and deviation are taken again, numbers of a table are cut at this
#: many deviations, so often at most, until no deviation changes by more than 1 %.
CUT, PASSES = 3.0, 10


@dataclass(frozen=True)
class TableScale(Scale):
    """Scale of the rows of a table: missing values are at the mean; ``numeric``
    columns are cut at ``clip`` deviations (0: not), categories stay 0 and 1; columns
    that are ``constant`` are 0.
    """

    numeric: npt.NDArray[np.bool_]
    constant: npt.NDArray[np.bool_]
    clip: float

    @classmethod
    def of_rows(cls, clients: list[Floats], columns: Columns, clip: float) -> "TableScale":
        """Return the scale of all clients' rows (n, 1, 1, F) together.

        It follows from sums over the clients, also where tails are cut: then every pass
        needs the sums again.
        """
        sums = [Moments.of(x) for x in clients]
        first = scale = Scale.of_sums(sums)
        for _ in range(PASSES if clip else 0):
            low, high = scale.mean - CUT * scale.deviation, scale.mean + CUT * scale.deviation
            last, scale = scale, Scale.of_sums([Moments.of(x.clip(low, high)) for x in clients])
            if (np.abs(scale.deviation - last.deviation) <= 0.01 * last.deviation).all():
                break
        known = sum(part.count for part in sums)
        seen = [np.where(np.isnan(x), first.mean, x) for x in clients]
        low, high = (end([end(x, 0) for x in seen], 0) for end in (np.min, np.max))
        constant, numeric = (low == high) | (known == 0), np.array(columns.scaled)
        # what missing values, which are put at the mean, leave of the deviation
        share = np.sqrt(known / sum(part.size for part in sums))
        deviation = np.where(numeric & ~constant, scale.deviation * share, 1)
        mean = np.where(numeric, scale.mean, first.mean)
        return cls(mean.astype(np.float32), deviation.astype(np.float32), numeric, constant, clip)

    def of(self, x: Floats) -> Floats:
        """Return rows without missing values and with numbers in deviations."""
        whole = np.where(np.isnan(x), self.mean, x)
        out = (whole - self.mean) / self.deviation
        if self.clip:
            out = out.clip(-self.clip, self.clip)
        return np.where(self.constant, 0, np.where(self.numeric, out, whole)).astype(np.float32)


def inputs(samples: Samples, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return a copy of these samples: float32, images in [0, 1], sounds in [-1, 1],
    numbers as they are; tokens stay int64.
    """
    pixels = samples.x[rows]  # a copy, also of a memory-mapped file
    if pixels.dtype == np.int64:  # tokens
        return pixels
    x = pixels.astype(np.float32)
    # in NumPy: torch would use all its threads, which is far slower on a busy machine
    if pixels.dtype != np.float32:
        x /= 255 if pixels.dtype == np.uint8 else 2**15
    return x
