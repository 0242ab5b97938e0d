"""Low-rank adapters (LoRA): clients train additions of low rank to the weights of a
net, which stays as it is, and its head.

Source: Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of
Large Language Models", ICLR 2022, arXiv 2106.09685, equation (3):

    W + (alpha / r) B A,    A (r, inputs) random, B (outputs, r) zero at first

The net's ``state_dict`` holds what is trained, and buffers, so that nothing else is
sent or stored. Every process has the frozen weights from the run's seed or from files.

The sum is formed in each pass, by torch's parametrisations: any layer that has such a
weight can have adapters. This saves bytes, not computation.
"""

import hashlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from fedapps.algorithms.common.options import names_in
from fedapps.algorithms.personal.name_filter import travels
from fedapps.errors import UserError
from fedapps.models.options import ModelOptions

#: Layers whose weight is (outputs, inputs), or (outputs, inputs, a window).
KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LowRank(nn.Module):
    """Parametrisation W + (alpha / r) B A of the weight W of the layer ``name``.

    Raises ``UserError`` if the rank is larger than that of W.
    """

    def __init__(
        self, name: str, layer: nn.Module, options: ModelOptions, generator: torch.Generator
    ) -> None:
        super().__init__()
        weight, rank = layer.get_parameter("weight").detach(), options.lora_rank
        self.scale, self.transposed = options.lora_alpha / rank, not isinstance(layer, KINDS)
        outputs, inputs = (weight.T if self.transposed else weight.flatten(1)).shape
        if rank > (size := min(outputs, inputs)):
            raise UserError(
                f"model.lora-rank = {rank}: layer {name!r} has rank {size} at most: choose 1 to "
                f"{size}, or model.lora-targets without it"
            )
        bound = inputs**-0.5  # torch's for a linear layer; the authors' program draws A so
        self.lora_A = nn.Parameter(
            torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator).to(weight.device)
        )
        self.lora_B = nn.Parameter(weight.new_zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its addition."""
        low = self.scale * (self.lora_B @ self.lora_A)
        return weight + (low.T if self.transposed else low.view_as(weight))


def adapt(net: nn.Module, options: ModelOptions, base: Mapping[str, Tensor], seed: int) -> None:
    """Freeze the parameters of ``net`` at those of ``base``, by name, and give
    adapters, drawn from ``seed``, to frozen layers that ``options.lora_targets`` match.

    Raises ``UserError`` if no layer matches, or if one is smaller than the rank.
    """
    layers = {
        name: layer
        for name, layer in net.named_modules()
        # Conv1D: the linear layer of GPT-2 in transformers: W is (inputs, outputs)
        if (isinstance(layer, KINDS) or type(layer).__name__ == "Conv1D")
        and f"{name}.weight" in base
    }
    chosen = [name for name in layers if travels(name, names_in(options.lora_targets), ())]
    if not chosen:
        raise UserError(
            f"model.lora-targets = {options.lora_targets!r}: matches no linear or convolutional "
            f"layer outside the head: choose among {', '.join(layers) or 'none: another net'}"
        )
    parameters = dict(net.named_parameters())
    for name, values in base.items():
        parameters[name].requires_grad_(False).data = values
    generator = torch.Generator().manual_seed(seed)
    for name in chosen:
        register_parametrization(
            layers[name], "weight", LowRank(name, layers[name], options, generator)
        )
    hide_frozen(net)


def hide_frozen(net: nn.Module) -> None:
    """Leave the frozen parameters out of what the net saves and loads."""
    parameters = net.named_parameters(remove_duplicate=False)
    frozen = {name: p.detach() for name, p in parameters if not p.requires_grad}

    def without(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in frozen:
            del state[f"{prefix}{name}"]

    def with_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state.update({f"{prefix}{name}": values for name, values in frozen.items()})

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
    return hashlib.sha256(save({n: t.contiguous() for n, t in base.items()})).hexdigest()[:16]


def merged(plain: nn.Module, net: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays of ``plain``, the net without adapters, that predicts as
    ``net`` with ``tensors``.
    """
    net.load_state_dict(tensors)
    return {name: attrgetter(name)(net).detach().clone() for name in plain.state_dict()}
