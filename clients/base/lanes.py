"""What takes part in a block (``clients.base.blocks``): a client's training as a lane,
and mini-batches filled up to the same size.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from algorithms.common.steps import Eager, Epochs, Numbers, Problem, State, Step, in_batches

#: Layers whose output for a sample depends on the others of its mini-batch, and on
#: random numbers.
COUPLED, RANDOM = nn.modules.batchnorm._NormBase, (nn.modules.dropout._DropoutNd, nn.RReLU)


def cannot(problem: Problem) -> str:
    """Return why the steps of a problem are not taken for several clients at once, or
    "".
    """
    layers = list(problem.module.modules())
    if problem.criterion is None:
        return "the client has a loss of its own"
    if not problem.by_sample:
        return (
            "the objective does not say that its loss is the mean of single samples' losses "
            "(by_sample)"
        )
    if any(isinstance(layer, nn.RNNBase) for layer in layers):
        return "recurrent nets are not"
    if any(isinstance(layer, COUPLED) for layer in layers):
        return (
            "nets with batch normalisation are not: its statistics would be those of filled-up "
            "mini-batches"
        )
    if any(isinstance(layer, RANDOM) for layer in layers):
        return "nets with dropout are not: the draws would be others"
    if any(isinstance(value, Tensor) for layer in layers for value in vars(layer).values()):
        return "the net keeps tensors that are neither parameters nor buffers"
    return ""


class Lane:
    """One client's training: what it changes, and the mini-batches and numbers of its
    next steps.
    """

    def __init__(
        self,
        problem: Problem,
        step: Step,
        state: State,
        constants: State,
        numbers: Callable[[int], Numbers],
        epochs: Epochs,
        batch_size: int,
    ) -> None:
        self.problem, self.step, self.state, self.constants = problem, step, state, constants
        self.numbers, self.epochs, self.batches = numbers, epochs, in_batches(epochs, batch_size)
        self.ahead: deque[tuple[Tensor, Tensor, Numbers]] = deque()
        self.done = 0  # mini-batches drawn
        self.total: Tensor | float = 0.0
        self.error: Exception | None = None
        self.threads = torch.get_num_threads()  # a thread's own, and this is the client's
        named = {**dict(problem.module.named_parameters()), **dict(problem.module.named_buffers())}
        self.others = {
            name: [t.detach()] for name, t in named.items() if name not in problem.moving
        }
        self.eager = Eager(problem)
        self.device, self.dtype = self.eager.place[0].device, self.eager.place[0].dtype
        lists = (*state.items(), *constants.items(), *self.others.items())
        forms = tuple(
            (name, tuple((t.shape, t.dtype, t.device) for t in tensors)) for name, tensors in lists
        )
        self.key = (
            step,
            problem.criterion,
            problem.surrogate,
            tuple(problem.moving),
            forms,
            _described(problem.module),
        )

    def draw(self, count: int) -> int:
        """Have the next ``count`` steps ahead, if there are as many; return how many
        there are. An error is the client's own.
        """
        try:
            while (
                self.error is None
                and len(self.ahead) < count
                and (batch := next(self.batches, None))
            ):
                self.ahead.append((*batch, self.numbers(self.done)))
                self.done += 1
        except Exception as error:
            self.fail(error)
        return len(self.ahead)

    def form(self) -> Hashable:
        """Return what a sample looks like."""
        x, y, _ = self.ahead[0]
        return x.shape[1:], x.dtype, y.shape[1:], y.dtype

    def eagerly(self, count: float = math.inf) -> None:
        """Take so many of the next steps alone, or all."""
        try:
            while count > 0 and self.draw(1):
                x, y, numbers = self.ahead.popleft()
                loss = self.eager.step(
                    self.step, {**self.state, **self.constants}, numbers, x, y
                ) * len(y)
                self.total, count = self.total + loss, count - 1
        except Exception as error:
            self.fail(error)

    def tried(self) -> list[tuple[Tensor, list[Tensor]]]:
        """Return loss and state after an eager step with the next mini-batch, and with
        all but its last sample; take neither.
        """
        x, y, numbers = self.ahead[0]
        places = [*self.eager.place, *(t for tensors in self.others.values() for t in tensors)]
        own, found = [t.clone() for t in places], []
        try:
            for n in tried_sizes(len(y)):
                state = {name: [t.clone() for t in tensors] for name, tensors in self.state.items()}
                loss = self.eager.step(
                    self.step, {**state, **self.constants}, numbers, x[:n], y[:n]
                )
                found.append((loss, [t for tensors in state.values() for t in tensors]))
            changed = not all(
                map(torch.equal, own[len(self.eager.place) :], places[len(self.eager.place) :])
            )
        finally:
            for target, value in zip(places, own, strict=True):
                target.copy_(value)
        return [] if changed else found

    def fail(self, error: Exception) -> None:
        """Take no more steps: the client fails."""
        self.error = error
        self.ahead.clear()
        self.epochs.close()

    def outcome(self) -> float | Exception:
        """Return the sum of the losses of all samples, or the error."""
        return float(self.total) if self.error is None else self.error


def filled(
    xs: list[Tensor], ys: list[Tensor], dtype: torch.dtype, size: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mini-batches of the same size: x and y (lanes, size, ...), the weights of
    samples (lanes, size), the sizes (lanes,).

    A smaller mini-batch is filled up with its own first sample, which weighs 0: with
    zeros a net might divide by 0, which no weight undoes. ``size``: by default that of
    the largest.
    """
    sizes, device = [len(y) for y in ys], ys[0].device
    size = max(size, *sizes)

    def full(parts: list[Tensor]) -> Tensor:
        return torch.stack(
            [
                p if len(p) == size else torch.cat([p, p[:1].expand(size - len(p), *p.shape[1:])])
                for p in parts
            ]
        )

    counts = torch.tensor(sizes, dtype=dtype, device=device)
    weights = (torch.arange(size, device=device) < counts[:, None]).to(dtype) / counts[:, None]
    return full(xs), full(ys), weights, counts


def numbers_of(steps: list[list[Numbers]], lane: Lane) -> dict[str, Tensor]:
    """Return the numbers of steps and lanes as tensors (steps, lanes, ...)."""
    return {
        name: torch.tensor(
            [[values[name] for values in step] for step in steps],
            dtype=lane.dtype,
            device=lane.device,
        )
        for name in steps[0][0]
    }


def tried_sizes(n: int) -> tuple[int, int]:
    """Return the sizes of the two mini-batches, among ``n`` samples, with which a step
    is tried.
    """
    return n, max(1, n - 1)


def gpus(lane: Lane) -> list[torch.device]:
    """Return the lane's device if it is a GPU, whose random numbers are its own."""
    return [lane.device] if lane.device.type == "cuda" else []


def _described(module: nn.Module) -> str:
    """Return what tells a net from others: its layers, and the numbers and words that
    they keep.
    """
    kinds = (bool, int, float, str, tuple, type(None))
    plain = [
        (
            name,
            type(layer).__qualname__,
            [
                (k, v)
                for k, v in sorted(vars(layer).items())
                if isinstance(v, kinds) and k != "training"
            ],
        )
        for name, layer in module.named_modules()
    ]
    return f"{type(module)} {module!r} {plain}"
