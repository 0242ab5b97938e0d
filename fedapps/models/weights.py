"""Weights that a run starts from, from a safetensors file."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from algorithms.common.checks import nearest
from fedapps.errors import UserError


def read_weights(net: nn.Module, file: str) -> None:
    """Give ``net`` the arrays of ``file``, which must have its names and shapes. Raises
    ``UserError`` naming the first that differs.
    """
    key = f"model.weights = {file!r}"
    if not Path(file).is_file():
        raise UserError(f"{key}: there is no such file")
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{key}: is no safetensors file: {error}") from None
    check_arrays(key, found, net)
    net.load_state_dict(found)


def check_arrays(key: str, found: Mapping[str, Tensor], net: nn.Module) -> None:
    """Raise ``UserError``, which begins with ``key``, unless arrays have the names and
    shapes of the net's, and finite values.
    """
    wanted = net.state_dict()
    for name in [*wanted, *found]:
        if name not in found:
            raise UserError(
                f"{key}: has no array {name!r}, which the model has; {nearest(name, found)}it has "
                f"{len(found)} arrays"
            )
        if name not in wanted:
            raise UserError(
                f"{key}: has an array {name!r}, which the model has not; "
                f"{nearest(name, wanted)}leave it out"
            )
        if found[name].shape != wanted[name].shape:
            raise UserError(
                f"{key}: array {name!r} has shape {tuple(found[name].shape)}, the model's is "
                f"{tuple(wanted[name].shape)}"
            )
        if found[name].is_floating_point() and not bool(torch.isfinite(found[name]).all()):
            raise UserError(f"{key}: array {name!r} holds values that are not finite")
