"""Torch modules as lists of arrays (the form in which models are sent), their batched
evaluation, and their random numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Arrays = list[NDArray[Any]]
#: The most numbers that an output of a net's module may have in a batch of an
#: evaluation: 256 MB. All nets here keep the usual 1,024 images of 32 x 32 pixels.
WIDEST = 2**26
_widths: WeakKeyDictionary[nn.Module, dict[torch.Size, int]] = WeakKeyDictionary()
_alone: WeakKeyDictionary[nn.Module, dict[torch.Size, bool]] = WeakKeyDictionary()


def get_arrays(model: nn.Module) -> Arrays:
    """Return copies of all parameters and buffers, in the order of ``state_dict``."""
    return [tensor.detach().cpu().numpy().copy() for tensor in model.state_dict().values()]


def set_arrays(model: nn.Module, arrays: Sequence[NDArray[Any]]) -> None:
    """Copy arrays into the parameters and buffers; raises ``ValueError`` if their
    number or shapes do not match the model.
    """
    state = model.state_dict()
    if len(arrays) != len(state):
        raise ValueError(
            f"{len(arrays)} arrays received, but the model has {len(state)}: use the same "
            "model on server and client"
        )
    for (name, tensor), array in zip(state.items(), arrays, strict=True):
        if tuple(array.shape) != tuple(tensor.shape):
            raise ValueError(
                f"array {name!r} has shape {array.shape}, but the client's model has "
                f"{tuple(tensor.shape)}"
            )
        if tensor.device.type == "cpu":
            # torch.from_numpy would warn: arrays from messages are read-only
            np.copyto(tensor.numpy(), array)
        else:
            tensor.copy_(torch.tensor(array))


@contextmanager
def torch_seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators with ``seed`` (for dropout, initial weights), and restore
    them when the context ends.

    ``device``: the device of the layers, if not the CPU. ``torch.manual_seed`` would
    seed every kind of device, which takes milliseconds and loads PyTorch's compiler the
    first time.
    """
    kind: Any = None
    before, there = torch.default_generator.get_state(), None
    if device is not None and device.type != "cpu":
        kind = torch.get_device_module(device)
        which = () if device.type == "mps" else (device,)  # of which there is one only
        there = kind.get_rng_state(*which)
    try:
        torch.default_generator.manual_seed(seed)
        if kind:
            getattr(kind, "manual_seed_all", kind.manual_seed)(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if kind:
            kind.set_rng_state(there, *which)


def evaluation_batch(model: nn.Module, x: Tensor, usual: int = 1024) -> int:
    """Return how many samples of ``x`` (n, ...) the model, in evaluation mode, is given
    at once: ``usual``, or fewer if the output of one of its modules would have more
    than ``WIDEST`` numbers.

    A size of the samples alone does not say that: a token becomes hundreds of numbers.
    """
    if len(x) < 2:
        return usual
    return max(1, min(usual, WIDEST // widest(model, x)))


def trains_alone(model: nn.Module, x: Tensor) -> bool:
    """Return whether the model takes a mini-batch of a single sample of ``x`` (n, ...)
    in training mode, unlike batch normalisation of vectors, which needs two.

    It is tried once for each form of samples. Buffers and random numbers stay.
    """
    known = _alone.setdefault(model, {})
    if x.shape[1:] not in known:
        known[x.shape[1:]] = _taken(model, x[:1]) or not _taken(model, x[:2])
    return known[x.shape[1:]]


@torch.no_grad()
def _taken(model: nn.Module, x: Tensor) -> bool:
    kept, was_training = [(b, b.clone()) for b in model.buffers()], model.training
    try:
        with torch_seeded(0, x.device):
            out = model.train()(x)
            return not isinstance(out, Tensor) or len(out) == len(x)
    except Exception:  # of any layer
        return False
    finally:
        model.train(was_training)
        for buffer, before in kept:
            buffer.copy_(before)


@torch.no_grad()
def widest(model: nn.Module, x: Tensor) -> int:
    """Return the size of the largest output of the model's modules for one of the
    samples ``x`` (n, ...), or of the sample, if the model cannot be called with one.

    The model, in evaluation mode, is measured once for each form of samples.
    """
    known = _widths.setdefault(model, {})
    if x.shape[1:] in known:
        return known[x.shape[1:]]
    sizes = [x[0].numel()]

    def measure(module: nn.Module, given: Any, out: Any) -> None:
        parts = out if isinstance(out, tuple) else (out,)  # a recurrent layer's has several
        sizes.extend(part.numel() for part in parts if isinstance(part, Tensor))

    hooks = [module.register_forward_hook(measure) for module in model.modules()]
    try:
        with suppress(Exception):  # it may need labels too, or more samples than one
            model(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    known[x.shape[1:]] = max(sizes)
    return known[x.shape[1:]]


@torch.no_grad()
def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's outputs (n, ...) for ``x`` (n, ...) in evaluation mode,
    computed in batches.
    """
    was_training = model.training
    model.eval()
    out = torch.cat([model(part) for part in x.split(evaluation_batch(model, x))])
    model.train(was_training)
    return out


def class_sums(values: Tensor, labels: Tensor, classes: int) -> Arrays:
    """Return the sums (classes, ...) of values (n, ...) by label, and the labels'
    counts (classes,), both divided by n.
    """
    one_hot = nn.functional.one_hot(labels, classes).double() / len(labels)
    sums = torch.einsum("nk,n...->k...", one_hot, values.double())
    return [part.float().cpu().numpy() for part in (sums, one_hot.sum(0))]


def normalisation(model: nn.Module) -> list[str]:
    """Return the names of the arrays of normalisation layers (batch, layer, group,
    instance), statistics and counters included.
    """
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    inside = [
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    return [
        name for name in model.state_dict() if any(name.startswith(prefix) for prefix in inside)
    ]


def has_running_statistics(model: nn.Module) -> bool:
    """Return whether the model's buffers include running statistics of batch
    normalisation.
    """
    return bool(_with_statistics(model))


@torch.no_grad()
def estimate_statistics(model: nn.Module, x: Tensor) -> None:
    """Set the running statistics of normalisation layers to the means over ``x`` (n,
    ...) at the model's parameters.

    A mixture of two models needs this, since the statistics of neither fit it. With a
    single sample they stay unchanged.
    """
    layers, was_training = _with_statistics(model), model.training
    if not layers or len(x) < 2:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()  # dropout stays off
    batch_size = evaluation_batch(model, x)
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    # of about the same size: none of a single sample
    for part in x.chunk(-(-len(x) // batch_size)):
        model(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)


def _with_statistics(model: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    modules = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)
    ]
    return [module for module in modules if module.running_mean is not None]
