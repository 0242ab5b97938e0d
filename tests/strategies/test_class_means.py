"""Class means: the sums of all clients give the means of the pooled images."""

import numpy as np
import torch

from fedapps.clients import ClassMeansClient, ClientData, Split
from fedapps.models.image_nets import build_model
from fedapps.strategies import ClassMeans
from fedapps.strategies.base.capabilities import declared
from fedapps.strategies.base.records import to_record
from tests.helpers import refused, simulate

SHAPE, CLASSES = (1, 4, 4), 4


def model_fn(seed):
    return build_model("small-cnn", (1, 8, 8), CLASSES, seed)


def client_data(client):
    """Clients of unlike sizes; of the first nobody has class 3."""
    rng = np.random.default_rng(client)
    n = 5 + 20 * client
    y = torch.tensor(rng.choice([0, 1, 2] if client < 2 else [client % 3], n))
    split = Split(torch.tensor(rng.random((n, *SHAPE)), dtype=torch.float32), y)
    return ClientData(split, split, split)


def strategy():
    return ClassMeans(SHAPE, CLASSES, lambda x, y, t: ({}, {}), fraction_evaluate=0.0)


def test_the_images_are_the_means_of_the_pooled_classes():
    ours, client = strategy(), lambda i, store: ClassMeansClient(model_fn, client_data(i), i, store)
    result = simulate(ours, client, 4, ours.first_arrays(), num_rounds=2)
    x, y = ours.samples(result.arrays)
    parts = [client_data(client).train for client in range(4)]
    pooled, labels = (np.concatenate([getattr(part, key) for part in parts]) for key in "xy")
    assert y.tolist() == [0, 1, 2], "nobody has class 3"
    for image, label in zip(x, y, strict=True):
        np.testing.assert_allclose(image, pooled[labels == label].mean(0), atol=1e-6)


def test_only_weighted_sums_are_used_and_noise_leaves_images():
    ours = strategy()
    assert declared(ours).aggregation == "weighted average"
    first = ours.first_arrays()
    samples = lambda: ours.samples(to_record(list(first), list(first.values())))
    x, y = samples()
    assert (x.max(), y.tolist()) == (0, [0, 1, 2, 3])
    first["sums"][1], first["shares"][:] = 3.0, [-0.1, 0.001, 0.0, 0.2]
    x, y = samples()
    assert (x.max(), y.tolist()) == (1, [1, 3])
    first["shares"][:] = -1
    refused(samples, "no class has a positive share")
