"""Local steps of several clients at once, for small nets, on which PyTorch needs longer
to start its operations than to carry them out.

The tensors of a cohort have its clients as their first axis. A step
(``algorithms.common.steps``) is taken for all of them: the gradient is that of each
client's own mini-batch (``clients.steps.stacked``), arithmetic is elementwise, and
numbers that change from step to step are tensors (clients,). Steps that say so
(``by_cohort``) are written for both.

Clients draw their mini-batches as they do alone. Smaller ones are padded, and padded
samples weigh nothing. The results of a client, to the last bit, do not depend on the
others of its cohort: sizes follow from its own samples, and a client alone is two equal
ones. They differ from those of steps that are taken one by one in the last bits.
"""

import itertools
import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapps.algorithms.common.steps import (
    Eager,
    Epochs,
    Moving,
    Problem,
    State,
    Step,
    Tensors,
    no_numbers,
    no_surrogate,
    numbers_of,
    tensors_of,
)
from fedapps.clients.base.together import FAILED, MOST_BYTES, is_together, known, once, result
from fedapps.clients.steps.sgd import stacked
from fedapps.clients.steps.stacked import Kernel, kernel_of, operations_of_sample

#: The most operations of a client's step that are taken by the cohort: beyond, one
#: client keeps a core, or a GPU, busy. Measured with ``benchmarks/speed.py cohorts``.
MOST_OPERATIONS = {"cpu": 4e6, "cuda": 4e8}
#: The last numbers of a tensor, for which PyTorch takes functions of another precision
#: than for the others. They are those of spare clients.
TAIL = 32


@dataclass(frozen=True)
class Result:
    """What a client's steps have made of its tensors, and the losses and number of its
    samples.
    """

    tensors: dict[str, Tensors]
    total: float
    samples: int

    def written(self, state: State) -> tuple[float, int]:
        """Write the tensors to the client's own; return the losses and the number."""
        for name, tensors in self.tensors.items():
            if tensors:
                torch._foreach_copy_(state[name], tensors)
        return self.total, self.samples


@dataclass(frozen=True)
class Training:
    """One client's steps: copies of its tensors, those that change and those that do
    not, its numbers in every step, and its samples, which are cut into mini-batches.
    """

    problem: Problem
    step: Step
    changed: dict[str, Tensors]
    read: dict[str, Tensors]
    others: Tensors
    numbers: list[State]
    samples: list[tuple[Tensor, Tensor]]
    batch_size: int

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        lists = [*self.changed.values(), *self.read.values(), self.others, *self.samples]
        return sum(t.nbytes for tensors in lists for t in tensors)

    @cached_property
    def rows(self) -> int:
        """The samples of a mini-batch with padding."""
        return rows_of(max((len(y) for _, y in self.samples), default=1), self.batch_size)

    @property
    def padded(self) -> int:
        """The bytes of the samples of all steps with padding."""
        return len(self.numbers) * self.rows * sum(t[:1].nbytes for t in self.samples[0])

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """The numbers that are the same in all steps."""
        first = self.numbers[0] if self.numbers else {}
        return {n: v for n, v in first.items() if all(of[n] == v for of in self.numbers)}

    @cached_property
    def kernel(self) -> Kernel:
        """The gradients of the net."""
        x, y = self.samples[0]
        kernel = kernel_of(self.problem, x[:1], y[:1], self.rows)
        assert kernel is not None
        return kernel

    @cached_property
    def key(self) -> Hashable:
        """What all clients of a cohort have in common."""
        shapes = tuple(
            (name, tuple(t.shape for t in tensors))
            for name, tensors in (*self.changed.items(), *self.read.items())
        )
        fixed = tuple((n, tuple(v) if isinstance(v, list) else v) for n, v in self.fixed.items())
        return id(self.kernel), self.step, self.rows, shapes, fixed, len(self.others)

    @staticmethod
    def done(together: Sequence["Training"]) -> list[Result]:
        """Take the steps of clients, by cohorts."""
        results: dict[int, Result] = {}
        cohorts: dict[Hashable, list[int]] = {}
        for place, training in enumerate(together):
            cohorts.setdefault(training.key, []).append(place)
        for places in cohorts.values():
            # the longest first, so that those who are done leave at the end
            places.sort(key=lambda place: -len(together[place].numbers))
            for some in _bounded(places, together):
                members = [together[place] for place in some]
                with stacked():
                    ended = _Cohort(members[0].kernel, members).ended()
                results.update(zip(some, ended, strict=True))
        return [results[place] for place in range(len(together))]


class Cohorts:
    """Runs a client's steps together with those of other clients (a ``Runner``)."""

    at_once = 1

    @staticmethod
    def run(
        problem: Problem,
        step: Step,
        state: State,
        epochs: Epochs,
        batch_size: int,
        moving: Moving = no_numbers,
    ) -> tuple[float, int]:
        """As ``Runner.run``."""
        if isinstance(before := known(), Result):  # the call is made again
            return before.written(state)
        if (first := next(((x, y) for x, y in epochs if len(y)), None)) is None:
            return 0.0, 0
        x, y = first
        if before or kernel_of(problem, x[:1], y[:1], rows_of(len(y), batch_size)) is None:
            if before is None:
                once(lambda: FAILED)
            every = (pair for pair in itertools.chain([first], epochs))
            return Eager.run(problem, step, state, every, batch_size, moving)
        samples = [first, *((x, y) for x, y in epochs if len(y))]
        steps = sum(-(-len(y) // batch_size) for _, y in samples)
        named, fixed = problem.module.named_parameters(), numbers_of(state)
        changed, read = (
            {name: [t.clone() for t in tensors] for name, tensors in tensors_of(state, k).items()}
            for k in (list, tuple)
        )
        found: Result = result(
            Training(
                problem,
                step,
                changed,
                read,
                [p.detach().clone() for name, p in named if name not in problem.moving],
                [{**fixed, **moving(i)} for i in range(steps)],
                samples,
                batch_size,
            )
        )
        return found.written(state)


def by_cohort(problem: Problem, step: Step, batch_size: int, samples: int) -> bool:
    """Return whether a client's steps are taken together with those of others; the
    decision is the client's own.
    """
    if not is_together() or not samples or not getattr(step, "by_cohort", False):
        return False
    kinds = {p.device.type for p in problem.moving.values()}
    most = min((MOST_OPERATIONS.get(kind, 0.0) for kind in kinds), default=0.0)
    if not problem.by_sample or (operations := operations_of_sample(problem.module)) is None:
        return False
    if 3 * operations * rows_of(samples, batch_size) > most:
        return False
    _say_once(most)
    return True


@cache
def _say_once(most: float) -> None:
    logging.getLogger("flwr").debug(
        "local steps below %g MFLOP are taken for several clients at once", most / 1e6
    )


def rows_of(samples: int, batch_size: int) -> int:
    """Return the padded size of mini-batches, in whole fours (``stacked.Aligned``):
    ``batch_size``, or for fewer samples the next power of two.
    """
    return -(-min(batch_size, 1 << (samples - 1).bit_length()) // 4) * 4


def _bounded(places: Sequence[int], together: Sequence[Training]) -> Iterator[list[int]]:
    """Yield the clients in cohorts whose samples, padded to the steps of the first one,
    which takes the most, are no more than ``MOST_BYTES``, or one client's.
    """
    some: list[int] = []
    for place in places:
        if some and (len(some) + 1) * together[some[0]].padded > MOST_BYTES:
            yield some
            some = []
        some.append(place)
    yield some


class _Cohort:
    """The tensors of clients, one after the other along the first axis."""

    def __init__(self, kernel: Kernel, members: Sequence[Training]) -> None:
        first = members[0]
        self.kernel, self.clients = kernel, len(members)
        self.spare = -(-TAIL // (first.rows if kernel.surrogate is no_surrogate else 1))
        self.members = members = [*members, *[members[-1]] * self.spare]
        self.steps = np.array([len(one.numbers) for one in members])
        self.module, self.device = first.problem.module, first.samples[0][1].device
        self.module.train()
        self.changed, read = (
            {name: self._lists([of[name] for of in each]) for name in each[0]}
            for each in ([one.changed for one in members], [one.read for one in members])
        )
        self.every = {**self.changed, **read}
        self.others = self._lists([one.others for one in members])
        self.numbers = self._numbers()
        rows, weights, self.sizes = _plan(members, first.rows)
        at = torch.from_numpy(rows).to(self.device)
        x, y = (
            torch.cat([pair[i] for one in members for pair in one.samples])[at] for i in range(2)
        )
        self.x, self.y, self.weights = x, y, torch.from_numpy(weights).to(self.device)
        self.batch: tuple[Tensor, Tensor, Tensor] | None = None

    @staticmethod
    def _lists(lists: Sequence[Tensors]) -> Tensors:
        return [torch.stack(column) for column in zip(*lists, strict=True)]

    def _numbers(self) -> list[State]:
        """Return the numbers of all steps; those that change as tensors (clients,)."""
        fixed, longest = self.members[0].fixed, int(self.steps[0])
        moving: dict[str, Any] = {}
        for name, value in self.members[0].numbers[0].items():
            if name in fixed:
                continue
            many = isinstance(value, Sequence)
            table = np.zeros((longest, len(self.members), len(value) if many else 1), np.float32)
            for i, one in enumerate(self.members):
                table[: len(one.numbers), i] = np.array([n[name] for n in one.numbers]).reshape(
                    len(one.numbers), -1
                )
            of_step = torch.from_numpy(table).to(self.device).unbind()
            moving[name] = [list(t.unbind(1)) if many else t[:, 0] for t in of_step]
        return [
            {**fixed, **{name: values[s] for name, values in moving.items()}}
            for s in range(longest)
        ]

    def __call__(self, at: Tensors) -> tuple[Tensor, Tensors]:
        """Return losses (clients,) and gradients at the parameters ``at``."""
        assert self.batch is not None
        x, y, weights = self.batch
        others = [t[: len(y)] for t in self.others]
        return self.kernel(self.module, at, others, x, y, weights)

    def ended(self) -> list[Result]:
        """Take all steps; return what they made of each client."""
        ends: list[dict[str, Tensors] | None] = [None] * len(self.members)
        losses = torch.zeros(int(self.steps[0]), len(self.members), device=self.device)
        step, done, active = self.members[0].step, 0, self.clients
        while active:
            size, until = active + self.spare, int(self.steps[active - 1])
            state = {name: [t[:size] for t in tensors] for name, tensors in self.every.items()}
            for s in range(done, until):
                self.batch = self.x[s, :size], self.y[s, :size], self.weights[s, :size]
                numbers = {
                    name: [v[:size] for v in value] if isinstance(value, list)
                    else value[:size] if isinstance(value, Tensor) else value
                    for name, value in self.numbers[s].items()
                } if size < len(self.members) else self.numbers[s]  # fmt: skip
                losses[s, :size] = step(self, {**state, **numbers})
            done, left = until, int((self.steps[: self.clients] > until).sum())
            for i in range(left, active):  # some go on as the spare ones of the others
                again = left > 0 and i < left + self.spare
                ends[i] = {
                    name: [t[i].clone() if again else t[i] for t in tensors]
                    for name, tensors in self.changed.items()
                }
            active = left
        sums = losses.cpu().numpy().T.astype(np.float64) * self.sizes.T
        return [
            Result(end, float(of[:n].sum()), int(size.sum()))
            for end, of, n, size in zip(ends, sums, self.steps, self.sizes.T, strict=True)
            if end is not None
        ]


def _plan(
    members: Sequence[Training], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return, of all members' samples one after the other, those of every step (steps,
    clients, rows), their weights, and the sizes of mini-batches (steps, clients).
    """
    size = members[0].batch_size
    lengths = np.array([len(y) for one in members for _, y in one.samples])
    clients = np.repeat(np.arange(len(members)), [len(one.samples) for one in members])
    batches = -(-lengths // size)
    pieces = np.repeat(np.arange(len(lengths)), batches)
    within = np.arange(len(pieces)) - np.repeat(batches.cumsum() - batches, batches)
    steps_of = np.bincount(clients, batches, len(members)).astype(np.int64)
    step = np.arange(len(pieces)) - np.repeat(steps_of.cumsum() - steps_of, steps_of)
    client = clients[pieces]
    count = np.minimum(size, lengths[pieces] - within * size)
    begin = (lengths.cumsum() - lengths)[pieces] + within * size
    shape = int(steps_of.max()), len(members), rows
    at, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    sizes = np.zeros(shape[:2], np.int64)
    column = np.arange(rows)
    # padded with the last sample of the mini-batch itself
    at[step, client] = begin[:, None] + np.minimum(column, count[:, None] - 1)
    weights[step, client] = (column < count[:, None]) / count[:, None]
    sizes[step, client] = count
    return at, weights, sizes
