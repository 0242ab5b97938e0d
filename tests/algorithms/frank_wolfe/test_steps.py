import numpy as np
import pytest

from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Birkhoff,
    GroupL1,
    NuclearBall,
    Spectrahedron,
)
from fedapps.algorithms.frank_wolfe.objectives import (
    MatrixCompletion,
)
from fedapps.algorithms.frank_wolfe.product_domain import Product
from fedapps.algorithms.frank_wolfe.scratch import distance
from fedapps.algorithms.frank_wolfe.steps import (
    Schedule,
    Step,
    average_gradient,
    client_step,
    dual_step,
    duality_gap,
    server_step,
    server_step_partial,
)
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, L2Ball
from tests.helpers import assert_arrays, refused


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: [Schedule(5.0).at(t).eta for t in (1, 2, 9)], [1, 2 / 3, 0.2]),
        (lambda: Schedule(5.0).at(8).lambda_, 15),
        (lambda: Schedule(2.0, "non-convex", rounds=1000).at(1), (0.01, 20.0, 1.0, 2.0)),
        (lambda: Schedule(2.0, "non-convex", rounds=1000).at(1000), (0.01, 20.0, 1.0, 2.0)),
        (lambda: Schedule(2.0, "stochastic").at(1), (1.0, 6.0, 1.0, 2.0)),
        (
            lambda: Schedule(2.0, "stochastic").at(20),
            (9 / 28, 2 * np.sqrt(28), 4 / 27 ** (2 / 3), 2.0),
        ),
        # FedFW+ with a falling dual step: c eta lambda
        (lambda: Schedule(2.0, dual=0.3).at(9).dual, 0.3 * 0.2 * 2 * np.sqrt(10)),
        # partial participation counts the steps that a client has made
        (lambda: Schedule(3.0, participation=0.25).at(50).eta, 2 / (0.25 * 49 + 2)),
        (lambda: Schedule(3.0, participation=0.25).at(50).lambda_, 3 * np.sqrt(0.25 * 49 + 2)),
        (lambda: Schedule(3.0, participation=0.5).at(3), Schedule(3.0).at(2)),
        (
            lambda: Schedule(3.0, "stochastic", participation=0.5).at(99),
            Schedule(3.0, "stochastic").at(50),
        ),
    ],
)
def test_the_schedules_of_the_theorems(call, wanted):
    assert call() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule(-1), "lambda_0 = -1"),
        (lambda: Schedule(np.nan), "lambda_0 = nan"),
        (lambda: Schedule(1, "konvex"), "did you mean 'convex'"),
        (lambda: Schedule(1, "non-convex"), "rounds = 0"),
        (lambda: Schedule(1, participation=0), "participation = 0"),
        (lambda: Schedule(1, participation=1.5), "participation = 1.5"),
        (lambda: server_step(np.zeros(3), [], 0.5), "no atoms"),
        (lambda: server_step_partial(np.zeros(3), [np.zeros(3)], [], 0.5, 4), "zip"),
    ],
)
def test_bad_schedules_and_a_server_step_without_atoms_are_refused(call, message):
    refused(call, message)


DOMAINS = [
    L1Ball(12, 3.0),
    L2Ball((4, 3), 1.5),
    GroupL1((4, 3), 0.5),
    NuclearBall((4, 3), 2.0),
    Spectrahedron((4, 4), 3.0),
    Birkhoff((4, 4)),
    Product((L1Ball((2, 3), 1.0), NuclearBall((2, 3), 2.0))),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_what_a_step_returns_does_not_change_with_the_next_one(domain):
    """The steps of a process share their working memory."""
    rng, step = np.random.default_rng(4), Step(0.3, 0.7)
    x, x_bar, dual = (domain.start() + 0.01 * rng.normal(size=domain.shape) for _ in range(3))
    kept = [x.copy(), x_bar.copy(), dual.copy()]
    first = client_step(domain, x, x_bar, rng.normal(size=domain.shape), 3, step, dual=dual)
    packed = [array.copy() for array in first.pack()]
    expected = kept[0] * 0.7 + 0.3 * first.dense()
    np.testing.assert_allclose(x, expected)
    client_step(domain, x_bar.copy(), x, rng.normal(size=domain.shape), 3, step)
    dual_step(dual.copy(), x, x_bar, 0.5)
    assert_arrays([*packed, *kept[1:]], [*first.pack(), x_bar, dual])
    np.testing.assert_allclose(x, expected)


@pytest.mark.parametrize("size", [7, 2**18 + 5])
def test_distances_are_those_of_double_precision(size):
    x, y = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    assert distance(x, y) == pytest.approx(np.linalg.norm((x - y).astype(np.float64)), rel=1e-12)


def test_an_average_is_as_printed():
    x, gradient = np.random.default_rng(1).normal(size=(2, 5))
    wanted = 0.6 * x + 0.4 * gradient
    average_gradient(x, gradient, 0.4)
    np.testing.assert_allclose(x, wanted)


# A step forgets the rounding errors of earlier ones only at the rate eta: in float32
# they add up to some 1e-6.
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-5)])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_iterates_stay_in_the_domain(domain, dtype, tolerance):
    rng = np.random.default_rng(2)
    targets = [rng.normal(size=domain.shape).astype(dtype) for _ in range(3)]
    points, x_bar = [domain.start().astype(dtype) for _ in targets], domain.start().astype(dtype)
    last, schedule = [None] * 3, Schedule(0.3)
    for t in range(1, 301):
        step = schedule.at(t)
        last = [
            client_step(domain, x, x_bar, x - target, 3, step, warm=warm)
            for x, target, warm in zip(points, targets, last, strict=True)
        ]
        server_step(x_bar, last, step.eta)
        if t % 50 == 0 or t < 10:
            assert all(domain.contains(x, tolerance) for x in (*points, x_bar))
    assert x_bar.dtype == dtype


def test_a_sparse_gradient_takes_the_same_step_as_a_dense_one():
    rng = np.random.default_rng(6)
    shape = (12, 15)
    objective = MatrixCompletion(
        *np.divmod(rng.choice(180, 40, replace=False), 15), rng.normal(size=40), shape
    )
    domain = NuclearBall(shape, 3.0, tolerance=1e-8)
    x, x_bar, y = rng.normal(size=(3, *shape))
    sparse = objective.gradient(x)
    dense = np.zeros(shape)
    sparse.add_to(dense, 1.0)
    other, y_other = x.copy(), y.copy()
    client_step(domain, x, x_bar, sparse, 4, Schedule(0.1).at(3), dual=y)
    client_step(domain, other, x_bar, dense, 4, Schedule(0.1).at(3), dual=y_other)
    np.testing.assert_allclose(x, other, atol=1e-6)
    np.testing.assert_array_equal(y, y_other)  # the dual term is read only
    assert duality_gap(domain, x, sparse) == pytest.approx(duality_gap(domain, x, dense), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_gradient_leaves_a_clients_point_as_it_was(bad):
    domain = L1Ball(3, 1.0)
    x, y = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    refused(
        lambda: client_step(
            domain, x, np.zeros(3), np.array([bad, 0, 0]), 2, Schedule(1.0).at(2), dual=y
        ),
        "not finite",
    )
    np.testing.assert_array_equal(x, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(y, [1.0, 2.0, 3.0])
