"""What `flwr run` is given: a folder with the app, and the settings as TOML."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

Value = bool | int | float | str

PACKAGES = ("algorithms", "strategies", "clients", "fedapps")


def copy_app(folder: Path) -> Path:
    """Copy this project's Flower app, and only that, into `folder`; return the new folder that holds it.

    A copy, because it works alike from a checkout and from an installed wheel, and because Flower looks through the
    whole folder it is given and may edit its pyproject.toml: it never meets environments, results or the user's files.
    """
    package = Path(__file__).resolve().parent
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


def to_toml(values: Mapping[str, Value]) -> str:
    """Return `values` as TOML, one line per key; a dotted key is quoted, which Flower flattens to the same key."""
    return "".join(f"{_toml_string(key)} = {toml_value(value)}\n" for key, value in values.items())


def toml_value(value: Value) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # float() first: NumPy's scalars have another repr
    return _toml_string(value)


def _toml_string(text: str) -> str:
    # JSON's escapes are a subset of TOML's, but TOML also forbids a bare DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
