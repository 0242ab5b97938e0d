"""Shares of GPUs under Ray, on a machine without one: Ray is configured with two, and
the clients report what they see of them. Then the app raises an error.
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from fedapps.engines import flower
from fedapps.engines.processes import marked

pytestmark = [pytest.mark.slow, pytest.mark.ray]

PYPROJECT = """
[project]
name = "gpuapp"
version = "0.1.0"
description = "An app whose clients tell what they see of a GPU"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
fab-include = ["gpuapp/**/*.py"]
[tool.flwr.app.components]
serverapp = "gpuapp.apps:server"
clientapp = "gpuapp.apps:client"
"""
APPS = """
import os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < 6:
        time.sleep(0.01)
    for _ in range(2):  # in the first round the workers are still starting
        asked = [Message(RecordDict({"config": ConfigRecord()}), node, "train") for node in nodes]
        seen = [reply.content["seen"] for reply in grid.send_and_receive(asked)]
    for one in seen:
        print("SEEN", *one.values(), flush=True)
    raise ValueError(f"the kettle in {os.environ['FLWR_HOME']} is empty")

@client.train()
def train(message, context):
    begin = time.time()
    time.sleep(0.5)
    seen = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "unset") or "none", "pid": os.getpid(), "begin": begin, "end": time.time()}
    return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    (folder / "gpuapp").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "gpuapp" / "__init__.py").touch()
    (folder / "gpuapp" / "apps.py").write_text(APPS)
    return folder


def test_as_many_clients_at_a_time_as_there_are_shares_and_each_sees_its_gpu(app, tmp_path):
    """Two shares of 0.39 fit on each of two GPUs. Flower alone would start a fifth
    worker and wait for it forever. At the end the app raises: the run fails with that
    reason, and leaves nothing. Starting Ray a second time for this would take longer
    than the test.
    """
    lines = []
    outcome = flower.run_simulation(
        app,
        {},
        flower.Resources(6, gpus_per_client=0.39, ray_cpus=5, ray_gpus=2),
        flower.Following(tmp_path / "log", on_line=lines.append),
        env={"CUDA_VISIBLE_DEVICES": "0,1"},
    )
    assert outcome.status == "failed", (outcome, lines[-20:])
    home = re.fullmatch(r"ValueError: the kettle in (\S+) is empty", outcome.details)[1]
    assert "Traceback" in (tmp_path / "log").read_text()
    assert marked(f"FLWR_HOME={home}") == []
    assert not Path(home).exists()
    seen = [line.split()[1:] for line in lines if line.startswith("SEEN ")]
    assert len(seen) == 6
    workers = {pid: gpus for gpus, pid, *_ in seen}
    assert Counter(workers.values()) == {"0": 2, "1": 2}


def test_clients_share_as_many_nodes_as_run_at_a_time(monkeypatch):
    def nodes(clients, share, workers=None):
        given = flower.Resources(clients, gpus_per_client=share, ray_cpus=workers, ray_gpus=1)
        return given.with_shared_nodes().nodes

    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [nodes(100, share) for share in (0.0, 0.2, 0.25, 0.5, 1.0)] == [8, 5, 4, 2, 1]
    assert nodes(100, 0.25, 3) == 3
    assert nodes(2, 0.25) == 2


def test_a_share_that_does_not_fit_is_refused(app, tmp_path):
    with pytest.raises(
        flower.UserError, match=r"gpus-per-client = 2 does not fit: .* and 1 GPUs: "
    ):
        flower.run_simulation(
            app,
            {},
            flower.Resources(3, gpus_per_client=2, ray_gpus=1),
            flower.Following(tmp_path / "log"),
        )
