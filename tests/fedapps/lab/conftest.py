"""Fixtures of the laboratory's tests."""

import pytest
import torch

from fedapps.lab.sweeps import execution


@pytest.fixture
def gpus(monkeypatch):
    """Four pretended GPUs, of which this process may use two, on 32 cores."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    monkeypatch.setattr(execution, "cores", lambda: 32)
