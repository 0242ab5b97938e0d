"""Code of the user's own, named in settings as ``module:name``, and the files of it that travel with the app.

A module is looked for where Python looks, then in the current folder. What comes from the current folder is copied into the app that is
submitted, with all that it imports from there, so that workers and sites have it; installed packages must be installed where clients
run.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithms.common.checks import nearest
from fedapps.errors import UserError


def is_reference(text: object) -> bool:
    """Return whether a setting names code of the user's own."""
    return isinstance(text, str) and ":" in text


def load(key: str, reference: str) -> Any:
    """Return what ``reference``, the value of the setting ``key``, names. Raises ``UserError``."""
    module_name, _, name = reference.partition(":")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UserError(f"{key} = {reference!r}: name the module, not its file: '{dotted}:{name}', from the folder that it is in")
    if not name or not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise UserError(f"{key} = {reference!r}: name a module and what to take of it, as in 'my_nets:build'")
    found: Any = _module(key, reference, module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{key} = {reference!r}: {nearest(part, dir(found))}{module_name} ({_place(found)}) has no {part!r}")
        found = getattr(found, part)
    return found


def _module(key: str, reference: str, name: str) -> ModuleType:
    folder = str(Path.cwd())
    added = not {folder, ""} & set(sys.path)
    if added:
        sys.path.append(folder)  # last, so that it hides nothing; it stays, since code may import late
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            where = f"not in the current folder, {folder}, and not installed"
        else:
            where = f"which {name} imports: install it here"
        raise UserError(f"{key} = {reference!r}: there is no module {missing!r}, {where}") from None
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(f"{key} = {reference!r}: {name} cannot be imported: {type(error).__name__}: {line}") from error


def _place(thing: Any) -> str:
    return str(getattr(thing, "__file__", None) or getattr(thing, "__qualname__", "") or type(thing).__name__)


def own_files(config: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of the current folder that the code named in the settings consists of, by their place below it."""
    modules = [value.partition(":")[0] for key, value in config.items() if key in NAMING and is_reference(value)]
    if not modules:
        return {}
    folder = Path.cwd().resolve()
    ours = Path(__file__).resolve().parents[2]
    found = {}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if path.suffix != ".py" or not path.is_relative_to(folder) or "site-packages" in path.parts:
            continue
        place = path.relative_to(folder)
        if name == "__main__" or (folder == ours and place.parts[0] in ("algorithms", "strategies", "clients", "fedapps")):
            continue
        if place in (Path(*name.split(".")).with_suffix(".py"), Path(*name.split("."), "__init__.py")):  # as it is imported
            found[place.as_posix()] = path
    return found


#: Settings that may name code.
NAMING = ("model.name",)
