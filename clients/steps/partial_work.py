"""A round's local steps, ended early so that the reply is not late. Who asks for that,
and what it does to the average: ``strategies/base/partial_work.py``.

Steps are left out at the end: those that are taken are the first ones of the whole
training, with the same mini-batches, momentum and random draws.
"""

import time
from dataclasses import dataclass, field

import torch
from torch import nn

from fedapps.algorithms.common.schedule import samples_of, samples_within
from fedapps.algorithms.common.steps import Epochs, batch_sizes
from fedapps.algorithms.contract.sent import PartialWork
from fedapps.clients.base.options import TrainOptions


@dataclass
class Part:
    """The steps that ``work`` leaves of a training on ``samples`` samples, at least
    one, and how many samples they had. ``stride``: steps between two looks at the
    clock.
    """

    work: PartialWork
    samples: int
    options: TrainOptions
    module: nn.Module
    stride: int = 1
    done: int = 0
    began: float = field(default_factory=lambda: time.monotonic())

    @property
    def whole(self) -> int:
        """The samples of the whole training."""
        return samples_of(self.options.local_epochs, self.samples, self.options.batch_size)

    def of(self, epochs: Epochs) -> Epochs:
        """Yield the samples (x, y) of the steps: whole epochs and a part of the last;
        if seconds are given, in pieces, of which the next one is begun if it would end
        in time, taking as long as the one before.
        """
        share, seconds = self.work.share, self.work.seconds
        limit, size = self.whole, self.options.batch_size
        if share is not None:
            limit = samples_within(share, self.samples, size, self.whole / self.samples)
            limit = max(limit, min(size, self.samples))
        piece = self.samples if seconds is None else self.stride * size
        now = self.began
        for x, y in epochs:
            start = 0
            for length in batch_sizes(x, piece, self.module):
                end = start + min(length, limit - self.done)
                yield x[start:end], y[start:end]
                # here, the steps with these samples have been taken
                self.done += end - start
                start = end
                if self.done >= limit:
                    return
                if seconds is not None:
                    if not y.is_cpu:
                        torch.accelerator.synchronize(y.device)
                    before, now = now, time.monotonic()
                    if (now - self.began) + (now - before) > seconds:
                        return

    def came(self, done: int) -> PartialWork:
        """Return what the reply says about the work: ``done`` samples."""
        share = min(1.0, done / self.whole)
        timed = self.work.seconds is not None
        return PartialWork(share, time.monotonic() - self.began if timed else None)
