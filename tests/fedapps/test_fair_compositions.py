"""Weights, the server's step and the clients' loss compose: each fair method with each
method that allows it, from settings on.
"""

import functools

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedapps.clients import MessageStore, to_client_app
from fedapps.clients.propfair import Proportional, differentiates
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.methods import METHODS, TorchClient
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import checked_strategy, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.strategies import ClientGrid, run_rounds
from fedapps.strategies.base.capabilities import declared
from tests.helpers import assert_arrays, refused, some_slow

JOB = {
    "num-clients": 4,
    "num-rounds": 2,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "train.local-epochs": 1,
    "train.batch-size": 64,
    "train.learning-rate": 0.05,
    "train.momentum": 0.0,
    "train.weight-decay": 0.0,
    "superfed.start": 0.0,
    "data.alpha": 1.0,
    "pfedme.lambda": 5.0,
}
# The settings with which a rule is the wrapped method, since the prior are its own
# weights.
NEUTRAL = {
    "aaggff-s": {"aaggff.rate": 0.0, "aaggff.prior": "samples"},
    "aaggff-d": {"aaggff.rate": 0.0, "aaggff.prior": "samples"},
    "afl": {"afl.gamma": 0.0, "afl.prior": "samples"},
    "term": {"term.lambda": 0.0, "term.prior": "samples"},
    "q-fedavg": {"q-fedavg.q": 0.0, "q-fedavg.prior": "samples"},
    "fedmgda": {
        "fedmgda.epsilon": 0.0,
        "fedmgda.server-learning-rate": 0.0,
        "fedmgda.prior": "samples",
    },
}
ACTIVE = {
    "aaggff-s": {},
    "aaggff-d": {"clients-per-round": 3},
    "afl": {},
    "term": {"term.lambda": 1.0},
    "q-fedavg": {"q-fedavg.q": 1.0},
    "fedmgda": {},
    "propfair": {"propfair.m": 4.0},
}
#: Methods whose clients train by gradients of a loss, which PropFair needs.
LOSSES = [
    name
    for name, method in METHODS.items()
    if isinstance(method.client, TorchClient) and differentiates(method.client.kind())
]


def averages(base):
    """Return whether a weight rule can wrap the method. Its strategy must declare that
    it takes only a weighted average from the replies, and its clients must train a
    torch model and be able to reply with a loss.
    """
    method = METHODS[base]
    if method.wrap is None and not isinstance(method.client, TorchClient):
        return False
    settings = settings_of(base)
    contract = declared(build_strategy(settings, build_task(settings)))
    return contract is not None and contract.aggregation == "weighted average"


class Same(list):
    """A list that compares objects by identity."""

    def __contains__(self, item):
        return any(item is own for own in self[-2:])


def settings_of(method, **more):
    return with_defaults({"method": method, "task": "digits", **JOB, **more})


def base_of(method):
    return f"{METHODS[method].table}.base"


@functools.cache
def run(method, **more):
    """Return the final arrays by name and the metrics of the last round."""
    settings = settings_of(method, **more)
    task = build_task(settings)
    strategy, seen = build_strategy(settings, task), []

    def client(context):
        place = int(context.node_config["partition-id"])
        return build_client(
            settings, task, place, settings.num_clients, MessageStore(context.state)
        )

    grid = ClientGrid(
        InlineGrid(to_client_app(client), settings.num_clients),
        seed=settings.seed,
        clients_per_round=settings.clients_per_round,
        num_clients=settings.num_clients,
        bound=settings.bound,
    )
    arrays = ArrayRecord({name: Array(value) for name, value in task.initial_arrays().items()})
    config = {"seed": settings.seed, **settings.train.to_config()}
    result = run_rounds(
        strategy,
        grid,
        arrays,
        settings.num_rounds,
        train_config=ConfigRecord(config),
        evaluate_config=ConfigRecord(config),
        callbacks=[lambda now: seen.append((now.train_metrics, now.trained.clients))],
    )
    assert all(
        len(clients) == (settings.clients_per_round or settings.num_clients) for _, clients in seen
    ), "a client failed"
    return {name: array.numpy() for name, array in result.arrays.items()}, seen[-1][0]


@pytest.mark.parametrize(
    "base", some_slow(["fedavg", "fedadam", "fedprox", "superfed-mm", "fedper"], "fedavg")
)
@pytest.mark.parametrize("rule", NEUTRAL)
def test_at_its_neutral_setting_a_rule_is_the_method_that_it_wraps(rule, base):
    alone, _ = run(base)
    wrapped, metrics = run(rule, **{base_of(rule): base, **NEUTRAL[rule]})
    assert_arrays(alone, wrapped, rtol=0.0001, atol=2e-06)
    assert metrics["weight-max"] > 0.25  # the clients' sizes differ


@pytest.mark.parametrize(
    "base",
    some_slow(
        ["fedrep", "propfair", "fedprox", "fedadam", "superfed-lm", "pfedme", "ditto"], "fedrep"
    ),
)
@pytest.mark.parametrize("rule", NEUTRAL)
def test_each_rule_runs_around_each_average_and_differs_from_it(rule, base):
    alone, _ = run(base)
    wrapped, metrics = run(rule, **{base_of(rule): base, **ACTIVE[rule]})
    assert all(np.isfinite(values).all() for values in wrapped.values())
    assert any(np.abs(wrapped[name] - values).max() > 1e-6 for name, values in alone.items())
    assert 0.25 <= metrics["weight-max"] <= 1


@pytest.mark.parametrize(
    "base", some_slow(["fedavg", "scaffold", "fedper", "lg-fedavg", "fedrep"], "scaffold")
)
def test_a_large_m_with_m_times_the_learning_rate_is_the_wrapped_method(base):
    """Only for methods without another term that uses the learning rate."""
    alone, _ = run(base)
    scaled, _ = run(
        "propfair", **{"propfair.base": base, "propfair.m": 1e4, "train.learning-rate": 500.0}
    )
    initial = dict(build_task(settings_of(base)).initial_arrays())
    moved = max(np.abs(alone[name] - initial[name]).max() for name in alone)
    assert moved > 1e-3
    assert_arrays(alone, scaled, atol=0.02 * moved)


@pytest.mark.parametrize(
    "base", some_slow([name for name in LOSSES if not METHODS[name].public], "fedavg", "scaffold")
)
def test_all_gradients_of_a_propfair_client_are_of_its_loss(base, monkeypatch):
    gradient, surrogate, calls = torch.autograd.grad, Proportional.__call__, []

    def counted_gradient(output, *args, **kwargs):
        calls.append("gradient" if output in of_surrogates else "gradient of something else")
        return gradient(output, *args, **kwargs)

    def counted_surrogate(self, loss):
        assert self.m == 4.0
        of_surrogates.append(value := surrogate(self, loss))
        return value

    of_surrogates = Same()
    monkeypatch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
    monkeypatch.setattr(torch.autograd, "grad", counted_gradient)
    monkeypatch.setattr(Proportional, "__call__", counted_surrogate)
    run.__wrapped__("propfair", **{"propfair.base": base, "propfair.m": 4.0})
    assert set(calls) == {"gradient"}


def test_all_three_at_once_with_a_bound_on_updates():
    """A weight rule, a server step, a local loss, and bounded updates."""
    both = {"term.base": "propfair", "propfair.base": "fedadam", "term.lambda": 1.0}
    bounds = {"propfair.m": 4.0, "max-update-norm": 0.2, "on-large-update": "clip"}
    arrays, metrics = run("term", **both, **bounds)
    assert all(np.isfinite(values).all() for values in arrays.values())
    assert metrics["weight-max"] > 0.25


def test_propfair_composes_with_privacy_and_weight_rules_do_not():
    private = {"propfair.base": "fedadam", "dp.noise-multiplier": 1.0}
    task = build_task(settings := settings_of("propfair", **private))
    assert type(build_strategy(settings, task)).__name__ == "Private"
    run("propfair", **private)
    for rule in NEUTRAL:
        refused(
            lambda: build_strategy(settings_of(rule, **{"dp.noise-multiplier": 1.0}), task),
            r"noise-multiplier: \w+ uses more than the average of updates",
            UserError,
        )


def test_robust_rules_choose_the_replies_that_are_weighted():
    krum = {"robust.rule": "multi-krum", "robust.num-malicious": 0}
    run("term", **{"term.base": "fedadam"}, **krum)
    refused(
        lambda: run("term", **{"robust.rule": "median"}),
        "TERM takes more than an average from the replies: choose 'krum', 'multi-krum' or 'none'",
        UserError,
    )
    run("propfair", **{"propfair.base": "fedprox", "robust.rule": "median"})


@pytest.mark.parametrize(("rule", "takes"), [("term", averages), ("propfair", LOSSES.__contains__)])
def test_a_rule_wraps_what_it_can_and_refuses_others_in_one_line(rule, takes):
    """Weight rules any average, PropFair any method whose clients minimise a loss."""

    def build(base):
        settings = settings_of(rule, **{f"{rule}.base": base})
        return checked_strategy(settings, build_task(settings))

    for base in METHODS:
        if not takes(base):
            refused(lambda: build(base), rf"^{rule}\.base = '{base}': ", UserError)
        elif rule == "term":
            assert declared(build(base).strategy).aggregation == "weighted average"
        else:
            build(base)


def test_hardened_lets_no_product_be_longer_than_the_median():
    settings = read_settings({"method": "dfw-trace", "task": "matrix-completion", "hardened": True})
    assert build_strategy(settings, build_task(settings)).options.longest_product == 1
