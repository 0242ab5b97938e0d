"""A Ray cluster of two nodes with one CPU each, on this machine: a run uses both, and
what cannot work is refused before anything starts.
"""

import os
import sys
from pathlib import Path

import pytest

from fedapps.commands.parser import parse
from fedapps.commands.run import execute as run
from fedapps.engines import flower
from fedapps.engines.capacity import Machine
from fedapps.engines.cluster import address_of, checked_cluster, lacks
from fedapps.engines.flower import Resources
from fedapps.errors import UserError
from fedapps.records.reader import read_run
from tests.helpers import assert_same, refused

SMALL = [
    "method=fedavg",
    "num-rounds=2",
    "num-clients=4",
    "clients-per-round=0",
    "train.local-epochs=1",
    "evaluate-every=1",
]


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    from ray.cluster_utils import Cluster as Made

    made = Made(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made.address
    made.shutdown()


def arguments(folder, *words, engine="ray"):
    return parse(["run", *map(str, (*SMALL, "--engine", engine, "--out", folder, *words))])


@pytest.mark.ray
def test_a_run_on_the_cluster_has_the_numbers_of_the_inline_engine(cluster, tmp_path):
    assert run(arguments(tmp_path / "cluster", "--ray-address", cluster)) == 0
    assert run(arguments(tmp_path / "inline", engine="inline")) == 0
    ours, theirs = (read_run(tmp_path / name) for name in ("cluster", "inline"))
    assert_same(*([(row["train"], row["evaluate"]) for row in r.rounds] for r in (ours, theirs)))
    assert [row["node-messages"] for row in ours.rounds] == [2, 2], (
        "a worker on either node, which have a CPU each"
    )
    assert not [path for path in (tmp_path / "cluster").iterdir() if path.name.startswith("fl-")], (
        "Flower's own folder is gone"
    )


@pytest.mark.ray
def test_a_cluster_without_gpus_is_refused_before_flower_starts(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(
        flower.SuperLink, "__init__", lambda *_: pytest.fail("something was started")
    )
    given = arguments(tmp_path / "run", "--ray-address", cluster, "--gpus-per-client", "0.5")
    refused(
        lambda: run(given), r"a machine of the cluster has 1 CPUs and 0 GPUs: choose", UserError
    )
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.ray
def test_the_cluster_needs_resources_and_shared_folders(cluster, tmp_path):
    assert checked_cluster(cluster, [tmp_path]) == [Machine(1, 0)] * 2
    refused(
        lambda: checked_cluster(cluster, [Path("/nowhere")]),
        r"of the cluster has no /nowhere: choose a folder that all machines share",
        UserError,
    )


def test_other_versions_are_refused_by_name():
    mine = {"python": "3.11", "torch": "2.14.1"}
    assert lacks("b (10.0.0.2)", mine, mine, []) == ""
    said = lacks("b (10.0.0.2)", mine, {"python": "3.11", "torch": "2.6.0"}, [])
    assert (
        said == "b (10.0.0.2) of the cluster has torch 2.6.0, this machine has 2.14.1: install "
        "the same version"
    )


def test_the_clients_share_as_many_nodes_as_the_cluster_works_at_a_time(monkeypatch):
    def nodes(clients, share=0.0, gpus=0):
        machines = [Machine(12, gpus), Machine(11, 0), Machine(1, 0)]
        given = Resources(clients, share, cluster="head:6379", machines=machines)
        return given.with_shared_nodes().nodes

    monkeypatch.setattr(os, "cpu_count", lambda: 60)
    assert nodes(100) == 24
    assert (nodes(100, share=0.5, gpus=4), nodes(5)) == (8, 5)


def test_the_address(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_of(None) == ""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert (address_of(None), address_of("auto")) == ("10.0.0.1:6379", "auto")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert address_of(None) == ""


def test_an_unreachable_cluster_is_a_one_line_error(tmp_path):
    refused(
        lambda: checked_cluster("127.0.0.1:1", [tmp_path]),
        r"^--ray-address 127.0.0.1:1: nothing answers there \(Connection refused\)",
        UserError,
    )
