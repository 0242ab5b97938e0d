"""The package as it is distributed: bounded dependencies, matching wheels, a lean
Flower app.
"""

import ast
import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fedapps.engines.app_folder import PARTS, for_flower
from fedapps.engines.processes import program
from fedapps.settings.reading import default_config
from fedapps.toml_text import flatten_toml
from tests.helpers import ROOT, printed, python, refused
from tools.hub_app import make

PACKAGES = (*PARTS, "fedapps")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_dependency_is_bounded_to_what_was_tested():
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = PYPROJECT["project"]["dependencies"] + [
        item for extra in extras.values() for item in extra
    ]
    bounded = [item for item in wanted if not item.startswith("fedapps[")]
    # The library, and the extra that goes with it, take any newer Flower, and
    # what Flower itself bounds.
    open_ended = {"flwr>=1.38", "flwr[dp]>=1.41.0", "cryptography", "pycryptodome"}
    assert {item for item in bounded if ">=" not in item or "<" not in item} == open_ended
    named = {
        name for item in wanted if item.startswith("fedapps[") for name in item[8:-1].split(",")
    }
    assert named <= extras.keys()


def test_the_library_is_a_part_and_the_application_an_extra_that_both_set_ups_install():
    def names(items):
        return {re.match(r"[\w-]+", item).group() for item in items}

    extras = PYPROJECT["project"]["optional-dependencies"]
    library = {"flwr", "numpy", "safetensors", "cryptography", "pycryptodome"}
    assert names(PYPROJECT["project"]["dependencies"]) == library
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert sorted(re.findall(r"install .*--editable '\.\[(.*)\]'", makefile)) == [
        "app",
        "app,dev",
        "app,test",
        "torch,solvers,test",
    ]
    app = (
        names(extras["app"])
        | names(extras["torch"])
        | names(extras["solvers"])
        | names(PYPROJECT["project"]["dependencies"])
    )
    roots = {name.partition(".")[0] for package in PACKAGES for name in imports_of(ROOT / package)}
    known = {
        "Crypto": "pycryptodome",
        "sklearn": "scikit-learn",
        "flwr_datasets": "flwr-datasets",
        "PIL": "pillow",
    } | {
        "tomli_w": "tomli-w",
    }
    # by the extra "simulation" of Flower, and by datasets
    others = (
        {known.get(name, name) for name in roots}
        - set(sys.stdlib_module_names)
        - set(PACKAGES)
        - {"huggingface_hub", "fastapi", "ray", "pandas"}
        - (names(extras["text"]) | names(extras["vision"]))
    )
    assert others <= app, "imported, but not in the extra"


def imports_of(folder):
    """Return the modules that the files of a folder import, also inside functions."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module


LIBRARY_ONLY = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):  # as if what the library does not install were not there
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
APPLICATION = {
    "torch",
    "torchvision",
    "scipy",
    "daqp",
    "quadprog",
    "datasets",
    "flwr_datasets",
    "sklearn",
    "matplotlib",
    "PIL",
    "ray",
    "pandas",
    "pyarrow",
    "transformers",
    "timm",
}
USE = """
import numpy as np
from fedapps import clients, strategies
for name in strategies.__all__:
    getattr(strategies, name)
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from fedapps.clients import DiskStore, MessageStore, to_client_app
from fedapps.strategies import ClientGrid, FedAvg
"""


TRAIN = """
from flwr.app import Context, Message, RecordDict, ConfigRecord
from fedapps.strategies.base.flower_private import identify_process
identify_process(1)
class Three(NumPyClient):
    def fit(self, parameters, config):
        return [p + 3 for p in parameters], 1, {}
app = to_client_app(lambda context: Three())
content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1))}), "config": ConfigRecord({"server-round": 1})})
context = Context(run_id=1, node_id=2, node_config={"partition-id": 0, "num-partitions": 1}, state=RecordDict(), run_config={})
reply = app(Message(content, 2, "train"), context)
average, _ = FedAvg().aggregate_train(1, [reply])
print(average["w"].numpy()[0], "done")
"""


@pytest.mark.slow
def test_every_strategy_is_imported_with_the_library_alone():
    """In a process where no other package, not even the application, can be imported. A
    user's own client is adapted, too.
    """
    said = printed("-c", LIBRARY_ONLY % APPLICATION + USE + TRAIN, cwd=ROOT)
    assert said.split() == ["3.0", "done"]


def test_the_image_gets_all_files_that_the_wheel_takes():
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied == {*PACKAGES, *wheel["force-include"], "README.md"}


FROM_WHEEL = """
import sys
from pathlib import Path
from fedapps.commands.parser import main
from fedapps.engines.app_folder import copy_app
copy_app(Path("app"))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_wheel_holds_what_runs_without_a_checkout(tmp_path):
    """The default job and the app's files; without a checkout the command uses those of
    the wheel.
    """
    hatchling = pytest.importorskip("hatchling.build")
    with contextlib.chdir(copied(tmp_path)):
        source = hatchling.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / source) as archive:
        archive.extractall(tmp_path, filter="data")
    # as releases do
    with contextlib.chdir(tmp_path / source.removesuffix(".tar.gz")):
        wheel = hatchling.build_wheel(str(tmp_path))
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        archive.extractall(tmp_path / "site")
    for inside, outside in {
        "experiments/default.toml": "experiments/default.toml",
        "LICENSE": "LICENSE",
        "pyproject.toml": "pyproject.toml",
    }.items():
        assert (tmp_path / "site" / "fedapps" / inside).read_bytes() == (
            ROOT / outside
        ).read_bytes()
    (tmp_path / "empty").mkdir()
    (tmp_path / "site" / "pyproject.toml").write_text("# not ours")
    job = ["experiments/default.toml", "num-rounds=1", "train.local-epochs=1", "evaluate-every=0"]
    command = ["-c", FROM_WHEEL, "run", *job, "--engine", "inline", "--out", "out"]
    printed(*command, cwd=tmp_path / "empty", PYTHONPATH=str(tmp_path / "site"))
    assert (tmp_path / "empty" / "out" / "summary.json").exists()
    app = tmp_path / "empty" / "app" / "fedapps"
    assert {path.name for path in app.iterdir()} == {"fedapps", "pyproject.toml", "LICENSE"}
    assert for_flower((ROOT / "pyproject.toml").read_text()) == (app / "pyproject.toml").read_text()
    assert not list(app.rglob("*.pyc"))


def copied(folder):
    """Return a copy of the checkout without results, environments and caches."""
    named = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.fab", "*.egg-info")

    def skipped(place, names):
        return named(place, names) | ({"results"} if Path(place) == ROOT else set())

    return shutil.copytree(ROOT, folder / "fedapps", ignore=skipped, symlinks=True)


def test_the_hubs_own_checks_pass(tmp_path):
    """The checks that `flwr app publish` makes before an upload, for the newest format,
    on the folder of `make app`.
    """
    from flwr.cli.config_utils import load_and_validate
    from flwr.supercore import fab_format_version

    # the package has a function of this name
    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    app = make(tmp_path / "app")
    config, warned = load_and_validate(app / "pyproject.toml", check_module=False)
    assert warned == []
    publish._validate_app_name(app.name, "Flower App directory name")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(app)
    publish._validate_files(files)
    assert {app / name for name in ("LICENSE", "README.md", "experiments/default.toml")} <= {*files}
    assert len(files) == sum(path.is_file() for path in app.rglob("*"))  # none is skipped
    assert fab_format_version.normalize_and_validate_fab_format(config).fab_format_version == 1
    newer = config | {
        "tool": {"flwr": {"app": config["tool"]["flwr"]["app"] | {"fab-format-version": 2}}}
    }
    # if this fails, use the newer format
    refused(lambda: fab_format_version.normalize_and_validate_fab_format(newer), "Unsupported")


@pytest.mark.slow
def test_what_is_published_installs_with_all_that_the_app_needs(tmp_path):
    """`pip install .`, which the Hub's page tells to type, in the folder of
    `make app`.
    """
    hatchling = pytest.importorskip("hatchling.build")
    with contextlib.chdir(make(tmp_path / "app")):
        wheel = hatchling.build_wheel(str(tmp_path))
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = archive.read(metadata).decode()
        assert "fedapps/strategies/fedprox.py" in archive.namelist()
    assert {"torch", "flwr[simulation]", "pillow"} <= {
        *re.findall(r"Requires-Dist: ([\w\[\]-]+)", said)
    }
    assert "Federated learning for clients whose data differ" in said  # the README


@pytest.mark.slow
def test_the_flower_app_holds_the_four_packages_and_nothing_else(tmp_path):
    checkout = copied(tmp_path)  # replace the files that were not copied with other ones
    strangers = [
        "results/run/settings.toml",
        "notes.md",
        "algorithms/table.npz",
        "fedapps/README.md",
        "tests/extra.py",
        "tool.py",
    ]
    for name in strangers:
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    quiet = {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    command = [str(program("flwr")), "build", "--app", str(checkout)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | quiet, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (fab,) = tmp_path.rglob("*.fab")
    with zipfile.ZipFile(fab) as archive:
        names = set(archive.namelist())
        project = tomllib.loads(archive.read("pyproject.toml").decode())
    assert project["dependency-groups"] == PYPROJECT["dependency-groups"]
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    # Flower never packs what looks like a test.
    assert not [
        name
        for name in expected
        if fnmatch(Path(name).name, "test_*.py") or fnmatch(name, "*_test.py")
    ]
    assert names == expected | {"pyproject.toml", "LICENSE", ".info/CONTENT"}
    assert flatten_toml(project["tool"]["flwr"]["app"]["config"]) == default_config()


SERVER = """
from flwr.app import Context, RecordDict
from fedapps.engines.inline import InlineGrid
from fedapps import server_app
from fedapps.runs import client_app
from fedapps.settings.reading import default_config
server_app.main(InlineGrid(client_app.app, 3), Context(1, 2, {}, RecordDict(), default_config()))
"""
COMMAND = """
from fedapps.commands.parser import entry
sys.argv[1:] = ["run", "method=fedavg", "--engine", "inline", "--out", "out"]
entry()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        (COMMAND, "fedapps: this command", 2),
        # as after `pip install .` in a plain checkout; the app itself starts
        (SERVER, "fedapps.errors.UserError: this run", 1),
    ],
)
def test_with_the_library_alone_one_line_says_what_to_install(code, said, status, tmp_path):
    done = python("-c", LIBRARY_ONLY % APPLICATION + code, cwd=tmp_path, HOME=str(tmp_path))
    wanted = rf"{said} needs \w+, which is not installed: pip install 'fedapps\[app\]'"
    assert done.returncode == status
    assert re.fullmatch(wanted, done.stderr.splitlines()[-1]), done.stderr
    assert status == 1 or done.stderr.count("\n") == 1
