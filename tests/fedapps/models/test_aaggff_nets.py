"""The nets of AAggFF's chapter: sizes, scaling, heads, what initialisation leaves
alone, and errors. No weight is fetched.
"""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedapps.algorithms.common.averaging import weighted_average
from fedapps.clients.base.training import get_arrays, set_arrays, trainable
from fedapps.errors import UserError
from fedapps.models import aaggff_nets
from fedapps.models.image_nets import build_model
from tests.helpers import refused


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("celeba-cnn", (3, 84, 84), 2, 29_569),
        ("m5", (1, 1, 16_000), 35, 150_819),
        # EfficientNet-B0 has 5,288,548 with a head of 1280 x 1000 and its biases.
        ("efficientnet-b0", (3, 64, 64), 8, 5_288_548 - 1281 * 1000 + (1280 * 49 + 1) * 8),
    ],
)
def test_parameter_counts(name, shape, classes, parameters):
    model = build_model(name, shape, classes, seed=0)
    assert (count(model), model.eval()(torch.rand(2, *shape)).shape) == (parameters, (2, classes))
    heads = [key for key, _ in model.named_parameters() if key.startswith(model.head)]
    assert heads[-2:] == [key for key, _ in model.named_parameters()][-2:]


def test_mobilevit():
    pytest.importorskip("timm", reason="needs the extra 'vision'")
    model = build_model("mobilevit-xxs", (3, 64, 64), 200, seed=0)
    assert (count(model), model.eval()(torch.rand(2, 3, 64, 64)).shape) == (1_015_224, (2, 200))
    again = build_model("mobilevit-xxs", (3, 64, 64), 200, seed=0).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())


def test_timm_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    refused(
        lambda: build_model("mobilevit-xxs", (3, 64, 64), 200, seed=0),
        r"^model.name = 'mobilevit-xxs' needs timm: pip install 'fedapps\[vision\]'$",
        UserError,
    )


@torch.no_grad()
def test_two_classes_of_celeba_are_one_logit_under_the_binary_loss():
    model = build_model("celeba-cnn", (3, 20, 16), 2, seed=1)
    x, y = torch.rand(6, 3, 20, 16), torch.tensor([0, 1, 1, 0, 1, 0])
    logits = model(x)
    z = model.classifier(model.body(2 * x - 1))[:, 0]
    binary = functional.binary_cross_entropy_with_logits(z, y.float())
    assert float(functional.cross_entropy(logits, y)) == pytest.approx(float(binary), rel=1e-6)
    assert torch.equal(logits.argmax(1), (z > 0).long())


def test_norms_start_as_the_identity():
    for name, shape in (
        ("celeba-cnn", (3, 20, 16)),
        ("m5", (1, 1, 2000)),
        ("efficientnet-b0", (3, 32, 32)),
    ):
        norms = [
            m
            for m in build_model(name, shape, 3, 0).modules()
            if isinstance(m, nn.GroupNorm | nn.modules.batchnorm._BatchNorm)
        ]
        assert len(norms) >= 4
        assert all(
            torch.equal(m.weight, torch.ones_like(m.weight)) and not m.bias.any() for m in norms
        ), name
        running = [m for m in norms if getattr(m, "running_mean", None) is not None]
        assert all(
            not m.running_mean.any() and torch.equal(m.running_var, torch.ones_like(m.running_var))
            for m in running
        ), name


def test_pretrained_layers_are_never_drawn_anew(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    published = build_model("efficientnet-b0", (3, 32, 32), 4, seed=9).body.state_dict()
    published = {
        k: torch.rand(v.shape, generator=rng) if v.is_floating_point() else v + 7
        for k, v in published.items()
    }
    monkeypatch.setattr(aaggff_nets, "imagenet_features", lambda: published)
    nets = [
        build_model("efficientnet-b0", (3, 32, 32), 4, seed, pretrained=True) for seed in (0, 1)
    ]
    for net in nets:
        assert all(
            torch.equal(value, published[key]) for key, value in net.body.state_dict().items()
        )
    assert not torch.equal(nets[0].classifier[3].weight, nets[1].classifier[3].weight), (
        "the head is new, from the seed"
    )


def test_weights_that_cannot_be_had(monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    refused(
        lambda: build_model("efficientnet-b0", (3, 32, 32), 4, 0, pretrained=True),
        r"^model.pretrained = true: cannot load the weights \(no route to host\): connect "
        r"to a network, copy ht",
        UserError,
    )


def test_efficientnet_takes_grey_for_colour_and_scales_as_imagenet():
    net = build_model("efficientnet-b0", (1, 32, 32), 3, seed=0).eval()
    x = torch.rand(2, 1, 32, 32)
    assert torch.equal(net(x), net(x.expand(-1, 3, -1, -1)))
    seen = []
    net.body.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1).expand(1, 3, 32, 32) + 0.1)
    assert seen[0][0, :, 0, 0].tolist() == pytest.approx(
        [0.1 / 0.229, 0.1 / 0.224, 0.1 / 0.225], rel=1e-4
    )
    assert not {"mean", "std"} & set(net.state_dict())


@pytest.mark.parametrize(
    ("name", "shape"),
    [("m5", (1, 1, 1500)), ("efficientnet-b0", (3, 32, 32)), ("celeba-cnn", (3, 9, 9))],
)
def test_every_parameter_learns_and_states_can_be_averaged(name, shape):
    model = build_model(name, shape, 3, seed=0)
    parameters = list(trainable(model).values())
    loss = functional.cross_entropy(model(torch.rand(4, *shape)), torch.tensor([0, 1, 2, 0]))
    assert all(torch.isfinite(g).all() and g.any() for g in torch.autograd.grad(loss, parameters))
    other = get_arrays(build_model(name, shape, 3, seed=1))
    after = get_arrays(model)
    set_arrays(model, weighted_average([other, after], [1, 1]))
    assert all(
        np.allclose(a, (b + c) / 2, atol=0.51 if a.dtype == np.int64 else 1e-6)
        for a, b, c in zip(get_arrays(model), other, after, strict=True)
    )


def test_m5_is_for_sound_that_is_long_enough():
    for call, message in (
        (
            lambda: build_model("m5", (1, 8, 8), 10, 0),
            "it only takes sound with one channel: use it with task = 'speech'",
        ),
        (lambda: build_model("m5", (1, 1, 900), 10, 0), "900 steps are too short"),
    ):
        refused(call, message, UserError)
