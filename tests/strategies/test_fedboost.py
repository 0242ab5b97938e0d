"""FedBoost and AFLBoost through real messages: optimum, saddle point, traffic, faults,
saved state.
"""

from itertools import count

import numpy as np
import pytest

from fedapps.clients import MessageStore, to_client_app
from fedapps.clients.fedboost import FedBoostClient
from fedapps.engines.inline import InlineGrid
from fedapps.strategies.aflboost import AFLBoost, AFLBoostOptions
from fedapps.strategies.fedboost import FedBoost, FedBoostOptions
from tests.ensembles import Frequencies, Tables
from tests.helpers import play, refused


def run(strategy, clients, rounds):
    client, start = lambda i: FedBoostClient(clients[i]), {"alpha": strategy.alpha}
    return play(strategy, client, len(clients), start, rounds, evaluate_every=0)


TWO = Tables([[0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize("mirror", ["entropy", "euclidean"])
def test_two_predictors_reach_the_closed_form_optimum(mirror):
    """The mixture fits frequencies (f, 1 - f) exactly at alpha_1 = (f - 0.2) / 0.7;
    here f = 0.62 from unequal clients.
    """
    clients = [Frequencies([0.8, 0.2], 30), Frequencies([0.2, 0.8], 13)]
    f = (30 * 0.8 + 13 * 0.2) / 43
    strategy = FedBoost(TWO, FedBoostOptions(budget=2, sampling="none", mirror=mirror, step=0.2))
    run(strategy, clients, 400)
    assert strategy.alpha[0] == pytest.approx((f - 0.2) / 0.7, abs=2e-3)
    assert strategy.alpha.sum() == pytest.approx(1)


def test_aflboost_reaches_the_saddle_point():
    """Two domains, pure outcomes 0 and 1, two predictors: the worst loss is least where
    both losses are equal.
    """
    clients = [Frequencies([1.0, 0.0], 90), Frequencies([0.0, 1.0], 10)]
    strategy = AFLBoost(TWO, AFLBoostOptions(budget=2, sampling="none", step=0.1, lambda_step=0.1))
    run(strategy, clients, 300)
    mixed = strategy.average @ TWO.tables
    assert mixed[0] == pytest.approx(0.5, abs=0.02)  # equal losses log 2
    standard = FedBoost(TWO, FedBoostOptions(budget=2, sampling="none", step=0.1))
    run(standard, clients, 300)
    assert -np.log(mixed).max() == pytest.approx(np.log(2), abs=0.03)
    assert max(-np.log(strategy.average @ TWO.tables)) < max(-np.log(standard.average @ TWO.tables))


def test_nothing_in_a_message_grows_with_the_library():
    def down(q):
        library = Tables(np.full((q, 4), 0.25))
        strategy = FedBoost(library, FedBoostOptions(budget=8, sampling="uniform", draw="exact"))
        client = lambda _: FedBoostClient(Frequencies(np.full(4, 0.25)))
        result = play(strategy, client, 2, {"alpha": strategy.alpha}, 2, evaluate_every=0)
        return [(r.trained.bytes_down, r.trained.bytes_up) for r in result.seen]

    assert down(16) == down(4096)


def test_repeats_are_fresh_draws_before_one_step():
    options = FedBoostOptions(budget=5, sampling="uniform", repeats=3)
    strategy = FedBoost(Tables(np.full((50, 4), 0.25)), options)
    run(strategy, [Frequencies(np.full(4, 0.25))] * 2, 1)
    assert len({tuple(ids) for ids, _ in strategy._draws}) == 3
    assert strategy.steps == 1


def test_a_gradient_of_the_wrong_length_is_skipped():
    class Short(Frequencies):
        def loss_and_gradient(self, predictors, alpha):
            loss, gradient, norms = super().loss_and_gradient(predictors, alpha)
            return loss, gradient[:-1], norms

    strategy = FedBoost(TWO, FedBoostOptions(budget=2, sampling="none", step=0.2))
    run(strategy, [Short([0.0, 1.0]), Frequencies([0.9, 0.1])], 300)
    assert strategy.alpha[0] == pytest.approx(1.0, abs=0.05)  # only the second client counts


def cached_run(cache, sampled=2, lose=lambda context: None):
    """Return alpha and bytes down of 30 rounds over three clients that keep ``cache``
    predictors.
    """
    rng = np.random.default_rng(3)
    library = Tables(rng.dirichlet(np.ones(400), 12))
    options = FedBoostOptions(budget=6, sampling="uniform", step=0.05, cache=cache)
    strategy = FedBoost(library, options, seed=1)
    data = [Frequencies(rng.dirichlet(np.ones(400)), n) for n in (5, 9, 2)]

    def client(context):
        number = context.node_config["partition-id"]
        if number == 1:
            lose(context)
        return FedBoostClient(data[number], MessageStore(context.state))

    inner, on = lambda *_: InlineGrid(to_client_app(client), 3), {"clients_per_round": sampled}
    start = {"alpha": strategy.alpha}
    rounds = play(strategy, None, 3, start, 30, inner=inner, on=on, evaluate_every=0).seen
    down = sum(now.trained.bytes_down for now in rounds)
    return strategy.alpha, down, [failure for now in rounds for failure in now.failures]


@pytest.mark.parametrize("cache", [3, 8, 12])
def test_a_cache_changes_bytes_and_nothing_else(cache):
    alpha, plain, _ = cached_run(0)
    cached, less, failures = cached_run(cache)
    np.testing.assert_array_equal(cached, alpha)
    assert not failures
    assert less < plain * {3: 0.95, 8: 0.6, 12: 0.35}[cache]


def test_a_client_that_lost_its_cache_is_sent_everything_again():
    calls = count(1)

    def lose(context):
        if next(calls) == 12:
            context.state.clear()

    _, _, failures = cached_run(12, 3, lose)
    assert [(f.client, "the predictor cache was lost" in f.reason) for f in failures] == [(1, True)]


def test_a_budget_above_the_library():
    said = "budget = 3, but the library holds 2 predictors: choose 1 to 2"
    refused(lambda: FedBoost(TWO, FedBoostOptions(budget=3)), said)


class Trains(Frequencies):
    """Sends its own frequencies, or another table, as a predictor."""

    def __init__(self, frequencies, num_examples=10, table=None):
        super().__init__(frequencies, num_examples)
        self.table = self.frequencies if table is None else table

    def train_predictor(self, config):
        return {"table": self.table}


def of_clients(**options):
    return FedBoost(lambda arrays: Tables(arrays["table"]), FedBoostOptions(**options))


@pytest.mark.slow
def test_clients_can_send_the_predictors():
    """Three clients with distributions of their own: the ensemble of the three fits
    their pooled outcomes exactly.
    """

    tables = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    clients = [Trains(table, n) for table, n in zip(tables, (50, 30, 20), strict=True)]
    strategy = of_clients(budget=3, sampling="none", step=0.2)
    run(strategy, clients, 1)
    np.testing.assert_allclose(strategy.library.tables, tables)
    assert strategy.steps == 0
    run(strategy, clients, 1500)
    np.testing.assert_allclose(strategy.alpha, [0.5, 0.3, 0.2], atol=0.01)
    again = of_clients(budget=3)
    again.load_state_dict(strategy.state_dict())
    np.testing.assert_allclose(again.library.tables, tables)


def test_fewer_predictors_than_the_budget_are_all_sent():
    strategy = of_clients(budget=30, sampling="uniform")
    run(strategy, [Trains([0.5, 0.5]), Trains([0.9, 0.1])], 3)
    assert strategy.budget == strategy.steps == 2


@pytest.mark.parametrize("other", [np.full(4, 0.25), np.full(3, 0.4), np.array([1.1, -0.1, 0.0])])
def test_a_predictor_of_another_shape_or_no_density_is_skipped(other):
    tables = [np.full(3, 0.25), other, np.full(3, 0.25)]
    run(strategy := of_clients(budget=2), [Trains([1, 0, 0], table=table) for table in tables], 1)
    assert strategy.library.q == 2


def test_the_sent_weights_are_unbiased_and_the_output_is_the_running_average():
    """The sent weights are alpha_k / gamma_k; alpha^A is the mean of alpha_1 to
    alpha_T.
    """
    rng, alphas = np.random.default_rng(1), []
    library = Tables(rng.dirichlet(np.ones(5), 6))
    strategy = FedBoost(library, FedBoostOptions(budget=3, sampling="uniform", step=0.1))

    class Spy(FedBoostClient):
        def fit(self, parameters, config):
            ids, alpha, table = parameters
            np.testing.assert_allclose(alpha, strategy.alpha[ids] / 0.5)
            np.testing.assert_array_equal(table, library.tables[ids])
            alphas.append(strategy.alpha.copy())
            return super().fit(parameters, config)

    client = lambda i: Spy(Frequencies(rng.dirichlet(np.ones(5))))
    result = play(strategy, client, 1, {"alpha": strategy.alpha}, 20, evaluate_every=0)
    assert not any(now.failures for now in result.seen)
    assert len(alphas) == 20
    np.testing.assert_allclose(strategy.average, np.mean(alphas, axis=0))
