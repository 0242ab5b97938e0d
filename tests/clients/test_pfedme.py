"""pFedMe's client: the paper's Algorithm 1 with one mini-batch for all inner steps, and
the form that costs as much as FedAvg.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedapps.clients import PFedMeClient
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.pfedme import repeated
from tests.helpers import assert_arrays, blobs, small_net

CONFIG = {
    "learning-rate": 0.05,
    "lr-decay": 1.0,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "batch-size": 14,
    "local-epochs": 2,
    "seed": 3,
    "pfedme-lambda": 8.0,
    "pfedme-inner-steps": 4,
    "pfedme-rate": 0.1,
}


@pytest.mark.parametrize(("rate", "equal"), [(0.3, 1 / 0.3), (0.05, 15.0)])
def test_without_a_lambda_the_rate_bounds_it(rate, equal):
    """At rate 0.3 the paper's 15 is refused: w would jump beyond theta."""
    sent = get_arrays(small_net(5))
    config = {**CONFIG, "learning-rate": rate, "pfedme-rate": 0.0, "pfedme-batches": "next"}
    got, want = (
        PFedMeClient(small_net, blobs(1), 4).fit(sent, {**config, "pfedme-lambda": value})[0]
        for value in (0.0, equal)
    )
    assert_arrays(got, want)
    with pytest.raises(ValueError, match="w would jump beyond theta"):
        PFedMeClient(small_net, blobs(1), 4).fit(
            sent, {**config, "learning-rate": 0.3, "pfedme-lambda": 15.0}
        )


@pytest.mark.parametrize("batches", ["same", "next"])
def test_a_round_is_algorithm_1(batches):
    """In double precision, by autograd, on partial batches: theta goes on from
    mini-batch to mini-batch, w follows it; with "next" the last two of six steps are
    fewer than K, and w still follows.
    """
    config, net = {**CONFIG, "pfedme-batches": batches}, small_net(5).double()
    client, sent = PFedMeClient(small_net, blobs(1), 4), get_arrays(small_net(5))
    received, _, metrics = client.fit(sent, config)
    names = [name for name, _ in net.named_parameters()]
    w = [torch.tensor(a, dtype=torch.float64) for a in sent]
    theta = [t.clone() for t in w]
    drawn = list(client.batches(TrainOptions.from_config(config), config))
    steps = [batch for batch in drawn for _ in range(4 if batches == "same" else 1)]
    total = seen = 0.0
    for i, (x, y) in enumerate(steps):
        leaves = [t.requires_grad_() for t in theta]
        loss = functional.cross_entropy(
            functional_call(net, dict(zip(names, leaves, strict=True)), x.double()), y
        )
        gradients = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            theta = [
                t - 0.05 * (g + 8.0 * (t - b)) for t, g, b in zip(theta, gradients, w, strict=True)
            ]
            if (i + 1) % 4 == 0 or i + 1 == len(steps):
                w = [b - 0.1 * 8.0 * (b - t) for b, t in zip(w, theta, strict=True)]
        total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    assert_arrays(
        received + client.store.load("pfedme", config, before=False),
        w + theta,
        rtol=0.0002,
        atol=5e-06,
    )
    assert metrics["loss"] == pytest.approx(total / seen, rel=1e-4)


@pytest.mark.parametrize("n", [3, 8, 11])
def test_repeated_mini_batches_are_cut_where_the_plain_ones_are(n):
    x = torch.arange(n)
    parts = [
        part
        for x_, y in repeated((pair for pair in [(x, x)]), 4, 3, nn.Identity())
        for part in x_.split(4)
        if torch.equal(x_, y)
    ]
    want = [part for part in x.split(4) for _ in range(3)]
    assert len(parts) == len(want)
    assert all(torch.equal(a, b) for a, b in zip(parts, want, strict=True))
