"""The method that CONTRIBUTING.md adds runs as it is printed there, and is as short as promised."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedapps.engines.app_folder import PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python)\n(.*?)^```", TEXT.partition("## Add a method")[2], re.MULTILINE | re.DOTALL)
SERVER, CLIENT, ENTRY, EXAM = (code for _, code in BLOCKS)
SERVER_IMPORT, CLIENT_IMPORT = re.findall(r"`(from \S+ import [^`]+)`", TEXT)


def test_it_takes_less_than_sixty_lines_of_code():
    lines = [line for text in (SERVER, CLIENT, SERVER_IMPORT, CLIENT_IMPORT, ENTRY) for line in text.splitlines() if line.strip()]
    assert len(lines) < 60


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the project with the method added as the text says."""
    copy = tmp_path_factory.mktemp("extended")
    for name in (*PACKAGES, "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "strategies/finetune.py").write_text(SERVER, encoding="utf-8")
    (copy / "clients/finetune.py").write_text(CLIENT, encoding="utf-8")
    (copy / "tests/clients/test_finetune.py").write_text(EXAM, encoding="utf-8")
    methods = (ROOT / "fedapps/methods/personal.py").read_text(encoding="utf-8")
    head, opening, entries = methods.partition("METHODS: dict[str, Method] = {\n")
    head = head.replace("from fedapps.errors", f"{SERVER_IMPORT}\nfrom fedapps.errors", 1)
    (copy / "fedapps/methods/personal.py").write_text(head + opening + ENTRY + entries, encoding="utf-8")
    offered = (ROOT / "clients/__init__.py").read_text(encoding="utf-8")
    offered = offered.replace("    from clients.local", f"    {CLIENT_IMPORT}\n    from clients.local", 1)
    offered = offered.replace('    "LocalClient"', '    "FineTuneClient",\n    "LocalClient"', 1)
    (copy / "clients/__init__.py").write_text(offered, encoding="utf-8")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    done = python(copy, "-m", "fedapps", "settings", "--write")
    assert done.returncode == 0, done.stderr
    assert "epochs = 1 " in (copy / "pyproject.toml").read_text(encoding="utf-8")
    return copy


def python(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def test_the_new_method_runs_and_personalises(extended):
    options = ["num-rounds=5", "finetune.epochs=3", "--nodes", "8", "--engine", "inline", "--out", extended / "out"]
    done = python(extended, "-m", "fedapps", "run", "method=finetune", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((extended / "out/summary.json").read_text(encoding="utf-8"))
    assert summary["accuracy-mean"] > summary["global-accuracy-mean"]


def test_its_exam_and_the_rules_of_the_house_pass(extended):
    names = [
        "tests/clients/test_finetune.py",
        "tests/test_layers.py",
        "tests/fedapps/test_packaging.py",
        "tests/fedapps/test_settings_reference.py",
    ]
    done = python(extended, "-m", "pytest", "-q", *names, "-k", "finetune or downwards or setting")
    assert done.returncode == 0, done.stdout + done.stderr
