"""Methods whose clients send nothing of their nets, FedProto, FedTGP and FedMD: their
equations, and nets that differ between clients.
"""

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import cross_entropy

from fedapps.algorithms.personal.prototypes import adaptive_margin, contrast
from fedapps.clients import FedMDClient, FedProtoClient, LocalClient
from fedapps.clients.fedproto import Representation
from fedapps.errors import SiteFault, UserError
from fedapps.lab.api import load
from fedapps.models.image_nets import build_model
from fedapps.models.options import net_of
from fedapps.runs.client_factory import client_of
from fedapps.runs.models import exported
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings
from fedapps.strategies import FedMD, FedMDOptions, FedProto, FedProtoOptions, FedTGP
from tests.helpers import arrays_of, blobs, refused, run_inline, simulate, some_slow

#: One step on all samples, so that a round is one gradient.
STEP = {"local-epochs": 1, "batch-size": 1000, "momentum": 0.0, "weight-decay": 0.0}
STEP |= {"learning-rate": 0.1, "lr-decay": 1.0, "seed": 3, "server-round": 1}
WIDTH = 64  # of the representation of the net


def net(seed):
    return build_model("mlp", (1, 1, 4), 3, seed)


def stepped(loss, start):
    """Return the arrays of the net after one step from ``start`` on ``loss(net)``."""
    model = net(0)
    model.load_state_dict(dict(zip(model.state_dict(), map(torch.tensor, start), strict=True)))
    gradients = torch.autograd.grad(loss(model), list(model.parameters()))
    return [
        (p - 0.1 * g).detach().numpy() for p, g in zip(model.parameters(), gradients, strict=True)
    ]


def own(client):
    return client.own_model({**STEP, "server-round": 2}, before=True)


def sums_of(model, data, size=WIDTH):
    h = model.body(data.x).detach().numpy()
    return np.array([h[data.y == c].sum(0) for c in range(3)]), np.bincount(data.y, minlength=3)


def test_fedproto_descends_in_cross_entropy_and_the_distance_to_known_prototypes():
    data, sent = blobs(0, 40), np.random.default_rng(1).normal(size=(3, WIDTH)).astype(np.float32)
    client, shares = FedProtoClient(net, data, 0), np.float32([0.5, 0, 2])
    known = torch.tensor(shares[data.train.y] > 0)

    def loss(model):
        far = (model.body(data.train.x) - torch.tensor(sent)[data.train.y]).square().mean(1)
        return cross_entropy(model(data.train.x), data.train.y) + 0.7 * (far * known).mean()

    wanted = stepped(loss, client.fresh_arrays("model", STEP, own=False))
    sums = sent * np.where(shares, shares, 9)[:, None]  # what has no share is not used
    reply, number, _ = client.fit([sums, shares], {**STEP, "fedproto-lambda": 0.7})
    for found, right in zip(own(client), wanted, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-6)
    trained = net(0)
    trained.load_state_dict(dict(zip(trained.state_dict(), map(torch.tensor, wanted), strict=True)))
    for found, right in zip(reply, sums_of(trained, data.train), strict=True):
        np.testing.assert_allclose(number * found, right, rtol=1e-4, atol=1e-4)


def test_without_its_pull_fedproto_trains_alone_and_its_prototypes_are_pooled_means():
    """Over three rounds, with momentum and mini-batches; a class that nobody of a round
    has keeps its prototype.
    """
    datas = [blobs(0, 60), blobs(1, 30)]
    config = {**STEP, "batch-size": 8, "momentum": 0.9, "local-epochs": 2}
    proto = [FedProtoClient(net, data, i) for i, data in enumerate(datas)]
    alone = [LocalClient(net, data, i) for i, data in enumerate(datas)]
    strategy = FedProto(3, WIDTH, FedProtoOptions(lambda_=0.0))
    end = arrays_of(
        simulate(strategy, lambda i, _: proto[i], 2, strategy.first_arrays(), 3, config)
    )
    for one, other in zip(proto, alone, strict=True):
        for now in (1, 2, 3):
            other.fit([], {**config, "server-round": now, "local-share": 1.0})
        last = {**config, "server-round": 4}
        for a, b in zip(one.own_model(last, True), other.own_model(last, True), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    parts = [sums_of(c.model, c.data.train) for c in proto if not c.evaluate([], last)[0] < 0]
    sums, counts = (sum(part) for part in zip(*parts, strict=True))
    np.testing.assert_allclose(
        end["sums"] / end["shares"][:, None], sums / counts[:, None], rtol=1e-4
    )


def test_a_class_without_samples_in_a_round_keeps_its_prototype():
    data = blobs(0, 40)
    client = FedProtoClient(net, data, 0)
    data.train.y[:] = 1
    strategy = FedProto(3, WIDTH)
    start = {"sums": np.full((3, WIDTH), 2, np.float32), "shares": np.float32([1, 1, 0])}
    end = arrays_of(simulate(strategy, lambda i, _: client, 1, start, 1, STEP))
    assert end["shares"].tolist() == [1, 1, 0]
    assert (end["sums"][0] == 2).all()
    assert (end["sums"][1] != 2).any()


def test_representations_are_pooled_to_the_size_of_the_smallest():
    x = torch.randn(5, 1, 1, 4)
    whole, means = (Representation(net(1), size)(x) for size in (0, 16))
    np.testing.assert_allclose(means.detach(), whole.detach().reshape(5, 16, 4).mean(2), atol=1e-6)


def test_the_contrast_of_fedtgp_is_the_equation_and_parts_the_prototypes():
    rng = np.random.default_rng(0)
    seen, labels = rng.normal(size=(6, 4)), np.array([0, 0, 1, 1, 2, 2])
    prototypes = rng.normal(size=(3, 4))
    far = np.linalg.norm(seen[:, None] - prototypes, axis=2)
    own_part = np.exp(-far[np.arange(6), labels] - 0.5)
    others = np.exp(-far).sum(1) - np.exp(-far[np.arange(6), labels])
    wanted = -np.log(own_part / (own_part + others)).mean()
    tensors = torch.tensor(prototypes), torch.tensor(seen), torch.tensor(labels)
    assert float(contrast(*tensors, 0.5)) == pytest.approx(wanted)
    means = seen.reshape(3, 2, 4).mean(1)
    most = max(np.linalg.norm(a - b) for a in means for b in means)
    assert adaptive_margin(*tensors[1:], 100.0) == pytest.approx(most)
    assert adaptive_margin(*tensors[1:], 0.5) == 0.5


def test_fedtgp_sends_prototypes_that_lie_apart_and_goes_on_with_their_net():
    datas = [blobs(0, 60), blobs(1, 30)]
    strategy = FedTGP(3, WIDTH)
    make = lambda i, _: FedProtoClient(net, datas[i], i)
    means, trained = (
        arrays_of(simulate(one, make, 2, one.first_arrays(), 2, STEP))
        for one in (FedProto(3, WIDTH), strategy)
    )
    least = [
        torch.nn.functional.pdist(torch.tensor(end["sums"] / end["shares"][:, None])).min()
        for end in (means, trained)
    ]
    assert least[1] > 2 * least[0]
    other = FedTGP(3, WIDTH)
    other.load_state_dict(strategy.state_dict())
    again = arrays_of(simulate(other, make, 2, trained, 1, STEP))
    assert not np.allclose(again["sums"], trained["sums"])
    assert np.abs(again["sums"] - trained["sums"]).max() < 0.2 * np.abs(trained["sums"]).max()


def test_fedmd_fits_the_mean_scores_before_its_own_samples():
    datas, public = [blobs(0, 60), blobs(1, 20)], torch.randn(12, 1, 1, 4)
    clients = [FedMDClient(net, data, i) for i, data in enumerate(datas)]
    for client in clients:
        client.public = public
    strategy = FedMD(12, 3, FedMDOptions(epochs=1))
    start = strategy.first_arrays()
    first = arrays_of(simulate(strategy, lambda i, _: clients[i], 2, start, 1, STEP))["scores"]
    begun = clients[0].fresh_arrays("model", STEP, own=False)
    steps = [stepped(lambda m, d=data.train: cross_entropy(m(d.x), d.y), begun) for data in datas]
    outputs = [scores(arrays, public) for arrays in steps]
    np.testing.assert_allclose(first, (outputs[0] + outputs[1]) / 2, atol=1e-5)

    fitted = stepped(lambda m: (m(public) - torch.tensor(first)).abs().mean(), steps[0])
    data = datas[0].train
    wanted = stepped(lambda m: cross_entropy(m(data.x), data.y), fitted)
    reply, *_ = clients[0].fit([first], {**STEP, "server-round": 2, "fedmd-epochs": 1})
    np.testing.assert_allclose(reply[0], scores(wanted, public), atol=1e-5)


def scores(arrays, x):
    model = net(0)
    model.load_state_dict(dict(zip(model.state_dict(), map(torch.tensor, arrays), strict=True)))
    return model(x).detach().numpy()


TWO = {"model.name": "mlp, small-cnn", "num-clients": 4, "clients-per-round": 3, "num-rounds": 3}
TWO |= {"checkpoint-every": 1, "data.max-samples": 300}


@pytest.mark.parametrize("method", ["local", *some_slow(["fedproto", "fedtgp", "fedmd"])])
def test_clients_with_different_nets_resume_and_export_what_was_scored(method, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'app'")
    given = TWO | ({"public.samples": 20} if method == "fedmd" else {})
    whole, part = tmp_path / "whole", tmp_path / "part"
    run_inline(whole, f"method={method}", **given)
    run_inline(part, f"method={method}", **given, until=2)
    run_inline(part, "--resume")
    for name in ("model.safetensors", "clients.csv"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()
    first = {}
    for client, shape in ((0, (64, 64)), (1, (16, 1, 3, 3)), (3, (16, 1, 3, 3))):
        _, _, tensors = exported(whole, client)  # compares the scores
        first[client] = next(iter(tensors.values()))
        assert first[client].shape == shape
        assert load(whole).personal_model(client).state_dict().keys() == tensors.keys()
    assert not torch.equal(first[1], first[3])  # trained: they started alike


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "local", "model.name": "mlp, smal-cnn"}, "'smal-cnn': did you mean"),
        ({"method": "fedproto", "model.name": "mlp, logistic"}, "'logistic' has no layer before"),
        (
            {"method": "fedmd", "sites.labels": "a,b", "sites.shape": "1,8,8"}
            | {"task": "classification", "public.source": "folder"},
            "sites with data of their own do not have it: choose 'photos'",
        ),
    ],
)
def test_what_does_not_go_with_several_nets_is_refused(given, message):
    refused(
        lambda: assemble(read_settings({"model.name": TWO["model.name"], **given})),
        message,
        UserError,
    )


def test_a_site_has_the_net_that_it_names_or_that_its_name_draws():
    names = [net_of("mlp, two-nn", f"site-{i}") for i in range(20)]
    assert 4 < names.count("mlp") < 16
    given = {"task": "digits", "model.name": "mlp", "num-clients": 3, "method": "fedproto"}
    node = {"partition-id": 1, "num-partitions": 3, "model": "small-cnn"}
    site = lambda **more: Context(1, 2, node, RecordDict(), given | more)
    assert type(client_of(site()).model.body[0]).__name__ == "Conv2d"
    refused(lambda: client_of(site(method="fedavg")), "fedavg needs one net", SiteFault)
