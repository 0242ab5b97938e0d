"""FFGB.C and FFGB.L: what distinguishes them from FFGB, by hand; and that every variant
learns.
"""

import numpy as np
import pytest
import torch

from fedapps.algorithms.boosting.additive import Additive
from fedapps.algorithms.boosting.additive_values import values_at
from fedapps.algorithms.boosting.weak_learners import RidgeOracle
from fedapps.strategies import FFGB, FFGBOptions
from tests.boosted import Federation, Table, points, recursion
from tests.helpers import arrays_of, blobs


@pytest.mark.parametrize(("bound", "which"), [(0.03, "learners"), (0.1, "residuals")])
def test_ffgb_c_is_the_recursion_with_both_clips(bound, which):
    """gamma = 0.5: learners are cut to (2 - gamma) G / gamma = 3 G, residuals to (1 -
    gamma) G / gamma = G; see which cut matters.
    """
    datas = [points([0, 1, 2], [0, 1, 0]), points([1, 2, 3], [1, 1, 0])]
    options = FFGBOptions(local_steps=2, mu=0.1, eta_0=3.0, gradient_bound=bound, gamma=0.5)
    oracle = Table(4, gamma=0.3)
    result = Federation(datas, oracle, 2).run(FFGB(options, "ffgb-c"), 4, evaluate_every=0)

    everywhere = torch.arange(4.0)[:, None]
    values = values_at(Additive.from_arrays(arrays_of(result)), everywhere, 2, oracle.predict)
    torch.testing.assert_close(values, recursion(datas, 0.3, 4, 3 * bound, bound))
    without = (
        recursion(datas, 0.3, 4, 9.0, bound)
        if which == "learners"
        else recursion(datas, 0.3, 4, 3 * bound, 9.0)
    )
    assert (values - without).abs().max() > 0.03


@pytest.mark.parametrize("residual", [True, False])
def test_ffgb_ls_target_is_one_function_of_which_the_oracle_sees_values_too(residual):
    """At its points the target as a function has the target's values, for every
    learner: u + what the ones before left.
    """
    seen = []

    class Watching(RidgeOracle):
        def fit(self, x, target, rng):
            seen.append((target.values, target.function(x)))
            return super().fit(x, target, rng)

    strategy = FFGB(FFGBOptions(local_steps=3, residual=residual), "ffgb-l")
    Federation([blobs(seed=1)], Watching(), 3).run(strategy, 2, evaluate_every=0)
    assert len(seen) == 6
    for values, function in seen:
        torch.testing.assert_close(function, values, rtol=1e-4, atol=1e-4)
    assert torch.allclose(seen[1][0], seen[0][0]) != residual


@pytest.mark.parametrize("variant", ["ffgb", "ffgb-c", "ffgb-l"])
def test_every_variant_learns(variant):
    datas = [blobs(seed=k, n=100) for k in range(3)]
    oracle = RidgeOracle()
    result = Federation(datas, oracle, 3).run(
        FFGB(FFGBOptions(local_steps=2), variant), 8, evaluate_every=0
    )
    test = blobs(seed=9, n=300).train
    values = values_at(Additive.from_arrays(arrays_of(result)), test.x, 3, oracle.predict)
    assert np.mean((values.argmax(1) == test.y).numpy()) > 0.9
