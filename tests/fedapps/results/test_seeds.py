"""Statistics over seeds, compared with numbers worked out by hand and with their
definitions.
"""

import math

import numpy as np
import pytest

from fedapps.results.seeds import nested_bootstrap, paired, stands_out, t_interval


def test_the_t_interval_of_three_and_of_five_seeds():
    """t(0.975) is 4.302653 with two degrees of freedom and 2.776445 with four, as any
    printed table has it.
    """
    three = t_interval([1.0, 2.0, 6.0])  # mean 3, sum of squares 4 + 1 + 9 = 14, s = sqrt(7)
    assert three.mean == 3.0
    assert three.std == pytest.approx(math.sqrt(7))
    reach = 4.302653 * math.sqrt(7) / math.sqrt(3)
    assert (three.low, three.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)
    five = t_interval([0.0, 1.0, 2.0, 3.0, 4.0])  # s = sqrt(10 / 4)
    reach = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (five.low, five.high) == pytest.approx((2 - reach, 2 + reach), rel=1e-5)
    ninety = t_interval([1.0, 2.0, 6.0], 0.9)  # t(0.95), two degrees: 2.919986
    assert ninety.high - 3 == pytest.approx(2.919986 * math.sqrt(7 / 3), rel=1e-6)


def test_one_seed_has_infinite_bounds():
    one = t_interval([0.5])
    assert (one.mean, one.low, one.high, one.n) == (0.5, -math.inf, math.inf, 1)
    assert not one.excludes_zero
    assert not t_interval([1.0, math.inf]).excludes_zero


def test_the_interval_covers_the_true_mean_at_its_level():
    rng = np.random.default_rng(0)
    inside = [
        (i := t_interval(list(rng.normal(2.0, 3.0, 3)))).low <= 2.0 <= i.high for _ in range(2000)
    ]
    assert 0.935 < np.mean(inside) < 0.965


def test_differences_are_paired_by_seed():
    assert paired({0: 5.0, 1: 7.0, 2: 1.0}, {2: 4.0, 0: 1.0, 9: 0.0}) == [4.0, -3.0]


def test_a_setting_stands_out_only_against_all_others_and_beyond_the_noise():
    noisy = {
        "a": {0: 1.0, 1: 5.0, 2: 9.0},
        "b": {0: 0.5, 1: 4.6, 2: 8.4},
        "c": {0: 0.0, 1: 0.0, 2: 0.0},
    }
    # a - b is 0.5, 0.4, 0.6: 0.5 ± 4.303 * 0.1 / sqrt(3), above 0, although both go
    # from 1 to 9; a - c is 5 ± 9.9.
    assert stands_out("a", {key: noisy[key] for key in "ab"})
    assert not stands_out("a", noisy)
    assert not stands_out("b", {key: noisy[key] for key in "ab"})
    assert stands_out("b", {key: noisy[key] for key in "ab"}, smaller=True)
    assert not stands_out("a", {"a": {0: 1.0, 1: 1.0}, "b": {0: 0.0, 1: 0.0}})  # two seeds
    assert not stands_out("a", {"a": {0: 1.0, 1: 1.0, 2: 1.0}})


def test_the_bootstrap_covers_seeds_and_clients():
    """If all seeds have equal means, only clients contribute noise; if clients are
    equal, only seeds do.
    """
    rng = np.random.default_rng(0)
    # 400 clients of variance 1: ± 1.96 / 20
    clients = nested_bootstrap([np.array([0.0, 2.0] * 50)] * 4, rng)
    assert clients.mean == 1.0
    assert (clients.low, clients.high) == pytest.approx((1 - 0.098, 1 + 0.098), abs=0.012)
    assert clients.std == 0.0
    # 16 equally likely means of four
    seeds = nested_bootstrap([np.full(30, value) for value in (0.0, 0.0, 2.0, 2.0)], rng)
    assert (seeds.low, seeds.high) == (0.0, 2.0)
    both = nested_bootstrap([np.array([0.0, 2.0] * 50) + seed for seed in (0.0, 1.0)], rng)
    assert both.high - both.low > clients.high - clients.low
