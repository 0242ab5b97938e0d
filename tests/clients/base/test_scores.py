"""What each test sample had."""

from dataclasses import dataclass
from math import log

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.clients import ClientData, FedAvgClient, Split
from fedapps.clients.base import evaluation, regression, survival
from fedapps.clients.base.scores import MOST_ROWS, ROWS, row_results
from fedapps.clients.base.survival import cox_loss


@dataclass
class Data:
    rows: bool = True


def test_rows_are_reported_where_they_are_asked_for_and_not_without_end():
    labels = np.arange(MOST_ROWS + 5)
    assert row_results(Data(rows=False), labels, labels, labels) == {}
    found = row_results(Data(), labels, labels > 3, -labels)[ROWS]
    assert len(found) == 3 * MOST_ROWS
    assert found[12:15] == [4.0, 1.0, -4.0]


def rows(objective, outputs, y, asked=True):
    """Return the rows of a net that returns its input."""
    scores = objective.score(nn.Identity(), Split(outputs, y, rows=asked))
    return scores, np.array(scores.get(ROWS, [])).reshape(-1, 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_value_of_two_classes_is_a_logit_and_of_more_what_is_predicted(classes):
    outputs = torch.randn(20, classes, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % classes
    scores, found = rows(evaluation.CLASSIFICATION, outputs, y)
    assert found[:, 0].tolist() == y.tolist()
    assert found[:, 1].mean() == scores["accuracy"]
    np.testing.assert_allclose(
        found[:, 2], outputs[:, 1] - outputs[:, 0] if classes == 2 else outputs.argmax(1)
    )
    assert ROWS not in rows(evaluation.CLASSIFICATION, outputs, y, asked=False)[0]


def test_rows_of_one_logit_of_numbers_of_times_and_of_texts():
    logits, y = torch.tensor([[1.0], [-2.0], [0.5]]), torch.tensor([1, 0, 0])
    _, found = rows(evaluation.BINARY, logits, y)
    assert found.tolist() == [[1.0, 1.0, 1.0], [0.0, 1.0, -2.0], [0.0, 0.0, 0.5]]
    numbers = torch.tensor([[1.0], [3.0]])
    scores, found = rows(
        regression.regression(scale=(2.0,), center=10.0), numbers, torch.tensor([[1.5], [3.0]])
    )
    assert found.tolist() == [[13.0, 12.0, 1.0], [16.0, 16.0, 0.0]]
    assert np.sqrt(found[:, 2].mean()) == pytest.approx(scores["rmse"])
    times = torch.tensor([[5.0, 1.0], [7.0, 0.0]], dtype=torch.float64)
    _, found = rows(survival.SURVIVAL, numbers, times)
    assert found.tolist() == [[5.0, 1.0, 1.0], [7.0, 0.0, 3.0]]
    tokens = torch.eye(4)[torch.tensor([[1, 2], [3, 3]])]
    scores, found = rows(evaluation.NEXT_TOKEN, tokens, torch.tensor([[1, 2], [3, 0]]))
    assert found[:, 1].tolist() == [1.0, 1.0]
    _, found = rows(evaluation.NEXT_TOKEN, tokens, torch.tensor([[1, 3], [3, 0]]))
    assert found[:, 1].tolist() == [0.5, 1.0]


# --- survival -------------------------------------------------------------------------

# The Cox loss of a client: by hand, by differences, without events; and its scores.


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
    scores = survival.SURVIVAL.score(net, Split(x, Y))
    # of ten pairs those two who tie, and the censored one with the last, are not
    assert sum(scores["pair-counts"]) == 8
    assert 0 <= scores["concordance"] <= 1
    data = Split(x[:1], Y[:1])
    _, _, none = FedAvgClient(
        lambda _: net, ClientData(data, data, data), objective=survival.SURVIVAL
    ).evaluate([w.detach().numpy() for w in net.parameters()], {})
    assert none["pair-counts"] == [0, 0, 0]
    assert "concordance" not in none
    assert none["global-loss"] == none["loss"]


def test_the_loss_of_many_rows_is_that_of_all_risk_sets():
    rng = np.random.default_rng(1)
    y = torch.tensor(np.stack([rng.exponential(size=3000), np.ones(3000)], 1))
    data = Split(torch.tensor(rng.normal(size=(3000, 1)), dtype=torch.float32), y)
    net = nn.Linear(1, 1)
    assert FedAvgClient(
        lambda _: net, ClientData(data, data, data), objective=survival.SURVIVAL
    ).mean_loss(data) == pytest.approx(float(cox_loss(net(data.x), y)), rel=1e-6)
