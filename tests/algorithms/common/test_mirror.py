import numpy as np
import pytest

from fedapps.algorithms.common.mirror import (
    MIRRORS,
    entropy_step,
    euclidean_step,
    project_simplex,
    project_simplex_entropy,
)
from tests.helpers import refused


@pytest.mark.parametrize("floor", [0.0, 1e-9, 0.05, 0.12, 1 / 8])
@pytest.mark.parametrize(
    ("project", "mirror"), [(project_simplex, np.asarray), (project_simplex_entropy, np.log)]
)
def test_projections_solve_their_convex_programs(project, mirror, floor):
    """Optimality: free entries share one multiplier, entries at the floor have a
    smaller one.
    """
    rng = np.random.default_rng(1)
    for scale in (0.05, 0.3, 1.0, 4.0):
        v = rng.normal(scale=scale, size=8)
        w = project(v, floor)
        assert w.sum() == pytest.approx(1, abs=1e-12)
        assert w.min() >= floor
        multipliers, free = v - mirror(w), w > floor + 1e-9
        if free.any():
            np.testing.assert_allclose(multipliers[free], multipliers[free][0], atol=1e-10)
            assert (multipliers[~free] <= multipliers[free][0] + 1e-10).all()


def test_projections_of_known_points():
    for found, wanted in (
        (project_simplex([0.5, 0.5, 2.0]), [0, 0, 1]),
        (project_simplex([0.4, 0.3, 0.0]), [0.5, 0.4, 0.1]),
        (project_simplex([1.0, 0.0, 0.0], 0.1), [0.8, 0.1, 0.1]),
        (project_simplex_entropy(np.log([2.0, 1.0, 1.0])), [0.5, 0.25, 0.25]),
        (project_simplex_entropy(np.log([6.0, 3.0, 1.0]), 0.2), [0.8 * 2 / 3, 0.8 / 3, 0.2]),
    ):
        np.testing.assert_allclose(found, wanted)
    np.testing.assert_array_equal(project_simplex_entropy([0.0, -np.inf]), [1, 0])


@pytest.mark.parametrize("project", [project_simplex, project_simplex_entropy])
def test_projections_ignore_shifts_and_keep_what_is_feasible(project):
    rng = np.random.default_rng(3)
    w = 0.02 + 0.9 * rng.dirichlet(np.ones(5))
    np.testing.assert_allclose(
        project(w if project is project_simplex else np.log(w), 0.02), w, atol=1e-12
    )
    v = rng.normal(size=10_000)
    np.testing.assert_allclose(project(v + 1e3), project(v), atol=1e-11)
    np.testing.assert_allclose(
        project(np.array([1e300, 1e300, -1e300])), [0.5, 0.5, 0.0], atol=1e-12
    )


def test_steps_are_the_printed_updates():
    rng = np.random.default_rng(4)
    alpha, gradient = rng.dirichlet(np.ones(6)), rng.normal(size=6)
    raised = alpha * np.exp(-0.3 * gradient)
    np.testing.assert_allclose(
        entropy_step(alpha, gradient, 0.3), raised / raised.sum(), rtol=1e-12
    )
    np.testing.assert_allclose(
        euclidean_step(alpha, gradient, 0.3), project_simplex(alpha - 0.3 * gradient)
    )


@pytest.mark.parametrize("name", MIRRORS)
def test_gradients_of_a_million_do_no_harm(name):
    alpha = np.full(4, 0.25)
    with np.errstate(over="raise", invalid="raise"):
        after = MIRRORS[name](alpha, np.array([1e6, -1e6, 0.0, 1e6]), 1.0)
    np.testing.assert_allclose(after, [0, 1, 0, 0], atol=1e-12)


def test_a_weight_that_all_but_vanished_can_return():
    alpha = np.full(2, 0.5)
    for _ in range(5):
        alpha = entropy_step(alpha, np.array([1e6, 0.0]), 1.0)
    assert 0 < alpha[0] < 1e-200
    np.testing.assert_allclose(entropy_step(alpha, np.array([-1e6, 0.0]), 1.0), [1, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda name=name, alpha=alpha, gradient=gradient, rate=rate, floor=floor: MIRRORS[
                    name
                ](alpha, gradient, rate, floor),
                message,
            )
            for name in MIRRORS
            for alpha, gradient, rate, floor, message in [
                ([0.5, np.nan], [0, 0], 1, 0, "1 entries that are not finite"),
                ([0.5, 0.4], [0, 0], 1, 0, "sums to 0.9"),
                ([1.5, -0.5], [0, 0], 1, 0, "no negative entry"),
                ([0.5, 0.5], [0, np.inf], 1, 0, "gradient has 1 entries"),
                ([0.5, 0.5], [0, 1e300], 1e300, 0, "not finite"),
                ([0.5, 0.5], [0, 0, 0], 1, 0, "a gradient of 3"),
                ([0.5, 0.5], [0, 0], 1, 0.6, r"choose a floor in \[0, 0.5\]"),
                ([0.5, 0.5], [0, 0], 1, -0.1, "choose a floor"),
                ([], [], 1, 0, "at least one entry"),
            ]
        ),
        *(
            (lambda log_v=log_v: project_simplex_entropy(log_v), "log")
            for log_v in [[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf], [[0.0]], []]
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    refused(call, message)
