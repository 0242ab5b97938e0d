"""What `flwr run` is given: settings that survive TOML, and the app's files and nothing else."""

import importlib.util
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedapps import bundle

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
    back = tomllib.loads(bundle.to_toml({"table.key": value}))
    assert back == {"table.key": value}
    assert type(back["table.key"]) is type(value)


def test_numpy_scalars_and_nan_are_written_as_numbers():
    back = tomllib.loads(bundle.to_toml({"a": float("nan"), "b": np.float64(0.25)}))
    assert math.isnan(back["a"])
    assert back["b"] == 0.25


def test_the_copy_holds_the_packages_and_nothing_else(tmp_path):
    app = bundle.copy_app(tmp_path / "new")
    root = Path(bundle.__file__).parent.parent
    files = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    expected = {path.relative_to(root).as_posix() for name in bundle.PACKAGES for path in (root / name).rglob("*.py")}
    assert files == expected | {"pyproject.toml"}
    assert (app / "pyproject.toml").read_bytes() == (root / "pyproject.toml").read_bytes()


def test_in_a_wheel_the_pyproject_comes_from_inside_the_package(tmp_path):
    site = tmp_path / "site-packages"
    for name in (*bundle.PACKAGES, "stranger"):
        (site / name / "__pycache__").mkdir(parents=True)
        (site / name / "__init__.py").touch()
        (site / name / "__pycache__" / "x.pyc").touch()
    (site / "pyproject.toml").write_text("# not ours\n")
    (site / "fedapps" / "pyproject.toml").write_text("# ours\n")
    (site / "fedapps" / "bundle.py").write_bytes(Path(bundle.__file__).read_bytes())
    spec = importlib.util.spec_from_file_location("installed_bundle", site / "fedapps" / "bundle.py")
    installed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installed)
    app = installed.copy_app(tmp_path / "app")
    assert (app / "pyproject.toml").read_text() == "# ours\n"
    assert sorted(path.name for path in app.iterdir()) == sorted([*bundle.PACKAGES, "pyproject.toml"])
    assert not list(app.rglob("*.pyc"))
