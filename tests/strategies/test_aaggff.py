"""AAggFF-S and -D through real messages: reductions, the round's own losses, failures,
samples, options.
"""

import numpy as np
import pytest

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL, OnlineNewtonStep
from fedapps.algorithms.fairness.responses import CDFS, decision_loss, respond
from fedapps.clients import FedAvgClient
from fedapps.strategies import AAggFFD, AAggFFOptions, AAggFFS, FedAvg
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
        assert metrics["decision-loss"] == pytest.approx(decision_loss(rule.p, r))
        assert metrics["objective"] == pytest.approx(rule.p @ losses)
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
    assert strategy.rule.ratio == pytest.approx(4 / 6)
    assert strategy.rule.high == pytest.approx(4 / 6)


def test_the_default_step_changes_the_weights_within_a_cap_of_three():
    """The test of the rule with 689 clients is in
    tests/algorithms/fairness/test_prior_and_cap.py.
    """
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


def test_aaggff_s_refuses_samples_and_names_aaggff_d():
    on = {"clients_per_round": 3}
    refused(
        lambda: play(AAggFFS(FedAvg()), client, 4, START, on=on),
        r"round 1 samples 3 of 4: set .*, or use AAggFF-D",
    )
    half = AAggFFS(FedAvg(fraction_train=0.5))
    refused(lambda: play(half, client, 4, START), "round 1 samples 2 of 4")


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


def test_a_c1_above_the_automatic_c2_is_an_error_before_training():
    strategy = AAggFFS(FedAvg(), AAggFFOptions(c1=0.3))
    refused(lambda: simulate(strategy, client, 4, START, 1), "choose C1 < C2")
