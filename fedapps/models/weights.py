"""Weights that a run starts from, from a safetensors file."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedapps.algorithms.common.options import nearest
from fedapps.errors import UserError


def read_weights(net: nn.Module, file: str) -> None:
    """Load the arrays of ``file`` into ``net``; names and shapes must be those of the
    net, and values finite. Raises ``UserError`` for the first array that differs.
    """
    key = f"model.weights = {file!r}"
    if not Path(file).is_file():
        raise UserError(f"{key}: there is no such file")
    try:
        arrays = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{key}: is not a safetensors file: {error}") from None
    wanted = net.state_dict()
    for name in [*wanted, *arrays]:
        if name not in arrays:
            raise UserError(
                f"{key}: has no array {name!r}, which the model needs; {nearest(name, arrays)}it "
                f"has {len(arrays)} arrays"
            )
        if name not in wanted:
            raise UserError(
                f"{key}: has an array {name!r}, which the model does not have; "
                f"{nearest(name, wanted)}leave it out"
            )
        if arrays[name].shape != wanted[name].shape:
            raise UserError(
                f"{key}: array {name!r} has shape {tuple(arrays[name].shape)}, but the model's "
                f"array has {tuple(wanted[name].shape)}"
            )
        if not bool((torch.isfinite(arrays[name]) | (arrays[name] == wanted[name])).all()):
            raise UserError(f"{key}: array {name!r} holds values that are not finite")
    net.load_state_dict(arrays)
