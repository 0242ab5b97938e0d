"""The app's packages: a check that Python imports the right ones, and the folder with
them that is passed to `flwr run`.
"""

import json
import shutil
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from fedapps.errors import UserError
from fedapps.toml_text import Value, flatten_toml, to_toml

PACKAGES = ("algorithms", "strategies", "clients", "fedapps")


def check_packages() -> None:
    """Raise ``UserError`` with the path if another package of the same name hides one
    of this app's, or was installed over it.

    Python imports the first package of a name on its path. The path may contain the
    current folder, and this folder may contain the user's own `strategies`, for
    example.
    """
    root = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        spec = find_spec(name)
        if (
            spec is not None
            and spec.origin is not None
            and Path(spec.origin).resolve() == root / name / "__init__.py"
        ):
            continue
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        other = Path(place or "nothing")
        other = other.parent if other.name == "__init__.py" else other
        raise UserError(
            f"{other} hides the package {name!r} of fedapps, which is in {root / name}: rename it, "
            f"or remove {other.parent} from the path "
            f"(PYTHONPATH, or the current folder with `python -m`)"
        )
    from fedapps.algorithms.common.packages import (
        check_ours,  # late: after the check that it is ours
    )

    try:
        check_ours("algorithms", "strategies", "clients")
    except ImportError as error:
        raise UserError(str(error)) from None


def copy_app(
    folder: Path,
    own: Mapping[str, Path] | None = None,
    run_config: Mapping[str, Value] | None = None,
) -> Path:
    """Copy this project's Flower app, and nothing else, into a new folder inside
    `folder`; return the new folder.

    `own`: the user's own files, by their paths in the app; they are added to it.
    `run_config`: settings of the run; those in the user's own tables are added to the
    app's settings.

    A copy works the same from a checkout and from an installed wheel. Flower scans the
    whole app folder and may edit its pyproject.toml: in a copy it cannot touch
    environments, results and the user's files.
    """
    package = Path(__file__).resolve().parent.parent
    root, inside = package.parent, package / "pyproject.toml"  # in a wheel: inside the package
    app = folder / "fedapps"  # Flower accepts letters, digits and hyphens in the name
    app.mkdir(parents=True)
    shutil.copy(inside if inside.exists() else root / "pyproject.toml", app)
    shutil.copy((inside if inside.exists() else root / "pyproject.toml").with_name("LICENSE"), app)
    for name in PACKAGES:
        for source in (root / name).rglob("*.py"):
            target = app / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for place, source in (own or {}).items():
        (app / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, app / place)
    if own:
        text = (app / "pyproject.toml").read_text(encoding="utf-8")
        known = flatten_toml(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
        more = {
            f"tool.flwr.app.config.{key}": value
            for key, value in (run_config or {}).items()
            if key not in known
        }
        listed = "".join(
            f"{json.dumps(place)}, " for place in own
        )  # Flower leaves out files and rejects settings that are not listed
        text = text.replace("fab-include = [", f"fab-include = [{listed}", 1) + (
            "\n" + to_toml(more) if more else ""
        )
        (app / "pyproject.toml").write_text(text, encoding="utf-8")
    return app
