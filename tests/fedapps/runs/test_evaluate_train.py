"""``evaluate-train``: the loss of the final model on each client's training samples
is in clients.csv, and nowhere without it.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from tests.helpers import clients_of, run_inline

JOB = {
    "method": "propfair",
    "num-clients": 4,
    "clients-per-round": 0,
    "num-rounds": 2,
    "train.local-epochs": 1,
    "checkpoint-every": 0,
}


@pytest.mark.parametrize("asked", [True, False])
def test_the_column_is_the_loss_of_the_final_model(asked, tmp_path):
    run_inline(tmp_path, **JOB, **{"evaluate-train": asked})
    rows = clients_of(tmp_path)
    assert ["train-loss" in row for row in rows] == [asked] * 4
    if asked:
        task = build_task(read_settings(JOB))
        model = task.model_fn(0)
        model.load_state_dict(load_file(tmp_path / "model.safetensors"))
        with torch.no_grad():
            parts = [task.client_data(k, 4).train for k in range(4)]
            expected = [
                float(torch.nn.functional.cross_entropy(model(part.x), part.y)) for part in parts
            ]
        np.testing.assert_allclose([float(row["train-loss"]) for row in rows], expected, rtol=1e-5)
