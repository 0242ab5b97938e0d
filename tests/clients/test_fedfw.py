"""The clients of constrained problems alone: what they keep, what they send, torch
losses over layers' balls.
"""

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.objectives import LeastSquares, MatrixCompletion
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import FedFWClient, MessageStore
from fedapps.clients.families.problems import ObjectiveProblem
from fedapps.clients.families.torch_problem import TorchProblem
from tests.helpers import assert_arrays, blobs, refused, small_net

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(8, 5)), RNG.normal(size=8)
L1 = L1Ball((5,), 1.0)


def numbers(variant="fedfw", t=1, **more):
    return {
        "etas": [2 / (t + 1)],
        "lambdas": [3.0],
        "rhos": [1.0],
        "dual-step": 0.5,
        "num-clients": 4,
        "variant": variant,
        "batch-size": 0,
        "stochastic": False,
        "server-round": t,
        "seed": 0,
        **more,
    }


def client(store=None, problem=None, domain=L1):
    return FedFWClient(problem or ObjectiveProblem(LeastSquares(A, B)), domain, 0, store)


def kept(one):
    return one.store.load("frank-wolfe", {}, False)


def test_naive_keeps_nothing_and_a_point_travels_where_it_is_asked_for():
    naive = client()
    _, _, metrics = naive.fit([np.zeros(5)], numbers("naive-fw"))
    assert (kept(naive), metrics) == (None, {})
    one = client()
    arrays, _, _ = one.fit([np.zeros(5)], numbers(resync=True))
    assert_arrays(arrays, kept(one))


def test_averaged_gradients():
    """d <- (1 - rho) d + rho g, and the whole sample is the gradient itself."""
    problem = ObjectiveProblem(
        LeastSquares(A, B), lambda rows: LeastSquares(2 * A[rows], 2 * B[rows])
    )
    one = client(problem=problem)
    one.fit([np.zeros(5)], numbers(stochastic=True, **{"batch-size": 2}))
    x, first = kept(one)
    one.fit([np.zeros(5)], numbers(stochastic=True, t=2, rhos=[0.25]))
    np.testing.assert_allclose(kept(one)[1], 0.75 * first + 0.25 * 2 * A.T @ (A @ x - B))
    refused(
        lambda: client().fit([np.zeros(5)], numbers(stochastic=True, **{"batch-size": 2})),
        "LeastSquares has no samples to draw: set batch-size = 0",
    )


def test_the_last_atom_of_an_iterative_oracle_is_kept():
    places = np.arange(20)
    problem = ObjectiveProblem(
        MatrixCompletion(places // 5, places % 5, RNG.normal(size=20), (6, 5))
    )
    one = client(problem=problem, domain=NuclearBall((6, 5), 2.0))
    arrays, _, _ = one.fit([np.zeros((6, 5), np.float32)], numbers())
    x, u, v = kept(one)
    assert x.dtype == np.float32
    np.testing.assert_array_equal([*u, *v], np.concatenate(arrays))
    (values, indices), _, metrics = one.fit([np.zeros((6, 5))], {"phase": "evaluate"})
    assert (indices.tolist(), values.shape) == (places.tolist(), (20,))
    assert metrics["distance"] == pytest.approx(np.linalg.norm(x))


def test_a_kept_point_of_another_shape():
    store = MessageStore(RecordDict())
    store.save("frank-wolfe", [np.zeros(7)], {})
    refused(
        lambda: client(store).fit([np.zeros(5)], numbers()),
        "client 0 has stored a point of shape \\(7,\\)",
    )


# --- torch ----------------------------------------------------------------------------


def test_a_torch_loss_is_a_function_of_one_row():
    data, net = blobs(), small_net(0)
    problem = TorchProblem(net, data)
    x = np.concatenate([p.detach().numpy().ravel() for p in small_net(1).parameters()])
    gradient = problem.gradient(x)
    steps = 1e-3 * np.eye(len(x))
    slopes = [(problem.value(x + step) - problem.value(x - step)) / 2e-3 for step in steps]
    np.testing.assert_allclose(gradient, slopes, atol=2e-3)
    halves = np.array_split(np.arange(problem.num_examples), 2)
    np.testing.assert_allclose(
        np.mean([problem.batch_gradient(x, part) for part in halves], 0), gradient, atol=1e-6
    )
    assert set(problem.score(x)) >= {"accuracy", "test-loss"}


def test_a_model_with_buffers_is_refused():
    refused(
        lambda: TorchProblem(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), blobs()), "has buffers"
    )
