"""Simultaneous intervals hold together, one-sided bounds hold at their level, and the
verdict follows the bounds.
"""

import math

import numpy as np
import pytest

from fedapps.lab.results.seeds import (
    crossed_interval,
    same_sites_interval,
    t_interval,
    variance_components,
)
from fedapps.lab.results.simultaneous import (
    at_these_sites,
    decide,
    joint_level,
    more_needed,
    simultaneous,
    upper_bound,
)


def study(rng, m=3, seeds=5, clients=12, shared=0.8):
    """Gains of m methods with the mean 0; ``shared``: of their clients' effects."""
    common = rng.normal(size=(1, clients))
    tables = {}
    for j in range(m):
        b = np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.normal(size=(1, clients))
        tables[str(j)] = b + 0.3 * rng.normal(size=(seeds, 1)) + rng.normal(size=(seeds, clients))
    return tables


def test_all_intervals_hold_together_in_95_percent_where_single_ones_do_not():
    rng = np.random.default_rng(0)
    joint = single = 0
    for _ in range(400):
        tables = study(rng, m=4, shared=0.3)
        joint += all(one.low <= 0 <= one.high for one in simultaneous(tables).values())
        alone = [crossed_interval(table) for table in tables.values()]
        single += all(one.low <= 0 <= one.high for one in alone)
    assert joint / 400 > 0.93
    assert single < joint - 10


def test_the_common_level_lies_between_one_gain_and_bonferroni():
    rng = np.random.default_rng(1)
    one = study(rng, m=1)
    assert joint_level(one) == 0.95
    equal = dict.fromkeys("abc", one["0"])
    assert joint_level({k: v.copy() for k, v in equal.items()}) == pytest.approx(0.95, abs=0.005)
    apart = {str(j): rng.normal(size=(5, 400)) for j in range(4)}
    # of independent statistics it is Sidak's
    assert joint_level(apart) == pytest.approx(0.95 ** (1 / 4), abs=0.003)


def test_a_bound_is_exceeded_at_its_level():
    rng = np.random.default_rng(2)
    above = np.mean([upper_bound(study(rng, m=1)["0"], 0.1) < 0 for _ in range(600)])
    assert 0.05 < above < 0.13
    assert upper_bound(np.zeros((2, 5)), 0.05) == np.inf


def table(mean, spread=0.1):
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(5, 12)) * spread
    return noise - noise.mean() + mean


@pytest.mark.parametrize(
    ("gains", "kind", "method"),
    [
        ({"ditto": 3.0, "finetune": 1.5, "fedavg": -4.0}, "federate", "ditto"),
        ({"ditto": 3.0, "finetune": 2.5, "fedavg": -4.0}, "federate", "finetune"),
        ({"ditto": 3.0, "finetune": 1.0, "fedavg": 0.0}, "federate", "ditto"),
        # near enough, but not shown to gain more than 1 itself
        ({"ditto": 1.8, "finetune": 1.0, "fedavg": 0.0}, "federate", "ditto"),
        ({"ditto": 0.5, "finetune": 0.4, "fedavg": -4.0}, "alone", ""),
        ({"ditto": 0.5, "finetune": 0.4, "fedavg": 1.0}, "cannot tell", "ditto"),
        ({"ditto": 1.0, "finetune": 0.4, "fedavg": 0.0}, "cannot tell", "ditto"),
    ],
)
def test_the_verdict_follows_the_bounds(gains, kind, method):
    tables = {name: table(mean) for name, mean in gains.items()}
    found = decide(tables, tables, "ditto", 1.0, near="finetune")
    assert (found.kind, found.method) == (kind, method)


@pytest.mark.parametrize(("apart", "method"), [(0.2, "finetune"), (2.0, "ditto")])
def test_the_simpler_method_must_be_shown_to_be_near(apart, method):
    """Its mean is 0.5 behind, and delta is 1; but test samples leave more open."""
    tables = {name: table(mean) for name, mean in {"ditto": 4.0, "finetune": 3.5}.items()}
    halves = {**tables, "finetune": tables["finetune"] + apart * np.tile([1.0, -1.0], 6)}
    found = decide(tables, halves, "ditto", 1.0, near="finetune")
    assert (found.kind, found.method) == ("federate", method)


def test_clients_that_differ_leave_nothing_open_and_test_samples_do():
    """The gain of 3 differs by 4 between clients; 5 on half of the samples."""
    sites = {"ditto": table(3.0) + 4 * np.tile([1.0, -1.0], 6)}
    assert decide(sites, sites, "ditto", 1.0).kind == "federate"
    assert simultaneous(sites)["ditto"].low < 1.0
    halves = {"ditto": sites["ditto"] + 5 * np.tile([1.0, -1.0], 6)}
    assert decide(sites, halves, "ditto", 1.0).kind == "cannot tell"
    # nobody knows what is left open, if no half has a score: then as for other sites
    lacking = {"ditto": np.full((5, 12), np.nan)}
    assert at_these_sites(sites, lacking) == simultaneous(sites)
    assert decide(sites, lacking, "ditto", 1.0).kind == "cannot tell"


def test_intervals_of_these_sites_hold_together():
    rng, hold, repeats = np.random.default_rng(6), 0, 300
    for _ in range(repeats):
        samples = rng.normal(size=(3, 12, 20))  # of three gains whose means are 0
        noise = 0.1 * rng.normal(size=(3, 5, 12))
        tables = {str(m): samples[m].mean(1) + noise[m] for m in range(3)}
        halves = {str(m): samples[m, :, ::2].mean(1) + noise[m] for m in range(3)}
        found = at_these_sites(tables, halves)
        hold += all(one.low <= 0 <= one.high for one in found.values())
    assert 0.93 < hold / repeats < 0.99


def test_as_many_more_seeds_or_test_samples_as_are_named_would_do():
    rng = np.random.default_rng(4)
    seeds = np.tile(rng.normal(size=(5, 1)), 12)
    seeds += 1.5 - seeds.mean()
    one = t_interval(seeds[:, 0].tolist())
    more, times = more_needed(seeds, seeds, 1.0)
    assert times == 0  # no number of test samples would do
    wanted = ((one.high - one.low) / 2 / 0.5) ** 2 * 5
    assert more == pytest.approx(wanted - 5, abs=1)
    sites = np.full((5, 12), 1.5)
    half = sites + np.tile([3.0, -3.0], 6)
    more, times = more_needed(sites, half, 1.0)
    assert more == 0
    reach = same_sites_interval(sites, half).high - 1.5
    assert times == math.ceil((reach / 0.5) ** 2)
    assert more_needed(sites, np.full((5, 12), np.nan), 1.0) == (0, 0)


def test_components_of_a_large_table_are_those_that_made_it():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(300, 1)) * 0.5, rng.normal(size=(1, 300)) * 2
    table = a + b + rng.normal(size=(300, 300))
    found = variance_components(table - table.mean(), np.ones_like(table, bool))
    assert found == pytest.approx((a.var(ddof=1), b.var(ddof=1), 1.0), rel=0.05)
