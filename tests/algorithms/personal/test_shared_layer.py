"""A line of nets whose first layer is computed at the ends only: equal to computing net
by net, and not used for nets where it would differ.
"""

import pytest
import torch
from torch import nn

from fedapps.algorithms.common.modules import outputs_of
from fedapps.algorithms.personal.shared_layer import SharedFirstLayer
from fedapps.models.image_nets import build_model


class Shifted(nn.Module):
    """A net with a parameter before the first layer."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.shift, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x + self.shift)


class Tied(nn.Module):
    """A net that uses the first layer's weights again."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu() @ self.layer.weight.T


def image_net(name):
    return lambda seed: build_model(name, (1, 8, 8), 3, seed)


def line(net, inputs):
    model = net(0)
    ends = [[p.detach().clone() for p in net(seed).parameters()] for seed in (1, 2)]
    mixed = [p.detach() for p in model.parameters()]
    return model, mixed, ends, SharedFirstLayer.of(model, mixed, *ends, inputs)


@pytest.mark.parametrize("name", ["logistic", "mlp", "two-nn"])
def test_outputs_along_the_line_are_those_of_the_mixed_nets(name):
    inputs = [
        torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 1027)
    ]
    model, mixed, (federated, personal), shared = line(image_net(name), inputs)
    assert shared is not None
    for value in (0.0, 0.3, 1.0):
        for i, (out, f, p) in enumerate(zip(mixed, federated, personal, strict=True)):
            out.fill_(float("nan")) if i in shared.at else torch.lerp(f, p, value, out=out)
        result = shared.outputs(value)
        torch._foreach_copy_(
            mixed, [torch.lerp(f, p, value) for f, p in zip(federated, personal, strict=True)]
        )
        for out, x in zip(result, inputs, strict=True):
            torch.testing.assert_close(out, outputs_of(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "net",
    [Shifted, Tied, image_net("two-cnn"), image_net("resnet9")],
    ids=["shift", "tied", "cnn", "resnet9"],
)
def test_a_net_whose_first_layer_does_not_stand_alone_is_computed_as_usual(net):
    x = torch.randn(6, 4) if isinstance(net, type) else torch.randn(6, 1, 8, 8)
    assert line(net, [x])[3] is None


def test_the_net_is_itself_again_afterwards():
    x = torch.randn(6, 1, 8, 8)
    model, _, _, shared = line(image_net("mlp"), [x])
    wanted = outputs_of(model, x)
    shared.outputs(0.5)
    torch.testing.assert_close(outputs_of(model, x), wanted)
    assert all("forward" not in vars(module) for module in model.modules())
