"""The user's own nets, methods and tasks, named in settings as ``module:name``, and the
files that are sent with the app.

A module is searched on Python's path, then in the current folder. Modules of the
current folder are copied into the submitted app, with the modules that they import from
there, so that workers and sites have them. Installed packages must also be installed
where clients run.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapps.algorithms.common.options import Options, nearest
from fedapps.errors import UserError, first_line

#: What stands before the colon of a net of a library, which is not the user's code.
LIBRARIES = ("torchvision", "timm", "transformers")


def is_reference(text: object) -> bool:
    """Return whether the value of a setting names the user's own code."""
    return isinstance(text, str) and ":" in text


def load(key: str, reference: str, value: str = "") -> Any:
    """Return the object that ``reference`` names, for the setting ``key`` with this
    ``value`` (default: the reference). Raises ``UserError``.
    """
    module_name, _, name = reference.partition(":")
    setting = f"{key} = {value or reference!r}"
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UserError(
            f"{setting}: name the module, not its file: write '{dotted}:{name}' and start in the "
            "folder of the file"
        )
    if not name or not all(
        part.isidentifier() for part in (*module_name.split("."), *name.split("."))
    ):
        raise UserError(f"{setting}: name a module and an object in it, as in 'my_code:NAME'")
    target: Any = _module(setting, module_name)
    for part in name.split("."):
        if not hasattr(target, part):
            raise UserError(
                f"{setting}: {nearest(part, dir(target))}{module_name} ({_place(target)}) has "
                f"no {part!r}"
            )
        target = getattr(target, part)
    return target


def _module(setting: str, name: str) -> ModuleType:
    folder = str(Path.cwd())
    added = not {folder, ""} & set(sys.path)
    if added:
        # Last on the path, so that it hides nothing. It stays: code may import late.
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            where = f"it is neither in the current folder, {folder}, nor installed"
        else:
            where = f"{name} imports it: install it"
        raise UserError(f"{setting}: no module {missing!r}: {where}") from None
    except Exception as error:
        where = f" (the current folder is {Path.cwd()})" if isinstance(error, OSError) else ""
        raise UserError(f"{setting}: cannot import {name}: {first_line(error)}{where}") from error


def _place(thing: Any) -> str:
    return str(
        getattr(thing, "__file__", None)
        or getattr(thing, "__qualname__", "")
        or type(thing).__name__
    )


def own_files(config: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of the user's code named in the settings that are in the current
    folder, by their path below it.
    """
    if not code_named(config):
        return {}
    folder = Path.cwd().resolve()
    ours = Path(__file__).resolve().parents[2]
    files = {}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if path.suffix != ".py" or not path.is_relative_to(folder) or "site-packages" in path.parts:
            continue
        place = path.relative_to(folder)
        if name == "__main__" or (folder == ours and name.partition(".")[0] == "fedapps"):
            continue
        # only files whose path matches the module's name
        if place in (
            Path(*name.split(".")).with_suffix(".py"),
            Path(*name.split("."), "__init__.py"),
        ):
            files[place.as_posix()] = path
    return files


def check_trusted(place: Path, config: Mapping[str, Any], named: Collection[object] = ()) -> None:
    """Raise ``UserError`` if the settings of a results folder, in the file ``place``,
    name code: a folder from elsewhere must not choose what is executed here.

    ``named``: values that the user gave, which may be loaded.
    """
    for key in code_named(config):
        module = config[key].partition(":")[0]
        if config[key] not in named and module not in LIBRARIES:
            raise UserError(
                f"{place}: {key} = {config[key]!r} is code: {_file_of(module)} would be executed: "
                "add --trust if you trust it"
            )


def _file_of(module: str) -> str:
    """Return where a module would be loaded from, without loading any part of it."""
    top = module.partition(".")[0]
    try:
        spec = PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
    except (ImportError, ValueError):
        spec = None
    found = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec else ""
    return found or f"the module {module!r}"


def code_named(config: Mapping[str, Any]) -> list[str]:
    """Return the settings that name the user's own code."""
    return [
        key
        for key, value in config.items()
        if (key in ("model.name", "task") or names_method(key)) and is_reference(value)
    ]


def names_method(key: str) -> bool:
    """Return whether the value of a setting is a method that may be the user's own: the
    run's method, or the one that it wraps.
    """
    return key == "method" or key.endswith(".base")


def check_options(key: str, name: str, options: Any, table: Any) -> None:
    """Raise ``UserError`` if ``options`` of the user's method or task ``name`` cannot
    be a table of settings.
    """
    if options is None:
        return
    setting = f"{key} = {name!r}: options = {getattr(options, '__name__', options)!r}"
    derived = isinstance(options, type) and issubclass(options, Options)
    if not derived or (options is not Options and "__dataclass_params__" not in vars(options)):
        raise UserError(
            f"{setting}: must be a @dataclass(frozen=True) derived from "
            "fedapps.algorithms.common.options.Options"
        )
    for part in fields(options):
        if type(part.default) not in (bool, int, float, str):
            raise UserError(
                f"{setting}: {part.name!r} needs a default: true or false, a number, or text"
            )
    if not isinstance(table, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", table):
        raise UserError(
            f"{setting}: table = {table!r}: name its table of settings with small letters, digits "
            "and hyphens"
        )
    try:
        options()
    except ValueError as error:
        raise UserError(f"{setting}: its defaults are not allowed: {error}") from None


@contextmanager
def guarded(
    key: str, name: object, what: str, own: bool, passed: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise errors as ``UserError`` if the code is the user's ``own``. Errors of the
    types ``passed`` are not changed.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, passed) or not own:
            raise
        raise UserError(f"{key} = {name!r}: {what}: {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    """Return an error in the user's code in one line, with the file and line that
    raised it.
    """
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{first_line(error)}{place}"
