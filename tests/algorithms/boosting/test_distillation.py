import numpy as np
import torch

from fedapps.algorithms.boosting.distillation import Distiller, DistillOptions
from fedapps.algorithms.boosting.regression import FitOptions
from fedapps.algorithms.common.modules import get_arrays
from tests.helpers import assert_arrays, refused


def linear(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=2).astype(np.float32)]


def points(n=60):
    return torch.tensor(np.random.default_rng(9).normal(size=(n, 3)), dtype=torch.float32)


def test_a_linear_ensemble_becomes_exactly_its_one_linear_net():
    distiller = Distiller(torch.nn.Linear(3, 2), points())
    models = [linear(seed) for seed in range(5)]
    options = FitOptions(batch_size=60, learning_rate=0.02, steps=2000)
    fitted, loss = distiller.distil(
        models[0],
        sum(map(distiller.outputs, models)) / len(models),
        options,
        np.random.default_rng(0),
    )
    assert loss < 1e-10
    for position, array in enumerate(fitted):
        np.testing.assert_allclose(
            array, np.mean([model[position] for model in models], axis=0), atol=1e-5
        )


def test_evaluation_leaves_running_statistics_alone():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    arrays = get_arrays(net)
    Distiller(net, points() + 5).outputs(arrays)
    assert_arrays(get_arrays(net), arrays)


def test_mistakes():
    for call, message in (
        (lambda: Distiller(torch.nn.Linear(3, 2), points(0)), "at least one"),
        (lambda: DistillOptions(distill_loss="ce"), "distill-loss = 'ce': "),
    ):
        refused(call, message)
    assert DistillOptions(3, 5, 0.1, "kl").fit == FitOptions(3, 5, 0.1, loss="kl")
