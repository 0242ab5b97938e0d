"""The app folder passed to `flwr run`: this project's Flower app and nothing else."""

import shutil
from pathlib import Path

PACKAGES = ("algorithms", "strategies", "clients", "fedapps")


def copy_app(folder: Path) -> Path:
    """Copy this project's Flower app, and nothing else, into a new folder inside `folder`; return the new folder.

    A copy works the same from a checkout and from an installed wheel. It also keeps Flower, which scans the whole app folder and may
    edit its pyproject.toml, away from environments, results and the user's files.
    """
    package = Path(__file__).resolve().parent.parent
    root, inside = package.parent, package / "pyproject.toml"  # in a wheel it is inside the package
    app = folder / "fedapps"  # Flower accepts letters, digits and hyphens in the name
    app.mkdir(parents=True)
    shutil.copy(inside if inside.exists() else root / "pyproject.toml", app)
    for name in PACKAGES:
        for source in (root / name).rglob("*.py"):
            target = app / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return app
