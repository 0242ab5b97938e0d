"""The weights of a few clients, computed without those of all, are the same weights."""

import numpy as np
import pytest

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL


@pytest.mark.parametrize("cap", [0.0, 1.0, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("rate", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("prior", ["uniform", "samples"])
def test_the_weights_of_a_sample_are_those_of_all(cap, rate, prior):
    rng = np.random.default_rng(1)
    rule = LinearisedFTRL(40, 0.1, step="sampled", rate=rate, cap=cap)
    if prior == "samples":
        rule.set_prior(rng.lognormal(size=40))
    for number in range(60):
        at = rng.permutation(40)
        np.testing.assert_allclose(rule.at(at), rule.p[at], rtol=1e-9, atol=1e-15)
        rule.decide(at[:4], rule.high * (at[:4] > 30) * rng.uniform(size=4))
        assert rule.at(np.arange(40)).sum() == pytest.approx(1)
        if number == 20:
            rule.add(3)
            rule.drop([40, 41, 42])


def test_clients_never_heard_of_count_as_one():
    rule = LinearisedFTRL(1_000_000, 1e-5, cap=3.0)
    rule.decide(np.arange(10), rule.high * np.linspace(0, 1, 10))
    rule.scores = Watched(rule.scores)
    rule.at(np.arange(5, 15))
    assert Watched.largest <= 20


class Watched(np.ndarray):
    """Notes the longest result of a multiplication: the rate times the scores that are
    looked at.
    """

    largest = 0

    def __new__(cls, values):
        return np.asarray(values).view(cls)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        out = getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **options)
        Watched.largest = max(Watched.largest, np.size(out))
        return out
