"""A class or function of a notebook's cell or of the script that runs, written as a
module that other processes can import.

The module holds its source and what that uses: imports, plain values, and further
classes and functions of the notebook. It is named after its content, and lies in
``notebook_code`` in the current folder. Nothing is pickled.
"""

import ast
import hashlib
import importlib
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedapps.errors import UserError
from fedapps.extensions.own_code import load

FOLDER = "notebook_code"


def reference_to(key: str, thing: Any) -> str:
    """Return the name of a class or function as ``module:name``, for the setting
    ``key``. Code of ``__main__`` is written to a module first. Raises ``UserError``.
    """
    if not isinstance(thing, type | FunctionType):
        raise UserError(
            f"{key}: is an object of type {type(thing).__name__}: give the class or a function "
            "that makes it, so that each run starts anew"
        )
    name = thing.__qualname__
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(
            f"{key}: {name} is defined inside of something else: define it by def or class, "
            "outside of functions"
        )
    if thing.__module__ != "__main__":
        if load(key, reference := f"{thing.__module__}:{name}") is not thing:
            raise UserError(f"{key}: {reference} is another object now: import it again")
        return reference
    parts: dict[str, str] = {}
    _add(key, thing, parts)
    text = "\n\n".join(parts.values()) + "\n"
    module = f"{name.lower()}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    path = Path(FOLDER, f"{module}.py")
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{key}: cannot write {path.absolute()}: {error.strerror}") from None
    importlib.invalidate_caches()
    return f"{FOLDER}.{module}:{name}"


def _add(key: str, thing: Any, parts: dict[str, str]) -> None:
    """Add the source of a class or function to ``parts``, after what it uses."""
    name, source = thing.__name__, _source(key, thing)
    parts[f"open {name}"] = ""  # it may use itself
    known = vars(sys.modules["__main__"])
    for used in sorted(_used(source)):
        if used in known and not used.startswith("__"):
            _add_used(key, name, used, known[used], parts)
    del parts[f"open {name}"]
    parts[name] = source


def _add_used(key: str, by: str, name: str, value: Any, parts: dict[str, str]) -> None:
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if name in parts or f"open {name}" in parts:
        return
    if isinstance(value, ModuleType):
        parts[name] = f"import {own} as {name}"
    elif isinstance(value, type | FunctionType) and module == "__main__" and own == name:
        _add(key, value, parts)
    elif module != "__main__" and getattr(sys.modules.get(str(module)), own, None) is value:
        parts[name] = f"from {module} import {own} as {name}"
    elif _is_plain(value):
        parts[name] = f"{name} = {value!r}"
    else:
        raise UserError(
            f"{key}: {by} uses {name!r}, of type {type(value).__name__}, which other processes "
            "do not have: make it inside, or save the code in a file, my_code.py, and import it"
        )


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _used(source: str) -> set[str]:
    """Return the names that source looks up in its module."""
    top = symtable.symtable(source, "<cell>", "exec")
    made = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    return {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if (symbol.is_global() or table is top)
        and symbol.is_referenced()
        and symbol.get_name() not in made
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _source(key: str, thing: Any) -> str:
    """Return the source of a class or function of ``__main__``. Raises ``UserError``.

    `inspect.getsource` does not find the classes of a notebook: they have no file. The
    functions in them do.
    """
    name, code = thing.__name__, _code(thing)
    lines = linecache.getlines(code.co_filename) if code else []
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name and code:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or 0):
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    raise UserError(
        f"{key}: the source of {name} is not known: save it in a file, my_code.py, and import it"
    )


def _code(thing: Any) -> CodeType | None:
    if isinstance(thing, FunctionType):
        return getattr(inspect.unwrap(thing), "__code__", None)
    parts: Mapping[str, Any] = vars(thing)
    for part in parts.values():
        code = getattr(part, "__code__", None)
        if code is not None and linecache.getlines(code.co_filename):
            inside = getattr(part, "__qualname__", "").startswith(f"{thing.__qualname__}.")
            if inside and isinstance(code, CodeType):
                return code
    return None
