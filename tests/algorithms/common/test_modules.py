"""Evaluations take as many samples at once as fit in memory, everywhere; random numbers
of modules, on every kind of device.
"""

import pytest
import torch
from torch import nn

from fedapps.algorithms.common.modules import (
    WIDEST,
    estimate_statistics,
    evaluation_batch,
    outputs_of,
    torch_seeded,
)
from fedapps.algorithms.personal.shared_layer import SharedFirstLayer
from fedapps.clients import FedAvgClient, PerFedAvgClient, Split
from fedapps.clients.base.evaluation import next_token
from fedapps.testing.problems import blobs

#: Samples of ``Wide`` that fit.
FIT = 48


class Wide(nn.Module):
    """Three outputs, beside one of ``width`` numbers a sample that takes no memory;
    ``sizes``: how many samples each pass had.
    """

    def __init__(self, width: int, tokens: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.wide, self.tokens, self.sizes = Widened(width), tokens, []

    def forward(self, x):
        self.sizes.append(len(x))
        x = x.flatten(1)
        out = self.norm(self.linear(x.float()))
        self.wide(x)
        return out[:, None].expand(-1, x.shape[1], -1) if self.tokens else out


class Widened(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x):
        return x[:, :1].expand(-1, self.width)


def samples(n: int) -> torch.Tensor:
    return torch.randn(n, 1, 1, 4, generator=torch.Generator().manual_seed(n))


def through_the_mean_loss(net, x):
    data = blobs(n=5 * len(x) // 3)
    FedAvgClient(lambda seed: net, data, model=net).mean_loss(data.train)


def through_adaptation(net, x):
    PerFedAvgClient(lambda seed: net, blobs(n=5 * len(x) // 3), model=net).take_own(
        {"per-fedavg-alpha": 0.1, "per-fedavg-steps": 1}
    )


def through_tokens(net, x):
    net.tokens = True
    tokens = torch.ones(len(x), 4, dtype=torch.int64)
    next_token(1).score(net, Split(tokens, tokens))


def through_the_shared_layer(net, x):
    ends = [[torch.randn(p.shape) for p in net.parameters()] for _ in range(2)]
    place = [p.detach() for p in net.parameters()]
    shared = SharedFirstLayer.of(net, place, *ends, [x])
    net.sizes.clear()
    torch._foreach_copy_(place, ends[0])
    shared.outputs(0.0)


PLACES = (
    outputs_of,
    estimate_statistics,
    through_the_mean_loss,
    through_adaptation,
    through_tokens,
    through_the_shared_layer,
)


@pytest.mark.parametrize("through", PLACES)
def test_a_wide_net_is_evaluated_in_batches_that_fit(through):
    net = Wide(WIDEST // FIT)
    through(net, samples(3 * FIT))
    assert max(net.sizes) == FIT
    assert sum(net.sizes) in (3 * FIT, 3 * FIT + 1)  # one more to measure the net


@pytest.mark.parametrize("through", PLACES)
def test_a_small_net_keeps_the_usual_batches(through):
    net, usual = Wide(WIDEST // 1024), 64 if through is through_tokens else 1024
    through(net, samples(2 * usual + 2))
    assert max(net.sizes) == (684 if through is estimate_statistics else usual)


def test_the_scores_of_samples_do_not_depend_on_the_batch():
    net, x = Wide(WIDEST // FIT), samples(3 * FIT + 5)
    whole = net.eval()(x).detach()
    torch.testing.assert_close(outputs_of(net, x), whole, rtol=1e-6, atol=1e-6)
    assert max(net.sizes[1:]) == FIT


def test_a_net_is_measured_once_per_form_of_its_samples_and_never_for_a_single_one():
    net = Wide(1)
    for x in (samples(1), samples(9), samples(9), samples(0)):
        outputs_of(net, x)
    assert net.sizes == [1, 1, 9, 9, 0]
    assert net.training


def test_a_recurrent_net_is_measured_too():
    net = nn.Sequential(nn.Embedding(10, 8), nn.LSTM(8, 256, batch_first=True))
    assert evaluation_batch(net, torch.zeros(2, 4096, dtype=torch.int64)) == 64


def test_a_net_that_takes_no_single_sample_keeps_the_usual_batches():
    class Squeezing(nn.Module):
        def forward(self, x):
            return x.squeeze().flatten(1).sum(1)

    assert outputs_of(Squeezing(), torch.ones(5, 1, 2, 2)).tolist() == [4.0] * 5


@pytest.mark.parametrize(
    ("name", "seed_all", "which"),
    [
        ("cuda:1", "manual_seed_all", [torch.device("cuda", 1)]),
        ("xpu", "manual_seed_all", [torch.device("xpu")]),
        ("mps", "manual_seed", []),
    ],
)
def test_another_device_is_seeded_too_and_its_state_comes_back(name, seed_all, which, monkeypatch):
    """Asked of torch, in this order: no such device is needed."""
    asked = []

    def note(what, returned=None):
        monkeypatch.setattr(kind, what, lambda *given: (asked.append((what, *given)), returned)[1])

    kind = torch.get_device_module(torch.device(name))
    note("get_rng_state", "state")
    note(seed_all)
    note("set_rng_state")
    with torch_seeded(3, torch.device(name)):
        asked.append("drawn")
    assert asked == [
        ("get_rng_state", *which),
        (seed_all, 3),
        "drawn",
        ("set_rng_state", "state", *which),
    ]
