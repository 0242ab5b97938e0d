"""Compiled fits with Adam equal eager ones up to rounding; one pair of graphs serves
all clients and all rounds.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.oracle import Target
from fedapps.algorithms.boosting.regression import fit_network
from fedapps.algorithms.boosting.weak_learners import NetOptions, NetOracle
from fedapps.algorithms.common.steps import Eager
from fedapps.clients import FFGBClient, FFGBDistillClient
from fedapps.clients.base.training import get_arrays
from tests.clients.steps.traced import Traced, assert_compiled
from tests.helpers import assert_arrays, blobs, small_net

FITS = {
    "epochs, the last batch smaller": FitOptions(epochs=4, batch_size=5, learning_rate=0.05),
    "one batch an epoch": FitOptions(epochs=30, batch_size=64, learning_rate=0.05),
    "steps that end within an epoch": FitOptions(
        steps=26, batch_size=5, learning_rate=0.05, clip=0.0
    ),
    "clipped, with weight decay": FitOptions(
        steps=20, batch_size=3, learning_rate=0.05, clip=0.1, weight_decay=0.1
    ),
    "divergence": FitOptions(epochs=3, batch_size=4, learning_rate=0.05, loss="kl"),
}

# of the server's function
NOTHING_NEW = [np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32)]


def net(seed):
    """Return a net with dropout and running statistics.

    No layer before the normalisation has a bias: its gradient is 0 but for rounding,
    which Adam would divide by itself.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(4, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(8, 3),
        )


@pytest.mark.parametrize("fit", FITS)
def test_a_compiled_fit_is_the_eager_one(fit, tmp_path):
    x = blobs(n=80).train.x
    targets = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(0))
    compiler, ends = Traced(tmp_path), []
    for runner in (Eager, compiler):
        module = net(1)
        loss = fit_network(module, x, targets, FITS[fit], np.random.default_rng(5), runner)
        ends.append([np.array(loss), *get_arrays(module)])
    assert_arrays(ends[1], ends[0], rtol=0.002, atol=0.0002)
    assert_compiled(compiler)


def test_targets_of_another_shape_are_refused_by_a_compiled_fit_too(tmp_path):
    x, fit, rng = blobs(n=80).train.x, FitOptions(batch_size=5), np.random.default_rng(0)
    with pytest.raises(
        ValueError, match=r"outputs of shape \(5, 3\), but targets of shape \(5, 1\)"
    ):
        fit_network(small_net(0), x, x.new_zeros(48, 1), fit, rng, Traced(tmp_path))


def distilling():
    """Return a function that makes a client i with this number of samples, what it
    reads, and what it is sent.
    """
    module = small_net(0)
    config = {"oracle-epochs": 5, "oracle-batch-size": 8, "oracle-learning-rate": 0.01}
    make = lambda i, count: FFGBDistillClient(small_net, blobs(i, count), i, model=module)
    return make, config, get_arrays(small_net(1))


def boosting():
    """Return the same of FFGB with nets: an oracle for all."""
    fit = FitOptions(steps=30, learning_rate=0.01, batch_size=8, clip=0.0)
    oracle = NetOracle(small_net, NetOptions(fit=fit))
    config = {
        "loss": "cross-entropy",
        "variant": "ffgb",
        "residual": True,
        "etas": [1.0, 0.5],
        "mu": 0.0,
        "version": 0,
        "base": 0,
    }
    return lambda i, count: FFGBClient(blobs(i, count), oracle, 3, i), config, NOTHING_NEW


def play(method, compiler, setting="on"):
    """Return the replies of two rounds of three clients with unequal numbers of
    samples.
    """
    make, config, sent = method()
    replies = []
    for number in (1, 2):
        for i, count in enumerate((80, 100, 60)):
            client = make(i, count)
            client.compiler = compiler
            reply = client.fit(sent, {**config, "compile": setting, "server-round": number})
            replies.append((*reply[0], np.array([reply[1], reply[2]["oracle-error"]])))
    return replies


@pytest.mark.slow
@pytest.mark.parametrize("method", [distilling, boosting])
def test_clients_that_fit_with_adam_compiled(method, tmp_path):
    compiler = Traced(tmp_path)
    eager, ours, again = (play(method, how) for how in (None, compiler, Traced(tmp_path)))
    assert len(compiler.graphs) == 2
    assert_compiled(compiler)
    for arrays, wanted, same in zip(ours, eager, again, strict=True):
        assert_arrays(arrays, wanted, rtol=2e-3, atol=2e-4)
        assert_arrays(arrays, same)


@pytest.mark.parametrize("method", [distilling, boosting])
def test_told_to_be_eager_they_are_to_the_last_bit(method, tmp_path):
    compiler = Traced(tmp_path)
    for ours, wanted in zip(play(method, compiler, "off"), play(method, None), strict=True):
        assert_arrays(ours, wanted)
    assert not compiler.graphs


def test_an_oracle_fits_the_same_net_whatever_it_fitted_before():
    data, options = blobs(n=80).train, NetOptions(fit=FitOptions(steps=5, clip=0.0))
    target, other = (Target(torch.full((len(data), 3), value)) for value in (1.0, -1.0))
    used = NetOracle(small_net, options)
    used.fit(data.x, other, np.random.default_rng(1))
    ours, wanted = (
        oracle.fit(data.x, target, np.random.default_rng(2))
        for oracle in (used, NetOracle(small_net, options))
    )
    assert_arrays(wanted, ours)
