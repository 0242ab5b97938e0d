"""What `flwr run` is given: settings that survive TOML, and the app's files and nothing
else.
"""

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
from tests.helpers import ROOT, write_file

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
    math.nan,
    np.float64(0.25),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_and_its_type_survive(value):
    back = tomllib.loads(toml_text.quoted_toml({"table.key": value}))
    np.testing.assert_equal(back, {"table.key": value})
    assert type(back["table.key"]) is (float if isinstance(value, float) else type(value))


def test_the_copy_holds_the_packages_and_nothing_else(tmp_path):
    app = app_folder.copy_app(tmp_path / "new")
    files = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    expected = {
        f"fedapps/{path.relative_to(base).as_posix()}"
        for name, base in [*((name, ROOT) for name in app_folder.PARTS), ("", ROOT / "fedapps")]
        for path in (base / name).rglob("*.py")
    }
    assert files == expected | {"pyproject.toml", "LICENSE"}
    with_comments = (ROOT / "pyproject.toml").read_text().partition("[tool.flwr.app.components]")[2]
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
    """The application's own bound replaces the library's. A copy of a copy is equal."""
    once = app_folder.for_flower(PROJECT)
    assert app_folder.for_flower(once) == once
    assert tomllib.loads(once) == {
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
    assert "# of the library" not in once


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


def run(folder, *command, path=(ROOT,)):
    """Run Python in ``folder``, with it and then ``path`` on its path; return the exit
    status, what was printed and what was said.
    """
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, *path)))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


PRINTS = "import fedapps.strategies as ours; print(ours.FedAvg); print(ours.__file__)"
CLASS = "<class 'fedapps.strategies.fedavg.FedAvg'>"


@pytest.mark.slow
def test_folders_of_the_users_with_our_names_hide_nothing(tmp_path):
    for name in ("strategies", "clients", "algorithms"):
        write_file(tmp_path / name / "__init__.py", "MINE = 1\n")
    assert run(tmp_path, "-m", "fedapps", "methods")[::2] == (0, "")
    both = "import strategies, fedapps.strategies as ours; assert strategies.MINE; ours.FedAvg"
    assert run(tmp_path, "-c", both) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strategies", "clients", "algorithms"])
def test_a_folder_of_a_checkout_is_imported_by_one_name_only(name):
    status, _, said = run(ROOT, "-c", f"import {name}")
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
    place = tmp_path / "strategies" / "__init__.py"
    assert run(tmp_path, "-c", PRINTS, path=()) == (0, f"{CLASS}\n{place}\n", "")


@pytest.mark.slow
def test_the_users_own_folders_of_these_names_are_beside_ours_in_the_app(tmp_path):
    mine = write_file(tmp_path / "mine.py", "MINE = 1\n")
    own = {f"{name}/{file}.py": mine for name in app_folder.PARTS for file in ("__init__", "mine")}
    app = app_folder.copy_app(tmp_path / "new", own)
    code = f"import strategies.mine, clients; assert clients.MINE; {PRINTS}"
    place = app / "fedapps" / "strategies" / "__init__.py"
    assert run(app, "-c", code, path=()) == (0, f"{CLASS}\n{place}\n", "")
