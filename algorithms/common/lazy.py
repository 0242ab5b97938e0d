"""Names of a package that are imported when they are first used."""

import ast
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from dis import opname
from importlib import import_module
from pathlib import Path
from typing import Any

from fedapps.algorithms.common.described import describe

#: Names of methods that are a strategy with an argument.
OTHER_NAMES = {
    "FedPer": 'PartialSharing(["fc2"], "body"), with the names of your head',
    "LGFedAvg": 'PartialSharing(["fc2"], "head"), with the names of your head',
}


def _close(name: str, names: Iterable[str]) -> str:
    """Return the name that was meant, or ""."""
    small = {one.lower(): one for one in names}
    return "".join(small[one] for one in get_close_matches(name.lower(), small, 1, 0.9))


def late_exports(
    package: str, path: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    They offer the names that the file ``path`` imports under ``if TYPE_CHECKING:``.
    Type checkers and editors read the same list, so each name is written once.
    """
    blocks = [
        node
        for node in ast.parse(Path(path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in modules:
            meant = OTHER_NAMES.get(name) or _close(name, modules)
            asking = sys._getframe(1)
            if meant and opname[asking.f_code.co_code[max(asking.f_lasti, 0)]] == "IMPORT_FROM":
                # of an AttributeError Python would hide the text
                raise ImportError(f"cannot import name {name!r} from {package!r}: use {meant}")
            hint = f": use {meant}" if meant else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        try:
            found = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs PyTorch: pip install 'fedapps[torch]'", name="torch"
            ) from None
        if isinstance(found, type):
            describe(found)
        return found

    return find, lambda: sorted(modules), sorted(modules)
