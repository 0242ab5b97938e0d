"""Clients of FedEvg, FedCGAN and FedCVAE: signs and targets by hand, a kept net by its
own history, and that each of them learns.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.clients import (
    ClientData,
    FedCGANClient,
    FedCVAEClient,
    FedEvgClient,
    Split,
    TrainOptions,
)
from fedapps.models.generative_nets import (
    ACGAN,
    CVAE,
    ENERGY_NETS,
    build_energy_net,
    build_generator,
)
from fedapps.models.image_nets import build_model
from fedapps.strategies import FedEvg, FedEvgOptions, FedGenerator
from tests.clients.federation import federate
from tests.helpers import assert_arrays, simulate

SHAPE, CLASSES, M = (1, 8, 8), 2, 8
TRAIN = {"batch-size": 16, "learning-rate": 0.002, "lr-decay": 1.0, "local-epochs": 1, "seed": 3}
#: Class 0 is bright on top, class 1 at the bottom.
PROTOTYPES = torch.full((CLASSES, *SHAPE), 0.1)
PROTOTYPES[0, :, :4], PROTOTYPES[1, :, 4:] = 0.9, 0.9


def halves(seed, n=32):
    """Return a client's images: one half of each is bright, depending on its class."""
    rng = np.random.default_rng(seed)

    def split():
        y = torch.tensor(rng.permutation(np.arange(n) % CLASSES))
        noise = torch.tensor(rng.normal(size=(n, *SHAPE)), dtype=torch.float32)
        return Split((PROTOTYPES[y] + 0.05 * noise).clamp(0, 1), y)

    return ClientData(split(), split(), split())


def model_fn(seed):
    return build_model("logistic", SHAPE, CLASSES, seed)


def net_fn(seed):
    return build_energy_net("energy-cnn", SHAPE, CLASSES, seed)


def evaluator(x, y, server_round):
    return {name: tensor.numpy() for name, tensor in model_fn(1).state_dict().items()}, {}


def recognised(x, y):
    """Return the share of images that are nearer to the prototype of their class than
    to the other.
    """
    distances = ((torch.tensor(x)[:, None] - PROTOTYPES[None]) ** 2).flatten(2).sum(2)
    return float((distances.argmin(1) == torch.tensor(y)).double().mean())


# --- FedEvg ---------------------------------------------------------------------------


class Watched(FedEvgClient):
    """Remembers the net of its last round."""

    def _net(self, config):
        self.net, self.optimiser = super()._net(config)
        return self.net, self.optimiser


def evg(**options):
    return FedEvg(SHAPE, CLASSES, evaluator, FedEvgOptions(**options), M, seed=3)


def config_of(strategy, server_round=1, **extra):
    return {
        **TRAIN,
        **strategy.train_options(server_round, 9),
        "server-round": server_round,
        **extra,
    }


def test_what_is_sent_rises_with_the_energy_and_counts_more_where_the_net_says_yes():
    """The gradient of E = -f(x)[y], by automatic differentiation of the logits of the
    client's own net.
    """
    strategy = evg()
    client = Watched(net_fn, model_fn, halves(0), 0)
    x, y = strategy.first_arrays().values()
    (gradients, logs), *_ = client.fit([x, y], config_of(strategy))
    at = torch.tensor(x, requires_grad=True)
    scores = client.net.eval()(at)[torch.arange(M), torch.tensor(y).long()]
    (upwards,) = torch.autograd.grad(scores.sum(), at)
    assert np.abs(gradients).max() > 1e-4
    np.testing.assert_allclose(gradients, -upwards, atol=1e-6)
    np.testing.assert_array_equal(logs, np.sign(scores.detach()))


def test_two_rounds_of_a_kept_net_are_two_rounds_of_one_net():
    """The reference trains one net with one Adam twice, without anything being stored
    between.
    """
    strategy = evg(persistent=True)
    x, y = strategy.first_arrays().values()
    kept, whole = Watched(net_fn, model_fn, halves(0), 0), Watched(net_fn, model_fn, halves(0), 0)
    for now in (1, 2):
        kept.fit([x, y], config_of(strategy, now))
    net, optimiser = whole._net(config_of(strategy, 1))
    samples = torch.tensor(x).clamp(0, 1), torch.tensor(y).long()
    for now in (1, 2):
        whole._train_energy(net.train(), optimiser, *samples, config_of(strategy, now))
    assert_arrays(kept.net.state_dict(), net.state_dict(), rtol=1e-5, atol=1e-5)
    fresh = Watched(net_fn, model_fn, halves(0), 0)
    for now in (1, 2):
        fresh.fit([x, y], config_of(evg(), now))
    assert not all(
        torch.allclose(a, b) for a, b in zip(fresh.net.parameters(), net.parameters(), strict=True)
    )


@pytest.mark.slow
def test_sites_with_five_architectures_draw_one_set():
    """No two sites have the same net, and each has half the classes: one alone could
    not draw the set.
    """
    names = [name for name in ENERGY_NETS if name != "energy-resnet10"]
    sizes = {
        sum(p.numel() for p in build_energy_net(name, SHAPE, CLASSES, 0).parameters())
        for name in names
    }
    assert len(sizes) == len(names) == 5

    def site(i, store):
        both = halves(i).train
        own = Split(both.x[both.y == i % CLASSES], both.y[both.y == i % CLASSES])
        build = lambda seed: build_energy_net(names[i], SHAPE, CLASSES, seed)
        return FedEvgClient(build, model_fn, ClientData(own, own, own), i, store)

    strategy = evg(persistent=True, beta_first=3.0, beta_last=0.1)
    train = TRAIN | {"local-epochs": 4}
    arrays, *_ = federate(strategy, site, 5, strategy.first_arrays(), 12, train, evaluate_every=0)
    assert recognised(*arrays.values()) >= 0.9


# --- FedCGAN --------------------------------------------------------------------------


class ToyGAN(nn.Module):
    """Real images are pixel 0, generated ones pixel 1 of strength ``generator.p``; the
    logit weighs the two pixels.
    """

    latent = 1

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = nn.Module(), nn.Module()
        self.generator.p = nn.Parameter(torch.tensor(0.5))
        self.discriminator.w = nn.Parameter(torch.tensor([0.0, -0.4]))

    def generate(self, z, y):
        return torch.stack([0 * z[:, 0], self.generator.p + 0 * z[:, 0]], 1)

    def discriminate(self, x):
        return x @ self.discriminator.w, torch.zeros(len(x), CLASSES)


def test_the_discriminator_tells_real_from_made_and_the_generator_deceives_it():
    """One step by its signs: real images get a higher logit, generated ones a lower
    one, and the generator goes where it is higher.
    """
    net = ToyGAN()
    step = FedCGANClient(net, model_fn, halves(0), 0).steps(TrainOptions(0.01, batch_size=4), 0.01)
    real = torch.tensor([[1.0, 0.5]]).repeat(4, 1)  # 2 x - 1: pixel 0 is 1, pixel 1 is 0
    before = net.generator.p.item(), *net.discriminator.w.tolist()
    loss = float(step(real, torch.zeros(4, dtype=torch.long)))
    made, of_real, of_made = net.generator.p.item(), *net.discriminator.w.tolist()
    assert of_real > before[1]
    assert of_made < before[2]
    assert made < before[0]  # the weight of pixel 1 is negative: less of it looks more real
    # -log sigmoid of the logits of real images, of generated ones, and of these again
    wanted = sum(np.log1p(np.exp(v)) for v in (0.0, -0.4 * 0.5, -of_made * 0.5))
    # the classes of real images, and of generated ones in both turns
    assert loss == pytest.approx(wanted + 3 * np.log(CLASSES), abs=1e-4)


# --- FedCVAE --------------------------------------------------------------------------


class ToyVAE(nn.Module):
    """Its code is the same for all images, and the decoder returns the images
    themselves: only the divergence is left.
    """

    def __init__(self, images):
        super().__init__()
        self.images = images
        self.m, self.s = (nn.Parameter(torch.tensor(value)) for value in (2.0, -1.0))

    def encode(self, x):
        return self.m.expand(len(x), 1), self.s.exp().expand(len(x), 1)

    def decode(self, z, y):
        return self.images + 0.5 + 0 * z.sum()


def test_the_code_is_drawn_towards_the_standard_normal():
    x, y = torch.rand(4, *SHAPE), torch.zeros(4, dtype=torch.long)
    net = ToyVAE(x)
    step = FedCVAEClient(net, model_fn, halves(0), 0).steps(TrainOptions(0.05, batch_size=4), 0.05)
    sigma2 = np.exp(-2.0)
    wanted = 64 * 0.25 + (4 + sigma2 - 1 - np.log(sigma2)) / 2  # 64 pixels, each off by a half
    assert float(step(x, y)) == pytest.approx(wanted, rel=1e-5)
    for _ in range(200):
        step(x, y)
    assert [net.m.item(), net.s.item()] == pytest.approx([0, 0], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "half", "epochs"), [(ACGAN, FedCGANClient, 15), (CVAE, FedCVAEClient, 60)]
)
def test_generated_images_are_those_of_their_class(kind, half, epochs):
    def client(i, context):
        return half(build_generator(kind, SHAPE, CLASSES, 4, 9), model_fn, halves(i), i)

    strategy = FedGenerator(
        build_generator(kind, SHAPE, CLASSES, 4, 0), evaluator, CLASSES, 40, seed=3
    )
    train = TRAIN | {"local-epochs": epochs, "learning-rate": 0.005}
    result = simulate(strategy, client, 2, strategy.first_arrays(), 2, train, evaluate_every=0)
    assert recognised(*strategy.samples(result.arrays)) >= 0.9
