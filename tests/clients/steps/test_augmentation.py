"""Training batches of augmented images: torchvision's crops and flips, drawn by seed,
client and round; what is scored stays as it is.
"""

import numpy as np
import pytest
import torch

from fedapps.algorithms.common.seeds import generator
from fedapps.clients import (
    ClientData,
    FedALAClient,
    FedAvgClient,
    LocalClient,
    PerFedAvgClient,
    PFedMeClient,
    Split,
)
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.steps.augmentation import augmented, crop_and_flip
from fedapps.clients.steps.batches import epochs
from fedapps.testing.problems import small_net
from tests.clients.steps.traced import Traced, assert_compiled
from tests.helpers import assert_arrays
from tests.pretended_device import CUDA, pretended_cuda

v2 = pytest.importorskip("torchvision.transforms.v2", reason="needs the extra 'app'")
functional = v2.functional

CONFIG = {"local-epochs": 2, "batch-size": 5, "learning-rate": 0.1, "seed": 1, "server-round": 3}
OWN = {
    "pfedme-lambda": 5.0,
    "pfedme-rate": 0.05,
    "pfedme-inner-steps": 3,
    "fedala-layers": 2,
    "fedala-rate": 0.5,
    "fedala-samples": 0.8,
    "fedala-start-epochs": 2,
    "per-fedavg-alpha": 0.05,
    "per-fedavg-hessian": "none",
    "per-fedavg-steps": 1,
}


def images(n: int = 24, seed: int = 0) -> torch.Tensor:
    """Return images whose pixels are all different and positive."""
    return 1 + torch.randn(n, 3, 6, 8, generator=torch.Generator().manual_seed(seed)).abs()


def data_of(how: str = "crop-flip", n: int = 24) -> ClientData:
    train = Split(images(n), torch.arange(n) % 3, augment=how)
    return ClientData(train, train, Split(images(7, seed=1), torch.arange(7) % 3))


def net(seed: int):
    return small_net(seed, dim=3 * 6 * 8)


@pytest.mark.parametrize("flip", [False, True])
def test_an_image_is_the_one_of_torchvision_at_the_same_offsets(flip):
    places = [(i, j) for i in range(9) for j in range(9)]
    x = images(len(places))
    made = crop_and_flip(x, *torch.tensor(places).T, torch.full((len(places),), flip))
    wanted = [
        functional.crop(functional.pad(image, [4]), *at, 6, 8)
        for image, at in zip(x, places, strict=True)
    ]
    assert_arrays(made, map(functional.horizontal_flip, wanted) if flip else wanted)


def test_the_draws_have_torchvisions_distribution():
    """Of all 9 x 9 x 2 results of one image, each is as frequent as torchvision's."""
    image, count = torch.arange(1.0, 401.0).view(1, 1, 20, 20), 20_000
    theirs = v2.Compose([v2.RandomCrop((20, 20), padding=4), v2.RandomHorizontalFlip()])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torch.stack([theirs(image[0]) for _ in range(2000)])
    made = augmented(image.expand(count, -1, -1, -1), "crop-flip", generator(0, "test"))
    # two pixels in the middle tell offset and flip
    ours = {tuple(pair) for pair in made[:, 0, 10, 9:11].tolist()}
    assert ours == {tuple(pair) for pair in drawn[:, 0, 10, 9:11].tolist()}
    assert len(ours) == 162
    _, frequencies = np.unique(made[:, 0, 10, 9:11].numpy(), axis=0, return_counts=True)
    expected = count / 162
    assert ((frequencies - expected) ** 2 / expected).sum() < 230  # 99.98 % of chi^2(161)


def test_without_augmentation_batches_and_draws_are_those_of_before():
    data, options = data_of("none").train, TrainOptions(local_epochs=2)
    rng, other = generator(1, "batches"), generator(1, "batches")
    for batch in epochs(data, options, rng):
        order = torch.from_numpy(other.permutation(len(data)))
        assert_arrays(batch, (data.x[order], data.y[order]))
    assert rng.integers(2**40) == other.integers(2**40)


def test_each_image_of_each_epoch_client_and_round_has_its_own_draws():
    options = TrainOptions(local_epochs=2)
    same = Split(images(1).expand(20, -1, -1, -1), torch.zeros(20).long(), augment="crop-flip")
    keys = [(1, "batches", 0, 1), (1, "batches", 0, 2), (1, "batches", 1, 1), (2, "batches", 0, 1)]
    made, again = (
        [x for key in keys for x, _ in epochs(same, options, generator(*key))] for _ in range(2)
    )
    assert len({image.numpy().tobytes() for x in made for image in x}) > 85  # of 162
    assert_arrays(made, again)


class Seen:
    """Mixin that keeps the images of training batches, and of others."""

    def loss(self, x, y):
        (self.trained if self.model.training else self.scored).append(x)
        return super().loss(x, y)


@pytest.mark.parametrize(
    "kind", [FedAvgClient, LocalClient, PerFedAvgClient, PFedMeClient, FedALAClient]
)
def test_a_method_trains_on_augmented_images_and_scores_its_own(kind):
    client = type("Watched", (Seen, kind), {"reads": kind.reads})(net, data_of(), 3)
    client.trained, client.scored = [], []
    received = get_arrays(net(5))
    for number in (1, 2):
        client.fit(received, {**CONFIG, **OWN, "server-round": number, "loss-before": True})
    client.evaluate(received, {**CONFIG, **OWN, "train-loss": True})
    originals = {image.numpy().tobytes() for image in client.data.train.x}
    scored = [image for x in client.scored for image in x]
    assert all(image.numpy().tobytes() in originals for image in scored)
    for x in client.trained:  # an image is as it was in one of 162 draws
        assert any(image.numpy().tobytes() not in originals for image in x)
    assert torch.equal(client.data.train.x, images())


def test_compiled_steps_take_the_same_images(tmp_path):
    replies = []
    for compiler in (None, Traced(tmp_path)):
        client = FedAvgClient(net, data_of(n=27), 3)
        client.compiler = compiler
        replies.append(client.fit(get_arrays(net(5)), {**CONFIG, "compile": "on"})[0])
    assert_arrays(replies[1], replies[0], rtol=1e-4, atol=1e-5)
    assert_compiled(compiler)


def test_images_are_augmented_where_they_are(monkeypatch):
    wanted = augmented(images(), "crop-flip", generator(0, "test"))
    with pretended_cuda(monkeypatch):
        made = augmented(images().to(CUDA), "crop-flip", generator(0, "test"))
        assert made.device == CUDA
        assert torch.equal(made.cpu(), wanted)


def test_a_mark_survives_a_change_of_device():
    assert data_of().to(torch.device("cpu")).train.augment == "crop-flip"
