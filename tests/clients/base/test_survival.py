"""The Cox loss of a client: by hand, by differences, without events; and its scores."""

from math import log

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.survival import SURVIVAL, cox_loss
from fedapps.clients.fedavg import FedAvgClient

TIMES, EVENTS = [2.0, 3.0, 3.0, 5.0, 7.0], [1.0, 1.0, 1.0, 0.0, 1.0]
Y = torch.tensor([TIMES, EVENTS], dtype=torch.float64).T
HAZARDS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)


def test_five_patients_by_hand_two_of_whom_die_on_one_day():
    # risk sets: all five; four of them for each of the two who tie; the last one
    wanted = (log(15 / 1) + log(14 / 2) + log(14 / 3) + log(5 / 5)) / 5
    assert float(cox_loss(HAZARDS.log()[:, None], Y)) == pytest.approx(wanted, rel=1e-12)


def test_the_gradient_is_that_of_finite_differences_in_any_order_of_rows():
    rng = np.random.default_rng(0)
    times, events = rng.integers(8, size=30) * 1.0, rng.integers(2, size=30) * 1.0
    y = torch.tensor(np.stack([times, events], 1))
    f = torch.tensor(rng.normal(size=30), requires_grad=True)
    assert torch.autograd.gradcheck(lambda at: cox_loss(at, y), f)
    (gradient,) = torch.autograd.grad(cox_loss(f, y), f)
    order = torch.from_numpy(rng.permutation(30))
    (other,) = torch.autograd.grad(cox_loss(f[order], y[order]), f)
    torch.testing.assert_close(other, gradient)


def test_risks_far_apart_lose_no_precision():
    f = (HAZARDS.log() + torch.tensor([300.0, 0, 0, -300, -300])).float().requires_grad_()
    loss = cox_loss(f, Y)
    (gradient,) = torch.autograd.grad(loss, f)
    assert loss.item() == pytest.approx(cox_loss(f.double(), Y).item(), rel=1e-6)
    assert torch.isfinite(gradient).all()


def test_without_an_event_loss_and_gradient_are_zero():
    y = Y.clone()
    y[:, 1] = 0
    net = nn.Linear(3, 1)
    gradients = torch.autograd.grad(cox_loss(net(torch.randn(5, 3)), y), list(net.parameters()))
    assert all(float(g.abs().max()) == 0 for g in gradients)


def test_scores_without_a_comparable_pair_have_no_concordance():
    net, x = nn.Linear(1, 1), torch.arange(5.0)[:, None]
    scores = SURVIVAL.score(net, Split(x, Y))
    # of ten pairs those two who tie, and the censored one with the last, are not
    assert sum(scores["pair-counts"]) == 8
    assert 0 <= scores["concordance"] <= 1
    data = Split(x[:1], Y[:1])
    client = FedAvgClient(lambda _: net, ClientData(data, data, data), objective=SURVIVAL)
    _, _, none = client.evaluate([w.detach().numpy() for w in net.parameters()], {})
    assert none["pair-counts"] == [0, 0, 0]
    assert "concordance" not in none
    assert none["global-loss"] == none["loss"]


def test_the_loss_of_many_rows_is_that_of_all_risk_sets():
    rng = np.random.default_rng(1)
    y = torch.tensor(np.stack([rng.exponential(size=3000), np.ones(3000)], 1))
    data = Split(torch.tensor(rng.normal(size=(3000, 1)), dtype=torch.float32), y)
    net = nn.Linear(1, 1)
    client = FedAvgClient(lambda _: net, ClientData(data, data, data), objective=SURVIVAL)
    assert client.mean_loss(data) == pytest.approx(float(cox_loss(net(data.x), y)), rel=1e-6)
