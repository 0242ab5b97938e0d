"""Filter-normalised directions: as long as the net's filters, and invariant to scalings
that do not change a ReLU net.
"""

import numpy as np

from fedapps.algorithms.personal.landscape import filter_normalised, on_plane


def net(rng):
    return {
        "conv": rng.normal(size=(4, 2, 3, 3)).astype(np.float32),
        "dense": rng.normal(size=(5, 7)).astype(np.float32),
        "bias": rng.normal(size=5).astype(np.float32),
        "counter": np.array([3]),
    }


def test_every_filter_has_the_length_of_the_nets():
    theta = net(np.random.default_rng(0))
    d = filter_normalised(theta, np.random.default_rng(1))
    for name in ("conv", "dense"):
        lengths = [np.linalg.norm(a.reshape(len(a), -1), axis=1) for a in (d[name], theta[name])]
        np.testing.assert_allclose(*lengths, rtol=1e-5)
        assert d[name].dtype == np.float32
    assert not d["bias"].any()
    assert not d["counter"].any()
    other = filter_normalised(theta, np.random.default_rng(2))
    cosine = (d["conv"] * other["conv"]).sum() / (theta["conv"] ** 2).sum()
    assert abs(cosine) < 0.5


def test_a_net_scaled_layer_by_layer_has_the_same_landscape():
    """relu(10 W x) and W' / 10 give the same outputs, at every point of the plane."""
    rng = np.random.default_rng(3)
    one = {"first": rng.normal(size=(6, 4)), "second": rng.normal(size=(3, 6))}
    two = {"first": 10 * one["first"], "second": one["second"] / 10}
    x = rng.normal(size=4)
    outputs = []
    for theta in (one, two):
        directions = [filter_normalised(theta, np.random.default_rng(seed)) for seed in (4, 5)]
        moved = on_plane(theta, *directions, 0.3, -0.7)
        outputs.append(moved["second"] @ np.maximum(moved["first"] @ x, 0))
    np.testing.assert_allclose(*outputs)


def test_the_middle_of_the_plane_is_the_net():
    theta = net(np.random.default_rng(6))
    d = filter_normalised(theta, np.random.default_rng(7))
    assert all(
        np.array_equal(a, theta[name]) for name, a in on_plane(theta, d, d, 0.0, 0.0).items()
    )
