"""Checks that another project's files have not replaced this project's packages.

The package index has projects named ``algorithms`` and ``strategies``. pip installs
their files over ours, in the same folders, and deletes ours when it removes them.
"""

from pathlib import Path

#: The line that the ``__init__.py`` of each package of this project contains.
MARK = 'PROJECT = "fedapps"'


def check_ours(*names: str, root: Path | None = None) -> None:
    """Raise ``ImportError`` if another project has replaced one of these packages.

    ``root``: the folder of the packages, by default the one of this package. Nothing is
    imported.
    """
    for name in names:
        init = (root or Path(__file__).parents[2]) / name / "__init__.py"
        if not init.is_file() or MARK not in init.read_text("utf-8"):
            raise ImportError(
                f"{init.parent} is no longer the package of fedapps: another project named "
                f"{name!r} was installed over it, or removed: pip uninstall {name}; "
                "pip install --force-reinstall --no-deps fedapps"
            )
