"""FedEvg's messages, its step by hand, skipped clients, and the two baselines that
average generative nets; and their clients.
"""

import re

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from torch import nn

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.synthetic.energies import energies_and_gradients, joint_loss
from fedapps.clients import (
    ClientData,
    FedCGANClient,
    FedCVAEClient,
    FedEvgClient,
    MessageStore,
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
from fedapps.strategies import (
    FedEvg,
    FedEvgOptions,
    FedGenerator,
    PrivacyOptions,
    Private,
)
from tests.clients.federation import federate
from tests.helpers import (
    NoNoise,
    Trains,
    arrays_in,
    arrays_of,
    assert_arrays,
    exchanged,
    refused,
    simulate,
)

SHAPE, CLASSES, M = (1, 8, 8), 4, 8
TRAIN = {"batch-size": 16, "learning-rate": 0.001, "local-epochs": 1, "seed": 3}


def images(seed=0, n=24, shape=SHAPE):
    rng = np.random.default_rng(seed)

    def split():
        return Split(
            torch.tensor(rng.random((n, *shape)), dtype=torch.float32),
            torch.tensor(rng.integers(0, CLASSES, n)),
        )

    return ClientData(split(), split(), split())


def model_fn(seed):
    return build_model("small-cnn", SHAPE, CLASSES, seed)


def net_fn(seed):
    return build_energy_net("energy-cnn", SHAPE, CLASSES, seed)


def evaluator(x, y, server_round):
    model = model_fn(1)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}, {
        "of-the-server": float(server_round)
    }


def evg(options=None, samples=M):
    return FedEvg(SHAPE, CLASSES, evaluator, options, samples, seed=3)


def evg_client(i, context=None):
    return FedEvgClient(
        net_fn, model_fn, images(i), i, MessageStore(context.state) if context else None
    )


def signals(log, slope, n=1, most=None):
    """Return a client that replies with known signals, of the first samples only."""
    return Trains(
        lambda sent, _: [
            np.full_like(sent[0], slope)[:most],
            np.full(len(sent[0]), log, np.float32)[:most],
        ],
        n,
    )


def run(strategy, client_fn=evg_client, clients=3, rounds=2, **options):
    return simulate(strategy, client_fn, clients, strategy.first_arrays(), rounds, TRAIN, **options)


def test_no_parameter_of_a_clients_net_ever_travels(monkeypatch):
    """Checks every message of a run in both directions: none contains a part of a
    client's net.
    """
    kept, exchanges = [], exchanged(monkeypatch)

    class Spied(FedEvgClient):
        def _net(self, config):
            kept.append(super()._net(config))
            return kept[-1]

    result = run(evg(), lambda i, _: Spied(net_fn, model_fn, images(0), i))
    kinds = (MessageType.TRAIN, MessageType.EVALUATE)
    seen = [
        (kind, way, content)
        for kind, *both in exchanges
        if kind in kinds
        for way, content in zip(("down", "up"), both, strict=True)
    ]
    assert len(kept) == 6
    shapes = {
        (MessageType.TRAIN, "down"): [(M, *SHAPE), (M,)],
        (MessageType.TRAIN, "up"): [(M, *SHAPE), (M,)],
        (MessageType.EVALUATE, "down"): [tuple(t.shape) for t in model_fn(0).state_dict().values()],
        (MessageType.EVALUATE, "up"): [],
    }
    assert {(kind, way) for kind, way, _ in seen} == set(shapes)
    nets = np.concatenate([p.detach().numpy().ravel() for net, _ in kept for p in net.parameters()])
    # other arrays hold zeros and ones as well
    nets = nets[(np.abs(nets) > 1e-6) & (np.abs(nets - 1) > 1e-6)]
    for kind, way, content in seen:
        arrays = [array for _, array in arrays_in(content)]
        assert [array.shape for array in arrays] == shapes[kind, way]
        for array in arrays:
            assert np.isin(array.astype(np.float32), nets).mean() < 0.01
    assert sorted(arrays_of(result)) == ["x", "y"]
    assert result.evaluate_metrics_clientapp[2]["of-the-server"] == 2.0


def test_the_start_is_noise_with_balanced_labels():
    first = evg(samples=400).first_arrays()
    assert np.bincount(first["y"]).tolist() == [100] * CLASSES
    assert abs(first["x"].mean()) < 0.03
    assert first["x"].std() == pytest.approx(1, abs=0.03)


def test_two_rounds_by_hand():
    """Three clients of 1, 1 and 2 samples; the second has no sample of any class and
    weighs e^-2 of the first.
    """
    clients = [signals(1, -1.0), signals(-1, 2.0), signals(0, 0.2, 2)]
    strategy = evg(FedEvgOptions(beta_first=0.5, beta_last=0.1, delta=0.2))
    got = arrays_of(run(strategy, lambda i, _: clients[i], rounds=2))["x"]
    weights = np.array([np.e, 1 / np.e, 2.0])
    gradient = (weights * [-1.0, 2.0, 0.2]).sum() / weights.sum()
    x = strategy.first_arrays()["x"]
    for number, beta in ((1, 0.5), (2, 0.1)):
        rng = generator(3, "server noise", server_round=number)
        x = np.clip(x - beta * gradient + 0.2 * rng.standard_normal(x.shape, np.float32), 0, 1)
    np.testing.assert_allclose(got, x, atol=1e-6)


def test_a_clients_samples_make_the_langevin_steps_that_are_asked_for(monkeypatch):
    """With step 0, R = 3 noises add up, from where the last batch left the samples;
    without noise, R = 1 step goes down the energy of the net as it is.
    """
    steps = []

    def loss(net, real, start, moved, y, lambda_):
        steps.append((start, moved, energies_and_gradients(net, start, y)[1]))
        return joint_loss(net, real, start, moved, y, lambda_)

    monkeypatch.setattr("fedapps.clients.fedevg.joint_loss", loss)

    def play(options, samples=M):
        evg_client(0).fit(
            [np.full((samples, *SHAPE), 0.5, np.float32), np.arange(samples) % CLASSES],
            {**TRAIN, "server-round": 1, **evg(options).train_options(1, 1)},
        )
        return steps[-2:]  # 24 images, batches of 16

    first, second = play(FedEvgOptions(langevin_steps=3, langevin_step=0.0, langevin_noise=0.05))
    for k, (start, moved, _) in enumerate((first, second)):
        assert [float((moved - start).std()), float(start.std())] == pytest.approx(
            [0.05 * 3**0.5, k * 0.05 * 3**0.5], rel=0.1
        )
    (start, moved, slopes), _ = play(FedEvgOptions(langevin_step=0.05, langevin_noise=0.0))
    torch.testing.assert_close(moved, start - 0.05 * slopes)
    assert slopes.abs().max() > 0.1


def test_no_client_weighs_more_than_the_others_or_pulls_far_harder():
    """log e is at most 1, and a gradient at most twice as long as the median."""
    x = {}
    for lie in ((50, -1e5), (1, -3.0)):
        clients = [signals(1, 1.0), signals(1, 1.5), signals(*lie)]
        strategy = evg(FedEvgOptions(beta_first=0.1, beta_last=0.1, delta=0.0))
        x[lie] = arrays_of(run(strategy, lambda i, _, clients=clients: clients[i], rounds=1))["x"]
    np.testing.assert_allclose(
        x[50, -1e5],
        np.clip(strategy.first_arrays()["x"] - 0.1 * (1 + 1.5 - 3) / 3, 0, 1),
        atol=1e-6,
    )
    np.testing.assert_allclose(x[1, -3.0], x[50, -1e5], atol=1e-6)


def test_low_is_the_end_of_the_range():
    strategy = evg(FedEvgOptions(beta_first=100.0, low=-1.0))
    assert (arrays_of(run(strategy, lambda i, _: signals(0, 1.0), rounds=1))["x"] == -1.0).all()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (signals(np.nan, 1.0), "client 1 left out: array 'y' holds values that are not finite"),
        (signals(1, np.inf), "client 1 left out: array 'x' holds values that are not finite"),
        (
            FedEvgClient(net_fn, model_fn, images(0, shape=(3, 8, 8))),
            "this client's have 3 channel.s. of 8 x 8",
        ),
    ],
)
def test_a_skipped_client_is_named_and_the_others_are_used(wrong, reason, caplog, monkeypatch):
    clients = [signals(1, -1.0), wrong, signals(1, -1.0)]
    np.testing.assert_array_equal(
        arrays_of(run(evg(), lambda i, _: clients[i], rounds=1))["x"],
        arrays_of(run(evg(), lambda i, _: clients[2 * i], clients=2, rounds=1))["x"],
    )
    assert re.search(reason, caplog.text)


def test_images_out_of_range_are_refused():
    client, config = evg_client(0), {**TRAIN, **evg().train_options(1, 1)}
    client.data.train.x.mul_(2)
    refused(
        lambda: client.fit(list(evg().first_arrays().values()), config),
        r"images with values in \[.*\], but low = 0: bring them to \[0, 1\]",
    )


def test_with_privacy_the_noisy_mean_replaces_the_quotient():
    """The mean of clipped e_i grad E_i over sampled clients, of which one replies with
    signals of too few samples, which are none; epsilon is reported.
    """
    few = signals(1, 0.5, most=1)
    clients, rng = [signals(1, -0.001), signals(-1, 0.5), few], NoNoise()
    strategy = evg(FedEvgOptions(beta_first=1.0, delta=0.0))
    private = Private(strategy, PrivacyOptions(2.0, 1.0), rng)
    result = simulate(private, lambda i, _: clients[i], 3, strategy.first_arrays(), 1)
    size = M * np.prod(SHAPE)
    entries = [np.e * -0.001, min(0.5 / np.e, 1 / np.sqrt(size))]  # the second is clipped to norm 1
    wanted = np.clip(strategy.first_arrays()["x"] - np.sum(entries) / 3, 0, 1)
    np.testing.assert_allclose(arrays_of(result)["x"], wanted, atol=1e-6)
    assert rng.std == 2.0
    assert private.privacy_spent()["epsilon"] > 0


# --- the nets and the baselines -------------------------------------------------------


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "number"),
    [
        ((1, 32, 32), 10, 4_979_914),
        ((3, 32, 32), 10, 4_981_066),
        ((3, 64, 64), 7, 5_128_519),
        ((1, 64, 64), 11, 5_258_443),
    ],
)
def test_resnet10_has_the_papers_size(shape, classes, number):
    assert count(build_energy_net("energy-resnet10", shape, classes, 0)) == number


def test_the_last_layer_has_spectral_norm_one():
    layer = net_fn(0).classifier
    layer.bias.data.zero_()
    layer.weight.data *= 7.0
    assert float(
        torch.linalg.matrix_norm(layer(torch.eye(layer.weight.shape[1])).detach(), 2)
    ) == pytest.approx(1, abs=1e-5)


def test_generators_have_the_papers_sizes():
    nets = ACGAN((1, 32, 32), 10), ACGAN((3, 64, 64), 10)
    parts = [part for net in nets for part in (net.generator, net.discriminator)]
    millions = [round(count(net) / 1e6, 2) for net in (*parts, CVAE((1, 32, 32), 10))]
    assert millions == [1.22, 1.71, 1.49, 2.76, 1.85]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 20, 24)])
@pytest.mark.parametrize("kind", [ACGAN, CVAE])
def test_generated_images_have_the_tasks_form(kind, shape):
    net = build_generator(kind, shape, CLASSES, 4, 0).eval()
    made = net.images(torch.arange(CLASSES), np.random.default_rng(0)).detach()
    assert made.shape == (CLASSES, *shape)
    assert made.min() >= 0
    assert made.max() <= 1
    if kind is ACGAN:
        source, logits = net.discriminate(made)
        assert (source.shape, logits.shape) == ((CLASSES,), (CLASSES, CLASSES))


@pytest.mark.parametrize(("kind", "half"), [(ACGAN, FedCGANClient), (CVAE, FedCVAEClient)])
def test_baselines_average_nets_and_draw_from_them(kind, half):
    def generator_client(i, context):
        # a batch of one at the end
        return half(build_generator(kind, SHAPE, CLASSES, 4, 9), model_fn, images(i, n=17), i)

    strategy = FedGenerator(
        build_generator(kind, SHAPE, CLASSES, 4, 0), evaluator, CLASSES, M, seed=3
    )
    result = run(strategy, generator_client, rounds=1)
    sent = list(strategy.first_arrays().values()), {**TRAIN, "server-round": 1}
    alone = [generator_client(i, None).fit(*sent)[0] for i in range(3)]
    for k, array in enumerate(arrays_of(result).values()):
        np.testing.assert_allclose(array, np.mean([arrays[k] for arrays in alone], 0), atol=1e-5)
    x, y = strategy.samples(result.arrays)
    assert x.shape == (M, *SHAPE)
    np.testing.assert_array_equal(strategy.samples(result.arrays)[0], x)
    assert np.bincount(y).tolist() == [M // CLASSES] * CLASSES


# --- clients of two classes -----------------------------------------------------------

# Signs and targets by hand, a kept net by its own history, and that each of them
# learns.

FASTER = TRAIN | {"learning-rate": 0.002, "lr-decay": 1.0}
TWO = 2
#: Class 0 is bright on top, class 1 at the bottom.
PROTOTYPES = torch.full((TWO, *SHAPE), 0.1)
PROTOTYPES[0, :, :4], PROTOTYPES[1, :, 4:] = 0.9, 0.9


def halves(seed, n=32):
    """Return a client's images: one half of each is bright, depending on its class."""
    rng = np.random.default_rng(seed)

    def split():
        y = torch.tensor(rng.permutation(np.arange(n) % TWO))
        noise = torch.tensor(rng.normal(size=(n, *SHAPE)), dtype=torch.float32)
        return Split((PROTOTYPES[y] + 0.05 * noise).clamp(0, 1), y)

    return ClientData(split(), split(), split())


def net_of_two(seed):
    return build_energy_net("energy-cnn", SHAPE, TWO, seed)


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


def evg_of_two(**options):
    return FedEvg(SHAPE, TWO, evaluator, FedEvgOptions(**options), M, seed=3)


def config_of(strategy, server_round=1, **extra):
    return {
        **FASTER,
        **strategy.train_options(server_round, 9),
        "server-round": server_round,
        **extra,
    }


def test_what_is_sent_rises_with_the_energy_and_counts_more_where_the_net_says_yes():
    """The gradient of E = -f(x)[y], by automatic differentiation of the logits of the
    client's own net.
    """
    strategy = evg_of_two()
    client = Watched(net_of_two, model_fn, halves(0), 0)
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
    strategy = evg_of_two(persistent=True)
    x, y = strategy.first_arrays().values()
    kept, whole = (
        Watched(net_of_two, model_fn, halves(0), 0),
        Watched(net_of_two, model_fn, halves(0), 0),
    )
    for now in (1, 2):
        kept.fit([x, y], config_of(strategy, now))
    net, optimiser = whole._net(config_of(strategy, 1))
    samples = torch.tensor(x).clamp(0, 1), torch.tensor(y).long()
    for now in (1, 2):
        whole._train_energy(net.train(), optimiser, *samples, config_of(strategy, now))
    assert_arrays(kept.net.state_dict(), net.state_dict(), rtol=1e-5, atol=1e-5)
    fresh = Watched(net_of_two, model_fn, halves(0), 0)
    for now in (1, 2):
        fresh.fit([x, y], config_of(evg_of_two(), now))
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
        sum(p.numel() for p in build_energy_net(name, SHAPE, TWO, 0).parameters()) for name in names
    }
    assert len(sizes) == len(names) == 5

    def site(i, store):
        both = halves(i).train
        own = Split(both.x[both.y == i % TWO], both.y[both.y == i % TWO])
        build = lambda seed: build_energy_net(names[i], SHAPE, TWO, seed)
        return FedEvgClient(build, model_fn, ClientData(own, own, own), i, store)

    strategy = evg_of_two(persistent=True, beta_first=3.0, beta_last=0.1)
    train = FASTER | {"local-epochs": 4}
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
        return x @ self.discriminator.w, torch.zeros(len(x), TWO)


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
    assert loss == pytest.approx(wanted + 3 * np.log(TWO), abs=1e-4)


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
        return half(build_generator(kind, SHAPE, TWO, 4, 9), model_fn, halves(i), i)

    strategy = FedGenerator(build_generator(kind, SHAPE, TWO, 4, 0), evaluator, TWO, 40, seed=3)
    train = FASTER | {"local-epochs": epochs, "learning-rate": 0.005}
    result = simulate(strategy, client, 2, strategy.first_arrays(), 2, train, evaluate_every=0)
    assert recognised(*strategy.samples(result.arrays)) >= 0.9
