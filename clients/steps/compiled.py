"""Local steps as compiled code: four steps unrolled in one graph, and a graph of a
single step for the rest of an epoch.

The step that runs eagerly (``algorithms.common.steps``) is traced down to PyTorch's
basic operations, its backward pass included, and compiled ahead of time by
``torch.export`` and AOTInductor into a library that a process loads in milliseconds.
Libraries are kept in a folder under a name that covers everything they depend on, so
that the processes of a run and later runs share them; two processes that need the same
one do not both compile it. When a process first uses a library, it also takes the same
steps eagerly: if the results differ by more than rounding, the library is not used.
Steps that cannot be compiled run eagerly, with one line in the log.
"""

import hashlib
import inspect
import json
import logging
import math
import os
import platform
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.algorithms.common.adam import descend
from fedapps.algorithms.common.precision import Bfloat16
from fedapps.algorithms.common.steps import (
    Eager,
    Epochs,
    Moving,
    Problem,
    State,
    Step,
    Tensors,
    batch_sizes,
    no_numbers,
    numbers_of,
    tensors_of,
)
from fedapps.clients.base.locks import locked
from fedapps.clients.steps.sgd import SGD
from fedapps.clients.steps.stacked import plain_facts

#: Steps per graph. In measurements more steps did not make graphs faster, only longer
#: to compile.
UNROLLED = 4
#: Compiler settings: random numbers are PyTorch's own; the compiler reads the
#: processor's features instead of running a test program; loops run on one thread
#: (matrix products on all), since on other threads an index out of range, which is one
#: client's failure, would end the process.
OPTIONS = {"fallback_random": True, "cpp.vec_isa_ok": True, "cpp.threads": 1}
#: The oldest PyTorch with which this works; 2.6's compiler fails at some of these
#: graphs.
OLDEST = (2, 14)
#: Change this when the tracing of steps changes.
FORMAT = 3
Run = Callable[[list[Tensor]], Sequence[Tensor]]

logger = logging.getLogger("flwr")


class CannotCompile(RuntimeError):
    """The steps cannot be compiled; the message is the reason."""


@dataclass
class Graph:
    """``steps`` steps of a problem as a library; ``run``: inputs -> outputs, ``None``
    until it is loaded.
    """

    module: Callable[[], nn.Module | None]
    run: Run | None


@dataclass
class Compiler:
    """Runs local steps compiled; keeps libraries in ``folder``, which only this user
    may write to.

    ``build`` (default: True): compile what the folder does not hold.
    """

    at_once = UNROLLED
    folder: Path
    build: bool = True
    graphs: dict[Any, Graph] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)

    def run(
        self,
        problem: Problem,
        step: Step,
        state: State,
        epochs: Epochs,
        batch_size: int,
        moving: Moving = no_numbers,
    ) -> tuple[float, int]:
        """As ``Runner.run``."""
        training, fixed = _Training(problem, step, state), numbers_of(state)
        done, seen, losses = 0, 0, list[Tensor]()
        for x, y in epochs:
            sizes, start, at, seen = batch_sizes(x, batch_size, problem.module), 0, 0, seen + len(y)
            while start < len(y):
                many = sizes[at : at + UNROLLED] == [batch_size] * UNROLLED
                count = UNROLLED if many else 1
                end, at = start + sum(sizes[at : at + count]), at + count
                values: list[State] = [{**fixed, **moving(i)} for i in range(done, done + count)]
                xs, ys = x[start:end], y[start:end]
                if many:
                    xs, ys = (
                        xs.unflatten(0, (UNROLLED, batch_size)),
                        ys.unflatten(0, (UNROLLED, batch_size)),
                    )
                run = self._graph(training, xs, ys, values, batch_size if many else 0).run
                if run is None:
                    training.write()
                    loss = training.eager_steps(training.state, xs, ys, values, many)
                else:
                    loss = training.take(run(training.inputs(xs, ys, values)))
                losses.append(loss)
                start, done = end, done + count
        training.write()
        return (float(torch.stack(losses).sum()) if losses else 0.0), seen

    def _graph(
        self,
        training: "_Training",
        x: Tensor,
        y: Tensor,
        numbers: list[State],
        batch_size: int,
    ) -> Graph:
        """Return the graph of the steps of ``numbers``. ``batch_size`` 0: of a single
        step of any size.
        """
        key = (
            training.key,
            batch_size,
            x.shape[1 + bool(batch_size) :],
            x.dtype,
            y.shape[1 + bool(batch_size) :],
            y.dtype,
        )
        graph = self.graphs.get(key)
        if graph is None or graph.module() is not training.problem.module:
            run: Run | None = None
            try:
                run = self._library(training, x, y, numbers, bool(batch_size))
            except Exception as error:
                self._log_once(error)
            if run is not None:
                # its exceptions are this client's own failure
                expected = _eager_end(training, x, y, numbers, bool(batch_size))
                try:
                    _check(training, run, expected, x, y, numbers)
                except Exception as error:
                    run = None
                    self._log_once(error)
            graph = self.graphs[key] = Graph(weakref.ref(training.problem.module), run)
        return graph

    def _library(
        self,
        training: "_Training",
        x: Tensor,
        y: Tensor,
        numbers: list[State],
        many: bool,
    ) -> Run:
        """Return a library from the folder; compile it first if it is missing. Raises
        ``CannotCompile`` and PyTorch's own exceptions.
        """
        if x.device.type != "cpu":
            raise CannotCompile("only steps on the CPU are compiled")
        if training.problem.criterion is None:
            raise CannotCompile("the client has its own loss")
        if any(isinstance(module, nn.RNNBase) for module in training.problem.module.modules()):
            raise CannotCompile(
                "recurrent nets are not compiled: PyTorch's recurrent layers take most of the time"
            )
        if any(isinstance(m, Bfloat16) for m in training.problem.module.modules()):
            raise CannotCompile("steps in bfloat16 are not compiled")
        facts = training.facts(x, y, numbers, many)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (status := self.folder.stat()).st_uid != os.getuid() or status.st_mode & 0o022:
            raise CannotCompile(f"{self.folder} must belong to you alone")
        if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
            raise CannotCompile(
                f"compiling needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, but this is "
                f"{torch.__version__}"
            )
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.pt2"
        if not path.exists():
            if not self.build:
                raise CannotCompile(
                    "the compiled steps are not in the folder, and this process may not compile"
                )
            with locked(self.folder / f"{name}.lock"):
                if not path.exists():
                    logger.info("compiling local steps (once; a minute or less)")
                    _build(path, training, x, y, numbers, many)
        return _load(path)

    def _log_once(self, error: Exception) -> None:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if reason not in self.logged:
            self.logged.add(reason)
            logger.warning("local steps run uncompiled: %s", reason)


class _Training:
    """The tensors of one client's training between two graphs."""

    def __init__(self, problem: Problem, step: Step, state: State) -> None:
        self.problem, self.step = problem, step
        self.state, self.read = tensors_of(state, list), tensors_of(state, tuple)
        self.eager = Eager(problem)
        self.moving = list(problem.moving)
        named = {**dict(problem.module.named_parameters()), **dict(problem.module.named_buffers())}
        self.others = {name: t.detach() for name, t in named.items() if name not in problem.moving}
        # which training changes
        self.kept = [name for name, _ in problem.module.named_buffers() if name in self.others]
        self.now = {name: [t.contiguous() for t in tensors] for name, tensors in self.state.items()}
        self.others_now = dict(self.others)
        self.numbers: list[State] = []
        self.values: list[Tensor] = []
        self.dtype = self.eager.place[0].dtype
        self.key = (
            id(problem.module),
            type(problem.module),  # another one in bfloat16
            step,
            problem.criterion,
            problem.surrogate,
            tuple(self.moving),
            tuple(
                (name, tuple(t.shape for t in tensors))
                for name, tensors in (*self.state.items(), *self.read.items())
            ),
            torch.get_num_threads(),
        )

    @property
    def criterion(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The minimised loss as a function of the net's outputs and y."""
        assert self.problem.criterion is not None
        return self.problem.criterion

    def inputs(self, x: Tensor, y: Tensor, numbers: list[State]) -> list[Tensor]:
        """Return the inputs of a graph."""
        if numbers != self.numbers:  # mostly they stay the same for all of a round
            self.numbers = numbers
            self.values = [
                torch.tensor([n[name] for n in numbers], dtype=self.dtype) for name in numbers[0]
            ]
        lists = [*self.now.values(), *self.read.values()]
        return [
            *(t for tensors in lists for t in tensors),
            *self.others_now.values(),
            x.contiguous(),
            y.contiguous(),
            *self.values,
        ]

    def take(self, outputs: Sequence[Tensor]) -> Tensor:
        """Take over the outputs of a graph; return the sum of the losses."""
        left = iter(outputs)
        self.now = {name: [next(left) for _ in tensors] for name, tensors in self.now.items()}
        for name in self.kept:
            self.others_now[name] = next(left)
        return next(left)

    def write(self) -> None:
        """Copy the changed tensors back to the client's own."""
        for name, tensors in self.state.items():
            for target, value in zip(tensors, self.now[name], strict=True):
                if target is not value:
                    target.copy_(value)
        for name in self.kept:
            if self.others_now[name] is not self.others[name]:
                self.others[name].copy_(self.others_now[name])
        self.now = {name: list(tensors) for name, tensors in self.state.items()}
        self.others_now = dict(self.others)

    def eager_steps(
        self, state: State, x: Tensor, y: Tensor, numbers: list[State], many: bool
    ) -> Tensor:
        """Take steps one by one in ``state``; return the sum of the losses of all
        samples.
        """
        total = torch.zeros((), device=y.device)
        for i, values in enumerate(numbers):
            xi, yi = (x[i], y[i]) if many else (x, y)
            total = total + self.eager.step(
                self.step, {**state, **self.read, **values}, xi, yi
            ) * len(yi)
        return total

    def facts(self, x: Tensor, y: Tensor, numbers: list[State], many: bool) -> dict[str, Any]:
        """Return everything on which the library depends."""
        module = self.problem.module
        shape = list(x.shape), list(y.shape)
        return {
            "format": FORMAT,
            "torch": torch.__version__,
            "machine": [
                platform.machine(),
                torch.backends.cpu.get_cpu_capability(),
                _processor(),
                torch.get_num_threads(),
            ],
            "steps": len(numbers),
            "step": [
                repr(self.step),
                *map(_source, (type(self.step), SGD, descend, Problem, Graph)),
            ],
            "module": [
                repr(module),
                [[n, plain_facts(m), _source(type(m))] for n, m in module.named_modules()],
            ],
            "criterion": _described(self.criterion),
            "surrogate": _described(self.problem.surrogate),
            "moving": self.moving,
            "tensors": [
                [n, [_form(t) for t in ts]] for n, ts in (*self.now.items(), *self.read.items())
            ],
            "others": [[n, _form(t)] for n, t in self.others.items()],
            "kept": self.kept,
            "samples": [
                shape if many else [shape[0][1:], shape[1][1:]],
                str(x.dtype),
                str(y.dtype),
            ],
            "numbers": [
                [n, len(v) if isinstance(v, Sequence) else 0] for n, v in numbers[0].items()
            ],
        }

    def traced(
        self, steps: int, many: bool, names: list[str]
    ) -> Callable[[list[Tensor]], list[Tensor]]:
        """Return the function inputs -> outputs of ``steps`` steps, which changes no
        input; ``names``: of the numbers.
        """
        module = _Loss(self.problem.module, self.criterion)

        def graph(inputs: list[Tensor]) -> list[Tensor]:
            left = iter(inputs)
            state = {
                name: [next(left).clone() for _ in tensors] for name, tensors in self.state.items()
            }
            read = {name: [next(left) for _ in tensors] for name, tensors in self.read.items()}
            others = {
                name: next(left).clone() if name in self.kept else next(left)
                for name in self.others
            }
            x, y = next(left), next(left)
            numbers = {name: next(left) for name in names}
            total = torch.zeros((), dtype=self.dtype)
            for i in range(steps):
                xi, yi = (x[i], y[i]) if many else (x, y)

                def gradient(
                    at: Tensors, xi: Tensor = xi, yi: Tensor = yi
                ) -> tuple[Tensor, Tensors]:
                    leaves = [t.detach().requires_grad_() for t in at]
                    tensors = {**dict(zip(self.moving, leaves, strict=True)), **others}
                    loss = functional_call(
                        module, {f"net.{name}": t for name, t in tensors.items()}, (xi, yi)
                    )
                    return loss.detach(), list(
                        torch.autograd.grad(self.problem.surrogate(loss), leaves)
                    )

                of_step = {name: values[i] for name, values in numbers.items()}
                total = total + self.step(gradient, {**state, **read, **of_step}) * yi.shape[0]
            return [
                *(t for tensors in state.values() for t in tensors),
                *(others[name] for name in self.kept),
                total,
            ]

        return graph


class _Loss(nn.Module):
    """A net and its criterion: (x, y) -> mean loss."""

    def __init__(self, net: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.criterion = net, criterion
        self.training = net.training

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.criterion(self.net(x), y)


def trace(training: _Training, x: Tensor, y: Tensor, numbers: list[State], many: bool) -> Any:
    """Return the steps as a graph of basic operations (a ``GraphModule``); the size of
    a single mini-batch stays open.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = training.inputs(x, y, numbers)
    samples = len(inputs) - len(numbers[0]) - 2

    def fake(place: int, tensor: Tensor) -> Tensor:
        free = not many and place in (samples, samples + 1)
        sizes = [
            DimDynamic.DYNAMIC if free and axis == 0 else DimDynamic.STATIC
            for axis in range(tensor.dim())
        ]
        return mode.from_tensor(
            tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
        )

    with mode:
        function = training.traced(len(numbers), many, list(numbers[0]))
        return make_fx(function)([fake(place, tensor) for place, tensor in enumerate(inputs)])


def _build(
    path: Path,
    training: _Training,
    x: Tensor,
    y: Tensor,
    numbers: list[State],
    many: bool,
) -> None:
    """Compile the steps into ``path``."""
    if not many and len(y) < 2:  # a size of 0 or 1 would be taken for a constant
        x, y = torch.cat([x, x]), torch.cat([y, y])
    inputs = training.inputs(x, y, numbers)
    graph = trace(training, x, y, numbers, many)

    class Steps(nn.Module):
        def forward(self, inputs: list[Tensor]) -> Any:
            return graph(inputs)

    sizes: list[Any] = [None] * len(inputs)
    if not many:
        batch = torch.export.Dim("batch", min=1)
        first = len(inputs) - len(numbers[0]) - 2
        sizes[first] = sizes[first + 1] = {0: batch}
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)  # notes on GPUs that are not there
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(
        prefix=".", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            program = torch.export.export(Steps(), (inputs,), dynamic_shapes=(sizes,), strict=False)
            made = torch._inductor.aoti_compile_and_package(
                program, package_path=f"{folder}/steps.pt2", inductor_configs=OPTIONS
            )
            os.replace(made, path)
        finally:
            logging.getLogger("torch").setLevel(level)
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR") if before is None else os.environ.update(
                TORCHINDUCTOR_CACHE_DIR=before
            )


def _load(path: Path) -> Run:
    # what torch._inductor.aoti_load_package wraps, without importing the compiler
    aoti: Any = torch._C._aoti
    run: Run = aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1).run
    return run


def _eager_end(
    training: _Training, x: Tensor, y: Tensor, numbers: list[State], many: bool
) -> list[Tensor]:
    """Return the result of eager steps: copies of the state and of the buffers. Does
    not change tensors or random generators.
    """
    training.write()
    places = [*training.eager.place, *training.others.values()]
    own = [t.clone() for t in places]
    copies = {name: [t.clone() for t in tensors] for name, tensors in training.state.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            training.eager_steps(copies, x, y, numbers, many)
        kept = [training.others[name].clone() for name in training.kept]
    finally:
        for target, value in zip(places, own, strict=True):
            target.copy_(value)
    return [*(t for tensors in copies.values() for t in tensors), *kept]


def _check(
    training: _Training,
    run: Run,
    expected: list[Tensor],
    x: Tensor,
    y: Tensor,
    numbers: list[State],
) -> None:
    """Raise ``CannotCompile`` if eager steps give another result. Does not change
    tensors or random generators.
    """
    with torch.random.fork_rng(devices=[]):
        outputs = run(training.inputs(x, y, numbers))
    before = [
        *(t for tensors in training.state.values() for t in tensors),
        *(training.others[name] for name in training.kept),
    ]
    for b, e, o in zip(before, expected, outputs, strict=False):
        if not e.is_floating_point():
            agree = torch.equal(e, o)
        else:
            moved = float((e - b).double().norm())
            agree = (
                math.isnan(moved)
                or float((e - o).double().norm())
                <= 1e-3 * moved + 1e-5 * float(e.double().norm()) + 1e-12
            )
        if not agree:
            module = type(training.problem.module).__name__
            raise CannotCompile(f"the compiled steps of {module} do not agree with the eager ones")


# --- names ----------------------------------------------------------------------------


def _described(function: Callable[..., Any]) -> Any:
    if isinstance(function, partial):
        return [_described(function.func), repr(function.args), repr(function.keywords)]
    kind = function if inspect.isroutine(function) else type(function)
    return [
        "" if inspect.isroutine(function) else repr(function),
        kind.__module__,
        kind.__qualname__,
        _source(kind),
    ]


def _source(thing: Any) -> str:
    """Return the hash of the file that defines a class or function; for PyTorch's own,
    its version.
    """
    if thing.__module__.startswith("torch."):
        return ""
    try:
        return hashlib.sha256(Path(inspect.getsourcefile(thing) or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def _form(tensor: Tensor) -> list[Any]:
    return [list(tensor.shape), str(tensor.dtype)]


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return hashlib.sha256(
            "".join(sorted({line for line in lines if line.startswith("flags")})).encode()
        ).hexdigest()[:16]
    except OSError:
        return platform.processor()
