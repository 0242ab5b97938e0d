import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedapps.algorithms.frank_wolfe.centering import DAMPING, Centering, Table, answer
from fedapps.algorithms.frank_wolfe.domain import Product
from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Birkhoff,
    GroupL1,
    NuclearBall,
    Spectrahedron,
)
from fedapps.algorithms.frank_wolfe.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    QuadraticAssignment,
    read_qaplib,
)
from fedapps.algorithms.frank_wolfe.steps import (
    Schedule,
    Step,
    average_gradient,
    client_step,
    distance,
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
    assert_arrays((x, y), ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0]))


# --- objectives -----------------------------------------------------------------------


def observations(rng, shape=(7, 9), count=20):
    return (
        *np.divmod(rng.choice(shape[0] * shape[1], count, replace=False), shape[1]),
        rng.normal(size=count),
    )


def problems():
    """Return objectives by name, each with its definition, written for autograd."""
    rng = np.random.default_rng(0)

    def squares(*shape):
        a, b = rng.normal(size=shape), rng.normal(size=shape[0])
        return LeastSquares(a, b), lambda x: ((torch.tensor(a) @ x - torch.tensor(b)) ** 2).sum()

    def assignment(a, *entries):
        f = QuadraticAssignment(a, b, *entries)
        return f, lambda x: torch.trace(torch.tensor(a) @ x @ torch.tensor(f.part).T @ x.T)

    a, b = rng.normal(size=(2, 5, 5))
    samples, labels = rng.normal(size=(20, 6)), rng.integers(0, 4, 20)
    rows, columns, values = observations(rng)
    return {
        "wide least squares": squares(6, 11),
        "tall least squares": squares(30, 4),
        "logistic": (
            Logistic(samples, labels, 4),
            lambda x: cross_entropy(torch.tensor(samples) @ x, torch.tensor(labels)),
        ),
        "matrix completion": (
            MatrixCompletion(rows, columns, values, (7, 9)),
            lambda x: ((x[rows, columns] - torch.tensor(values)) ** 2).sum(),
        ),
        "assignment": assignment(a),
        "assignment, symmetric": assignment(a + a.T),
        "assignment, a part": assignment(a, [(0, 1), (0, 2), (3, 3)]),
    }


def objectives():
    return {name: objective for name, (objective, _) in problems().items()}


def dense_gradient(objective, x):
    gradient = objective.gradient(x)
    if isinstance(gradient, np.ndarray):
        return gradient
    dense = np.zeros(objective.shape)
    gradient.add_to(dense, 1.0)
    return dense


@pytest.mark.parametrize("name", objectives())
def test_values_and_gradients_against_autograd(name):
    objective, definition = problems()[name]
    x = torch.tensor(np.random.default_rng(2).normal(size=objective.shape), requires_grad=True)
    value = definition(x)
    value.backward()
    assert objective.value(x.detach().numpy()) == pytest.approx(value.item())
    np.testing.assert_allclose(
        dense_gradient(objective, x.detach().numpy()), x.grad.numpy(), atol=1e-10
    )


def test_large_scores_of_logistic_do_not_overflow():
    weights = np.random.default_rng(3).normal(size=(6, 4))
    assert np.isfinite(objectives()["logistic"].gradient(1e4 * weights)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sparse_gradient_is_an_operator(dtype):
    rng = np.random.default_rng(4)
    objective = objectives()["matrix completion"]
    x = rng.normal(size=objective.shape).astype(dtype)
    sparse, dense = objective.gradient(x), dense_gradient(objective, x)
    assert np.count_nonzero(dense) == objective.num_examples
    u, v = rng.normal(size=7), rng.normal(size=9)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(sparse.matvec(v), dense @ v, atol=tolerance)
    np.testing.assert_allclose(sparse.rmatvec(u), dense.T @ u, atol=tolerance)
    assert sparse.inner(x) == pytest.approx(np.vdot(dense, x), rel=1e-5)
    assert sparse.matvec(v).dtype == sparse.values.dtype == dtype
    assert NuclearBall(objective.shape, 2.0, tolerance=1e-6).lmo(sparse).inner(
        dense
    ) == pytest.approx(-2 * np.linalg.norm(dense, 2), rel=1e-5)
    refused(lambda: sparse.add_to(np.asfortranarray(x), 1.0), "contiguous")


def test_observations_may_come_in_any_order():
    rng = np.random.default_rng(5)
    rows, columns, values = observations(rng)
    order = rng.permutation(len(rows))
    x = rng.normal(size=(7, 9))
    one, other = (
        MatrixCompletion(rows, columns, values, (7, 9)),
        MatrixCompletion(rows[order], columns[order], values[order], (7, 9)),
    )
    assert one.value(x) == other.value(x) == pytest.approx(((x[rows, columns] - values) ** 2).sum())
    np.testing.assert_array_equal(
        one.gradient(x).matvec(np.ones(9)), other.gradient(x).matvec(np.ones(9))
    )


# QAPLIB's nug5: a 5 x 5 grid instance small enough to search. Its optimum by
# enumeration, 50, is the published one.
NUG5 = """5

 0 1 1 2 3
 1 0 2 1 2
 1 2 0 1 2
 2 1 1 0 1
 3 2 2 1 0

 0 5 2 4 1
 5 0 3 0 2
 2 3 0 0 0
 4 0 0 0 5
 1 2 0 5 0
"""


def test_a_qaplib_file_is_read():
    a, b = read_qaplib(NUG5)
    assert_arrays((a[4], b[1]), ([3, 2, 2, 1, 0], [5, 0, 3, 0, 2]))
    objective = QuadraticAssignment(a, b)
    assert (
        min(objective.value(np.eye(5)[list(order)]) for order in itertools.permutations(range(5)))
        == 50
    )
    # line breaks mean nothing
    np.testing.assert_array_equal(read_qaplib(" ".join(NUG5.split()))[1], b)


ROWS, COLUMNS, VALUES = [0, 1, 2], [1, 1, 0], [3.0, 4.0, 5.0]


# --- centring -------------------------------------------------------------------------

# Its sums against a direct computation, for any way of dealing the observations.

SHAPE = (9, 7)


def table(m, seed):
    rng = np.random.default_rng(seed)
    rows, columns = np.divmod(rng.choice(63, m, replace=False), 7)
    return Table(rows, columns, 3.0 + 0.3 * rows - 0.2 * columns + rng.normal(size=m))


def dealt(whole, parts):
    blocks = np.array_split(np.random.default_rng(0).permutation(len(whole.values)), parts)
    return [Table(*(column[block] for column in whole)) for block in blocks]


def centred(train, test, parts=1, kind="bias", limits=(-np.inf, np.inf)):
    """Run all stages with training and test observations dealt to this many clients."""
    centering = Centering(SHAPE, kind)
    clients = list(zip(dealt(train, parts), dealt(test, parts), strict=True))
    while stage := centering.stage:
        answers = [
            answer(stage, centering.question(), *client, SHAPE, limits) for client in clients
        ]
        assert all([array.shape for array in a] == centering.shapes() for a in answers)
        centering.take([np.sum(arrays, axis=0) for arrays in zip(*answers, strict=True)])
    return centering


def biases(train):
    """Koren's damped biases, in a few lines: columns first, then rows of what is
    left.
    """
    mean = train.values.mean()
    columns, rows = np.zeros(7), np.zeros(9)
    for j in range(7):
        rest = train.values[train.columns == j] - mean
        columns[j] = rest.sum() / (len(rest) + DAMPING)
    left = train.values - mean - columns[train.columns]
    for i in range(9):
        rest = left[train.rows == i]
        rows[i] = rest.sum() / (len(rest) + DAMPING)
    return mean, rows, columns


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_constants_are_those_of_all_observations_however_they_are_dealt(parts):
    train, test = table(40, 1), table(20, 2)
    mean, rows, columns = biases(train)
    centred_constants = centred(train, test, parts).constants()
    np.testing.assert_allclose(centred_constants["rows"], mean + rows)
    np.testing.assert_allclose(centred_constants["columns"], columns)
    left = train.values - mean - rows[train.rows] - columns[train.columns]
    assert centred_constants["scale"][0] == pytest.approx(np.sqrt(np.mean(left**2)))


def test_centring_by_the_mean_and_by_nothing():
    train, test = table(40, 1), table(20, 2)
    centred_constants = centred(train, test, 3, "mean").constants()
    np.testing.assert_allclose(centred_constants["rows"], train.values.mean())
    assert not centred_constants["columns"].any()
    assert centred_constants["scale"][0] == pytest.approx(train.values.std())
    assert centred(train, test, 3, "none").constants() == {}


@pytest.mark.parametrize("kind", ["none", "mean", "bias"])
def test_the_errors_of_predictors_are_those_on_all_test_observations(kind):
    train, test, limits = table(40, 1), table(20, 2), (2.0, 5.0)
    mean, rows, columns = biases(train)
    by_row = [
        np.sum(train.values[train.rows == i] - mean) / (np.sum(train.rows == i) + DAMPING)
        for i in range(9)
    ]
    guesses = {
        "mean": np.full(20, mean),
        "rows": mean + np.array(by_row)[test.rows],
        "columns": mean + columns[test.columns],
        "biases": mean + rows[test.rows] + columns[test.columns],
    }
    wanted = {
        name: np.sqrt(np.mean((np.clip(guess, *limits) - test.values) ** 2))
        for name, guess in guesses.items()
    }
    wanted["zero"] = np.sqrt(np.mean(test.values**2))
    assert centred(train, test, 4, kind, limits).metrics() == pytest.approx(
        {f"test-rmse-of-{name}": error for name, error in wanted.items()}
    )


def test_a_row_without_observations_has_the_mean():
    train, test = table(40, 1), table(20, 2)
    kept = train.rows != 4
    train = Table(*(column[kept] for column in train))
    assert centred(train, test, 2).constants()["rows"][4] == pytest.approx(train.values.mean())


def test_constant_observations_leave_nothing_and_divide_by_nothing():
    train, test = (
        t._replace(values=np.full_like(t.values, 2.0)) for t in (table(40, 1), table(20, 2))
    )
    for kind in ("mean", "bias"):
        result = centred(train, test, 2, kind)
        assert result.constants()["scale"][0] > 0
        assert result.metrics()["test-rmse-of-biases"] == pytest.approx(0, abs=1e-9)


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
        *(
            (lambda text=text: read_qaplib(text), message)
            for text, message in [
                ("", "begins with the size"),
                ("five", "begins with the size"),
                ("0", "begins with the size"),
                ("-3 1 2", "begins with the size"),
                ("2 1 2 3 4 5 6 7", "8 numbers .* this one has 7"),
                ("2 1 2 3 4 5 6", "this one has 6"),
                ("2 1 2 3 4 5 6 7 8 9", "this one has 9"),
                ("999999 1 2", "this one has 2"),
                ("2 1 2 3 4 5 6 7 x", "numbers only"),
                ("2 1 2 3 4 5 6 7 nan", "finite"),
            ]
        ),
        (lambda: LeastSquares(np.ones((2, 3)), np.ones(3)), "give 2 finite numbers"),
        (lambda: LeastSquares(np.ones(3), np.ones(3)), "A of shape"),
        (
            lambda: LeastSquares(np.full((2, 2), np.nan), np.ones(2)),
            "4 entries that are not finite",
        ),
        (lambda: LeastSquares(np.ones((2, 2)), [1, np.inf]), "2 finite numbers"),
        (lambda: LeastSquares(np.ones((0, 2)), []), "at least one row"),
        (lambda: Logistic(np.ones((2, 3)), [0, 1, 1], 2), "give 2 whole numbers"),
        (lambda: Logistic(np.ones((2, 3)), [0.0, 1.0], 2), "whole numbers"),
        (lambda: Logistic(np.ones((2, 3)), [0, 2], 2), "labels 0..2, but there are 2 classes"),
        (
            lambda: MatrixCompletion(ROWS, COLUMNS, VALUES, (2, 2)),
            "rows 0..2, but the matrix has 2",
        ),
        (lambda: MatrixCompletion(ROWS, [1, 1, -1], VALUES, (3, 2)), "columns -1..1"),
        (
            lambda: MatrixCompletion([0, 1, 0], [*COLUMNS[:2], 1], VALUES, (3, 2)),
            r"1 observations repeat .* \(0, 1\)",
        ),
        (lambda: MatrixCompletion(ROWS, COLUMNS, VALUES[:2], (3, 2)), "the same length"),
        (lambda: MatrixCompletion(ROWS, [0.5, 1, 1], VALUES, (3, 2)), "whole numbers"),
        (
            lambda: MatrixCompletion(ROWS, COLUMNS, [1, 2, np.nan], (3, 2)),
            "1 observed values are not finite",
        ),
        (lambda: MatrixCompletion([], [], [], (3, 2)), "length of 1 or more"),
        (lambda: QuadraticAssignment(np.ones((2, 3)), np.ones((2, 3))), "square"),
        (lambda: QuadraticAssignment(np.ones((2, 2)), np.ones((3, 3))), "same size"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), [(0, 2)]), r"in 0\.\.1"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), [(0, 1), (0, 1)]), "distinct"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), []), "one or more pairs"),
        (lambda: QuadraticAssignment(np.full((2, 2), np.inf), np.eye(2)), "not finite"),
        (lambda: Centering(SHAPE).take([np.zeros(3)]), "no training observations"),
        (lambda: Centering(SHAPE, "median"), r"center = .median."),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    refused(call, message)
