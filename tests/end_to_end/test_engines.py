"""Complete runs under Ray: the same numbers as in one process, plain `flwr run`, a
client that hangs.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import datasets
import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.superexec.dependency_installer import _get_project_dependencies
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.faults import with_losses
from benchmarks.tables import windows, write
from fedapps.engines import flower
from fedapps.engines.app_folder import PARTS
from fedapps.engines.inline import InlineGrid
from fedapps.engines.processes import end_marked, free_port, program
from fedapps.runs import execution
from fedapps.toml_text import read_toml
from tests.end_to_end.sites import succeed
from tests.helpers import (
    ROOT,
    assert_arrays,
    lacking,
    outcome_of,
    rounds_of,
    run_inline,
    summary_of,
)
from tools.hub_app import make

ROUNDS = ["num-rounds=4", "evaluate-every=2", "checkpoint-every=2", "seed=5"]
# Each job tests another part between server and workers: arrays of other types and
# sizes, several kinds of messages, states, sums computed by the nodes, data that
# workers read themselves.
JOBS = {
    "a node per client": [
        *("method=superfed-mm", "superfed.start=0.3", "num-clients=2", "clients-per-round=2"),
        *("train.local-epochs=1", "data.max-samples=300", *ROUNDS),
    ],
    "fedboost": [
        *("method=fedboost", "task=unigram", "num-clients=6", "clients-per-round=4", *ROUNDS),
        *("fedboost.budget=2", "fedboost.cache=3", "fedboost.library=clients"),
    ],
    "fedfw-plus": ["method=fedfw-plus", "task=sparse-logistic", "num-clients=5", *ROUNDS],
    "histogram-boosting": [
        *("method=histogram-boosting", "num-clients=6", *ROUNDS),
        "histogram-boosting.depth=1",
    ],
    "aaggff-d": [
        *("method=aaggff-d", "num-clients=8", "clients-per-round=4", *ROUNDS),
        *("train.local-epochs=1", "num-new-clients=3", "new-epochs=2"),
    ],
    "regression": ["method=fedavg", "task=regression", "num-clients=3", "num-rounds=2", "seed=3"],
    "own data": [
        *("method=fedavg", "data.partition=natural", "data.natural-id=subject", "num-rounds=3"),
        *("evaluate-every=3", "clients-per-round=0", "train.local-epochs=1"),
    ],
    "asynchronous": [
        *("method=fedbuff", "num-rounds=12", "evaluate-every=4", "checkpoint-every=3"),
        *("train.local-epochs=1", "time.dropout=0.1", "time.jitter=0.5"),
    ],
    "clients lost in secure sums": [
        *("method=scaffold", "secure.on=true", "num-clients=7", "clients-per-round=0"),
        *("num-rounds=5", "evaluate-every=0", "checkpoint-every=0", "train.local-epochs=1"),
    ],
}
PEOPLE = (3, 5, 8, 11, 20, 27)

pytestmark = pytest.mark.ray


@pytest.fixture
def short_folder():
    """Return a folder whose path leaves room for the names of Ray's sockets."""
    folder = tempfile.mkdtemp(prefix="fr-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def assert_equal_runs(ray, inline):
    """Compare what two runs wrote, and the names of their files, except the log."""
    assert outcome_of(ray) == outcome_of(inline)
    files = [{path.name for path in folder.iterdir()} - {"run.log"} for folder in (ray, inline)]
    assert files[0] == files[1]


#: Lets processes believe in a GPU: changes PyTorch in those only that import it.
BELIEVING = """
import importlib.abc
import importlib.util
import os
import sys

class Believing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(cuda):
            execute(cuda)
            cuda.device_count = lambda: int(os.environ.get("CUDA_VISIBLE_DEVICES") != "")
            cuda.is_available = lambda: cuda.device_count() > 0

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Believing())
"""


def test_the_command_gives_the_numbers_of_the_inline_engine_and_leaves_nothing(
    tmp_path, short_folder
):
    """As a user types it, with an own method: Ray's workers are elsewhere and get the
    file with the app, whose settings have the own tables. All processes believe that
    there is a GPU: whatever was put on it would end the run.
    """
    example = shutil.copytree(ROOT / "examples" / "own-method", tmp_path / "example")
    (tmp_path / "sitecustomize.py").write_text(BELIEVING)
    said = {}
    for engine, more in (("ray", ["--workers", "2"]), ("inline", [])):
        job = ["run.toml", "exp.epsilon=0.01", *ROUNDS, "--engine", engine, *more]
        there = {"cwd": example, "path": [tmp_path], "TMPDIR": short_folder}
        said[engine] = succeed("run", *job, "--out", tmp_path / engine, **there)
    ray, inline = tmp_path / "ray", tmp_path / "inline"
    report = str(ray / "report.html")
    assert lacking(said["ray"], "round 4/4", report, "--gpus-per-client") == []
    assert "is too small for a GPU" in said["inline"]
    assert (ray / "report.html").exists()
    assert rounds_of(ray)[0]["node-messages"] == 2
    assert_equal_runs(ray, inline)
    settings = (inline / "settings.toml").read_text().replace(str(inline), str(ray))
    assert (ray / "settings.toml").read_text() == settings
    assert (ray / "run.log").exists()
    assert not [name for name in os.listdir(short_folder) if name.startswith("fl-")]


# An app that executes several of our runs one after another with the same nodes and
# workers, because starting these takes longer than all of the runs. A node's state of
# one run is hidden from the next. At the end one of two clients hangs, and then lies.
APPS = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from benchmarks.faults import with_losses
from fedapps.clients.base.adapter import to_client_app
from fedapps import server_app
from fedapps.runs import client_app
from fedapps.strategies import ClientGrid, FedAvg


class Hanging(NumPyClient):
    def __init__(self, i):
        self.i = i

    def fit(self, parameters, config):
        if self.i == 1 and config["server-round"] == 2:
            time.sleep(3600)
        if self.i == 1 and config["server-round"] > 2:
            lie = np.full(2, np.nan) if config["server-round"] == 3 else np.ones((2, 2))
            return [lie], 10**14, {}
        return [p + 1 for p in parameters], 1, {}


hanging = to_client_app(lambda context: Hanging(context.node_config["partition-id"]))
lossy = with_losses()


class InTurn(ClientApp):
    def __call__(self, message, context):
        name, settings = json.loads((Path(context.run_config["folder"]) / "now.json").read_text())
        before = context.state.pop("of", None)
        if before is None or before["name"] != name:
            context.state = RecordDict()
        ours = lossy if settings.get("secure.on") else client_app.app
        app = ours if settings else hanging
        own = Context(context.run_id, context.node_id, context.node_config, context.state, settings)
        reply = app(message, own)
        context.state = own.state
        context.state["of"] = ConfigRecord({"name": name})
        return reply


client = InTurn()
server = ServerApp()


@server.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    for name, settings in json.loads((folder / "jobs.json").read_text()).items():
        (folder / "now.json").write_text(json.dumps([name, settings]))
        server_app.main(
            grid, Context(context.run_id, context.node_id, {}, context.state, settings)
        )
    (folder / "now.json").write_text(json.dumps(["hangs", {}]))
    failed = []
    result = FedAvg(fraction_evaluate=0).start(
        ClientGrid(grid), ArrayRecord({"w": Array(np.zeros(2))}), 4, timeout=8,
        callbacks=[lambda now: failed.extend((now.number, f.client, f.reason) for f in now.failures)],
    )
    print("RESULT", result.arrays["w"].numpy().tolist())
    print("FAILED", failed)
"""
PYPROJECT = """
[project]
name = "inturn"
version = "0.1.0"
description = "Several runs of ours one after another"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "inturnapp.apps:server"
clientapp = "inturnapp.apps:client"
[tool.flwr.app.config]
folder = ""
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Run all jobs in this process, and then in one simulation; return the folder with
    their results, and the lines that the simulation printed.
    """
    folder = tmp_path_factory.mktemp("simulated")
    app = folder / "app"
    (app / "inturnapp").mkdir(parents=True)
    (app / "inturnapp" / "__init__.py").touch()
    (app / "inturnapp" / "apps.py").write_text(APPS)
    (app / "pyproject.toml").write_text(PYPROJECT)
    write(folder / "set", windows(PEOPLE, 60, steps=32))
    settings, log = {}, folder / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAPPS_CACHE", str(folder / "cache"))
        patch.setenv("HF_DATASETS_CACHE", str(folder / "hub-cache"))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "hub-cache"))
        patch.setattr(flower, "LINGER_SECONDS", 1.0)
        patch.setenv("PYTHONPATH", str(ROOT))
        for name, job in JOBS.items():
            source = [f"data.source={folder / 'set'}"] if name == "own data" else []
            with pytest.MonkeyPatch.context() as lossy:
                if "secure.on=true" in job:
                    lossy.setattr(execution, "load_app", with_losses)
                run_inline(folder / "inline" / name, *job, *source)
            used = read_toml(folder / "inline" / name / "settings.toml")
            settings[name] = {key: used[key] for key in used if not key.startswith("versions")}
            settings[name]["out"] = str(folder / "ray" / name)
        (folder / "jobs.json").write_text(json.dumps(settings))
        outcome = flower.run_simulation(
            app,
            {"folder": str(folder)},
            flower.Resources(2, ray_cpus=2),
            flower.Following(
                log,
                ended=lambda: "completed" if log.exists() and "FAILED" in log.read_text() else None,
            ),
        )
        lines = log.read_text().splitlines()
        assert outcome.status == "completed", "\n".join(lines[-60:])
        yield folder, lines


@pytest.mark.parametrize("name", JOBS)
def test_the_workers_give_the_numbers_of_the_inline_engine(name, simulated):
    folder, _ = simulated
    assert_equal_runs(folder / "ray" / name, folder / "inline" / name)
    assert ("node-messages" in rounds_of(folder / "ray" / name)[0]) == (name != "a node per client")


def test_a_client_that_hangs_and_lies_loses_its_replies_but_the_run_continues(simulated):
    """It blocks its worker; the other worker continues, also for that client, whose
    later replies hold no numbers, or another shape.
    """
    text = "\n".join(simulated[1])
    assert "RESULT [4.0, 4.0]" in text
    failed = ast.literal_eval(text.partition("FAILED ")[2].partition("]")[0] + "]")
    assert [(number, client) for number, client, _ in failed] == [(2, 1), (3, 1), (4, 1)]
    reasons = ("no answer within 8 s", "not finite", "shape")
    assert all(said in why for said, (*_, why) in zip(reasons, failed, strict=True)), failed


@pytest.fixture
def flwr_run(tmp_path, short_folder):
    """Return a function that starts `flwr run .` as a Flower user does, with the test's
    own home and ports.
    """
    home, ports = tmp_path / "home", (free_port(), free_port())
    (home / "x").mkdir(parents=True)
    environment = os.environ | {
        "HOME": str(home),
        "FLWR_HOME": str(home),
        "RAY_TMPDIR": short_folder,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
        "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(app, nodes, settings, path):
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        words = ["run", ".", "--stream", "--run-config", settings, "--federation-config"]
        return subprocess.run(
            [program("flwr"), *words, federation],
            cwd=app,
            env=environment | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=240,
        )

    yield run
    end_marked(f"FLWR_HOME={home}", None, 10)


def named_by(wanted):
    """Return the installed distributions that the requirements ask for, and all that
    these ask for.
    """
    found, left = set(), [(Requirement(one), "") for one in wanted]
    for one, extra in left:  # grows
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        new = {(canonicalize_name(one.name), extra) for extra in ("", *one.extras)} - found
        found |= new
        for name, extra in new:
            with suppress(PackageNotFoundError):  # of another platform
                left += [(Requirement(text), extra) for text in distribution(name).requires or []]
    return {name for name, _ in found}


#: Python in an environment that holds nothing but what is named: run at each start.
BARE = """
import importlib.abc, sys
sys.path[:] = [place for place in sys.path if place != {root!r}]
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_plain_flwr_run(tmp_path, flwr_run):
    """Of what is published, where nothing else is installed than Flower installs for
    it: with counters. The log holds the result.
    """
    app = make(tmp_path / "app")
    installed = named_by(_get_project_dependencies(app))
    others = {
        top
        for top, names in packages_distributions().items()
        if not installed & {*map(canonicalize_name, names)}
    }
    assert "pytest" in others - {"torch", "ray", "fedapps"}
    (tmp_path / "bare").mkdir()
    # PyTorch looks for hypothesis, and does without
    text = BARE.format(root=str(ROOT), others=others - {*PARTS, "fedapps", "hypothesis"})
    (tmp_path / "bare" / "sitecustomize.py").write_text(text)
    done = flwr_run(app, 5, "num-rounds=2 train.local-epochs=1", str(tmp_path / "bare"))
    (folder,) = (tmp_path / "home" / "fedapps-results").iterdir()
    summary = summary_of(folder)
    assert summary["status"] == "completed", done.stdout[-3000:]
    assert summary["rounds-completed"] == 2
    assert (folder / "report.html").exists()
    assert str(folder) in done.stdout  # the output names the results folder
    (said,) = re.findall(r"summary: (.*)", done.stdout)
    assert json.loads(said) == summary
    row = re.search(r"INFO.*: +fedavg +(.*)", done.stdout)[1].split()
    assert row[0] == f"{100 * summary['accuracy-mean']:.1f}"  # the table of `fedapps run`


def test_secure_sums_in_an_app_of_flowers_quickstart(tmp_path, monkeypatch):
    """With the lines that docs/secure-sums.md adds, the model is that of the app."""
    page = (ROOT / "docs" / "secure-sums.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)
    lines = block.splitlines()
    assert [sum(line.startswith(sign) for line in lines) for sign in "+-"] == [4, 1]
    models = {}
    for variant in ("plain", "secure"):
        app, package = tmp_path / variant, f"quickstart_{variant}"
        shutil.copytree(ROOT / "examples" / "quickstart", app)
        (app / "quickstart").rename(app / package)
        for file, own in re.findall(r"^# (\w+\.py).*?\n(.*?)(?=^#|\Z)", block, re.M | re.S):
            path = app / package / file
            text = path.read_text(encoding="utf-8").replace("quickstart.", f"{package}.")
            added = "\n".join(re.findall(r"^\+(\S.*)", own, re.M))
            if variant == "secure":
                for old, new in re.findall(r"^-(.*)\n\+(.*)", own, re.M):
                    assert old in text
                    text = text.replace(old, new)
                at_end = file == "client_app.py"
                text = f"{text}\n{added}\n" if at_end else text.replace("\n\n", f"\n\n{added}\n", 1)
            # SecureApp refuses what is not masked: both halves, or no model
            assert ("Secure" in text) == (variant == "secure")
            if file == "server_app.py":
                text += "    context.state['model'] = result.arrays\n"
            path.write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(app)
        halves = (import_module(f"{package}.{half}_app") for half in ("client", "server"))
        client, server = (half.app for half in halves)
        config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        config = config["config"] | {"num-server-rounds": 3}
        context = Context(1, 1, {}, RecordDict(), config)
        server(InlineGrid(client, 4, config), context)
        models[variant] = context.state["model"].to_torch_state_dict()
    assert_arrays(models["plain"], models["secure"], rtol=1e-05, atol=1e-06)
