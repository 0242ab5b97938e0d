"""Points of a simplex for clients: on the simplex, nearest, spread, and independent of
the scale of the updates.
"""

import numpy as np
import pytest

from fedapps.algorithms.personal import simplex
from fedapps.algorithms.personal.simplex import Projection, nearest

RNG = np.random.default_rng(0)
SIGNALS = RNG.normal(size=(12, 30)) + np.repeat(RNG.normal(0, 5, (3, 30)), 4, axis=0)


@pytest.mark.parametrize("z", [0.1, 1.0, 7.0])
def test_the_nearest_points_are_those_of_a_brute_force_search(z):
    kappa = RNG.normal(size=(5, 3))
    grid = np.array([(a, b, 200 - a - b) for a in range(201) for b in range(201 - a)]) / 200
    for point, found in zip(kappa, nearest(kappa, z), strict=True):
        best = grid[((grid * z - point) ** 2).sum(1).argmin()]
        np.testing.assert_allclose(found, best, atol=0.01)


def test_points_are_on_the_simplex_and_clients_alike_are_neighbours():
    points = Projection.of(SIGNALS, 4).points(SIGNALS)
    assert points.shape == (12, 4)
    assert (points >= 0).all()
    np.testing.assert_allclose(points.sum(1), 1)
    centres = points.reshape(3, 4, 4).mean(1)
    between = min(np.linalg.norm(centres[a] - centres[b]) for a, b in [(0, 1), (0, 2), (1, 2)])
    assert np.linalg.norm(points - np.repeat(centres, 4, axis=0), axis=1).max() < between / 2


def test_the_points_do_not_depend_on_the_scale_or_on_a_common_part():
    points = Projection.of(SIGNALS, 4).points(SIGNALS)
    moved = 1e-3 * SIGNALS + 5.0
    np.testing.assert_allclose(Projection.of(moved, 4).points(moved), points, atol=1e-6)


def test_the_chosen_scale_spreads_the_clients_most():
    """By the energy of the source; at a tiny scale all are at corners, at a huge one in
    the centre.
    """

    def energy(points):
        first, second = np.triu_indices(len(points), 1)
        return (1 / ((points[first] - points[second]) ** 2).sum(1).clip(1e-8)).sum()

    found = Projection.of(SIGNALS, 4)
    kappa = (SIGNALS - found.mean) @ found.axes.T
    for factor in (0.01, 0.5, 2, 50):
        assert energy(nearest(kappa, found.z)) <= energy(nearest(kappa, found.z * factor))


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_clients_than_corners(count):
    """The other axes are empty; one client alone is in the centre."""
    points = Projection.of(SIGNALS[:count], 4).points(SIGNALS[:count])
    np.testing.assert_allclose(points.sum(1), 1)
    if count == 1:
        np.testing.assert_allclose(points, 0.25)


def test_of_many_clients_some_decide_and_all_have_points(monkeypatch):
    """More clients are not more work by the square."""
    monkeypatch.setattr(simplex, "MOST", 50)
    many = np.tile(SIGNALS, (20, 1)) + RNG.normal(0, 0.01, (240, 30))
    found, of_some = (
        Projection.of(many, 4),
        Projection.of(many[np.linspace(0, 239, 50).astype(int)], 4),
    )
    np.testing.assert_array_equal(found.axes, of_some.axes)
    assert found.z == of_some.z
    points = found.points(many)
    assert points.shape == (240, 4)
    np.testing.assert_allclose(points.sum(1), 1)
