import math

import pytest
import torch

from fedapps.clients import FedAvgClient, PropFairClient
from fedapps.clients.base.training import get_arrays
from tests.helpers import assert_arrays, blobs, small_net


def slope(loss, m):
    """Return value and derivative of PropFair's loss."""
    value = torch.tensor(loss, dtype=torch.float64, requires_grad=True)
    out = PropFairClient(small_net, blobs()).surrogate({"propfair-m": m})(value)
    return out.item(), torch.autograd.grad(out, value)[0].item()


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.7, 1.8])
def test_inside_it_is_the_logarithm(loss):
    value, gradient = slope(loss, 2.0)
    assert value == pytest.approx(-math.log(1 - loss / 2))
    assert gradient == pytest.approx(1 / (2 - loss))


@pytest.mark.parametrize("loss", [1.8, 1.9, 2.0, 50.0, 1e6])
def test_near_and_above_m_it_goes_on_as_the_tangent(loss):
    value, gradient = slope(loss, 2.0)
    assert value == pytest.approx(-math.log(0.1) + (loss - 1.8) / 0.2)
    assert gradient == pytest.approx(1 / 0.2)


def test_a_large_m_with_as_large_a_learning_rate_is_fedavg():
    data, config = blobs(), {"momentum": 0.0, "weight-decay": 0.0, "local-epochs": 3}
    sent = get_arrays(small_net(1))
    plain, _, metrics = FedAvgClient(small_net, data).fit(sent, {**config, "learning-rate": 0.05})
    scaled, _, others = PropFairClient(small_net, data).fit(
        sent, {**config, "learning-rate": 0.05e5, "propfair-m": 1e5}
    )
    assert_arrays(plain, scaled, atol=0.0001)
    # what is reported is the loss itself
    assert others["loss"] == pytest.approx(metrics["loss"], rel=1e-3)
