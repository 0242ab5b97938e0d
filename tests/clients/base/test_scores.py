"""What each test sample had."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.clients.base import evaluation, regression, survival
from fedapps.clients.base.data import Split
from fedapps.clients.base.scores import MOST_ROWS, ROWS, row_results


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
    wanted = outputs[:, 1] - outputs[:, 0] if classes == 2 else outputs.argmax(1)
    np.testing.assert_allclose(found[:, 2], wanted)
    assert ROWS not in rows(evaluation.CLASSIFICATION, outputs, y, asked=False)[0]


def test_rows_of_one_logit_of_numbers_of_times_and_of_texts():
    logits, y = torch.tensor([[1.0], [-2.0], [0.5]]), torch.tensor([1, 0, 0])
    _, found = rows(evaluation.BINARY, logits, y)
    assert found.tolist() == [[1.0, 1.0, 1.0], [0.0, 1.0, -2.0], [0.0, 0.0, 0.5]]
    numbers = torch.tensor([[1.0], [3.0]])
    objective = regression.regression(scale=(2.0,), center=10.0)
    scores, found = rows(objective, numbers, torch.tensor([[1.5], [3.0]]))
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
