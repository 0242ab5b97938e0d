"""A user's own data set, thirty windows of nine sensors per person, from a folder of
parquet files to the results.
"""

import math

import datasets
import pytest

from benchmarks.tables import windows, write
from tests.helpers import clients_of, run_inline

PEOPLE = (3, 5, 8, 11, 20, 27)
SETTINGS = [
    "data.partition=natural",
    "data.natural-id=subject",
    "num-rounds=3",
    "evaluate-every=3",
    "clients-per-round=0",
    "train.local-epochs=2",
    "train.learning-rate=0.05",
]


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_folder_of_windows_by_person(method, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub-cache"))
    write(tmp_path / "set", windows(PEOPLE, 240, steps=32))
    run_inline(tmp_path / "out", f"method={method}", f"data.source={tmp_path / 'set'}", *SETTINGS)
    clients = clients_of(tmp_path / "out")
    assert len(clients) == len(PEOPLE)
    assert all(math.isfinite(float(row["loss"])) for row in clients)
    mean = sum(float(row["accuracy"]) for row in clients) / len(clients)
    assert mean > 0.4, "of six classes, after three rounds"
    assert 'name = "cnn-1d"' in (tmp_path / "out" / "settings.toml").read_text(), (
        "the net that auto stands for is on record"
    )
