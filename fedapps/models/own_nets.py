"""A user's own net by the path of its class: ``FILE.py:CLASS`` or ``MODULE:CLASS``."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from fedapps.errors import UserError
from fedapps.models.base import Shape


def own_net(path: str, shape: Shape, num_classes: int) -> nn.Module:
    """Return a new net of the class at ``path``, made without arguments, that was tried on a sample (C, H, W) = ``shape``.

    Raises ``UserError`` unless it is a class of ``nn.Module`` that maps (n, C, H, W) to logits (n, num_classes).
    """
    source, colon, name = path.rpartition(":")
    said = f"ensemble.module = {path!r}"
    if not (source and colon and name):
        raise UserError(f"{said}: write FILE.py:CLASS or MODULE:CLASS")
    try:
        module = _from_file(Path(source).expanduser()) if source.endswith(".py") else import_module(source)
    except Exception as error:  # the file is the user's: it may raise anything
        raise UserError(f"{said}: {source} cannot be imported: {_line(error)}") from None
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        nets = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)]
        raise UserError(
            f"{said}: {source} has no class {name} of torch.nn.Module: choose among {', '.join(nets) or '(it has none)'}"
        )
    try:
        net: nn.Module = kind()
        with torch.no_grad():
            logits = net.eval()(torch.zeros(1, *shape))
    except Exception as error:
        raise UserError(
            f"{said}: made without arguments and given a sample of {' x '.join(map(str, shape))} it fails: {_line(error)}"
        ) from None
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != (1, num_classes):
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UserError(
            f"{said}: returns {found} for one sample, but the data has {num_classes} classes: return logits (n, {num_classes})"
        )
    return net


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _from_file(path: Path) -> ModuleType:
    """Return the module of a file, imported under a name of its own. Raises what the import raises."""
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    spec = spec_from_file_location(f"fedapps_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("is no Python file")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickling look there
    spec.loader.exec_module(module)
    return module
