"""The folder that `flwr run` is given: this project's Flower app, and only that."""

import shutil
from pathlib import Path

PACKAGES = ("algorithms", "strategies", "clients", "fedapps")


def copy_app(folder: Path) -> Path:
    """Copy this project's Flower app, and only that, into `folder`; return the new folder that holds it.

    A copy, because it works alike from a checkout and from an installed wheel, and because Flower looks through the
    whole folder it is given and may edit its pyproject.toml: it never meets environments, results or the user's files.
    """
    package = Path(__file__).resolve().parent.parent
    root, inside = package.parent, package / "pyproject.toml"  # a wheel carries it inside the package
    app = folder / "fedapps"  # Flower wants letters, digits and hyphens in the name
    app.mkdir(parents=True)
    shutil.copy(inside if inside.exists() else root / "pyproject.toml", app)
    for name in PACKAGES:
        for source in (root / name).rglob("*.py"):
            target = app / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return app
