"""Forward passes in bfloat16: torch's autocast takes matrix products and convolutions
in it. Parameters, gradients and everything between the passes are float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn


class Bfloat16(nn.Module):
    """Mixin for a net's class: passes run under autocast, and outputs are float32."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the net."""
        device = next(self.parameters()).device.type
        # without its cache, which would outlive a step that changes the parameters
        with torch.autocast(device, torch.bfloat16, cache_enabled=False), _plain_kernels(self):
            out = super().forward(*args, **kwargs)
        return out.float() if out.dtype == torch.bfloat16 else out


def set_bfloat16(model: nn.Module, on: bool) -> None:
    """Let the net's passes run in bfloat16, or in float32 again. Raises ``ValueError``
    if its device cannot.
    """
    if on == isinstance(model, Bfloat16):
        return
    if on:
        check_bfloat16(next(model.parameters()).device)
    kind: Any = type(model)
    model.__class__ = _in_bfloat16(kind) if on else kind.__bases__[1]


def check_bfloat16(device: torch.device) -> None:
    """Raise ``ValueError`` if a device has no arithmetic in bfloat16."""
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        able = torch.amp.is_autocast_available(device.type)
    if not able:
        raise ValueError(
            f"precision = 'bf16': the device {device} has no bfloat16: choose float32, or "
            "another device"
        )


@contextmanager
def _plain_kernels(model: nn.Module) -> Iterator[None]:
    """Keep recurrent layers away from oneDNN, which refuses them in bfloat16 on
    processors without AVX-512.
    """
    engine = torch.backends.mkldnn
    refused = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not (refused and engine.enabled and any(isinstance(m, nn.RNNBase) for m in model.modules())):
        yield
        return
    engine.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.enabled = True  # type: ignore[assignment]


@cache
def _in_bfloat16(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (Bfloat16, kind), {"__module__": kind.__module__})
