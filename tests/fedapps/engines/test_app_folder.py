"""What `flwr run` is given: settings that survive TOML, and the app's files and nothing
else.
"""

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedapps
from fedapps import toml_text
from fedapps.commands.parser import main
from fedapps.engines import app_folder
from fedapps.errors import UserError

VALUES = [
    "plain",
    "",
    "two\nlines\r\n\ttab",
    'quotes " and \'\'\' and """',
    "back\\slash \\n",
    "ünï 漢字 😀",
    "control \x00\x1b\x7f",
    "a = b # [c]",
    True,
    False,
    0,
    1,
    -7,
    2**62,
    0.1,
    1e-05,
    1e22,
    -0.0,
    3.0,
    math.inf,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_and_its_type_survive(value):
    back = tomllib.loads(toml_text.quoted_toml({"table.key": value}))
    assert back == {"table.key": value}
    assert type(back["table.key"]) is type(value)


def test_numpy_scalars_and_nan_are_written_as_numbers():
    back = tomllib.loads(toml_text.quoted_toml({"a": float("nan"), "b": np.float64(0.25)}))
    assert math.isnan(back["a"])
    assert back["b"] == 0.25


def test_the_copy_holds_the_packages_and_nothing_else(tmp_path):
    app = app_folder.copy_app(tmp_path / "new")
    root = Path(app_folder.__file__).parents[2]
    files = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    expected = {
        f"fedapps/{path.relative_to(base).as_posix()}"
        for name, base in [*((name, root) for name in app_folder.PARTS), ("", root / "fedapps")]
        for path in (base / name).rglob("*.py")
    }
    assert files == expected | {"pyproject.toml", "LICENSE"}
    with_comments = (root / "pyproject.toml").read_text().partition("[tool.flwr.app.components]")[2]
    kept = (app / "pyproject.toml").read_text().partition("[tool.flwr.app.components]")[2]
    assert with_comments.startswith(kept.rstrip())


PROJECT = """\
[project]
name = "fedapps"
# of the library
dependencies = [
    "flwr>=1.23",  # any newer one
    "numpy>=2",
]
[project.optional-dependencies]
torch = ["torch>=2.6,<3"]
app = ["fedapps[torch,text]", "flwr[simulation]>=1.41", "tomli-w>=1.1"]
text = ["transformers"]

[project.scripts]
fedapps = "fedapps:main"
[[tool.mypy.overrides]]
strict = true
[tool.flwr.app]
dependencies = [
]
"""


def test_flower_is_told_the_applications_dependencies_and_nothing_of_other_tools():
    """The application's own bound replaces the library's."""
    assert tomllib.loads(app_folder.for_flower(PROJECT)) == {
        "project": {
            "name": "fedapps",
            "dependencies": [
                "flwr[simulation]>=1.41",
                "numpy>=2",
                "torch>=2.6,<3",
                "transformers",
                "tomli-w>=1.1",
            ],
            "scripts": {"fedapps": "fedapps:main"},
        },
        "tool": {"flwr": {"app": {"dependencies": []}}},
    }
    assert "# of the library" not in app_folder.for_flower(PROJECT)


def test_a_copy_of_a_copy_is_equal():
    once = app_folder.for_flower(PROJECT)
    assert app_folder.for_flower(once) == once


def test_in_a_wheel_the_pyproject_comes_from_inside_the_package(tmp_path):
    site = tmp_path / "site-packages"
    for name in ("fedapps", "stranger"):
        (site / name / "engines" / "__pycache__").mkdir(parents=True)
        (site / name / "__init__.py").touch()
        (site / name / "engines" / "__pycache__" / "x.pyc").touch()
    (site / "pyproject.toml").write_text("# not ours\n")
    ours = '[project]\ndependencies = [\n    "ours",\n]\n'
    (site / "fedapps" / "pyproject.toml").write_text(ours)
    (site / "fedapps" / "LICENSE").write_text("free")
    (site / "fedapps" / "engines" / "app_folder.py").write_bytes(
        Path(app_folder.__file__).read_bytes()
    )
    spec = importlib.util.spec_from_file_location(
        "installed_app_folder", site / "fedapps" / "engines" / "app_folder.py"
    )
    installed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installed)
    app = installed.copy_app(tmp_path / "app")
    assert (app / "pyproject.toml").read_text() == ours
    assert {path.name for path in app.iterdir()} == {"fedapps", "pyproject.toml", "LICENSE"}
    assert not list(app.rglob("*.pyc"))


ROOT = Path(app_folder.__file__).parents[2]


def test_on_windows_one_line_says_that_runs_do_not_start(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    for start in (lambda: main(["run", "method=fedavg", "--engine", "inline"]), lambda: main([])):
        assert start() == 2
        said = capsys.readouterr().err
        assert said.startswith("fedapps: runs do not start on Windows: install in the Windows Sub")
        assert said.count("\n") == 1
    monkeypatch.delitem(sys.modules, "fedapps.lab.api", raising=False)
    with pytest.raises(UserError, match="Windows"):
        fedapps.run  # noqa: B018 - what `fedapps.run(...)` does first


def run(folder, *command):
    """Run Python in ``folder``, with it and then the project on the path; return the
    exit status and what was said.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_folders_of_the_users_with_our_names_hide_nothing(tmp_path):
    for name in ("strategies", "clients", "algorithms"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = 1\n")
    assert run(tmp_path, "-m", "fedapps", "methods") == (0, "")
    both = "import strategies, fedapps.strategies as ours; assert strategies.MINE; ours.FedAvg"
    assert run(tmp_path, "-c", both) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strategies", "clients", "algorithms"])
def test_a_folder_of_a_checkout_is_imported_by_one_name_only(name):
    status, said = run(ROOT, "-c", f"import {name}")
    assert (status, said.splitlines()[-1]) == (1, f"ImportError: import fedapps.{name}, not {name}")


@pytest.mark.slow
def test_without_the_links_the_packages_are_found_beside_fedapps(tmp_path):
    """As in Flower's app file of a checkout, which leaves out links."""
    for name in (*app_folder.PARTS, "fedapps"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=lambda folder, _: app_folder.PARTS if Path(folder) == ROOT / "fedapps" else (),
        )
    assert imported(tmp_path) == [
        "<class 'fedapps.strategies.fedavg.FedAvg'>",
        str(tmp_path / "strategies" / "__init__.py"),
    ]


@pytest.mark.slow
def test_the_users_own_folders_of_these_names_are_beside_ours_in_the_app(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("MINE = 1\n")
    own = {f"{name}/{file}.py": mine for name in app_folder.PARTS for file in ("__init__", "mine")}
    app = app_folder.copy_app(tmp_path / "new", own)
    assert imported(app, "import strategies.mine, clients; assert clients.MINE; ") == [
        "<class 'fedapps.strategies.fedavg.FedAvg'>",
        str(app / "fedapps" / "strategies" / "__init__.py"),
    ]


def imported(folder, first=""):
    code = f"{first}import fedapps.strategies as ours; print(ours.FedAvg); print(ours.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
