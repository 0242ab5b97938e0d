"""The worst clients without the bias of extremes: the posterior by quadrature, and
coverage where measured extremes lie outside.
"""

import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom

from fedapps.algorithms.common.measures import parity_gap, worst_share
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness import shrinkage
from fedapps.algorithms.fairness.shrinkage import statistics, uncertainty


def rng(seed=0):
    return generator(seed, "test of shrinkage")


def test_statistics_are_those_of_the_measures():
    table = np.random.default_rng(0).random((23, 5))
    summary = statistics(table, 0.2)
    for column, values in enumerate(table.T):
        assert {name: summary[name][column] for name in ("mean", "tail", "worst", "gap")} == {
            "mean": pytest.approx(values.mean()),
            "tail": pytest.approx(worst_share(values, 0.2)),
            "worst": values.min(),
            "gap": pytest.approx(parity_gap(values)),
        }


def test_the_posterior_is_that_of_quadrature():
    """Three clients, every step of the definition summed over a grid: the
    distributions of the worst one and of the mean of all.
    """
    right, samples = np.array([3, 9, 30]), np.array([10, 12, 33])
    worst, pooled, weights = [], [], []
    x = (np.arange(200) + 0.5) / 200
    for rho in shrinkage.RHOS:
        for mu in (np.arange(16) + 0.5) / 16:
            s = 1 / rho - 1
            a, b = mu * s, (1 - mu) * s
            weights.append(np.prod(betabinom.pmf(right, samples, a, b)) / 16)
            above = [beta.sf(x, r + a, n - r + b) for r, n in zip(right, samples, strict=True)]
            worst.append(np.prod(above, 0))
            pooled.append(np.mean((right + a) / (samples + s)))
    law = binom.pmf(right, samples, x[:, None]).prod(1)
    weights.append(shrinkage.EQUAL * law.mean())
    worst.append(np.cumsum(law[::-1])[::-1] / law.sum())
    pooled.append((x * law).sum() / law.sum())
    above = np.average(worst, 0, weights)
    found = uncertainty(right, samples, rng(1), draws=40_000, level=0.9)
    assert [found["worst"].low, found["worst"].high] == pytest.approx(
        [x[np.searchsorted(-above, -level)] for level in (0.95, 0.05)], abs=0.01
    )
    assert found["worst"].estimate == pytest.approx(above.mean(), abs=0.004)
    assert found["worst"].value == found["tail"].value == 0.3 < found["worst"].estimate
    # the mean keeps its measured value, and the posterior's width
    assert found["mean"].estimate == pytest.approx((right / samples).mean())
    assert found["mean"].estimate != pytest.approx(np.average(pooled, weights=weights), abs=0.005)


def test_without_correlation_all_clients_have_one_rate():
    right, samples = np.array([3, 9, 30]), np.array([10, 12, 33])
    drawn = shrinkage.rates(right, samples, np.array([0.7, 0.7]), np.array([0.0, 0.3]), rng())
    assert drawn[:, 0].tolist() == [0.7] * 3
    assert len(set(drawn[:, 1])) == 3


def simulated(true, n, repeats=200):
    """Measured and true statistics of clients with these accuracies, ``repeats``
    times.
    """
    draws = np.random.default_rng(7)
    truth = {name: value[0] for name, value in statistics(np.array(true)[:, None]).items()}
    n = np.broadcast_to(n, len(true))
    runs = [
        uncertainty(draws.binomial(n, true), n, rng(seed), draws=300) for seed in range(repeats)
    ]
    return runs, truth


TRUTHS = {
    "equal": ([0.8] * 20, 20),
    "few": ([0.9] * 8, 50),
    "spread": (np.linspace(0.55, 0.95, 20), 40),
    "a little": (np.linspace(0.75, 0.85, 30), 50),
    "one apart": ([0.5, *np.linspace(0.85, 0.9, 9)], 200),
    "uneven": (np.linspace(0.6, 0.9, 24), np.arange(6, 150, 6)),
}


@pytest.mark.parametrize("case", TRUTHS)
def test_intervals_hold_the_truth_and_estimates_are_nearer_than_what_is_measured(case):
    """200 repetitions of 95 %: fixed clients follow no Beta law, so some points may
    lack, and a client that stands apart is drawn towards the others.
    """
    runs, truth = simulated(*TRUTHS[case])
    for name, true in truth.items():
        held = [run[name].low <= true + 1e-9 and true - 1e-9 <= run[name].high for run in runs]
        assert np.mean(held) >= 0.85, name
        assert all(run[name].low <= run[name].estimate <= run[name].high for run in runs)
        ours, measured = np.mean(
            [[abs(run[name].estimate - true), abs(run[name].value - true)] for run in runs], 0
        )
        assert ours <= measured * (1.4 if case == "one apart" else 1.02) + 1e-9, name
    if case == "equal":
        assert np.mean([run["gap"].low == 0 for run in runs]) >= 0.9
    if case == "one apart":
        assert all(run["gap"].low > 0 for run in runs)


def test_many_clients_are_told_by_some_of_them(monkeypatch):
    draws = np.random.default_rng(3)
    samples = draws.integers(20, 80, 1000)
    right = draws.binomial(samples, draws.beta(16, 4, 1000))
    some = uncertainty(right, samples, rng())
    few = np.std(shrinkage.spread(right, samples, rng(), 3000)[0])
    monkeypatch.setattr(shrinkage, "ENOUGH", 1000)
    for name, value in uncertainty(right, samples, rng()).items():
        assert some[name].estimate == pytest.approx(value.estimate, abs=0.03)
    # they count as all: mu is as certain
    assert few == pytest.approx(np.std(shrinkage.spread(right, samples, rng(), 3000)[0]), rel=0.4)


def test_blocks_change_nothing_but_memory_and_a_seed_gives_the_same(monkeypatch):
    right, samples = np.arange(5, 45), np.full(40, 50)
    whole = uncertainty(right, samples, rng())
    assert whole == uncertainty(right, samples, rng())
    assert whole != uncertainty(right, samples, rng(1))
    monkeypatch.setattr(shrinkage, "BLOCK", 40 * 64)
    parts = uncertainty(right, samples, rng())
    for name, value in whole.items():
        assert (parts[name].value, parts[name].low) == pytest.approx(
            (value.value, value.low), abs=0.02
        )


@pytest.mark.parametrize(
    ("right", "samples"), [([], []), ([1], [0]), ([3], [2]), ([-1], [2]), ([1, 1], [2])]
)
def test_impossible_counts_are_refused(right, samples):
    with pytest.raises(ValueError, match="need"):
        uncertainty(np.array(right, int), np.array(samples, int), rng())
