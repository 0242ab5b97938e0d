"""The imports and the memory of a client process whose method needs no net, from the
start to the reply.
"""

import sys

import pytest

from benchmarks.deployment import measure

pytestmark = pytest.mark.slow

HEAVY = {"torch", "scipy", "sklearn", "pandas", "datasets", "matplotlib", "PIL", "ray"}
#: A job of each kind of client.
SMALL = [
    "fedfw:lasso",
    "dfw-trace:matrix-completion",
    "fedboost:point-mass",
    "ffgb:tabular",
    "histogram-boosting:tabular",
]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="resident memory is read from /proc"
)
@pytest.mark.parametrize("job", SMALL)
def test_a_client_without_a_net_trains_without_importing_pytorch(job, tmp_path):
    measured = measure(job, tmp_path)
    assert HEAVY & set(measured["modules"]) == set()
    assert measured["peak"] < 200  # MB; 160 with the oldest packages, 600 with PyTorch
    assert measured["up"] > 0


def test_a_client_with_a_net_is_seen_to_import_pytorch(tmp_path):
    assert measure("fedavg:tabular", tmp_path)["torch"]
