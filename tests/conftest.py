"""The environment of every test: no network, one thread, its own caches and logs."""

import gc
import os
import signal

# No test may use the network. With one thread per process, two busy cores do not wait
# for each other.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from collections import Counter

import pytest
import torch

torch.set_num_threads(1)

# A shell that starts a program in the background ignores Ctrl-C for it. Its child
# processes inherit this, and the tests that interrupt a command would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds that a test takes, by its mark: roughly, for the order of the files.
SECONDS = {"ray": 15.0, "slow": 2.0}


def pytest_collection_modifyitems(config, items):
    """Deselect the tests with real SuperNodes, which take minutes, except with `pytest
    -m deployment` (make test-deployment). Put the longest files first: those of two
    processes then end at about the same time.
    """
    if "deployment" not in config.option.markexpr:
        deployment = [item for item in items if item.get_closest_marker("deployment")]
        config.hook.pytest_deselected(items=deployment)
        items[:] = [item for item in items if item not in deployment]
    seconds = Counter()
    for item in items:
        seconds[item.path] += next(
            (s for mark, s in SECONDS.items() if item.get_closest_marker(mark)), 0.05
        )
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Flower's strategies collect garbage for every reply: without the imported
    packages, which are never garbage, a hundred times faster.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep decoded data sets out of the user's home."""
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
