"""AFL, q-FedAvg, TERM, FedMGDA+, PropFair and AAggFF: closed forms by hand, reductions
to FedAvg, and fairness.
"""

import numpy as np
import pytest

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL, OnlineNewtonStep
from fedapps.algorithms.fairness.responses import CDFS, decision_loss, respond
from fedapps.clients import FedAvgClient, PropFairClient
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLOptions,
    FedAvg,
    FedMGDA,
    FedMGDAOptions,
    PropFair,
    PropFairOptions,
    QFedAvg,
    QFedAvgOptions,
    TERMOptions,
)
from tests.helpers import (
    START,
    EchoClient,
    LossyClient,
    arrays_of,
    assert_arrays,
    blobs,
    play,
    refused,
    simulate,
    small_net,
    that_fails,
)
from tests.quadratics import CONFIG as PLAIN, quadratic

ZERO = {"w": np.zeros(2)}
CONFIG = {"learning-rate": 0.5, "lr-decay": 0.5, "lr-decay-every": 2}


def final(strategy, clients, rounds=1, config=None):
    return arrays_of(
        simulate(strategy, lambda i, _: clients[i], len(clients), ZERO, rounds, config)
    )["w"]


def test_afl_by_hand():
    """p = (1/2, 1/2) + 0.5 (0.2, 0.6) = (0.6, 0.8), projected: (0.4, 0.6); then (0.5,
    0.9): (0.3, 0.7).
    """
    strategy, seen = AFL(FedAvg(), AFLOptions(0.5)), []
    note = lambda now: seen.append(list(strategy.last_weights.values()))
    client = lambda i, _: LossyClient([1.0, 2.0][i], [0.2, 0.6][i])
    simulate(strategy, client, 2, ZERO, 2, callbacks=[note])
    np.testing.assert_allclose(seen, [[0.4, 0.6], [0.3, 0.7]])


@pytest.mark.parametrize(
    ("prior", "cap", "share"),
    [
        ("uniform", 0.0, 2 / 3),
        ("samples", 0.0, 2 / 5),
        ("uniform", 1.2, 0.6),
        ("samples", 1.2, 0.3),
    ],
)
def test_term_by_hand(prior, cap, share):
    """exp(2 * (0.5 log 2)) = 2: the second client counts twice, relative to 1/2 or to
    its 1/4 of the samples; at most 1.2 times that. A third fails.
    """
    clients = [
        LossyClient(0.0, 1.0, 3),
        LossyClient(3.0, 1.0 + 0.5 * np.log(2), 1),
        that_fails(EchoClient)(9.0),
    ]
    np.testing.assert_allclose(
        final(TERM(FedAvg(), TERMOptions(2.0, prior=prior, cap=cap)), clients), 3 * share
    )


# --- q-FedAvg -------------------------------------------------------------------------


def test_q_fedavg_by_hand():
    """q = 1, L = 2, losses 1 and 2, moves (1, 1) and (3, 3): Delta = -2 and -6 each, h
    = 8 + 2 and 72 + 4, step 2 + 12 over 86.
    """
    clients = [LossyClient(1.0, 1.0, 7), LossyClient(3.0, 2.0, 1)]
    for options, config in (
        (QFedAvgOptions(q=1), CONFIG),
        (QFedAvgOptions(q=1, lipschitz=2.0), {}),
    ):
        np.testing.assert_allclose(
            final(QFedAvg(FedAvg(), options), clients, 1, config), 14 / 86, rtol=1e-8
        )


@pytest.mark.parametrize(("prior", "share"), [("uniform", 0.6), ("samples", 0.15)])
def test_q_fedavgs_cap_and_prior_by_hand(prior, share):
    """The same clients: the weights (1/3, 2/3) or (7/9, 2/9) are cut at 1.2 times the
    prior; the mean update is divided by 1 + q L sum p_k |u_k|^2 / F_k.
    """
    clients = [LossyClient(1.0, 1.0, 7), LossyClient(3.0, 2.0, 1)]
    options = QFedAvgOptions(q=1, lipschitz=2.0, prior=prior, cap=1.2)
    wanted = (1 + 2 * share) / (1 + 2 * ((1 - share) * 2 / 1 + share * 18 / 2))
    np.testing.assert_allclose(final(QFedAvg(FedAvg(), options), clients), wanted, rtol=1e-8)


def test_q_fedavgs_constant_follows_the_learning_rate():
    strategy, seen, clients = QFedAvg(FedAvg()), [], [LossyClient(1.0, 1.0)] * 2
    note = lambda now: seen.append(strategy._lipschitz)
    for rate in ("learning-rate", "lr"):  # Flower's name, too
        config = {rate: 0.5, "lr-decay": 0.5, "lr-decay-every": 2}
        simulate(strategy, lambda i, _: clients[i], 2, ZERO, 5, config, callbacks=[note])
    np.testing.assert_allclose(seen, [2, 2, 4, 4, 8] * 2)


def test_q_fedavg_works_with_losses_of_any_size():
    for losses in ([0.0, 0.0], [0.0, 1.0], [1e30, 1e-30]):
        clients = [LossyClient(1.0, value) for value in losses]
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            end = final(QFedAvg(FedAvg(), QFedAvgOptions(q=10.0)), clients, 2, CONFIG)
        assert np.isfinite(end).all()


# --- FedMGDA+ -------------------------------------------------------------------------


def test_fedmgda_by_hand():
    """Unit updates (1, 0) and (0.6, 0.8): at equal weights the gradient of the norm is
    the same for both, so lambda is (1/2, 1/2).
    """
    clients = [EchoClient([5.0, 0.0], 9), EchoClient([0.3, 0.4])]
    np.testing.assert_allclose(
        final(FedMGDA(FedAvg(), FedMGDAOptions(1.0, 0.5)), clients), [0.4, 0.2], atol=1e-6
    )


def test_fedmgda_between_the_uniform_average_and_the_shortest_mixture():
    # the shortest mixture of (1,0), (0,1), (0,1) is (1/2, 1/2)
    moves = [[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]
    at = {
        eps: final(FedMGDA(FedAvg(), FedMGDAOptions(eps)), [EchoClient(m) for m in moves])
        for eps in (0.0, 0.05, 1.0)
    }
    np.testing.assert_allclose(at[0.0], [1 / 3, 2 / 3], atol=1e-9)
    np.testing.assert_allclose(at[0.05], [1 / 3 + 0.05, 2 / 3 - 0.05], atol=1e-6)
    np.testing.assert_allclose(at[1.0], [0.5, 0.5], atol=1e-5)


def test_fedmgda_stays_near_its_prior():
    moves = [EchoClient([2.0, 0.0], 3), EchoClient([0.0, 5.0], 1)]
    for eps, wanted in ((0.0, [0.75, 0.25]), (0.1, [0.65, 0.35])):
        np.testing.assert_allclose(
            final(FedMGDA(FedAvg(), FedMGDAOptions(eps, prior="samples")), moves), wanted, atol=1e-6
        )


def test_fedmgda_does_not_move_between_opposite_clients_or_without_updates():
    np.testing.assert_allclose(
        final(FedMGDA(FedAvg()), [EchoClient([1.0, 2.0]), EchoClient([-1.0, -2.0])]), 0.0, atol=1e-9
    )
    np.testing.assert_array_equal(final(FedMGDA(FedAvg()), [EchoClient([0.0, 0.0])] * 2), 0.0)


# --- all of them ----------------------------------------------------------------------


# few clients are far from most
TARGETS, SIZES = [0.0, 0.0, 1.0], [8, 8, 1]


def solution(strategy, kind=FedAvgClient, rounds=40, rate=0.4):
    config = {**PLAIN, "learning-rate": rate, "local-epochs": 1}
    client = lambda i, _: quadratic(kind, i, None, [1.0] * 3, TARGETS, SIZES[i])
    result = simulate(
        strategy, client, 3, {"w": np.float32([0.3])}, rounds, config, evaluate_every=0
    )
    return float(arrays_of(result)["w"][0])


FAIR = {
    "aaggff-s": lambda: AAggFFS(FedAvg()),
    "aaggff-d": lambda: AAggFFD(FedAvg()),
    "afl": lambda: AFL(FedAvg(), AFLOptions(0.5)),
    "term": lambda: TERM(FedAvg(), TERMOptions(5.0)),
    "q-fedavg": lambda: QFedAvg(FedAvg(), QFedAvgOptions(q=1.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", FAIR)
def test_the_worst_client_is_better_off_than_in_fedavg(method):
    """FedAvg with uniform weights ends at 1/3; the fairest point is 1/2."""
    assert 1 / 3 + 0.03 < solution(FAIR[method]()) < 0.55


def test_q_fedavgs_fixed_point():
    """Of sum F_k^2 / 2 over the clients: 2 w^3 = (1 - w)^3."""
    assert solution(QFedAvg(FedAvg(), QFedAvgOptions(q=1.0)), rounds=100) == pytest.approx(
        1 / (1 + 2 ** (1 / 3)), abs=2e-3
    )


def test_terms_fixed_point():
    """2 e^(lambda w^2 / 2) w = e^(lambda (1 - w)^2 / 2) (1 - w)."""
    w = solution(TERM(FedAvg(), TERMOptions(5.0)), rounds=100)
    pull = lambda gap: np.exp(5 * gap**2 / 2) * gap
    assert 2 * pull(w) == pytest.approx(pull(1 - w), rel=1e-3)


def test_propfairs_fixed_point_and_its_limit():
    """sum n_k grad F_k / (M - F_k) = 0; for large M, with M times the learning rate,
    FedAvg's.
    """
    m = 1.0
    w = solution(PropFair(FedAvg(), PropFairOptions(m)), PropFairClient, rounds=120, rate=0.2)
    assert 16 * w / (m - w**2 / 2) == pytest.approx((1 - w) / (m - (1 - w) ** 2 / 2), rel=1e-3)
    assert w > 1 / 17 + 0.02
    assert solution(
        PropFair(FedAvg(), PropFairOptions(1e6)), PropFairClient, rate=0.4e6
    ) == pytest.approx(1 / 17, abs=1e-4)


# --- AAggFF-S and -D ------------------------------------------------------------------

# Reductions, the round's own losses, failures, samples, options.

PRINTED = {"step": "paper", "rate": 1.0, "cap": 0.0, "prior": "uniform"}


def loss(i, t):
    return 0.2 + 0.3 * i + 0.1 * (t % 2)


def client(i, _=None):
    return LossyClient(1.0 + i, lambda t: loss(i, t), 1 + i)


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD])
def test_equal_losses_are_uniform_fedavg(kind):
    fair = simulate(
        kind(FedAvg()), lambda i, _: LossyClient(1.0 + i, lambda t: 1 / t, 1 + i), 4, START, 5
    )
    plain = simulate(FedAvg(weights="uniform"), client, 4, START, 5)
    np.testing.assert_allclose(arrays_of(fair)["w"], arrays_of(plain)["w"], rtol=1e-6)


@pytest.mark.parametrize("cdf", CDFS)
def test_aaggff_s_uses_the_decision_on_the_rounds_own_losses(cdf):
    strategy, seen = AAggFFS(FedAvg(), AAggFFOptions(cdf=cdf)), []
    note = lambda now: seen.append((now.train_metrics, strategy.last_weights))
    result = simulate(strategy, client, 4, START, 6, callbacks=[note])
    rule, w = OnlineNewtonStep(4), 0.0
    for t, (metrics, weights) in enumerate(seen, start=1):
        losses = np.array([loss(i, t) for i in range(4)])
        r = respond(losses, cdf, 0.0, 1 / 4)
        assert (metrics["decision-loss"], metrics["objective"]) == pytest.approx(
            (decision_loss(rule.p, r), rule.p @ losses)
        )
        p = rule.decide(np.arange(4), r)
        assert weights == pytest.approx(dict(enumerate(p)))
        w += p @ [1, 2, 3, 4]
    np.testing.assert_allclose(arrays_of(result)["w"], w, rtol=1e-6)


def test_with_lost_replies_c_is_the_share_that_answered():
    """(3.10) divides by the probability that a response is observed; otherwise its mean
    would not be the response.
    """

    some = lambda i, _: (that_fails(LossyClient) if i in (1, 4) else LossyClient)(0.1, 1.0 + i)
    simulate(strategy := AAggFFD(FedAvg()), some, 6, START, 1)
    assert (strategy.rule.ratio, strategy.rule.high) == pytest.approx((4 / 6, 4 / 6))


def test_the_default_step_changes_the_weights_within_a_cap_of_three():
    """The rule with 689 clients is in tests/algorithms/fairness/test_portfolio.py."""
    rule = AAggFFD(FedAvg()).new_rule(689)
    assert (rule.step, rule.multiple, rule.cap) == ("sampled", 1.0, 3.0)
    rule = AAggFFD(FedAvg(), AAggFFOptions(**PRINTED)).new_rule(689)
    assert (rule.step, rule.multiple, rule.cap) == ("paper", 1.0, 0.0)
    rule = AAggFFS(FedAvg(), AAggFFOptions(rate=0.5, cap=2.0)).new_rule(4)
    assert (rule.rate, rule.cap) == (0.5, 2.0)


def test_aaggff_d_learns_the_sampling_ratio_from_the_client_grid():
    strategy, seen = AAggFFD(FedAvg(), AAggFFOptions(cdf="gumbel", **PRINTED)), []
    note = lambda now: seen.append(
        (now.trained.clients, now.train_metrics, dict(strategy.last_weights))
    )
    on = {"seed": 2, "clients_per_round": 2}
    play(strategy, client, 8, START, 9, on=on, evaluate_every=0, callbacks=[note])
    rule = LinearisedFTRL(8, 0.25)
    for t, (clients, metrics, weights) in enumerate(seen, start=1):
        r = respond([loss(i, t) for i in clients], "gumbel", 0.0, 0.25)
        complete = np.full(8, r.mean())
        complete[clients] += (r - r.mean()) / 0.25
        assert metrics["decision-loss"] == pytest.approx(decision_loss(rule.p, complete))
        assert weights == pytest.approx(dict(zip(clients, rule.decide(clients, r), strict=True)))
    assert strategy.rule.ratio == 0.25
    np.testing.assert_allclose(strategy.rule.p, rule.p)


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD])
def test_a_failing_client_affects_only_its_own_reply(kind):
    strategy, seen = kind(FedAvg()), []
    note = lambda now: seen.append((dict(strategy.last_weights), strategy.rule.p))
    some = lambda i, _: (that_fails(LossyClient, [2]) if i == 3 else LossyClient)(1.0, 0.5 + i)
    simulate(strategy, some, 4, START, 3, callbacks=[note], evaluate_every=0)
    assert [list(weights) for weights, _ in seen] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
    assert all(sum(weights.values()) == pytest.approx(1) for weights, _ in seen)
    # their shares of p
    assert list(seen[1][0].values()) == pytest.approx(seen[1][1][:3] / seen[1][1][:3].sum())
    if kind is AAggFFS:  # the absent client responds with the mean
        rule = OnlineNewtonStep(4)
        rule.decide(range(4), respond([0.5, 1.5, 2.5, 3.5], "normal", 0, 1 / 4))
        r = respond([0.5, 1.5, 2.5], "normal", 0, 1 / 4)
        np.testing.assert_allclose(seen[1][1], rule.decide(range(4), [*r, r.mean()]))


def test_the_reported_loss_is_that_of_the_received_model_and_changes_no_training():
    data = blobs()
    client, plain = FedAvgClient(small_net, data), FedAvgClient(small_net, data)
    sent = [t.numpy() for t in small_net(3).state_dict().values()]
    config = {"local-epochs": 2, "server-round": 1}
    arrays, _, metrics = client.fit(sent, {**config, "loss-before": True})
    others, _, without = plain.fit(sent, config)
    plain.evaluate(sent, config)  # loads the model again
    assert metrics["loss-before"] == pytest.approx(plain.score(data.train)["loss"], rel=1e-6)
    assert "loss-before" not in without
    assert_arrays(arrays, others)


def test_other_methods_do_not_ask_for_it():
    for strategy, asks in ((FedAvg(), False), (AAggFFD(FedAvg()), True)):
        client = EchoClient(1.0, metrics={"loss-before": 1.0}, heard=(heard := []).append)
        simulate(strategy, lambda i, _, client=client: client, 2, START, 1)
        assert all(("loss-before" in config) == asks for config in heard)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (QFedAvg(FedAvg()), {}, r"put learning-rate \(or lr\) into train_config"),
        (
            AAggFFS(FedAvg()),
            {"on": {"clients_per_round": 3}},
            r"round 1 samples 3 of 4: set .*, or use AAggFF-D",
        ),
        (AAggFFS(FedAvg(fraction_train=0.5)), {}, "round 1 samples 2 of 4"),
        # above the automatic C2
        (AAggFFS(FedAvg(), AAggFFOptions(c1=0.3)), {}, "choose C1 < C2"),
    ],
)
def test_what_a_method_cannot_do_is_an_error_before_training(strategy, options, message):
    refused(lambda: play(strategy, client, 4, START, **options), message)
