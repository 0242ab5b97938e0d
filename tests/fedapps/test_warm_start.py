"""A warm start runs the second method from the first one's model."""

import pytest

from fedapps.commands.parser import main
from tests.helpers import rounds_of

pytestmark = pytest.mark.slow

JOB = [
    "num-rounds=4",
    "evaluate-every=1",
    "checkpoint-every=0",
    "num-clients=6",
    "clients-per-round=3",
    "train.local-epochs=1",
    "data.max-samples=600",
]


def evaluated(folder, *settings):
    assert main(["run", "--engine", "inline", *settings, *JOB, "--out", str(folder)]) == 0
    return [row["evaluate"] for row in rounds_of(folder)]


def test_fedavg_and_then_fine_tuning_is_fine_tuning(tmp_path):
    """Fine-tuning trains like FedAvg, so from the second half on the two are equal."""
    whole = evaluated(tmp_path / "whole", "method=finetune")
    halves = evaluated(
        tmp_path / "halves",
        "method=warm-start",
        "warm-start.first=fedavg",
        "warm-start.rounds=2",
        "warm-start.then=finetune",
    )
    assert halves[2:] == whole[2:]
    # until then clients used the common model
    assert halves[1]["accuracy-mean"] < whole[1]["accuracy-mean"]
