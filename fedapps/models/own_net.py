"""The user's own net as the model of a run: ``model.name = "my_nets:build"``.

``build`` is a function or a class. It is called with ``input_shape`` (channels, height,
width), ``num_classes`` and ``seed``; arguments without a parameter of this name are
left out. It returns a module that maps samples (n, C, H, W), float, to logits (n,
num_classes). ``torchvision:NAME`` and ``timm:NAME`` are nets of these libraries,
``transformers:NAME`` those of ``fedapps.models.transformers_nets``.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.errors import UserError
from fedapps.extensions.own_code import load
from fedapps.extensions.registered import reference_of
from fedapps.models.base import Shape
from fedapps.models.options import PREFIX
from fedapps.models.transformers_nets import image_classifier

KEY = "model.name"


def build_own(
    name: str, input_shape: Shape, num_classes: int, seed: int, pretrained: bool = False
) -> nn.Module:
    """Return the net ``name``, initialised from ``seed``. The global random state is
    not changed.

    ``pretrained``: with pretrained weights, which only nets of transformers have.

    Raises ``UserError`` if the net does not exist, cannot be built, or has outputs of
    another shape.
    """
    build = _hub(name, input_shape, pretrained) or load(KEY, reference_of(KEY, name) or name, name)
    if not callable(build):
        raise UserError(
            f"{KEY} = {name!r}: is of type {type(build).__name__}: name a function or class that "
            "makes a net"
        )
    offered = {"input_shape": input_shape, "num_classes": num_classes, "seed": seed}
    with torch_seeded(seed):
        try:
            net = build(**asked_for(name, build, offered))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{KEY} = {name!r}: cannot be built: {_first_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise UserError(
            f"{KEY} = {name!r}: returns a {type(net).__name__}: it must return a torch.nn.Module"
        )
    _check_outputs(name, net, input_shape, num_classes)
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


@torch.no_grad()
def _check_outputs(name: str, net: nn.Module, shape: Shape, num_classes: int) -> None:
    training = net.training
    try:
        out = net.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise UserError(
            f"{KEY} = {name!r}: does not take samples of shape {shape}: {_first_line(error)}"
        ) from error
    finally:
        net.train(training)
    if not isinstance(out, torch.Tensor) or out.shape != (2, num_classes):
        what = (
            f"shape {tuple(out.shape)}"
            if isinstance(out, torch.Tensor)
            else f"a {type(out).__name__}"
        )
        raise UserError(
            f"{KEY} = {name!r}: for two samples its output is {what}: it must be {num_classes} "
            "logits for each sample"
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
