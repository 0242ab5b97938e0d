"""The clients of constrained problems alone: what they keep, what they send, torch
losses over layers' balls.
"""

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.objectives import LeastSquares, MatrixCompletion
from fedapps.algorithms.frank_wolfe.product_domain import Product
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, L2Ball
from fedapps.clients import FedFWClient, MessageStore, ProjectedClient
from fedapps.clients.families.problems import ObjectiveProblem
from fedapps.clients.families.torch_problem import TorchProblem
from tests.helpers import blobs, small_net

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(8, 5)), RNG.normal(size=8)
L1 = L1Ball((5,), 1.0)


def numbers(variant="fedfw", t=1, **more):
    base = {
        "etas": [2 / (t + 1)],
        "lambdas": [3.0],
        "rhos": [1.0],
        "dual-step": 0.5,
        "num-clients": 4,
        "variant": variant,
    }
    return {**base, "batch-size": 0, "stochastic": False, "server-round": t, "seed": 0, **more}


def client(store=None, problem=None, domain=L1):
    return FedFWClient(problem or ObjectiveProblem(LeastSquares(A, B)), domain, 0, store)


def kept(one):
    return one.store.load("frank-wolfe", {}, False)


def test_two_steps_of_fedfw_plus_by_hand():
    one, x, y, x_bar = client(), np.full(5, 0.1), np.zeros(5), np.full(5, 0.1)
    for t in (1, 2):
        arrays, n, metrics = one.fit([x_bar], numbers("fedfw-plus", t))
        y += 0.5 * (x - x_bar)
        g = 2 * A.T @ (A @ x - B) / 4 + 3.0 * (x - x_bar) + y
        j = int(np.abs(g).argmax())
        s = np.zeros(5)
        s[j] = -np.sign(g[j])
        x = (1 - 2 / (t + 1)) * x + 2 / (t + 1) * s
        assert (int(arrays[0][0]), float(arrays[1][0])) == (j, s[j])
        assert (n, metrics) == (8, {"fresh": 1} if t == 1 else {})
        np.testing.assert_allclose(kept(one)[0], x)
        np.testing.assert_allclose(kept(one)[1], y)
        x_bar = RNG.normal(size=5) * 0.1


def test_naive_keeps_nothing_and_a_point_travels_where_it_is_asked_for():
    naive = client()
    _, _, metrics = naive.fit([np.zeros(5)], numbers("naive-fw"))
    assert kept(naive) is None
    assert metrics == {}
    one = client()
    arrays, _, _ = one.fit([np.zeros(5)], numbers(resync=True))
    np.testing.assert_array_equal(arrays[0], kept(one)[0])


def test_the_message_of_the_server_is_not_written_to():
    x_bar = np.zeros(5)
    x_bar.setflags(write=False)
    for t in (1, 2):
        client().fit([x_bar], numbers(t=t))
    ProjectedClient(ObjectiveProblem(LeastSquares(A, B)), L1).fit(
        [x_bar], {"learning-rate": 0.1, "local-steps": 3, "batch-size": 0}
    )


def test_local_steps_are_steps_with_the_same_x_bar():
    several, single = client(), client()
    etas = [1.0, 2 / 3, 0.5]
    packed, _, _ = several.fit([np.zeros(5)], numbers(etas=etas, lambdas=[1.0] * 3, rhos=[1.0] * 3))
    for k, eta in enumerate(etas):
        one, _, _ = single.fit([np.zeros(5)], numbers(t=k + 1, etas=[eta], lambdas=[1.0]))
        np.testing.assert_array_equal(packed[2 * k : 2 * k + 2], one)
    np.testing.assert_array_equal(kept(several)[0], kept(single)[0])


def test_averaged_gradients():
    """d <- (1 - rho) d + rho g, and the whole sample is the gradient itself."""
    problem = ObjectiveProblem(
        LeastSquares(A, B), lambda rows: LeastSquares(2 * A[rows], 2 * B[rows])
    )
    one = client(problem=problem)
    one.fit([np.zeros(5)], numbers(stochastic=True, **{"batch-size": 2}))
    first = kept(one)[1]
    x = kept(one)[0]
    one.fit([np.zeros(5)], numbers(stochastic=True, t=2, rhos=[0.25]))
    np.testing.assert_allclose(kept(one)[1], 0.75 * first + 0.25 * 2 * A.T @ (A @ x - B))
    draws = [problem.batch_gradient(x, RNG.choice(8, 2, replace=False)) for _ in range(4000)]
    np.testing.assert_allclose(np.mean(draws, 0), 2 * A.T @ (A @ x - B), atol=1.5)
    with pytest.raises(ValueError, match="LeastSquares has no samples to draw: set batch-size = 0"):
        client().fit([np.zeros(5)], numbers(stochastic=True, **{"batch-size": 2}))


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
    np.testing.assert_array_equal(indices, places)
    assert values.shape == (20,)
    assert metrics["distance"] == pytest.approx(np.linalg.norm(x))


def test_a_kept_point_of_another_shape():
    store = MessageStore(RecordDict())
    store.save("frank-wolfe", [np.zeros(7)], {})
    with pytest.raises(ValueError, match="client 0 has stored a point of shape \\(7,\\)"):
        client(store).fit([np.zeros(5)], numbers())


# --- torch ----------------------------------------------------------------------------


def test_a_torch_loss_is_a_function_of_one_row():
    data, net = blobs(), small_net(0)
    problem = TorchProblem(net, data)
    x = np.concatenate([p.detach().numpy().ravel() for p in small_net(1).parameters()])
    gradient = problem.gradient(x)
    for j in RNG.choice(len(x), 8, replace=False):
        step = np.zeros(len(x))
        step[j] = 1e-3
        slope = (
            problem.value((x + step).astype(np.float64))
            - problem.value((x - step).astype(np.float64))
        ) / 2e-3
        assert slope == pytest.approx(gradient[j], abs=2e-3)
    rows = np.arange(problem.num_examples)
    halves = [problem.batch_gradient(x, part) for part in np.array_split(rows, 2)]
    np.testing.assert_allclose(np.mean(halves, 0), gradient, atol=1e-6)
    assert set(problem.score(x)) >= {"accuracy", "test-loss"}


def test_layers_in_balls_of_their_own():
    """A net whose layers are low rank and sparse learns blobs."""
    data = blobs(n=150)
    shapes = [tuple(p.shape) for p in small_net(0).parameters()]
    balls = (
        NuclearBall(shapes[0], 6.0),
        L2Ball(shapes[1], 2.0),
        L1Ball(shapes[2], 20.0),
        L2Ball(shapes[3], 2.0),
    )
    domain = Product(balls)
    one = FedFWClient(TorchProblem(small_net(0), data), domain)
    x_bar = domain.project(domain.join([p.detach().numpy() for p in small_net(2).parameters()]))
    before = one.problem.value(x_bar)
    for t in range(1, 120):
        one.fit(domain.split(x_bar), numbers(t=t, etas=[0.05], lambdas=[0.0], **{"num-clients": 1}))
        x_bar = one.point({})
    assert one.problem.value(x_bar) < 0.4 * before
    assert domain.contains(x_bar)


def test_a_model_with_buffers_is_refused():
    with pytest.raises(ValueError, match="has buffers"):
        TorchProblem(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), blobs())
