"""The folder with this project's Flower app that is passed to `flwr run`, and
published.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from fedapps.toml_text import Value, flatten_toml, to_toml

PARTS = ("algorithms", "strategies", "clients")  # folders beside fedapps in a checkout


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
    project = inside if inside.exists() else root / "pyproject.toml"
    app = folder / "fedapps"  # Flower accepts letters, digits and hyphens in the name
    app.mkdir(parents=True)
    text = for_flower(project.read_text(encoding="utf-8"))
    shutil.copy(project.with_name("LICENSE"), app)
    files = {
        PurePath("fedapps", source.relative_to(package)): source for source in package.rglob("*.py")
    } | {
        PurePath("fedapps", name, source.relative_to(folder)): source
        for name in PARTS
        for folder in import_module(f"fedapps.{name}").__path__
        for source in Path(folder).rglob("*.py")
    }
    own = own or {}
    for target, source in (files | {PurePath(place): path for place, path in own.items()}).items():
        (app / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, app / target)
    if own:
        known = flatten_toml(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
        more = {
            f"tool.flwr.app.config.{key}": value
            for key, value in (run_config or {}).items()
            if key not in known
        }
        # Flower leaves out files and rejects settings that are not listed
        listed = "".join(f"{json.dumps(place)}, " for place in own)
        text = text.replace("fab-include = [", f"fab-include = [{listed}", 1) + (
            "\n" + to_toml(more) if more else ""
        )
    (app / "pyproject.toml").write_text(text, encoding="utf-8")
    return app


def for_flower(text: str) -> str:
    """Return the text of pyproject.toml for the app alone: `[project].dependencies` are
    those of the application, because Flower installs no extra. The extras, whose
    versions Flower would have to agree on before every run, and the tables of other
    tools are left out. All code is below `fedapps`, so that folders of the user's own
    may have any other name.
    """
    project = tomllib.loads(text)["project"]
    wanted = project["dependencies"] + _extra(project, "app")
    by_name = {re.split(r"[^\w-]", item)[0]: item for item in wanted}  # the app's own bound counts
    items = "".join(f"    {json.dumps(item)},\n" for item in by_name.values())
    tables = re.split(r"(?m)^(?=\[)", text)
    kept = re.compile(
        r"\[(build-system|project(?!\.optional)|tool\.(hatch\.build\.targets\.wheel|flwr))|[^\[]|$"
    )
    text = "".join(table for table in tables if kept.match(table))
    for name in PARTS:
        text = text.replace(f'"{name}/**/*.py", ', "")  # from the list of what a FAB takes,
        text = text.replace(f'"{name}" = "fedapps/{name}"\n', "")  # and a wheel
    listed = re.compile(r"(?ms)(?:^#[^\n]*\n)*^dependencies = \[.*?^\]")  # and what is said of them
    return listed.sub(lambda _: f"dependencies = [\n{items}]", text, count=1)


def _extra(project: Mapping[str, Any], name: str) -> list[str]:
    """The packages of an extra, with those of this project's extras that it names."""
    packages: list[str] = []
    for item in project.get("optional-dependencies", {}).get(name, []):
        own = re.fullmatch(r"fedapps\[(.*)\]", item)
        packages += (
            [package for extra in own[1].split(",") for package in _extra(project, extra)]
            if own
            else [item]
        )
    return packages
