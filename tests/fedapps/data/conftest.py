"""What tests of data sets share."""

import datasets
import pytest


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    """Keep decoded data sets and those of the hub's library in the test's folder."""
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub-cache"))
