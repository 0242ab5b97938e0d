"""What every test runs under: no network, one thread, caches and logs of its own."""

import os

# No test may reach for the network, and one thread a process keeps two busy cores from
# waiting for each other.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import logging

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    """Leave the tests with real SuperNodes, which take minutes, to `pytest -m
    deployment` (make test-deployment).
    """
    if "deployment" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("deployment")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep decoded data sets out of the user's home."""
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def quiet_flower():
    """Give Flower's logger back as it was: the inline engine redirects it to a run's
    own file.
    """
    logger = logging.getLogger("flwr")
    before, propagate = list(logger.handlers), logger.propagate
    yield
    for handler in list(logger.handlers):
        if handler not in before:
            logger.removeHandler(handler)
            handler.close()
    for handler in before:
        if handler not in logger.handlers:
            logger.addHandler(handler)
    logger.propagate = propagate
