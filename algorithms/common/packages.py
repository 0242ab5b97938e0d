"""Whether the packages beside this one are still this project's.

The package index has projects named ``algorithms`` and ``strategies``. pip installs
their files over ours, in the same folders, and takes those away when it removes them.
"""

from pathlib import Path

#: What the ``__init__.py`` of each package of this project holds.
MARK = 'PROJECT = "fedapps"'


def check_ours(*names: str, root: Path | None = None) -> None:
    """Raise ``ImportError`` if one of these packages is another project's by now.

    ``root``: the folder of the packages, of this one by default. Nothing is imported.
    """
    for name in names:
        init = (root or Path(__file__).parents[2]) / name / "__init__.py"
        if not init.is_file() or MARK not in init.read_text("utf-8"):
            raise ImportError(
                f"{init.parent} is no longer the package of fedapps: another project named "
                f"{name!r} was installed over it, or removed: pip uninstall {name}; "
                "pip install --force-reinstall --no-deps fedapps"
            )
