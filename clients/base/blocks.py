"""Local steps of several clients at once: what they change stacked on a new first axis,
and ``torch.func.vmap`` over the step.

On a GPU a step of a small net costs what its operations cost to start, whoever they are
for: a block of clients takes one step in about the time of one client. Clients meet
here (``algorithms.common.turns``) after they have received their model and before they
send theirs; each has a module, a state, mini-batches and numbers of its own. In every
step they take their own next mini-batch, at their own rates; a smaller one is filled
up, by samples that weigh nothing, and a client that has no more leaves the block. What
vmap costs in every step is saved where many are of the same sizes: they are traced,
once, and the operations called as they were. Whatever cannot be taken together is taken
eagerly, client by client, with one line in the log.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from algorithms.common.steps import Eager, Epochs, Numbers, Problem, State, Step, Tensors
from algorithms.common.turns import meet
from clients.base.lanes import Lane, cannot, filled, gpus, numbers_of, tried_sizes

#: Steps between two copies of a block's state, to which it returns when a client's
#: samples raise.
SLAB = 16
#: Steps of the same sizes after which they are traced, which takes as long as it saves
#: in some 150.
TRACED_AFTER = 200

logger = logging.getLogger("flwr")


@dataclass
class Blocks:
    """Runs the steps of clients that take turns block by block. ``taken``: sizes of the
    blocks, for whoever wants to know.
    """

    agreed: dict[Hashable, bool] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)
    traces: "Traces" = field(default_factory=lambda: Traces())

    def run(
        self,
        problem: Problem,
        step: Step,
        state: State,
        constants: State,
        numbers: Callable[[int], Numbers],
        epochs: Epochs,
        batch_size: int,
    ) -> float:
        """As ``Runner.run``, together with the other clients that take the same
        step.
        """
        if reason := cannot(problem):
            self._tell(reason)
            return Eager.run(problem, step, state, constants, numbers, epochs, batch_size)
        lane = Lane(problem, step, state, constants, numbers, epochs, batch_size)
        total: float = meet((id(self), lane.key), lane, self._serve)
        return total

    def _serve(self, lanes: "list[Lane]") -> "list[float | Exception]":
        modules = {id(lane.problem.module) for lane in lanes}
        # each has overwritten the others' parameters before it came here
        if len(modules) < len(lanes):
            raise RuntimeError(
                "clients that take turns train in the same module: give each its own, or choose "
                "train.compile = 'off'"
            )
        if torch.get_num_threads() != lanes[0].threads:
            torch.set_num_threads(lanes[0].threads)
        if len(lanes) > 1:
            # Who draws mini-batches seeds PyTorch's generators and sets them back,
            # which several do in any order.
            with torch.random.fork_rng(devices=gpus(lanes[0])):
                try:
                    self._together(lanes)
                # for example of a GPU without memory for a block: what was taken is
                # taken
                except Exception as error:
                    self._tell(_line(error))
                for lane in lanes:
                    lane.eagerly()
        lanes[0].eagerly()
        return [lane.outcome() for lane in lanes]

    def _together(self, lanes: "list[Lane]") -> None:
        """Take the steps of the lanes until at most one is left that has more to
        take.
        """
        if not any(self._agrees(lane) for lane in lanes):
            return
        drawn = [lane for lane in lanes if lane.draw(1)]
        if len(drawn) < 2:
            return
        block = Block([lane for lane in drawn if lane.form() == drawn[0].form()], self.traces)
        self.taken.append(len(block.lanes))
        while len(block.lanes) > 1:
            count = min([SLAB, *(lane.draw(SLAB) for lane in block.lanes)])
            if not count:
                block.keep([lane for lane in block.lanes if lane.ahead])
                continue
            try:
                block.steps(count)
            except Exception as error:
                logger.debug("a block of clients goes on one by one: %s", error)
                block.one_by_one(count)
        block.keep([])

    def _agrees(self, lane: "Lane") -> bool:
        """Return whether a step with samples filled up is the eager one; tried once for
        each kind of step. The lane stays as it is.
        """
        if lane.key not in self.agreed and lane.draw(1):
            try:
                with torch.random.fork_rng(devices=gpus(lane)):
                    expected = lane.tried()
            except Exception as error:
                lane.fail(error)
                return False
            try:
                _check(lane, expected)
                self.agreed[lane.key] = True
            except Exception as error:
                self.agreed[lane.key] = False
                self._tell(_line(error))
        return self.agreed.get(lane.key, False)

    def _tell(self, reason: str) -> None:
        if reason not in self.told:
            self.told.add(reason)
            logger.warning("clients take their local steps one by one, not in blocks: %s", reason)


class Traces:
    """Steps of blocks as graphs of basic operations, by kind and sizes."""

    def __init__(self) -> None:
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Callable[..., Tensor]] = {}

    def take(self, key: Hashable, step: Callable[..., Tensor], arguments: Sequence[Any]) -> Tensor:
        """Take a step, by its graph if there is one."""
        key = (key, *(tuple(t.shape) for t in arguments if isinstance(t, Tensor)))
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= TRACED_AFTER:
                return step(*arguments)
            try:
                self.graphs[key] = make_fx(step)(*tree_map(torch.clone, arguments))
            except Exception as error:
                logger.debug("steps of blocks are not traced: %s", error)
                self.graphs[key] = step
        return self.graphs[key](*arguments)


class Block:
    """The stacked tensors of some lanes, whose steps are taken by ``traces``."""

    def __init__(self, lanes: Sequence[Lane], traces: Traces) -> None:
        self.lanes, self.traces = list(lanes), traces
        self.step = vmap(_stepper(self.lanes[0]), randomness="error")
        self._read()

    def take(self, x: Tensor, y: Tensor, weights: Tensor, numbers: Numbers) -> Tensor:
        """Take a step with the mini-batches of all lanes; return their mean losses
        (lanes,).
        """
        return self.traces.take(
            self.lanes[0].key,
            self.step,
            (self.state, self.constants, self.others, x, y, weights, numbers),
        )

    def _read(self) -> None:
        """Stack what the lanes hold."""

        def stacked(of: Callable[[Lane], State]) -> dict[str, Tensors]:
            return {
                name: [
                    torch.stack(list(same))
                    for same in zip(*(of(lane)[name] for lane in self.lanes), strict=True)
                ]
                for name in of(self.lanes[0])
            }

        self.state = stacked(lambda lane: lane.state)
        self.constants, self.others = (
            stacked(lambda lane: lane.constants),
            stacked(lambda lane: lane.others),
        )
        self.totals = torch.zeros(
            len(self.lanes), dtype=self.lanes[0].dtype, device=self.lanes[0].device
        )

    def _write(self) -> None:
        """Write what the steps have changed to where the clients keep it."""
        for i, lane in enumerate(self.lanes):
            lane.total = lane.total + self.totals[i]
            for name, tensors in self.state.items():
                for target, value in zip(lane.state[name], tensors, strict=True):
                    target.copy_(value[i])

    def keep(self, lanes: Sequence[Lane]) -> None:
        """Go on with these of the lanes only."""
        self._write()
        self.lanes = list(lanes)
        if lanes:
            self._read()

    def steps(self, count: int) -> None:
        """Take the next ``count`` steps of all lanes. Raises what their samples raise,
        and leaves everything as it was.
        """
        tensors = [self.totals, *(t for tensors in self.state.values() for t in tensors)]
        before = [t.clone() for t in tensors]
        ahead = [[lane.ahead[i] for lane in self.lanes] for i in range(count)]
        numbers = numbers_of([[values for *_, values in step] for step in ahead], self.lanes[0])
        try:
            for i, step in enumerate(ahead):
                x, y, weights, sizes = filled(
                    [x for x, _, _ in step], [y for _, y, _ in step], self.lanes[0].dtype
                )
                of_step = {name: values[i] for name, values in numbers.items()}
                self.totals += self.take(x, y, weights, of_step) * sizes
        except Exception:
            for target, value in zip(tensors, before, strict=True):
                target.copy_(value)
            raise
        for lane in self.lanes:
            for _ in range(count):
                lane.ahead.popleft()

    def one_by_one(self, count: int) -> None:
        """Take the next ``count`` steps lane by lane; those that fail have no more."""
        self._write()
        for lane in self.lanes:
            lane.eagerly(count)
        self._read()


def _stepper(lane: Lane) -> Callable[..., Tensor]:
    """Return the step of one client as a function of tensors; it changes the state in
    place and returns the loss.
    """
    module, moving, criterion = (
        lane.problem.module,
        list(lane.problem.moving),
        lane.problem.criterion,
    )
    surrogate, step = lane.problem.surrogate, lane.step
    assert criterion is not None

    def of_sample(outputs: Tensor, y: Tensor) -> Tensor:
        return criterion(outputs[None], y[None])

    def one(
        state: State,
        constants: State,
        others: State,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        numbers: Numbers,
    ) -> Tensor:
        fixed = {name: t for name, (t,) in others.items()}

        def loss(parameters: Tensors) -> tuple[Tensor, Tensor]:
            outputs = functional_call(
                module, {**dict(zip(moving, parameters, strict=True)), **fixed}, (x,)
            )
            value = (vmap(of_sample)(outputs, y) * weights).sum()
            return surrogate(value), value

        def gradient(at: Tensors) -> tuple[Tensor, Tensors]:
            slopes, (_, value) = grad_and_value(loss, has_aux=True)(list(at))
            return value, list(slopes)

        with Singly():
            return step(gradient, {**state, **constants}, numbers)

    return one


class Singly(TorchFunctionMode):
    """Calls operations on lists of tensors one tensor at a time, and clips beside the
    tensor: vmap has no rules for the others.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "clamp_":
            return args[0].copy_(args[0].clamp(*args[1:], **(kwargs or {})))
        if not name.startswith("_foreach_"):
            return func(*args, **(kwargs or {}))
        single, number = getattr(Tensor, name.removeprefix("_foreach_")), len(args[0])
        columns = [arg if isinstance(arg, list | tuple) else [arg] * number for arg in args]
        results = [single(*row, **(kwargs or {})) for row in zip(*columns, strict=True)]
        return None if name.endswith("_") else results


def _check(lane: Lane, expected: list[tuple[Tensor, list[Tensor]]]) -> None:
    """Raise ``ValueError``, or what PyTorch raises, if the step of a block is not the
    eager one. Changes nothing.
    """
    if not expected:
        raise ValueError("the net changes its buffers in training")
    x, y, numbers = lane.ahead[0]
    sizes = tried_sizes(len(y))
    block = Block([lane, lane], Traces())
    before = [t[0].clone() for tensors in block.state.values() for t in tensors]
    of_step = {name: values[0] for name, values in numbers_of([[numbers, numbers]], lane).items()}
    xs, ys, weights, _ = filled(
        [x[:n] for n in sizes], [y[:n] for n in sizes], lane.dtype, len(y) + 1
    )
    losses = block.take(xs, ys, weights, of_step)
    found = [t for tensors in block.state.values() for t in tensors]
    for i, (loss, after) in enumerate(expected):
        for b, e, o in zip(
            [torch.zeros_like(loss), *before],
            [loss, *after],
            [losses[i], *(t[i] for t in found)],
            strict=True,
        ):
            moved = float((e - b).double().norm())
            if (
                not math.isnan(moved)
                and not float((e - o).double().norm())
                <= 1e-3 * moved + 1e-5 * float(e.double().norm()) + 1e-12
            ):
                raise ValueError(
                    f"the steps of {type(lane.problem.module).__name__} taken together do not "
                    "agree with the eager ones"
                )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
