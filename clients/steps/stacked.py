"""The gradients of a small net for several clients at once: ``torch.func.vmap`` over
stacked parameters and mini-batches.

After some calls, what vmap has dispatched is recorded as a graph of PyTorch's basic
operations, for any number of clients, which starts them several times faster. It takes
the same operations, so numbers are the same to the last bit; that is checked whenever
the number of clients is new.
"""

import copy
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.precision import Bfloat16
from fedapps.algorithms.common.steps import Problem, Tensors

#: Calls before a kernel's operations are recorded, which takes as long as some hundred.
WARM_UP = 60
#: Numbers of clients, of which one is no factor of any size in a net.
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
#: Modules without parameters whose outputs for a sample depend on other samples, or on
#: draws, or which keep something.
REFUSED = (nn.RNNBase, nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
_operations: WeakKeyDictionary[nn.Module, tuple[type, int | None]] = WeakKeyDictionary()
_facts: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
#: What a module's parameters are found by.
PARAMETERS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_kernels: dict[Hashable, "Kernel | None"] = {}


def operations_of_sample(net: nn.Module) -> int | None:
    """Return the operations of a forward pass of one sample, or ``None`` if the net is
    not one of linear layers in single precision without buffers and draws.
    """
    kind, found = _operations.get(net, (None, None))
    if kind is not type(net):  # another one in bfloat16
        found = _counted(net)
        _operations[net] = type(net), found
    return found


def _counted(net: nn.Module) -> int | None:
    layers = [m for m in net.modules() if list(m.parameters(recurse=False))]
    kept = [value for m in net.modules() for value in vars(m).values()]
    fits = (
        layers
        and all(type(layer) is nn.Linear for layer in layers)
        and all(p.dtype == torch.float32 for p in net.parameters())
        and not list(net.buffers())
        and not any(isinstance(m, (*REFUSED, Bfloat16)) for m in net.modules())
        and not any(isinstance(value, Tensor) for value in kept)
        and not any(p._backward_hooks for p in net.parameters())  # vmap passes them by
    )
    return sum(2 * m.weight.numel() for m in layers) if fits else None  # type: ignore[misc,operator]


def plain_facts(module: nn.Module) -> list[str]:
    """Return the numbers and words that a module keeps, on which its output may
    depend.
    """
    kinds = (bool, int, float, str, tuple, type(None))
    return [f"{k}={v!r}" for k, v in sorted(vars(module).items()) if isinstance(v, kinds)]


def facts_of(net: nn.Module) -> Hashable:
    """Return all that a net's modules are and keep, besides parameters; equal for nets
    with the same outputs.
    """
    net.train()
    return tuple(
        (name, type(m), *((k, _fact(v)) for k, v in vars(m).items() if k not in PARAMETERS))
        for name, m in net.named_modules()
    )


def _fact(value: Any) -> Hashable:
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_fact, value))
    # what cannot be compared is taken for changed
    return (type(value), value) if isinstance(value, Hashable) else object()


def kernel_of(problem: Problem, x: Tensor, y: Tensor, rows: int) -> "Kernel | None":
    """Return the kernel for a problem and samples like x (1, ...), y (1, ...) in
    mini-batches of ``rows``; ``None`` if vmap refuses the net or the loss, or the
    outputs for a sample depend on the others.
    """
    net = problem.module
    if net not in _facts:
        _facts[net] = facts_of(net)
    sizes = tuple(p.shape for p in net.parameters())
    key = (
        _facts[net],
        sizes,
        tuple(problem.moving),
        problem.criterion,
        problem.surrogate,
        (rows, x.shape, x.dtype, y.shape, y.dtype, y.device),
    )
    if key not in _kernels:
        if len(_kernels) >= 64:
            _kernels.pop(next(iter(_kernels)))
        kernel = Kernel(problem)
        _kernels[key] = kernel if _is_plain(net, kernel, x, y, rows) else None
    return _kernels[key]


def _is_plain(net: nn.Module, kernel: "Kernel", x: Tensor, y: Tensor, rows: int) -> bool:
    """Return whether a net is no more than its parameters; a copy of it is tried."""
    try:
        tried = copy.deepcopy(net)
    except Exception:  # it holds a lock, or a file
        return False
    facts = facts_of(tried)
    with torch_seeded(0, x.device):  # a net may draw
        own = kernel.alone(tried, x, y, rows)  # fails if the sample is wrong, not the net
        fits = _separate(tried, x) and kernel.fits(tried, x, y, rows, own)
    return fits and facts_of(tried) == facts  # it may count its calls


@torch.no_grad()
def _separate(net: nn.Module, x: Tensor) -> bool:
    """Return whether the outputs for a sample are the same beside others, and by
    vmap.
    """
    if not x.is_floating_point():
        return False
    draws = torch.Generator().manual_seed(0)
    samples = torch.randn(4, *x.shape[1:], generator=draws).to(x)
    names, values = zip(*net.named_parameters(), strict=True)
    net.train()
    try:
        outputs = vmap(lambda p, s: functional_call(net, dict(zip(names, p, strict=True)), (s,)))(
            [v.detach().expand(2, *v.shape) for v in values], samples.expand(2, *samples.shape)
        )
        return torch.allclose(outputs[1, :2], net(samples[:2]), 1e-3, 1e-5)
    except Exception:  # vmap cannot take it
        return False


class Kernel:
    """Losses and gradients of clients at mini-batches of their own."""

    def __init__(self, problem: Problem) -> None:
        assert problem.criterion is not None
        self.moving, self.criterion = list(problem.moving), problem.criterion
        self.names = [n for n, _ in problem.module.named_parameters() if n not in self.moving]
        self.surrogate = problem.surrogate
        self.calls = 0
        self.graph: GraphModule | None = None
        self.same: dict[int, bool] = {}

    def alone(self, net: nn.Module, x: Tensor, y: Tensor, rows: int) -> Sequence[Tensor | None]:
        """Return the gradients of a client alone for a mini-batch of copies of a
        sample.
        """
        x, y = (t.expand(rows, *t.shape[1:]) for t in (x, y))
        named = dict(net.named_parameters())
        with torch.enable_grad():
            loss = self.surrogate(self.criterion(net(x), y))
            moving = [named[name] for name in self.moving]
            return torch.autograd.grad(loss, moving, allow_unused=True)

    def fits(
        self, net: nn.Module, x: Tensor, y: Tensor, rows: int, own: Sequence[Tensor | None]
    ) -> bool:
        """Return whether vmap finds the gradients ``own`` for this mini-batch, and
        there is one of each parameter: one without a gradient stays.
        """
        named = dict(net.named_parameters())
        tensors = [named[name].detach() for name in (*self.moving, *self.names)]
        x, y = (t.expand(rows, *t.shape[1:]).contiguous() for t in (x, y))
        weights = torch.full((rows,), 1.0 / rows, device=y.device)
        try:
            stacked = [t.expand(2, *t.shape).contiguous() for t in (*tensors, x, y, weights)]
            with torch.no_grad():
                gradients = self.function(net)(*stacked)[1:]
        except Exception:  # vmap cannot take it
            return False
        return all(
            a is not None and torch.allclose(a, b[1], 1e-3, 1e-5, equal_nan=True)
            for a, b in zip(own, gradients, strict=True)
        )

    def __call__(
        self, net: nn.Module, at: Tensors, others: Tensors, x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensors]:
        """Return losses (clients,) and gradients (clients, ...) at the parameters
        ``at``; ``others``: those that do not move. A mini-batch's loss is the weighted
        sum of those of its samples.
        """
        inputs, clients = [*at, *others, x, y, weights], len(y)
        self.calls += 1
        if self.calls > WARM_UP and self.same.get(clients, True):
            if self.graph is None:
                self.graph = recorded(self.function(net), inputs)
            loss, *gradients = self.graph(clients, *inputs)
            if clients not in self.same:
                expected = self.function(net)(*inputs)
                self.same[clients] = all(map(_equal, expected, (loss, *gradients)))
                loss, *gradients = expected
            return loss, gradients
        loss, *gradients = self.function(net)(*inputs)
        return loss, gradients

    def function(self, net: nn.Module) -> Callable[..., Any]:
        """Return the function of all tensors, each with clients as its first axis."""
        count, names = len(self.moving), (*self.moving, *self.names)

        def loss(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            *values, x, y, weights = tensors
            with Aligned():
                outputs = functional_call(net, dict(zip(names, values, strict=True)), (x,))
            each = vmap(lambda o, t: self.criterion(o[None], t[None]))(outputs, y)
            mean = (each * weights).sum()
            return self.surrogate(mean), mean

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            gradients, (_, mean) = grad_and_value(loss, tuple(range(count)), has_aux=True)(*tensors)
            return mean, *gradients

        return vmap(flat)


class Aligned(TorchFunctionMode):
    """Lets every client's matrices begin at a multiple of 16 bytes: elsewhere, products
    have other last bits, which would depend on a client's place in its cohort.

    Mini-batches have a multiple of four rows; weights get columns of zeros.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``."""
        if func is functional.linear and args[1].numel() % 4:
            more = (0, -args[1].shape[1] % 4)
            args = *(functional.pad(tensor, more) for tensor in args[:2]), *args[2:]
        return func(*args, **(kwargs or {}))


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def recorded(function: Callable[..., Any], inputs: Tensors) -> GraphModule:
    """Return (clients, *inputs) -> outputs as a graph of basic operations for any
    number of clients.

    It is recorded with a number of clients that is a factor of no other size, so that
    it is found wherever a shape depends on it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    sizes = {size for t in inputs for size in t.shape[1:]} | {t[0].numel() for t in inputs}
    number = next(p for p in PRIMES if all(size % p for size in sizes))
    places = torch.arange(number, device=inputs[0].device) % len(inputs[0])
    made = make_fx(function)(*(t[places] for t in inputs))
    graph = made.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        clients = graph.placeholder("clients")
    aten: Any = torch.ops.aten
    same_shape = (aten.expand.default, aten.view.default, aten._unsafe_view.default)

    def sized(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [sized(v) for v in value]
        if type(value) is not int or not value or value % number:
            return value
        times = value // number
        return clients if times == 1 else graph.call_function(operator.mul, (clients, times))

    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        if (
            node.target in same_shape
            and isinstance(source, Node)
            and source.meta["val"].shape == node.meta["val"].shape
        ):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            continue
        with graph.inserting_before(node):
            node.args = tuple(map(sized, node.args))
            node.kwargs = {name: sized(value) for name, value in node.kwargs.items()}
    graph.eliminate_dead_code()
    graph.set_codegen(CodeGen())  # of flat inputs
    made.recompile()
    return made
