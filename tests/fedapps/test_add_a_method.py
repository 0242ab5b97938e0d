"""The method of docs/add-a-method.md runs exactly as printed there, with changes in
only five places.
"""

import json
import re
import shutil

import pytest

from fedapps.engines.app_folder import PARTS
from tests.helpers import ROOT, printed, python

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SERVER, CLIENT, ENTRY, EXAM = (code for code in BLOCKS if "fednova" in code.lower())
(SERVER_IMPORT,) = re.findall(r"`(from fedapps\.strategies\.\S+ import [^`]+)`", TEXT)
PLACES = [
    "strategies/fednova.py",
    "clients/fednova.py",
    "fedapps/methods/averaging.py",
    "tests/clients/test_fednova.py",
]
PAGE = "docs/fednova.md"


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the project with the method added as the text says."""
    copy = tmp_path_factory.mktemp("extended")
    for name in (*PARTS, "fedapps", "tools", "tests", "docs", "examples", "experiments"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    methods = (ROOT / "fedapps/methods/averaging.py").read_text(encoding="utf-8")
    head, opening, entries = methods.partition("METHODS: dict[str, Method] = {\n")
    head = head.replace(
        "from fedapps.strategies import", f"{SERVER_IMPORT}\nfrom fedapps.strategies import", 1
    )
    for place, text in zip(
        PLACES, (SERVER, CLIENT, head + opening + ENTRY + entries, EXAM), strict=True
    ):
        (copy / place).write_text(text, encoding="utf-8")
    (copy / PAGE).write_text(
        "# FedNova\n\n<!-- settings: fednova -->\n<!-- /settings -->\n", encoding="utf-8"
    )
    printed("-m", "tools.generate", cwd=copy, PYTHONPATH=str(copy))  # make generate
    return copy


def test_the_rest_follows_from_five_places(extended):
    written = {
        "pyproject.toml": "[tool.flwr.app.config.fednova]\nserver-learning-rate = 1.0",
        "docs/methods.md": "| [`fednova`](fednova.md) | averages updates per local step",
        "docs/settings.md": "[`fednova`](fednova.md)",
        "docs/ffgb-distill.md": "`fednova`",  # the choices of a warm start
        PAGE: "| `fednova.server-learning-rate` | `1.0` | step of the server",
        "strategies/__init__.py": "    from fedapps.strategies.fednova import FedNova as FedNova, FedNovaOptions as FedNovaOptions\n",
        "clients/__init__.py": "    from fedapps.clients.fednova import FedNovaClient as FedNovaClient\n",
    }
    for name, line in written.items():
        assert line in (extended / name).read_text(encoding="utf-8"), name
    changed = {
        str(path.relative_to(extended))
        for path in extended.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if not (original := ROOT / path.relative_to(extended)).is_file()
        or path.read_bytes() != original.read_bytes()
    }
    assert changed == {*PLACES, PAGE, *written}


COMPOSED = """
from fedapps.strategies import *
TERM(FedNova()), Private(FedNova(), PrivacyOptions(1.0)), WarmStart(FedAvg(), 1, FedNova())
class Silent(FedNova):
    def aggregate_train(self, *args): return super().aggregate_train(*args)
TERM(Silent())
"""


def test_the_new_method_runs_alone_and_composes_by_its_declaration(extended):
    options = ["num-rounds=3", "data.partition=dirichlet", "fednova.server-learning-rate=0.5"]
    words = ["run", "method=fednova", *options, "--nodes", "6", "--engine", "inline"]
    there = {"cwd": extended, "PYTHONPATH": str(extended)}
    printed("-m", "fedapps", *words, "--out", extended / "out", **there)
    summary = json.loads((extended / "out/summary.json").read_text(encoding="utf-8"))
    assert summary["accuracy-mean"] > 0.2
    shutil.rmtree(extended / "out")
    said = "TERM: Silent overrides aggregate_train and does not say what it takes from the replies"
    assert said in python("-c", COMPOSED, **there).stderr


def test_its_exam_and_the_projects_own_checks_pass(extended):
    names = [
        "strategies/base/test_capabilities.py",
        "fedapps/settings/test_reference.py",
        "fedapps/test_fair_compositions.py",
        "fedapps/testing/test_every_method.py",
        "strategies/test_public_names.py",
    ]
    some = "fednova or wraps_what_it_can or every_setting or package_declares or is_stale"
    words = ["-q", PLACES[-1], *(f"tests/{name}" for name in names)]
    words += ["-k", f"({some}) and not example"]
    printed("-m", "pytest", *words, cwd=extended, PYTHONPATH=str(extended))
