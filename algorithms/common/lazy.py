"""Names of a package that are imported when they are first used, and names that have
moved.
"""

import ast
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def late_exports(
    package: str, path: str, renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    They offer what its file ``path`` imports under ``if TYPE_CHECKING:``; type checkers
    and editors read that list as it stands, so each name is written once. ``renamed``:
    old name -> new name; an old one still works, with a ``DeprecationWarning``.
    """
    blocks = [
        node
        for node in ast.parse(Path(path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}
    old = renamed or {}

    def find(name: str) -> Any:
        if name in old:
            warnings.warn(
                f"{package}.{name} is now {package}.{old[name]}", DeprecationWarning, stacklevel=2
            )
            name = old[name]
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs PyTorch: pip install 'fedapps[torch]'", name="torch"
            ) from None

    return find, lambda: sorted(modules), sorted(modules)


def moved_modules(moved: Mapping[str, str]) -> None:
    """Let ``import old.name`` find the module ``new.name``, with a
    ``DeprecationWarning``; ``moved``: old -> new, dotted.
    """
    sys.meta_path.append(_Moved(moved))


class _Moved(MetaPathFinder, Loader):
    def __init__(self, moved: Mapping[str, str]) -> None:
        self.moved = dict(moved)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.moved else None

    def exec_module(self, module: ModuleType) -> None:
        new = self.moved[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        module.__dict__.update(
            {
                name: value
                for name, value in vars(import_module(new)).items()
                if not name.startswith("__")
            }
        )
