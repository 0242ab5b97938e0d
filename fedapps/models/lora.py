"""Low-rank adapters (LoRA): clients train additions of low rank to the weights of a net,
which stays as it is, and its head.

Source: Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of
Large Language Models", ICLR 2022, arXiv 2106.09685, equation (3):

    W + (alpha / r) B A,    A (r, inputs) random, B (outputs, r) zero at first

The net's ``state_dict`` holds what is trained, and buffers, so that nothing else is
sent or stored. Every process has the frozen weights from the run's seed or from files.

The sum is formed in each pass, by torch's parametrisations: any layer that has such a
weight can have adapters. This saves bytes, not computation.
"""

import hashlib
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from fedapps.algorithms.common.options import names_in
from fedapps.errors import UserError
from fedapps.models.options import ModelOptions

#: Layers whose weight is (outputs, inputs), or (outputs, inputs, a window).
KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LowRank(nn.Module):
    """Parametrisation W + (alpha / r) B A of a weight W (outputs, inputs, ...), or
    (inputs, outputs) if ``transposed``.
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float, transposed: bool) -> None:
        super().__init__()
        outputs, inputs = matrix(weight, transposed).shape
        self.scale, self.transposed = alpha / rank, transposed
        self.lora_A = nn.Parameter(weight.new_empty(rank, inputs))
        self.lora_B = nn.Parameter(weight.new_zeros(outputs, rank))

    def draw(self, generator: torch.Generator) -> None:
        """Draw A as torch draws a linear layer, as the authors' program does."""
        drawn = torch.empty(self.lora_A.shape)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        with torch.no_grad():
            self.lora_A.copy_(drawn)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its addition."""
        low = self.scale * (self.lora_B @ self.lora_A)
        return weight + (low.T if self.transposed else low.view_as(weight))


def matrix(weight: Tensor, transposed: bool) -> Tensor:
    """Return a layer's weight as (outputs, inputs)."""
    return weight.T if transposed else weight.flatten(1)


def transposes(layer: nn.Module) -> bool:
    """Return whether it is the linear layer of GPT-2 in transformers, whose weight is
    (inputs, outputs).
    """
    return type(layer).__name__ == "Conv1D"


def adapt(
    net: nn.Module,
    options: ModelOptions,
    head: tuple[str, ...],
    base: Mapping[str, Tensor],
    seed: int,
) -> None:
    """Freeze all of ``net`` but its head, at the weights ``base``, and give adapters,
    drawn from ``seed``, to the layers that ``options.lora_targets`` match.

    Raises ``UserError`` if no layer matches, or if one is smaller than the rank.
    """
    layers = {
        name: layer
        for name, layer in net.named_modules()
        if (isinstance(layer, KINDS) or transposes(layer)) and not f"{name}.".startswith(head)
    }
    patterns, rank = names_in(options.lora_targets), options.lora_rank
    chosen = [n for n in layers if any(fnmatchcase(n, pattern) for pattern in patterns)]
    if not chosen:
        raise UserError(
            f"model.lora-targets = {options.lora_targets!r}: matches no linear or convolutional "
            f"layer outside the head: choose among {', '.join(layers) or 'none: another net'}"
        )
    for name in chosen:
        size = min(matrix(layers[name].weight, transposes(layers[name])).shape)
        if rank > size:
            raise UserError(
                f"model.lora-rank = {rank}: layer {name!r} has rank {size} at most: choose 1 to "
                f"{size}, or model.lora-targets without it"
            )
    for name, parameter in net.named_parameters():
        if name in base:
            parameter.requires_grad_(False)
            parameter.data = base[name]
    generator = torch.Generator().manual_seed(seed)
    for name in chosen:
        weight = layers[name].weight.detach()
        low = LowRank(weight, rank, options.lora_alpha, transposes(layers[name]))
        low.draw(generator)
        register_parametrization(layers[name], "weight", low)
    _hide(net)


def _hide(net: nn.Module) -> None:
    """Leave the frozen parameters out of what the net saves and loads."""
    frozen = [n for n, p in net.named_parameters(remove_duplicate=False) if not p.requires_grad]

    def without(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in frozen:
            del state[f"{prefix}{name}"]

    def with_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        own = dict(module.named_parameters(remove_duplicate=False))
        state.update({f"{prefix}{name}": own[name] for name in frozen})

    net.register_state_dict_post_hook(without)
    net.register_load_state_dict_pre_hook(with_own)


def frozen_part(net: nn.Module, head: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the parameters of a net that stay as they are, by name."""
    return {
        name: parameter.detach()
        for name, parameter in net.named_parameters()
        if not (parameter.requires_grad and name.startswith(head))
    }


def fingerprint(base: Mapping[str, Tensor]) -> str:
    """Return a digest of frozen weights."""
    found = hashlib.sha256()
    for name, tensor in base.items():
        found.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def merged(plain: nn.Module, net: nn.Module) -> dict[str, Tensor]:
    """Return the arrays of ``plain``, the net without adapters, that predicts as
    ``net``.
    """
    return {name: attrgetter(name)(net).detach().clone() for name in plain.state_dict()}
