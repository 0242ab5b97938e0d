"""The Fréchet distance against SciPy's matrix root, closed forms and its
invariances.
"""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedapps.algorithms.synthetic.frechet import frechet_distance


def features(seed, n, d=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def test_it_is_the_formula():
    a, b = features(0, 40), features(1, 60)
    s, t = np.cov(a.T), np.cov(b.T)
    wanted = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s + t - 2 * np.real(sqrtm(s @ t)))
    assert frechet_distance(a, b) == pytest.approx(wanted, rel=1e-6)
    assert frechet_distance(b, a) == pytest.approx(wanted, rel=1e-6)


def test_closed_forms():
    a = features(0, 50)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(a, a + 2.0) == pytest.approx(5 * 4.0)
    assert frechet_distance(a[:, :1], 3 * a[:, :1]) == pytest.approx(
        4 * (a[:, 0].mean() ** 2 + a[:, 0].var(ddof=1))
    )
    # covariances without full rank
    assert np.isfinite(frechet_distance(features(2, 3), a))
    with pytest.raises(ValueError, match="1 and 50 samples"):
        frechet_distance(a[:1], a)
