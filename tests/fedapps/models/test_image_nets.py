"""Models: the papers' parameter counts, determinism, heads, and errors."""

import pytest
import torch
from torch import nn

from fedapps.errors import UserError
from fedapps.models.image_nets import MODELS, NAMES, PRETRAINED, build_model
from tests.helpers import refused

# What runs on images without an extra, and fast;
# tests/fedapps/models/test_aaggff_nets.py has the others.
IMAGE_NETS = [
    name for name in NAMES if name not in ("cnn-1d", "m5", "mobilevit-xxs", "efficientnet-b0")
]
# Two 5 x 5 convolutions without padding leave nothing of smaller images, and so do four
# halvings.
LARGER = ("tutorial-cnn", "conv-384-192", "conv-120-84", "vgg9")
IMAGE_NETS = [name for name in IMAGE_NETS if name not in LARGER]


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("two-nn", (1, 28, 28), 238_800),
        ("two-cnn", (3, 28, 28), 722_800),
        ("mcmahan-2nn", (1, 28, 28), 199_210),
        ("logistic", (1, 8, 8), 64 * 10 + 10),
        ("mlp", (1, 8, 8), 64 * 64 + 64 + 64 * 10 + 10),
        ("small-cnn", (1, 8, 8), 9 * 16 + 16 + 9 * 16 * 32 + 32 + 32 * 4 * 64 + 64 + 64 * 10 + 10),
    ],
)
def test_parameter_counts(name, shape, count):
    model = build_model(name, shape, 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("mlp-32-32", (1, 28, 28), 10, 26_506),
        ("tutorial-cnn", (3, 32, 32), 10, 17_090),
        ("conv-384-192", (3, 32, 32), 10, 797_962),
        ("conv-384-192", (3, 32, 32), 100, 815_332),
        ("conv-120-84", (1, 28, 28), 26, 239_502),
        ("conv-120-84", (1, 28, 28), 10, 238_142),
    ],
)
def test_the_nets_of_functional_boosting(name, shape, classes, count):
    model = build_model(name, shape, classes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.rand(2, *shape)).shape == (2, classes)
    slopes = [layer.negative_slope for layer in model.modules() if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.01] * {"mlp-32-32": 2, "tutorial-cnn": 0}.get(name, 4)
    if name in LARGER:
        refused(
            lambda: build_model(name, (1, 8, 8), classes, seed=0),
            "images of 8 x 8 pixels are too small for it",
            UserError,
        )


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 11)])
def test_any_image_size(name, shape):
    model = build_model(name, shape, 7, seed=0)
    assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", [*IMAGE_NETS, "efficientnet-b0"])
def test_seed_decides_the_weights_and_nothing_else_does(name):
    shape = (3, 32, 32) if name == "efficientnet-b0" else (1, 8, 8)
    torch.manual_seed(1)
    first = build_model(name, shape, 10, seed=5).state_dict()
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    again = build_model(name, shape, 10, seed=5).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = build_model(name, shape, 10, seed=6).state_dict()
    assert all(not torch.equal(first[key], other[key]) for key in first if first[key].ndim > 1)


@pytest.mark.parametrize(
    ("name", "body_layers", "head_layers"),
    [
        ("logistic", 0, 1),
        ("mlp", 1, 1),
        ("mcmahan-2nn", 2, 1),
        ("two-nn", 2, 2),
        ("two-cnn", 2, 3),
        ("small-cnn", 2, 2),
    ],
)
def test_head_splits_the_layers_as_the_papers_do(name, body_layers, head_layers):
    model = build_model(name, (1, 8, 8), 10, seed=0)
    weights = [key for key, _ in model.named_parameters() if key.endswith("weight")]
    head = [key for key in weights if key.startswith(model.head)]
    assert (len(weights) - len(head), len(head)) == (body_layers, head_layers)
    assert head == weights[body_layers:], "the head is the end of the net"


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


def test_errors_name_the_remedy():
    for call, message in (
        (
            lambda: build_model("two-cn", (1, 8, 8), 10, 0),
            r"^model.name = 'two-cn': did you mean 'two-cnn'\? choose one of logistic, mlp",
        ),
        (
            lambda: build_model("two-cnn", (1, 4, 4), 10, 0),
            "images of 4 x 4 pixels are too small for it: choose logistic or mlp",
        ),
        (
            lambda: build_model("mlp", (1, 8, 8), 10, 0, pretrained=True),
            r"^model.pretrained = true: there are no weights for 'mlp': choose "
            r"efficientnet-b0, or",
        ),
    ):
        refused(call, message, UserError)
    assert set(NAMES) == set(MODELS) > set(PRETRAINED)
