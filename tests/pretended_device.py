"""A pretended CUDA device: its tensors claim to be on the device, hold their values on
the CPU, and cannot be combined with CPU tensors.

    with pretended_cuda(monkeypatch):
        torch.zeros(3, device="cuda") + torch.zeros(3)     # RuntimeError, as on a GPU

Everything is computed by the CPU's kernels, so results equal the CPU's to the last bit.
This tests that no tensor stays on the wrong device, and that tensors are fetched before
they leave the device (``.numpy()``). It does not test the kernels of a GPU.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from fedapps.clients.steps import cohorts

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
# Operations that take tensors of two devices: copies between them, and indices, which a
# GPU takes from the CPU too.
BETWEEN = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten.index_fill_.int_Scalar,
}


class OnCuda(torch.Tensor):
    """A tensor that claims to be on the device; ``held`` has its values."""

    @staticmethod
    def __new__(cls, held):
        # To PyTorch's own code it is on the CPU: the autograd engine would ask a driver
        # about any other device.
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="cpu",
        )

    def __init__(self, held):
        self.held = held

    @property
    def device(self):
        return CUDA

    def data_ptr(self):
        return self.held.data_ptr()

    def __repr__(self):
        return f"OnCuda({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """Creates tensors on the device if they are requested there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Moved(TorchFunctionMode):
    """Moves tensors between the CPU and the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if (
            func in (torch.tensor, torch.as_tensor, torch.asarray)
            and wanted(kwargs.get("device")) == CUDA
        ):
            del kwargs["device"]
            return moved(func(*args, **kwargs), CUDA)
        if func is torch.asarray and isinstance(args[0], OnCuda):
            return args[0].to(kwargs.get("dtype") or args[0].dtype)
        # makes a range where PyTorch's own code sees it
        if func is torch.nn.functional.one_hot and isinstance(args[0], OnCuda):
            return OnCuda(func(args[0].held, *args[1:], **kwargs))
        if func is torch.Tensor.tolist:
            return moved(args[0], CPU).tolist()
        if func is torch.Tensor.cpu:
            return moved(args[0], CPU)
        if func is torch.Tensor.to:
            tensor, *rest = args
            others = [
                one
                for one in (*rest, *kwargs.values())
                if isinstance(one, torch.Tensor | torch.device | str)
            ]
            to = (
                wanted(others[0].device if isinstance(others[0], torch.Tensor) else others[0])
                if others
                else None
            )
            kinds = [one for one in (*rest, *kwargs.values()) if isinstance(one, torch.dtype)]
            kinds += [one.dtype for one in others if isinstance(one, torch.Tensor)]
            there = tensor if not kinds or kinds[0] == tensor.dtype else func(tensor, kinds[0])
            return there if to is None else moved(there, to)
        return func(*args, **kwargs)


def wanted(device):
    """Return the requested device."""
    return None if device is None else CUDA if torch.device(device).type == "cuda" else CPU


def moved(tensor, device):
    """Return a tensor on a device: itself, if it is there."""
    if isinstance(tensor, OnCuda) == (device == CUDA):
        return tensor
    assert not (torch.is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf), (
        "no gradient passes from device to device"
    )
    return OnCuda(tensor.detach().clone()) if device == CUDA else tensor.detach().held.clone()


def computed(func, args, kwargs):
    """Compute an operation with the CPU's kernel, and put the result where it
    belongs.
    """
    wanted = kwargs.get("device")
    if func is aten.scatter.src and isinstance(args[3], OnCuda) and not args[0].any():
        args = (
            moved(args[0], CUDA),
            *args[1:],
        )  # topk's gradient: PyTorch 2.6 makes its zeros where its own code sees the tensors
    tensors = []
    tree_map_only(
        torch.Tensor, tensors.append, [*args[:1], kwargs] if func in INDEXED else [args, kwargs]
    )
    there = any(isinstance(tensor, OnCuda) for tensor in tensors)
    if there and func not in BETWEEN:
        for tensor in tensors:
            if not isinstance(tensor, OnCuda) and tensor.dim():
                raise RuntimeError(
                    f"{func}: expected all tensors to be on the same device, but found cuda:0 and "
                    "cpu"
                )
    if wanted is not None:
        there = torch.device(wanted).type == "cuda"
        kwargs = {**kwargs, "device": "cpu"}
    inner_args, inner_kwargs = tree_map_only(OnCuda, lambda tensor: tensor.held, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    schema = func._schema
    if func in BETWEEN and wanted is None and func is not aten._to_copy.default:
        return None if func is aten._foreach_copy_.default else args[0]
    if schema.is_mutable:
        changed = [
            a
            for a, spec in zip(args, schema.arguments, strict=False)
            if spec.alias_info and spec.alias_info.is_write
        ]
        changed += [
            kwargs[s.name]
            for s in schema.arguments
            if s.kwarg_only and s.alias_info and s.alias_info.is_write and s.name in kwargs
        ]
        if result is None or not schema.returns:
            return None
        if len(changed) == 1 and not isinstance(result, tuple | list):
            return changed[0]
    return tree_map(lambda one: OnCuda(one) if there and type(one) is torch.Tensor else one, result)


@contextmanager
def pretended_cuda(monkeypatch, gpus=1):
    """Let ``device="cuda"`` be the pretended device, of which ``gpus`` are visible.
    Clients take steps alone: vmap looks at tensors below what is pretended.
    """
    monkeypatch.setitem(cohorts.MOST_OPERATIONS, "cuda", 0.0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    # otherwise a module keeps its own tensors, with other contents
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with Moved(), Pretend():
            yield CUDA
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
        torch.use_deterministic_algorithms(False)
