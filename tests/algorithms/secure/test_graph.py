"""Graphs of few neighbours, and what they leave to chance."""

import numpy as np
import pytest

from fedapps.algorithms.secure.graph import (
    check_degree,
    local_threshold,
    neighbours,
    risks,
    shares_fault,
    tail,
)
from tests.helpers import refused


def test_the_tail_is_that_of_a_draw():
    drawn = np.random.default_rng(0).hypergeometric(7, 13, 8, 200_000)
    for least in range(9):
        assert tail(20, 7, 8, least) == pytest.approx((drawn >= least).mean(), abs=5e-3)
    assert tail(20, 7, 8, 0) == pytest.approx(1)


def test_rings_are_drawn_anew():
    names = [str(k) for k in range(20)]
    assert neighbours(names, 4) != neighbours(names, 4)
    assert all(len(near) == 19 for near in neighbours(names).values())
    refused(lambda: neighbours(names, 5), "must be an even number")


def test_all_neighbours_leave_nothing_to_chance_and_few_do():
    assert (risks(100, 0, 10, 10), risks(100, 99, 10, 10)) == ((0, 0), (0, 0))
    seen, failed = risks(1000, 10, 50, 50)
    assert seen > 1e-6
    assert failed > 1e-6
    # a threshold of a client's neighbours is corrupted, or a ring falls apart
    assert risks(100, 20, 50, 0)[0] == pytest.approx(100 * (tail(99, 50, 20, 16) + 0.5**10))
    refused(lambda: check_degree(1000, 10, 50, 50), r"neighbours = 10: .* choose (\d+)")


def test_the_degree_that_an_error_names_is_allowed():
    with pytest.raises(ValueError, match=r"choose \d+") as caught:
        check_degree(1000, 2, 50, 50)
    degree = int(str(caught.value).rpartition(" ")[2])
    check_degree(1000, degree, 50, 50)
    refused(lambda: check_degree(1000, degree - 2, 50, 50), "choose")
    assert local_threshold(1000, degree, 50) > degree / 2


@pytest.mark.parametrize(
    ("weights", "corrupted", "shown"),
    [
        ([1, 1, 1], 0, False),
        ([3, 2, 1], 0, False),  # as much as the others together
        ([3.1, 2, 1], 0, True),
        ([0, 0, 0], 0, True),  # no mean
        ([1, -1e-9, 1], 0, True),
        ([2, 2, 1, 1], 1, False),
        ([2, 2, 1, 0.5], 1, True),  # one that colludes knows its own part
    ],
)
def test_weights_that_would_show_a_client(weights, corrupted, shown):
    named = {str(place): weight for place, weight in enumerate(weights)}
    assert bool(shares_fault(named, named, corrupted)) == shown
    assert shares_fault(named, [*named, "another"], corrupted)
