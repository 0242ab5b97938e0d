import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    QuadraticAssignment,
    read_qaplib,
)
from tests.helpers import refused


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
    np.testing.assert_array_equal(a[4], [3, 2, 2, 1, 0])
    np.testing.assert_array_equal(b[1], [5, 0, 3, 0, 2])
    objective = QuadraticAssignment(a, b)
    assert (
        min(objective.value(np.eye(5)[list(order)]) for order in itertools.permutations(range(5)))
        == 50
    )
    # line breaks mean nothing
    np.testing.assert_array_equal(read_qaplib(" ".join(NUG5.split()))[1], b)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    ],
)
def test_a_broken_qaplib_file_is_refused(text, message):
    refused(lambda: read_qaplib(text), message)


ROWS, COLUMNS, VALUES = [0, 1, 2], [1, 1, 0], [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
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
    ],
)
def test_bad_data_are_refused(make, message):
    refused(make, message)
