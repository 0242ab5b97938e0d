"""The user's own net as the model of a run: ``model.name = "my_nets:build"``.

``build`` is a function or a class. It is called with ``input_shape`` (channels, height,
width), ``num_classes`` and ``seed``; arguments without a parameter of this name are
left out. It returns a module that maps samples (n, C, H, W), float, to logits (n,
num_classes). ``torchvision:NAME`` and ``timm:NAME`` are nets of these libraries,
``transformers:NAME`` those of ``fedapps.models.transformers_nets``.

Before anything starts, a second net is built with the same seed and takes two training
steps: what would fail at every client in every round is one line here.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.steps import Eager, Problem
from fedapps.clients.base.training import trainable
from fedapps.clients.steps.sgd import SGD, descent
from fedapps.errors import UserError
from fedapps.extensions.own_code import guarded, load
from fedapps.extensions.registered import reference_of
from fedapps.models.base import Shape
from fedapps.models.options import PREFIX
from fedapps.models.transformers_nets import image_classifier

KEY = "model.name"
#: The types of arrays that NumPy has, but for complex numbers.
_SENT = {
    *(torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
}
#: The nets that this process has tried, as what they were called with.
_tried: set[tuple[Any, Shape, int]] = set()


def build_own(
    name: str, input_shape: Shape, num_classes: int, seed: int, pretrained: bool = False
) -> nn.Module:
    """Return the net ``name``, initialised from ``seed``. The global random state is
    not changed.

    ``pretrained``: with pretrained weights, which only nets of transformers have.

    Raises ``UserError`` if the net does not exist, cannot be built, does not follow
    from the seed, has outputs of another shape, or cannot be trained.
    """
    of_library = _hub(name, input_shape, pretrained)
    with torch_seeded(seed):
        build = of_library or load(KEY, reference_of(KEY, name) or name, name)
    if not callable(build):
        raise UserError(
            f"{KEY} = {name!r}: is of type {type(build).__name__}: name a function or class that "
            "makes a net"
        )
    offered = {"input_shape": input_shape, "num_classes": num_classes, "seed": seed}
    arguments = asked_for(name, build, offered)

    def made() -> nn.Module:
        """Return a net whose lazy layers have their weights, which are drawn by the
        seed, too.
        """
        with torch_seeded(seed):
            with guarded(KEY, name, "cannot be built", own=True):
                net = build(**arguments)
            if not isinstance(net, nn.Module):
                raise UserError(
                    f"{KEY} = {name!r}: returns a {type(net).__name__}: it must return a "
                    "torch.nn.Module"
                )
            _check_outputs(name, net, input_shape, num_classes)
        return net

    net = made()
    if (key := (name if of_library else build, input_shape, num_classes)) not in _tried:
        _check_arrays(name, net, twin := made())
        _check_training(name, twin, input_shape, num_classes, seed)
        _tried.add(key)
    return net


def asked_for(name: str, build: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments among ``offered`` that ``build`` has parameters for. A
    function that only takes ``**kwargs`` gets ``num_classes``.
    """
    parameters = inspect.signature(build).parameters
    for parameter in parameters.values():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if parameter.name not in offered and not optional:
            raise UserError(
                f"{KEY} = {name!r}: its parameter {parameter.name!r} needs a default: only "
                f"{', '.join(offered)} are given"
            )
    chosen = {key: value for key, value in offered.items() if key in parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        chosen.setdefault("num_classes", offered["num_classes"])
    return chosen


def _hub(name: str, shape: Shape, pretrained: bool) -> Callable[..., nn.Module] | None:
    """Return the function that builds a net of a library, or ``None`` if ``name`` does
    not name one.
    """
    if name.startswith(PREFIX):
        return lambda num_classes: image_classifier(name, shape, num_classes, pretrained)
    library, _, net = name.partition(":")
    if library not in ("torchvision", "timm"):
        return None
    try:
        module: Any = importlib.import_module(
            "torchvision.models" if library == "torchvision" else "timm"
        )
    except ImportError:
        raise UserError(
            f"{KEY} = {name!r}: {library} is not installed: pip install 'fedapps[vision]'"
        ) from None
    if library == "torchvision":
        return lambda num_classes: module.get_model(net, weights=None, num_classes=num_classes)
    return lambda num_classes: module.create_model(net, num_classes=num_classes, in_chans=shape[0])


def _check_arrays(name: str, net: nn.Module, twin: nn.Module) -> None:
    """Check what is sent, and that two nets of one seed are equal."""
    if net is twin:
        raise UserError(f"{KEY} = {name!r}: returns the same net twice: make a new one each time")
    arrays, again = net.state_dict(), twin.state_dict()
    if not trainable(net):
        raise UserError(f"{KEY} = {name!r}: has no parameter that trains (requires_grad)")
    for array, values in arrays.items():
        where = f"{KEY} = {name!r}: array {array!r}"
        if not isinstance(values, Tensor):
            raise UserError(f"{where} is a {type(values).__name__}: only tensors are sent")
        kind = str(values.dtype).removeprefix("torch.")
        if values.dtype not in _SENT:
            raise UserError(
                f"{where} is of type {kind}: use float32 (train.precision=bf16 computes in "
                "bfloat16; a complex array is two real ones, torch.view_as_real)"
            )
        if bool((values != values).any()):
            raise UserError(f"{where} holds NaN before any training: fill it with numbers")
        if array not in again or not torch.equal(values, again[array]):
            raise UserError(
                f"{where} differs in two nets of one seed: draw it with torch's generator, or from "
                "the argument 'seed'"
            )
    for array, values in trainable(net).items():
        if values.dtype not in (torch.float32, torch.float64):
            raise UserError(f"{KEY} = {name!r}: parameter {array!r} must be float32 to be trained")


def _check_training(name: str, net: nn.Module, shape: Shape, num_classes: int, seed: int) -> None:
    """Take two steps with two samples: the second one fails if the first one's graph is
    kept.
    """
    before = {array: values.shape for array, values in net.state_dict().items()}
    w = [p.detach() for p in trainable(net.train()).values()]
    samples = (torch.zeros(4, *shape), torch.zeros(4, dtype=torch.long))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        given = x.clone()
        _check_logits(name, given, out := net(given), num_classes, " in training")
        return functional.cross_entropy(out, y)

    step, state = descent(SGD(0.9, 1e-4), w, 1e-3)
    epochs = (epoch for epoch in [samples])
    with torch_seeded(seed), guarded(KEY, name, "cannot be trained", own=True):
        Eager.run(Problem(net, loss), step, state, epochs, 2)
    after = {array: values.shape for array, values in net.state_dict().items()}
    if changed := [array for array in {**before, **after} if before.get(array) != after.get(array)]:
        raise UserError(f"{KEY} = {name!r}: training changes the shape of array {changed[0]!r}")


@torch.no_grad()
def _check_outputs(name: str, net: nn.Module, shape: Shape, num_classes: int) -> None:
    training, given = net.training, torch.zeros(2, *shape)
    with guarded(KEY, name, f"does not take samples of shape {shape}", own=True):
        out = net.eval()(given)
    net.train(training)
    _check_logits(name, given, out, num_classes)


def _check_logits(name: str, given: Tensor, out: Any, num_classes: int, when: str = "") -> None:
    """Check what the net made of two new samples, and that it left these as they were:
    test samples are scored many times.
    """
    if given._version:  # counts changes in place, also of views
        raise UserError(
            f"{KEY} = {name!r}: changes its samples in place, as x.sub_(0.5) would: write "
            "x = x - 0.5, or inplace=False in the first layer"
        )
    if not isinstance(out, Tensor) or out.shape != (2, num_classes):
        what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise UserError(
            f"{KEY} = {name!r}: for two samples its output{when} is {what}: it must be "
            f"{num_classes} logits for each sample"
        )
