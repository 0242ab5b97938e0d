"""Models: the papers' parameter counts, determinism, heads, what initialisation leaves
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
from fedapps.models.image_nets import NAMES, build_model
from tests.helpers import assert_arrays, refused, seeded

# What runs on images without an extra, and fast.
IMAGE_NETS = [
    name for name in NAMES if name not in ("cnn-1d", "m5", "mobilevit-xxs", "efficientnet-b0")
]
# Two 5 x 5 convolutions without padding leave nothing of smaller images, and so do four
# halvings.
LARGER = ("tutorial-cnn", "conv-384-192", "conv-120-84", "vgg9")
IMAGE_NETS = [name for name in IMAGE_NETS if name not in LARGER]
AAGGFF = {"m5": (1, 1, 2000), "efficientnet-b0": (3, 32, 32), "celeba-cnn": (3, 20, 16)}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("two-nn", (1, 28, 28), 10, 238_800),
        ("two-cnn", (3, 28, 28), 10, 722_800),
        ("mcmahan-2nn", (1, 28, 28), 10, 199_210),
        ("logistic", (1, 8, 8), 10, 64 * 10 + 10),
        ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
        ("small-cnn", (1, 8, 8), 10, 16 * 10 + 32 * (9 * 16 + 1) + 64 * (32 * 4 + 1) + 650),
        ("cnn-1d", (9, 1, 128), 6, 81 * 16 + 16 + 144 * 32 + 32 + 32 * 32 * 64 + 64 + 64 * 6 + 6),
        ("mlp-32-32", (1, 28, 28), 10, 26_506),
        ("tutorial-cnn", (3, 32, 32), 10, 17_090),
        ("conv-384-192", (3, 32, 32), 10, 797_962),
        ("conv-384-192", (3, 32, 32), 100, 815_332),
        ("conv-120-84", (1, 28, 28), 26, 239_502),
        ("conv-120-84", (1, 28, 28), 10, 238_142),
        ("celeba-cnn", (3, 84, 84), 2, 29_569),
        ("m5", (1, 1, 16_000), 35, 150_819),
        # EfficientNet-B0 has 5,288,548 with a head of 1280 x 1000 and its biases.
        ("efficientnet-b0", (3, 64, 64), 8, 5_288_548 - 1281 * 1000 + (1280 * 49 + 1) * 8),
        ("mobilevit-xxs", (3, 64, 64), 200, 1_015_224),
    ],
)
def test_parameter_counts(name, shape, classes, count):
    if name == "mobilevit-xxs":
        pytest.importorskip("timm", reason="needs the extra 'vision'")
    model = build_model(name, shape, classes, seed=0).eval()
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.rand(2, *shape)).shape == (2, classes)
    names = [key for key, _ in model.named_parameters()]
    heads = [key for key in names if key.startswith(model.head)]
    assert heads == names[-len(heads) :], "the head is the end of the net"


@pytest.mark.parametrize("name", ["mlp-32-32", "tutorial-cnn", "conv-384-192", "conv-120-84"])
def test_the_nets_of_functional_boosting(name):
    layers = build_model(name, (3, 32, 32), 10, seed=0).modules()
    slopes = [layer.negative_slope for layer in layers if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.01] * {"mlp-32-32": 2, "tutorial-cnn": 0}.get(name, 4)


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 11)])
def test_any_image_size(name, shape):
    assert build_model(name, shape, 7, seed=0)(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", [*IMAGE_NETS, "efficientnet-b0", "mobilevit-xxs"])
def test_seed_decides_the_weights_and_nothing_else_does(name):
    if name == "mobilevit-xxs":
        pytest.importorskip("timm", reason="needs the extra 'vision'")
    shape = (1, 8, 8) if name in IMAGE_NETS else (3, 64, 64)
    first, other = seeded(lambda seed: build_model(name, shape, 10, seed).state_dict())
    assert all(not torch.equal(first[key], other[key]) for key in first if first[key].ndim > 1)


@pytest.mark.parametrize(
    ("name", "body_layers", "head_layers"),
    [
        ("cnn-1d", 2, 2),
        ("logistic", 0, 1),
        ("mlp", 1, 1),
        ("mcmahan-2nn", 2, 1),
        ("two-nn", 2, 2),
        ("two-cnn", 2, 3),
        ("small-cnn", 2, 2),
    ],
)
def test_head_splits_the_layers_as_the_papers_do(name, body_layers, head_layers):
    model = build_model(name, (9, 1, 128) if name == "cnn-1d" else (1, 8, 8), 10, seed=0)
    heads = [key.startswith(model.head) for key in model.state_dict() if key.endswith("weight")]
    assert heads == [False] * body_layers + [True] * head_layers


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count", "body_layers"),
    [
        ("resnet9", (3, 32, 32), 100, 5_054_784, 12),
        ("mobilenet", (3, 64, 64), 200, 364_480, 9),
        ("vgg9", (1, 28, 28), 62, 1_718_416, 6),
    ],
)
def test_the_deep_nets_of_superfed(name, shape, classes, count, body_layers):
    """Their counts are those of the authors' nets with batch normalisation."""
    model = build_model(name, shape, classes, seed=0)
    assert (sum(p.numel() for p in model.parameters()), list(model.buffers())) == (count, [])
    weights = [key for key, p in model.named_parameters() if p.ndim > 1]
    head = [key for key in weights if key.startswith(model.head)]
    assert (len(weights) - len(head), len(head)) == (body_layers, 2)
    x = torch.rand(3, *shape)
    together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(3)])
    assert together.shape == (3, classes)
    assert torch.allclose(together, alone, atol=1e-4), "no sample sees the others"


def test_paper_nets_have_no_biases_and_xavier_weights():
    for name in ("two-nn", "two-cnn"):
        model = build_model(name, (3, 28, 28), 10, seed=0)
        assert all(parameter.ndim > 1 for parameter in model.parameters())
    weight = build_model("two-nn", (1, 28, 28), 10, seed=0).body[1].weight
    assert float(weight.detach().std()) == pytest.approx((2 / (784 + 200)) ** 0.5, rel=0.02)
    conv = build_model("two-cnn", (3, 28, 28), 10, seed=0).body[3].weight
    assert float(conv.detach().std()) == pytest.approx((2 / (25 * (32 + 64))) ** 0.5, rel=0.02)


def test_same_shaped_layers_start_different():
    """One generator per model: seeding anew for every layer would make these two
    equal.
    """
    linear = [
        m.weight
        for m in build_model("two-nn", (1, 28, 28), 10, 0).modules()
        if isinstance(m, nn.Linear)
    ]
    assert linear[1].shape == linear[2].shape
    assert not torch.equal(linear[1], linear[2])


@pytest.mark.parametrize(
    ("name", "shape", "pretrained", "message"),
    [
        (
            "two-cn",
            (1, 8, 8),
            False,
            r"^model.name = 'two-cn': did you mean 'two-cnn'\? choose one of logistic, mlp",
        ),
        (
            "two-cnn",
            (1, 4, 4),
            False,
            "images of 4 x 4 pixels are too small for it: choose logistic or mlp",
        ),
        *((name, (1, 8, 8), False, "8 x 8 pixels are too small for it") for name in LARGER[:3]),
        (
            "mlp",
            (1, 8, 8),
            True,
            "^model.pretrained = true: there are no weights for 'mlp': choose efficientnet-b0, or",
        ),
        (
            "m5",
            (1, 8, 8),
            False,
            "it only takes sound with one channel: use it with task = 'speech'",
        ),
        ("m5", (1, 1, 900), False, "900 steps are too short"),
    ],
)
def test_errors_name_the_remedy(name, shape, pretrained, message):
    refused(lambda: build_model(name, shape, 10, 0, pretrained), message, UserError)


def test_timm_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    refused(
        lambda: build_model("mobilevit-xxs", (3, 64, 64), 200, seed=0),
        r"^model.name = 'mobilevit-xxs' needs timm: pip install 'fedapps\[vision\]'$",
        UserError,
    )


# --- the nets of AAggFF ---


@torch.no_grad()
def test_two_classes_of_celeba_are_one_logit_under_the_binary_loss():
    model = build_model("celeba-cnn", (3, 20, 16), 2, seed=1)
    x, y = torch.rand(6, 3, 20, 16), torch.tensor([0, 1, 1, 0, 1, 0])
    logits = model(x)
    z = model.classifier(model.body(2 * x - 1))[:, 0]
    binary = functional.binary_cross_entropy_with_logits(z, y.float())
    assert float(functional.cross_entropy(logits, y)) == pytest.approx(float(binary), rel=1e-6)
    assert torch.equal(logits.argmax(1), (z > 0).long())


@pytest.mark.parametrize("name", AAGGFF)
def test_norms_start_as_the_identity(name):
    kinds = nn.GroupNorm, nn.modules.batchnorm._BatchNorm
    model = build_model(name, AAGGFF[name], 3, 0)
    norms = [module for module in model.modules() if isinstance(module, kinds)]
    assert len(norms) >= 4
    for norm in norms:
        state = norm.state_dict()
        for array in ("weight", "running_var"):
            assert (state.get(array, torch.ones(1)) == 1).all()
        for array in ("bias", "running_mean"):
            assert not state.get(array, torch.zeros(1)).any()


def test_pretrained_layers_are_never_drawn_anew(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    published = {
        key: torch.rand(value.shape, generator=rng) if value.is_floating_point() else value + 7
        for key, value in build_model("efficientnet-b0", (3, 32, 32), 4, 9)
        .body.state_dict()
        .items()
    }
    monkeypatch.setattr(aaggff_nets, "imagenet_features", lambda: published)
    one, other = (build_model("efficientnet-b0", (3, 32, 32), 4, seed, True) for seed in (0, 1))
    assert_arrays(one.body.state_dict(), published)
    assert_arrays(other.body.state_dict(), published)
    # the head is new, from the seed
    assert not torch.equal(one.classifier[3].weight, other.classifier[3].weight)


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


@pytest.mark.parametrize("name", AAGGFF)
def test_every_parameter_learns_and_states_can_be_averaged(name):
    model = build_model(name, AAGGFF[name], 3, seed=0)
    parameters = list(trainable(model).values())
    loss = functional.cross_entropy(model(torch.rand(4, *AAGGFF[name])), torch.tensor([0, 1, 2, 0]))
    assert all(torch.isfinite(g).all() and g.any() for g in torch.autograd.grad(loss, parameters))
    other = get_arrays(build_model(name, AAGGFF[name], 3, seed=1))
    after = get_arrays(model)
    set_arrays(model, weighted_average([other, after], [1, 1]))
    assert all(
        np.allclose(a, (b + c) / 2, atol=0.51 if a.dtype == np.int64 else 1e-6)
        for a, b, c in zip(get_arrays(model), other, after, strict=True)
    )
