"""Statistics over seeds, compared with numbers worked out by hand and with their
definitions.
"""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from fedapps.lab.results.seeds import (
    Measured,
    crossed_interval,
    difference,
    paired,
    stands_out,
    t_interval,
)


def test_the_t_interval_of_three_and_of_five_seeds():
    """t(0.975) is 4.302653 with two degrees of freedom and 2.776445 with four, as any
    printed table has it.
    """
    three = t_interval([1.0, 2.0, 6.0])  # mean 3, sum of squares 4 + 1 + 9 = 14, s = sqrt(7)
    assert (three.mean, three.std) == (3.0, pytest.approx(math.sqrt(7)))
    reach = 4.302653 * math.sqrt(7) / math.sqrt(3)
    assert (three.low, three.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)
    five = t_interval([0.0, 1.0, 2.0, 3.0, 4.0])  # s = sqrt(10 / 4)
    reach = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (five.low, five.high) == pytest.approx((2 - reach, 2 + reach), rel=1e-5)
    ninety = t_interval([1.0, 2.0, 6.0], 0.9)  # t(0.95), two degrees: 2.919986
    assert ninety.high - 3 == pytest.approx(2.919986 * math.sqrt(7 / 3), rel=1e-6)
    for values in ([0.5], [1.0, math.inf]):  # one seed has infinite bounds
        one = t_interval(values)
        assert (one.low, one.high, one.n) == (-math.inf, math.inf, len(values))


def test_a_setting_stands_out_only_against_all_others_and_beyond_the_noise():
    noisy = {
        "a": Measured({0: 1.0, 1: 5.0, 2: 9.0}),
        "b": Measured({0: 0.5, 1: 4.6, 2: 8.4}),
        "c": Measured({0: 0.0, 1: 0.0, 2: 0.0}),
    }
    # a - b is 0.5, 0.4, 0.6: 0.5 ± 4.303 * 0.1 / sqrt(3), above 0, although both go
    # from 1 to 9; a - c is 5 ± 9.9.
    assert stands_out("a", {key: noisy[key] for key in "ab"})
    assert not stands_out("a", noisy)
    assert not stands_out("b", {key: noisy[key] for key in "ab"})
    assert stands_out("b", {key: noisy[key] for key in "ab"}, smaller=True)
    two = {"a": Measured({0: 1.0, 1: 1.0}), "b": Measured({0: 0.0, 1: 0.0})}
    assert not stands_out("a", two)  # two seeds
    assert not stands_out("a", {"a": noisy["a"]})


def test_the_crossed_interval_of_a_table_by_hand():
    """Seeds' means 1, 2, 6 and clients' means -7, 3, 13, without and with a rest.

    Without a rest MS_a = 3 * 14 / 2 = 21, MS_b = 3 * 200 / 2 = 300 and V = 321 / 9,
    with 321^2 / (21^2 / 2 + 300^2 / 2) degrees of freedom. A rest of ±e in two rows and
    two columns has MS_e = 4 e^2 / 4 and leaves the means as they are.
    """
    table = np.array([1.0, 2.0, 6.0])[:, None] + np.array([-10.0, 0.0, 10.0])
    plain = crossed_interval(table)
    assert plain.mean == pytest.approx(3.0)
    reach = student.ppf(0.975, 321**2 / (21**2 / 2 + 300**2 / 2)) * math.sqrt(321 / 9)
    assert plain.high - 3 == pytest.approx(reach, rel=1e-6)
    rest = np.outer([1.0, -1.0, 0.0], [1.0, -1.0, 0.0])
    crossed = crossed_interval(table + 2 * rest)  # MS_e = 4: V = (21 + 300 - 4) / 9
    reach = student.ppf(0.975, 317**2 / (21**2 / 2 + 300**2 / 2 + 4**2 / 4)) * math.sqrt(317 / 9)
    assert crossed.high - 3 == pytest.approx(reach, rel=1e-6)
    # Seeds alone: no narrower than t over seeds
    seeds = crossed_interval(np.repeat([[1.0], [2.0], [6.0]], 3, axis=1) + rest / 10)
    assert seeds.high - 3 == pytest.approx(4.302653 * math.sqrt(7 / 3), rel=1e-6)
    # clients that differ a little, MS_b = 3: t(2.56 degrees) sqrt(24 / 9) is less than
    # that, but the variance of the seeds has no such degrees
    assert student.ppf(0.975, 24**2 / (21**2 / 2 + 3**2 / 2)) * math.sqrt(24 / 9) < 5.8
    little = np.array([1.0, 2.0, 6.0])[:, None] + np.array([-1.0, 0.0, 1.0])
    assert crossed_interval(little).high - 3 == pytest.approx(4.302653 * math.sqrt(7 / 3), rel=1e-6)
    # MS_b = 4 is below MS_e = 36: clients add nothing to the t interval over seeds
    seeds = np.array([-3.2, 0.0, 3.2])
    table = seeds[:, None] + np.array([1.0, 3.0, 5.0]) / 3**0.5 + 6 * rest
    assert crossed_interval(table) == t_interval(table.mean(1).tolist())
    # MS_a = 0.0075 is, too, and MS_b = 300 above it: V = 300 / 9, two degrees
    table = np.array([0.0, 0.05, 0.1])[:, None] + np.array([-10.0, 0.0, 10.0]) + 6 * rest
    clients = crossed_interval(table)
    assert clients.high - clients.mean == pytest.approx(4.302653 * math.sqrt(300 / 9), rel=1e-6)


def test_the_crossed_interval_needs_three_seeds_and_two_clients():
    table = np.arange(12.0).reshape(3, 4) ** 2
    assert [crossed_interval(few) for few in (table[:2], table[:, :1])] == [None, None]
    apart = np.full((3, 6), np.nan)  # no client of one seed is in another
    for seed in range(3):
        apart[seed, 2 * seed : 2 * seed + 2] = 1.0, 2.0
    assert crossed_interval(apart) is None
    assert crossed_interval(np.hstack([table, np.full((3, 1), np.nan)])) == crossed_interval(table)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize(("clients", "seeds"), [(3.0, 0.5), (0.0, 0.5), (0.5, 1.0), (0.0, 0.0)])
def test_the_crossed_interval_covers_the_mean_over_all_sites(clients, seeds, missing):
    """With 20 clients in 3 seeds."""
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(600):
        table = clients * rng.normal(size=20) + seeds * rng.normal(size=(3, 1))
        table += 2 * rng.normal(size=(3, 20))
        table[rng.random(table.shape) < missing] = np.nan
        crossed = crossed_interval(table)
        inside.append(crossed.low <= 0 <= crossed.high)
    # clients with gaps count for the mean, but not for the width, so it is a bit wide
    assert 0.93 < np.mean(inside) < (0.99 if missing else 0.98)


def measured(rng, shift, same, spread=3.0, noise=0.2):
    """Three seeds of twenty clients whose values deviate by 3."""
    tables = [shift + noise * rng.normal(size=20) for _ in range(3)]
    own = [{str(k): table[k] + spread * math.sin(k) for k in range(20)} for table in tables]
    means = {seed: float(np.mean(list(values.values()))) for seed, values in enumerate(own)}
    return Measured(means, dict(enumerate(own)), same)


def test_clients_that_are_dealt_anew_are_no_rows_of_a_table():
    """The same values: with other clients in each seed, the seeds are the only
    repetitions; with the same clients, two intervals answer two questions.
    """
    rng = np.random.default_rng(0)
    assert paired({0: 5.0, 1: 7.0, 2: 1.0}, {2: 4.0, 0: 1.0, 9: 0.0}) == {0: 4.0, 2: -3.0}
    alone = {same: measured(rng, 0.0, same, 0, 0) for same in (True, False)}
    dealt = difference(measured(rng, 0.5, False), alone[False])
    assert (dealt.these, dealt.like) == (None, t_interval(dealt.by_seed))
    same = difference(measured(rng, 0.5, True), alone[True])
    assert same.these == t_interval(same.by_seed)
    assert same.these.low > 0
    assert same.like.low < 0 < same.like.high  # 0.5 ± 2.1 * 2.1 / sqrt(20)
    assert same.like.high - same.like.low > same.these.high - same.these.low
    # a measure without values of clients, such as the worst client, is for these sites
    assert difference(Measured(alone[True].by_seed, {}, True), alone[True]).like is None


def test_bold_and_intervals_have_one_standard():
    """The row is ahead for these sites, not beyond the noise for sites like these."""
    rng = np.random.default_rng(0)
    rows = {"a": measured(rng, 0.5, True), "b": measured(rng, 0.0, True, 0, 0)}
    assert not stands_out("a", rows)
    rows["a"] = measured(rng, 5.0, True)
    assert stands_out("a", rows)
