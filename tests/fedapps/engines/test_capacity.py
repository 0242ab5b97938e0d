"""How many clients fit on GPUs: the counts of Flower and of Ray, what cannot run is
refused, and the names of the visible GPUs.
"""

import numpy as np
import pytest
import torch

from fedapps.engines.capacity import (
    UNITS,
    Machine,
    check_share,
    clients_at_once,
    per_gpu,
    told_share,
    visible_gpus,
)
from fedapps.engines.flower import Resources
from fedapps.errors import UserError
from tests.helpers import refused

CLUSTERS = (
    [Machine(64, 1)],
    [Machine(64, 2)],
    [Machine(64, 3)],
    [Machine(64, 8)],
    [Machine(0, 0), Machine(64, 8), Machine(64, 2)],
    [Machine(3, 8), Machine(64, 0), Machine(64, 1)],
)


@pytest.fixture
def nodes(monkeypatch):
    """Let Ray have the nodes that a list holds."""
    ray = pytest.importorskip("ray")
    have = []
    monkeypatch.setattr(
        ray, "nodes", lambda: [{"Resources": {"CPU": m.cpus, "GPU": m.gpus}} for m in have]
    )
    return have


@pytest.mark.parametrize("machines", CLUSTERS)
@pytest.mark.parametrize(
    "share", [0.1, 0.2, 0.25, 0.3, 1 / 3, 0.33, 0.39, 0.4, 0.45, 0.5, 0.6, 0.9, 1.0]
)
def test_flower_starts_as_many_workers_as_fit_on_the_gpus(share, machines, nodes):
    """Flower's own count, with the number that Flower is told, in 32 bits."""
    from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources

    resources = Resources(100, gpus_per_client=share, cluster="head:6379", machines=machines)
    nodes += machines
    words = dict(word.split("=") for word in resources.federation().split())
    told = float(np.float32(words["client-resources-num-gpus"]))
    flower = pool_size_from_resources({"num_cpus": 1, "num_gpus": told})
    fit = UNITS // int(told * UNITS + 0.5)  # as Ray rounds it
    assert (flower, fit) == (sum(min(m.cpus, m.gpus * fit) for m in machines), per_gpu(share))
    assert resources.at_once() == flower


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 8, 16])
def test_never_more_workers_than_ray_can_place(gpus):
    """Ray's units, whether it rounds to them or cuts off the rest."""
    for share in np.arange(0.001, 1, 0.0037):
        machine = [Machine(10**6, gpus)]
        told = told_share(float(share), machine)
        started = clients_at_once(machine, told)
        for units in (int(told * UNITS), int(told * UNITS + 0.5)):
            assert started <= gpus * (UNITS // units), share
        if per_gpu(float(share)) <= 20:
            assert started == gpus * per_gpu(float(share)), share


def test_a_rest_of_a_gpu_that_no_client_can_use_is_said():
    two = Resources(9, gpus_per_client=0.4, ray_cpus=8, ray_gpus=2)
    assert two.remark() == (
        "gpus-per-client = 0.4: clients share one GPU, never two, so 2 fit on each GPU, and 4 "
        "run at a time"
    )
    assert two.with_shared_nodes().nodes == 4
    for share, gpus in ((0.4, 1), (0.5, 2), (0.2, 2), (1 / 3, 8), (0.0, 2), (2.0, 3)):
        assert Resources(9, gpus_per_client=share, ray_cpus=8, ray_gpus=gpus).remark() == ""


@pytest.mark.parametrize(
    ("share", "machines", "message"),
    [
        (
            0.5,
            [Machine(16, 0), Machine(16, 0), Machine(8, 0)],
            r"^a client with 1 CPU and gpus-per-client = 0\.5 does not fit: a machine of the "
            r"cluster has 16 CPUs and 0 GPUs or 8 CPUs and 0 GPUs: choose less, or start ",
        ),
        (0.5, [Machine(16, 0), Machine(0, 4)], "has 16 CPUs and 0 GPUs or 0 CPUs and 4 GPUs: "),
        (2.0, [Machine(16, 1), Machine(16, 1)], "has 16 CPUs and 1 GPUs: choose less"),
        (0.0, [Machine(0, 0)], "has 0 CPUs and 0 GPUs: choose less, or start machines"),
        (1.5, [Machine(16, 4)], r"^gpus-per-client = 1\.5: choose .*, or a whole number$"),
        (0.0005, [Machine(16, 4)], r"^gpus-per-client = 0\.0005: choose a share of a GPU, 0\.001"),
    ],
)
def test_a_cluster_where_no_client_fits_is_refused(share, machines, message):
    resources = Resources(4, gpus_per_client=share, cluster="head:6379", machines=machines)
    refused(lambda: resources.check(), message, UserError)


def test_a_cluster_where_one_machine_fits_is_accepted():
    machines = [Machine(0, 0), Machine(16, 0), Machine(1, 2)]
    resources = Resources(4, gpus_per_client=0.5, cluster="head:6379", machines=machines)
    resources.check()
    assert resources.with_shared_nodes().nodes == 1


@pytest.mark.parametrize(
    ("name", "share", "most", "message"),
    [
        *(
            ("--gpus-per-run", share, {"most": 1}, r" \S+: choose a share .* to 1$")
            for share in (0.0, -0.5, 2.0, float("nan"), float("inf"), "x")
        ),
        *(("gpus", share, {}, r" \S+: choose a share") for share in (float("inf"), "x", 1.5)),
    ],
)
def test_a_share_that_no_gpu_has_is_refused(name, share, most, message):
    refused(lambda: check_share(name, share, **most), f"^{name}{message}", UserError)


def test_a_run_takes_a_part_of_one_gpu_or_a_whole_one():
    check_share("--gpus-per-run", 0.25, most=1)
    assert [per_gpu(share) for share in (1, 0.6, 0.5, 0.34, 0.3, 0.25, 0.1)] == [
        1,
        1,
        2,
        2,
        3,
        4,
        10,
    ]


@pytest.mark.parametrize(
    ("chosen", "count", "names"),
    [
        (None, 2, ["0", "1"]),
        (None, 0, []),
        ("2, 5", 2, ["2", "5"]),
        ("GPU-8c1f,GPU-77aa", 2, ["GPU-8c1f", "GPU-77aa"]),
        ("1,-1,2", 1, ["1"]),  # CUDA ends the list at a GPU that does not exist
        ("", 0, []),
    ],
)
def test_the_visible_gpus_keep_the_names_that_were_given(chosen, count, names, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA is initialised"))
    assert visible_gpus() == names
