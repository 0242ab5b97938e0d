"""Scores of half of the test samples: which half."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedapps.clients.base.scores import with_half


@dataclass(frozen=True)
class Rows:
    """A split whose samples are their own numbers."""

    x: np.ndarray
    y: np.ndarray
    groups: object = None
    halves: bool = True

    def __len__(self):
        return len(self.y)


def scored_rows(n):
    """Return what is scored of n samples, whole and by half."""
    seen = []

    def score(data):
        assert (data.x == data.y).all()
        seen.append(data.x.tolist())
        return {"accuracy": float(data.x.mean()), "loss": 0.0}

    scores = with_half(score, Rows(np.arange(n), np.arange(n)))
    whole, half = seen
    assert whole == list(range(n))
    assert scores["accuracy"] == np.mean(whole)
    assert scores["half-test-accuracy"] == np.mean(half)
    return half


@pytest.mark.parametrize("n", [2, 7, 40])
def test_half_of_the_samples_are_scored_apart_the_same_ones_each_time(n):
    half = scored_rows(n)
    assert len(set(half)) == len(half) == n // 2
    assert scored_rows(n) == half


def test_the_half_is_random_whatever_the_order_of_the_samples():
    """About half are of the first ones, and about half in even places."""
    places = [(place, n) for n in range(20, 120, 2) for place in scored_rows(n)]
    assert np.mean([place < n / 2 for place, n in places]) == pytest.approx(0.5, abs=0.1)
    assert np.mean([place % 2 for place, _ in places]) == pytest.approx(0.5, abs=0.1)


def test_one_sample_has_no_half():
    one = Rows(np.zeros(1), np.zeros(1))
    for data in (one, replace(one, x=np.zeros(4), y=np.zeros(4), halves=False)):
        assert with_half(lambda _: {"accuracy": 1.0}, data) == {"accuracy": 1.0}
