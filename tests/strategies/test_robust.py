"""Robust aggregation as a wrapper: what it passes on, what it refuses, and the effect
of attackers.
"""

import numpy as np
import pytest
from flwr.serverapp import strategy as flower

from fedapps.algorithms.common import robust
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    FedAdam,
    FedAvg,
    FedMGDA,
    QFedAvg,
    Robust,
    RobustOptions,
    TooFewReplies,
)
from tests.helpers import (
    EchoClient,
    LossyClient,
    Trains,
    arrays_of,
    assert_arrays,
    refused,
    simulate,
)

START = {"w": np.zeros((2, 2), np.float32), "v": np.ones(3), "count": np.array(7)}
SHIFTS = [1.0, 2.0, 3.0, 10.0, 1e3]
AVERAGING = ("median", "trimmed-mean", "geometric-median")
CHOOSING = ("krum", "multi-krum")


def run(rule, strategy=None, shifts=SHIFTS, f=1, rounds=1, weights=None, **options):
    client = lambda i, _: LossyClient(shifts[i], 1.0, (weights or [1] * 9)[i])
    strategy = Robust(strategy or FedAvg(), RobustOptions(rule, f)) if rule != "none" else strategy
    return arrays_of(
        simulate(strategy, client, len(shifts), START, rounds, {"learning-rate": 0.1}, **options)
    )


EXPECTED = {
    "median": 3.0,
    "trimmed-mean": 5.0,  # of 2, 3 and 10
    "krum": 2.0,
    "multi-krum": 4.0,  # of all but the last
}


@pytest.mark.parametrize("rule", EXPECTED)
@pytest.mark.parametrize("weights", [None, [1, 10**9, 1, 1, 10**15]])
def test_the_result_by_hand_with_any_reported_weights(rule, weights):
    got = run(rule, weights=weights)
    np.testing.assert_allclose(got["w"], EXPECTED[rule])
    np.testing.assert_allclose(got["v"], 1 + EXPECTED[rule])
    assert got["count"] == 7 + (
        np.median([1, 2, 3, 10, 10**3]) if rule not in CHOOSING else EXPECTED[rule]
    )
    assert [array.dtype for array in got.values()] == [np.float32, np.float64, np.int64]


def test_the_geometric_median_is_one_mean_for_all_arrays():
    got = run("geometric-median")
    wanted = robust.geometric_median(np.array([[shift] * 4 + [1 + shift] * 3 for shift in SHIFTS]))
    np.testing.assert_allclose(got["w"].reshape(-1), wanted[:4], rtol=1e-5)
    np.testing.assert_allclose(got["v"], wanted[4:], rtol=1e-6)


@pytest.mark.parametrize("rule", ["trimmed-mean", "multi-krum"])
@pytest.mark.parametrize("make", [lambda: FedAvg(weights="uniform"), FedAdam])
def test_without_attackers_the_method_is_unchanged(rule, make):
    """f = 0: the trimmed mean is the mean, and Multi-Krum chooses all."""
    shifts = [0.1, 0.2, -0.3, 0.4]
    plain, wrapped = (run(kind, make(), shifts, 0, rounds=3) for kind in ("none", rule))
    assert_arrays(wrapped, plain, rtol=1e-5, atol=1e-7)


def test_the_wrapped_strategy_steps_from_the_robust_mean():
    """FedAdam's step depends only on the signs in round 1: with one attacker it follows
    the others.
    """
    attacked = [1.0, 1.0, 1.0, 1.0, -900.0]
    assert run("none", FedAdam(), attacked)["w"].max() < 0
    for rule in (*AVERAGING, *CHOOSING):
        np.testing.assert_allclose(
            run(rule, FedAdam(), attacked)["w"], run("none", FedAdam(), [1.0] * 5)["w"], rtol=1e-4
        )


def test_metrics_are_unweighted_means():
    client = lambda i, _: EchoClient(SHIFTS[i], 10**12 if i == 4 else 1, {"loss": float(i)})
    for rule, mean in (("median", 2.0), ("multi-krum", 1.5)):  # of all, and without the last
        result = simulate(Robust(FedAvg(), RobustOptions(rule)), client, 5, START, 1)
        assert result.train_metrics_clientapp[1]["loss"] == mean


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD, AFL, TERM, QFedAvg, FedMGDA])
def test_a_weight_rule_inside_the_robust_rule(kind):
    """It decides among the clients that Krum's rule has chosen: the last, far away and
    with a giant loss, is none of them, and the others are as without it.
    """

    def play(strategy, count):
        client = lambda i, _: LossyClient(SHIFTS[i], 1.0 + i if i < 4 else 1e12)
        return arrays_of(simulate(strategy, client, count, START, 2, {"learning-rate": 0.1}))["w"]

    strategy, without = Robust(kind(FedAvg()), RobustOptions("multi-krum")), kind(FedAvg())
    got = play(strategy, 5)
    assert set(strategy.last_weights) == {0, 1, 2, 3}
    assert 0 < got.max() < 20
    if kind in (TERM, QFedAvg, FedMGDA):  # the others keep weights of all five
        np.testing.assert_allclose(got, play(without, 4), rtol=1e-6)


@pytest.mark.parametrize(
    ("rule", "f", "least"),
    [("trimmed-mean", 2, 5), ("krum", 1, 5), ("multi-krum", 1, 5), ("median", 1, 1)],
)
def test_too_few_replies_keep_the_model(rule, f, least):
    assert RobustOptions(rule, f).least == least
    np.testing.assert_allclose(run(rule, shifts=[1.0] * least, f=f)["w"], 1.0)
    if least > 1:
        np.testing.assert_allclose(run(rule, shifts=[1.0] * (least - 1), f=f)["w"], 0.0)


def test_a_run_of_the_command_counts_such_rounds_as_failed(tmp_path):
    from fedapps.engines.inline import InlineGrid
    from fedapps.runs.client_app import app
    from fedapps.runs.execution import execute

    given = {
        "num-clients": 4,
        "clients-per-round": 0,
        "num-rounds": 2,
        "checkpoint-every": 0,
        "robust.rule": "krum",
    }
    settings = read_settings({**given, "out": str(tmp_path / "r"), "train.local-epochs": 1})
    refused(
        lambda: execute(settings, InlineGrid(app, 4, settings.flat())),
        r"at least 5 needed|no round had 5",
        TooFewReplies,
    )


def test_a_run_that_samples_too_few_clients_is_refused():
    refused(
        lambda: read_settings({"robust.rule": "krum", "robust.num-malicious": 2}),
        "clients-per-round = 5, but robust.rule = 'krum' with num-malicious = 2 needs 7 replies",
        UserError,
    )


@pytest.mark.parametrize("rule", ["median", "multi-krum"])
def test_every_method_accepts_it_or_explains_why_not(rule):
    taken = set()
    for name in METHODS:
        settings = read_settings({"method": name, "robust.rule": rule})
        try:
            build_strategy(settings, build_task(settings))
            taken.add(name)
        except UserError as error:
            assert str(error).startswith("robust.rule = "), name  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    assert {"fedavg", "fedprox", "fedadam", "superfed-mm", "propfair"} <= taken
    assert not {"fedboost", "ffgb", "fedfw", "fedevg", "local"} & taken
    assert ({"scaffold", "feddyn", "q-fedavg", "aaggff-d"} <= taken) == (rule == "multi-krum")


@pytest.mark.parametrize("kind", [flower.FedAvg, flower.FedYogi])
def test_around_flowers_own(kind):
    inner = kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    client = lambda i, _: EchoClient(-900.0 if i == 4 else 1.0)
    result = simulate(
        Robust(inner, RobustOptions("median")), client, 5, {"w": np.zeros(2, np.float32)}, 1
    )
    assert arrays_of(result)["w"].min() > 0


# --- against attackers ----------------------------------------------------------------

TARGET = np.array([3.0, -1.0])


def quadratic(i, attack):
    """Return a client that goes half of the way to a target near the common one; the
    first two are attackers and send something else.
    """
    attack = attack if i < 2 else ""
    target = TARGET + 0.1 * np.array([np.cos(i), np.sin(i)])
    far = 1e9 if attack == "same far point" else 0.0
    step = 0.5 * {"sign flip": -1, "scaled": -100}.get(attack, 1)
    return Trains(
        lambda sent, _: [sent[0] + far + step * (target - sent[0])],
        10**15 if attack == "inflated weight" else 10,
    )


@pytest.mark.parametrize("rule", [*AVERAGING, *CHOOSING])
@pytest.mark.parametrize("attack", ["sign flip", "scaled", "same far point", "inflated weight"])
def test_two_attackers_of_nine_do_not_move_the_model_away(rule, attack):
    strategy = Robust(FedAvg(), RobustOptions(rule, 2))
    result = simulate(strategy, lambda i, _: quadratic(i, attack), 9, {"w": np.zeros(2)}, 30)
    assert np.abs(arrays_of(result)["w"] - TARGET).max() < 0.15
