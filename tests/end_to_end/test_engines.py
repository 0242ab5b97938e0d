"""The whole way under Ray: the same numbers as in-process, plain `flwr run`, a client
that hangs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest

from fedapps.engines.app_folder import copy_app
from fedapps.engines.flower import Following, Resources, run_simulation
from fedapps.engines.processes import end_marked, free_port, program
from tests.helpers import assert_same, scraped

ROOT = Path(__file__).parents[2]
JOB = [
    "method=superfed-mm",
    "superfed.start=0.3",
    "num-rounds=4",
    "evaluate-every=2",
    "checkpoint-every=2",
    "seed=5",
]
JOB += ["train.local-epochs=2", "clients-per-round=4", "num-clients=8"]

pytestmark = pytest.mark.ray


@pytest.fixture
def short_folder():
    """Return a folder whose path leaves room for the names of Ray's sockets."""
    folder = tempfile.mkdtemp(prefix="fr-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def fedapps(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fedapps", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def rows(folder):
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [
        {
            key: value
            for key, value in row.items()
            if "travelled" not in key and "node-messages" not in key
        }
        for row in found
    ]


BOOST = [
    "method=fedboost",
    "task=unigram",
    "num-clients=6",
    "clients-per-round=4",
    "num-rounds=4",
    "evaluate-every=2",
]
BOOST += ["fedboost.budget=2", "fedboost.cache=3", "fedboost.library=clients", "checkpoint-every=2"]

FRANK_WOLFE = [
    "method=fedfw-plus",
    "task=sparse-logistic",
    "num-clients=5",
    "num-rounds=4",
    "evaluate-every=2",
    "checkpoint-every=2",
]

TREES = [
    "method=histogram-boosting",
    "num-clients=6",
    "num-rounds=4",
    "evaluate-every=2",
    "checkpoint-every=2",
    "node-sums=true",
]
TREES += ["histogram-boosting.depth=1"]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(JOB, id="superfed-mm"),
        pytest.param([*JOB, "--node-per-client"], id="a node per client"),
        pytest.param(BOOST, id="fedboost"),
        pytest.param(FRANK_WOLFE, id="fedfw-plus"),
        pytest.param(TREES, id="histogram-boosting"),
        pytest.param(["method=aaggff-d", *JOB[2:]], id="aaggff-d"),
        pytest.param([*JOB, "num-new-clients=3", "new-epochs=2"], id="new clients"),
    ],
)
def test_ray_gives_the_numbers_of_the_inline_engine_and_leaves_nothing(job, tmp_path, short_folder):
    done = fedapps(
        "run",
        *job,
        "--engine",
        "ray",
        "--workers",
        "2",
        "--out",
        tmp_path / "ray",
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "ray" / "run.log").read_text()[-3000:]
    assert "round 4/4" in done.stdout
    assert str(tmp_path / "ray" / "report.html") in done.stdout
    assert (tmp_path / "ray" / "report.html").exists()
    assert fedapps("run", *job, "--engine", "inline", "--out", tmp_path / "inline").returncode == 0
    assert ('"node-messages": 2' in (tmp_path / "ray" / "rounds.jsonl").read_text()) == (
        "--node-per-client" not in job
    )
    left, right = rows(tmp_path / "ray"), rows(tmp_path / "inline")
    assert len(left) == len(right) == 4
    for one, other in zip(left, right, strict=True):
        assert_same(one, other, f"round {one['round']}")
    assert {p.name for p in (tmp_path / "ray").iterdir()} == {
        p.name for p in (tmp_path / "inline").iterdir()
    }
    assert not [name for name in os.listdir(short_folder) if name.startswith("fl-")]


def test_plain_flwr_run(tmp_path, short_folder):
    """As a Flower user would, in a copy of the project: `flwr run .` with a home and
    ports of the test's own, and counters.
    """
    app = copy_app(tmp_path)
    home, ports, page = tmp_path / "home", (free_port(), free_port()), free_port()
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
    try:
        with scraped(page) as pages:
            done = subprocess.run(
                [
                    program("flwr"),
                    "run",
                    ".",
                    "--stream",
                    "--federation-config",
                    "num-supernodes=20 client-resources-num-cpus=1",
                    "--run-config",
                    f"num-rounds=2 train.local-epochs=1 metrics-port={page}",
                ],
                cwd=app,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
            )
    finally:
        end_marked(f"FLWR_HOME={home}", None, 10)
    (folder,) = (home / "fedapps-results").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed", done.stdout[-3000:]
    assert summary["rounds-completed"] == 2
    assert (folder / "report.html").exists()
    assert str(folder) in done.stdout  # the user is told where the results are
    assert (
        f'fedapps_rounds_planned{{run="{folder.name}",method="fedavg",task="digits"}} 2'
        in pages[-1]
    )
    assert (
        f'fedapps_rounds_total{{run="{folder.name}",method="fedavg",task="digits"}} ' in pages[-1]
    )


HANGS = """
import time
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from flwr.serverapp import ServerApp
import numpy as np
from clients.base.adapter import to_client_app
from strategies import ClientGrid, FedAvg

class Client(NumPyClient):
    def __init__(self, i):
        self.i = i
    def fit(self, parameters, config):
        if self.i == 1 and config["server-round"] == 2:
            time.sleep(3600)
        return [p + 1 for p in parameters], 1, {}

app = to_client_app(lambda context: Client(context.node_config["partition-id"]))
server = ServerApp()

@server.main()
def main(grid, context):
    rounds = []
    strategy = FedAvg(fraction_evaluate=0)
    result = strategy.start(ClientGrid(grid), ArrayRecord({"w": Array(np.zeros(2))}), 3, timeout=8, callbacks=[rounds.append])
    print("RESULT", result.arrays["w"].numpy().tolist())
    print("FAILED", [(r.number, f.client, f.reason) for r in rounds for f in r.failures])
"""


def test_a_client_that_hangs_costs_its_reply_and_not_the_run(tmp_path):
    """Three workers for three clients: the one that hangs keeps its worker, the others
    go on.
    """
    app = tmp_path / "hangs"
    (app / "hangsapp").mkdir(parents=True)
    (app / "hangsapp" / "__init__.py").touch()
    (app / "hangsapp" / "apps.py").write_text(HANGS)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "hangs"\nversion = "0.1.0"\ndescription = "x"\nlicense = '
        '"Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "tests"\n'
        '[tool.flwr.app.components]\nserverapp = "hangsapp.apps:server"\nclientapp = '
        '"hangsapp.apps:app"\n'
    )
    lines = []
    outcome = run_simulation(
        app,
        {},
        Resources(3, ray_cpus=3),
        Following(
            tmp_path / "log",
            on_line=lines.append,
            ended=lambda: "completed" if any("FAILED" in line for line in lines) else None,
        ),
        env={"PYTHONPATH": str(ROOT)},
    )
    text = "\n".join(lines)
    assert outcome.status == "completed", text[-3000:]
    assert "RESULT [3.0, 3.0]" in text
    assert "(2, 1, 'no answer within 8 s')" in text


def test_ctrl_c_under_ray_and_resume(tmp_path):
    out = tmp_path / "r"
    job = [*JOB, "num-rounds=400", "--engine", "ray", "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedapps", "run", *map(str, job)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while (
        not list((out / "checkpoint").glob("[0-9]*"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130, error
    assert "go on with: fedapps run --resume" in error
    assert json.loads((out / "summary.json").read_text())["status"] == "interrupted"
    assert (out / "report.html").exists()
    marked = subprocess.run(
        ["pgrep", "-f", str(out)], capture_output=True, text=True
    ).stdout.split()
    assert not marked
    done = rows(out)
    settings = tomllib.loads((out / "settings.toml").read_text())
    assert settings["num-rounds"] == 400
    assert done[-1]["round"] >= 2
