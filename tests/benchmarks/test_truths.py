"""The closed forms of the known truths equal a simulation of the estimators."""

import numpy as np
import pytest

from benchmarks.truths import SIZES, TRUTHS, D, truth

REPEATS = 4000


def simulated(federation, n):
    """Excess of each client and family over many data sets, with the best a."""
    rng = np.random.default_rng(0)
    w, s = federation.weights, federation.scale
    k, d = w.shape
    estimates = np.empty((REPEATS, k, d))
    for j in range(k):
        x = s[j] * rng.normal(size=(REPEATS, n, d))
        y = x @ w[j] + federation.noise[j] * rng.normal(size=(REPEATS, n))
        estimates[:, j] = np.linalg.solve(
            np.swapaxes(x, 1, 2) @ x, (np.swapaxes(x, 1, 2) @ y[..., None])
        )[..., 0]
    mean = estimates.mean(1, keepdims=True)
    groups = np.stack([estimates[:, federation.groups == g].mean(1) for g in (0, 1)], 1)

    def excess(u):
        return s**2 * ((u - w) ** 2).sum(2).mean(0)

    grid = np.linspace(0, 1, 101)
    return {
        "alone": min((excess(a * estimates) for a in grid), key=np.mean),
        "pooled": excess(np.broadcast_to(mean, estimates.shape)),
        "mixture": min((excess(mean + a * (estimates - mean)) for a in grid), key=np.mean),
        "clusters": excess(groups[:, federation.groups]),
    }


@pytest.mark.parametrize("name", TRUTHS)
def test_closed_forms_equal_a_simulation(name):
    federation = truth(name, 1)
    n = 20
    found, wanted = federation.excess(n), simulated(federation, n)
    for family, values in wanted.items():
        np.testing.assert_allclose(found[family], values, rtol=0.15, atol=0.02, err_msg=family)
        assert found[family].mean() == pytest.approx(values.mean(), rel=0.05, abs=0.005), family


def test_a_known_body_is_least_squares_in_its_subspace():
    federation, rng = truth("body", 0), np.random.default_rng(0)
    w = federation.weights[0] @ np.linalg.svd(federation.weights)[2][0]
    x = rng.normal(size=(20_000, 20))
    y = w * x + rng.normal(size=x.shape)
    error = ((x * y).sum(1) / (x**2).sum(1) - w) ** 2
    assert federation.excess(20)["body"][0] == pytest.approx(error.mean(), rel=0.05)


def test_the_right_families_are_those_that_the_cases_are_named_for():
    best = {name: min(risks := truth(name, 5).risks(), key=risks.get) for name in TRUTHS}
    assert best.pop("same") in ("pooled", "mixture")
    assert {name: best[name] for name in ("clusters", "body", "threshold", "wrong-labels")} == {
        "clusters": "clusters",
        "body": "body",
        "threshold": "mixture",
        "wrong-labels": "clusters",
    }
    for name in ("islands", "null"):
        risks = truth(name, 5).risks()
        assert risks["alone"] - min(risks.values()) < 0.02 * truth(name, 5).error_of_a_mean, name
    risks = truth("same", 5).risks()
    assert risks["alone"] - risks["pooled"] > 3 * 0.02 * truth("same", 5).error_of_a_mean


def test_at_the_threshold_pooled_equals_unshrunk_least_squares():
    # over many draws: tau^2 = v makes the two equal in expectation
    n = SIZES[0]
    pooled = np.mean([truth("threshold", seed).excess(n)["pooled"].mean() for seed in range(300)])
    assert pooled == pytest.approx(D / (n - D - 1), rel=0.03)
