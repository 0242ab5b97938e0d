"""Code of the user's own, named in settings as ``module:name``, and the files of it
that travel with the app: nets, methods, tasks.

A module is looked for where Python looks, then in the current folder. What comes from
the current folder is copied into the app that is submitted, with all that it imports
from there, so that workers and sites have it; installed packages must be installed
where clients run.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithms.common.checks import nearest
from algorithms.common.options import Options
from fedapps.errors import UserError


def is_reference(text: object) -> bool:
    """Return whether a setting names code of the user's own."""
    return isinstance(text, str) and ":" in text


def load(key: str, reference: str, value: str = "") -> Any:
    """Return what ``reference`` names, for the setting ``key`` with this ``value``, by
    default itself. Raises ``UserError``.
    """
    module_name, _, name = reference.partition(":")
    said = f"{key} = {value or reference!r}"
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UserError(
            f"{said}: name the module, not its file: '{dotted}:{name}', from the folder that it is "
            "in"
        )
    if not name or not all(
        part.isidentifier() for part in (*module_name.split("."), *name.split("."))
    ):
        raise UserError(f"{said}: name a module and what to take of it, as in 'my_code:NAME'")
    found: Any = _module(said, module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(
                f"{said}: {nearest(part, dir(found))}{module_name} ({_place(found)}) has no "
                f"{part!r}"
            )
        found = getattr(found, part)
    return found


def _module(said: str, name: str) -> ModuleType:
    folder = str(Path.cwd())
    added = not {folder, ""} & set(sys.path)
    if added:
        # last, so that it hides nothing; it stays, since code may import late
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            where = f"not in the current folder, {folder}, and not installed"
        else:
            where = f"which {name} imports: install it here"
        raise UserError(f"{said}: there is no module {missing!r}, {where}") from None
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{said}: {name} cannot be imported: {type(error).__name__}: {line}"
        ) from error


def _place(thing: Any) -> str:
    return str(
        getattr(thing, "__file__", None)
        or getattr(thing, "__qualname__", "")
        or type(thing).__name__
    )


def own_files(config: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of the current folder that the code named in the settings
    consists of, by their place below it.
    """
    if not any(names_code(key) and is_reference(value) for key, value in config.items()):
        return {}
    folder = Path.cwd().resolve()
    ours = Path(__file__).resolve().parents[2]
    found = {}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if path.suffix != ".py" or not path.is_relative_to(folder) or "site-packages" in path.parts:
            continue
        place = path.relative_to(folder)
        if name == "__main__" or (
            folder == ours and place.parts[0] in ("algorithms", "strategies", "clients", "fedapps")
        ):
            continue
        # as it is imported
        if place in (
            Path(*name.split(".")).with_suffix(".py"),
            Path(*name.split("."), "__init__.py"),
        ):
            found[place.as_posix()] = path
    return found


def names_code(key: str) -> bool:
    """Return whether a setting may name code."""
    return key in ("model.name", "task") or names_method(key)


def names_method(key: str) -> bool:
    """Return whether a setting names a method that may be the user's own: the run's, or
    the one that it wraps.
    """
    return key == "method" or key.endswith(".base")


def check_options(key: str, name: str, options: Any, table: Any) -> None:
    """Raise ``UserError`` if ``options`` of the user's method or task ``name`` could
    not be a table of settings.
    """
    if options is None:
        return
    said = f"{key} = {name!r}: options = {getattr(options, '__name__', options)!r}"
    derived = isinstance(options, type) and issubclass(options, Options)
    if not derived or (options is not Options and "__dataclass_params__" not in vars(options)):
        raise UserError(
            f"{said}: must be a @dataclass(frozen=True) derived from "
            "algorithms.common.options.Options"
        )
    for part in fields(options):
        if type(part.default) not in (bool, int, float, str):
            raise UserError(
                f"{said}: {part.name!r} has no default that is true or false, a number or text: "
                "give it one"
            )
    if not isinstance(table, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", table):
        raise UserError(
            f"{said}: table = {table!r}: name its table of settings, in small letters, digits and "
            "hyphens"
        )
    try:
        options()
    except ValueError as error:
        raise UserError(f"{said}: its defaults are not allowed: {error}") from None


@contextmanager
def guarded(
    key: str, name: object, what: str, own: bool, passed: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Report errors as ``UserError`` where the code is the user's ``own``, except those
    of the kinds ``passed``.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, passed) or not own:
            raise
        raise UserError(f"{key} = {name!r}: {what}: {told(error)}") from error


def told(error: BaseException) -> str:
    """Return an error in the user's code in one line, with the place that raised it."""
    line = str(error).strip().partition("\n")[0]
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {line}{place}"
