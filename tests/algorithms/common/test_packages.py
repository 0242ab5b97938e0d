"""An error is raised if another project's package was installed over ours, also after
its removal.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fedapps.algorithms.common.lazy import late_exports
from fedapps.algorithms.common.packages import check_ours

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("algorithms", "strategies", "clients")


def test_ours_are_ours():
    check_ours(*NAMES)
    assert {importlib.import_module(name).PROJECT for name in NAMES} == {"fedapps"}


@pytest.mark.parametrize("name", NAMES)
def test_a_package_installed_over_ours_is_named_with_the_remedy(tmp_path, name):
    for each in NAMES:
        (tmp_path / each).mkdir()
        (tmp_path / each / "__init__.py").write_text((ROOT / each / "__init__.py").read_text())
    check_ours(*NAMES, root=tmp_path)
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    wanted = f"^{tmp_path / name} is no longer .* pip uninstall {name}; pip install --force"
    with pytest.raises(ImportError, match=wanted) as caught:
        check_ours(*NAMES, root=tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / name / "__init__.py").unlink()  # as its removal leaves the folder
    with pytest.raises(ImportError, match=wanted):
        check_ours(*NAMES, root=tmp_path)


@pytest.mark.parametrize("name", ["strategies", "clients"])
def test_the_import_of_the_other_packages_says_so(tmp_path, name):
    """Replace our package `algorithms` by that of another project."""
    for path in [*(ROOT / "algorithms").rglob("*.py"), *(ROOT / name).glob("*.py")]:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "algorithms" / "__init__.py").write_text("THEIRS = 1\n")
    command = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: {tmp_path / 'algorithms'} is no longer the package of fedapps"
    )


def test_a_name_that_needs_torch_says_how_to_install_it(tmp_path, monkeypatch):
    exports = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import One as One\n"
    (tmp_path / "made.py").write_text(exports.format("needs_torch"))
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    get, _, _ = late_exports("made", str(tmp_path / "made.py"))
    with pytest.raises(ModuleNotFoundError, match=r"^made\.One needs PyTorch: pip install 'fed"):
        get("One")
    (tmp_path / "needs_torch.py").write_text("import made_up\n")
    sys.modules.pop("needs_torch", None)
    with pytest.raises(ModuleNotFoundError, match="made_up"):
        get("One")
