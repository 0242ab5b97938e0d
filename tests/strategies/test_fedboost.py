"""FedBoost and AFLBoost through real messages: optimum, saddle point, traffic, faults,
saved state.
"""

import numpy as np
import pytest

from fedapps.clients import MessageStore, to_client_app
from fedapps.clients.fedboost import FedBoostClient
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid
from fedapps.strategies.aflboost import AFLBoost, AFLBoostOptions
from fedapps.strategies.fedboost import FedBoost, FedBoostOptions
from tests.ensembles import Frequencies, Tables
from tests.helpers import play, simulate


def run(strategy, clients, rounds, grid=None, **options):
    app = to_client_app(lambda c: FedBoostClient(clients[c.node_config["partition-id"]]))
    grid = ClientGrid(grid(app, len(clients)) if grid else InlineGrid(app, len(clients)), **options)
    return simulate(
        strategy, None, len(clients), {"alpha": strategy.alpha}, rounds, grid=grid, evaluate_every=0
    )


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


@pytest.mark.slow
def test_sampled_predictors_approach_the_optimum_too():
    rng = np.random.default_rng(0)
    library = Tables(rng.dirichlet(np.full(6, 0.3), 5) * 0.95 + 0.05 / 6)
    truth = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    client = Frequencies(truth @ library.tables)
    losses = {}
    for sampling in ("none", "uniform"):
        strategy = FedBoost(
            library, FedBoostOptions(budget=3, sampling=sampling, step=0.02, gradient="sampled")
        )
        run(strategy, [client], 800)
        losses[sampling] = client.score({"table": library.tables}, strategy.alpha)["loss"]
    best = client.score({"table": library.tables}, truth)["loss"]
    uniform = client.score({"table": library.tables}, np.full(5, 0.2))["loss"]
    assert best < losses["none"] < uniform
    assert losses["none"] - best < 0.1 * (uniform - best)
    assert losses["uniform"] < 0.5 * (uniform + best)


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
    strategy = FedBoost(
        Tables(np.full((50, 4), 0.25)), FedBoostOptions(budget=5, sampling="uniform", repeats=3)
    )
    run(strategy, [Frequencies(np.full(4, 0.25))] * 2, 1)
    draws = [tuple(ids) for ids, _ in strategy._draws]
    assert len(set(draws)) == 3
    assert strategy.steps == 1


def test_a_gradient_of_the_wrong_length_is_skipped():
    class Short(Frequencies):
        def loss_and_gradient(self, predictors, alpha):
            loss, gradient, norms = super().loss_and_gradient(predictors, alpha)
            return loss, gradient[:-1], norms

    strategy = FedBoost(TWO, FedBoostOptions(budget=2, sampling="none", step=0.2))
    run(strategy, [Short([0.0, 1.0]), Frequencies([0.9, 0.1])], 300)
    assert strategy.alpha[0] == pytest.approx(1.0, abs=0.05)  # only the second client counts


def cached_run(cache, clients_per_round=2, lose=None):
    """Return alpha and bytes down of 30 rounds over three clients that keep ``cache``
    predictors.
    """
    rng = np.random.default_rng(3)
    library = Tables(rng.dirichlet(np.ones(400), 12))
    strategy = FedBoost(
        library, FedBoostOptions(budget=6, sampling="uniform", step=0.05, cache=cache), seed=1
    )
    data = [Frequencies(rng.dirichlet(np.ones(400)), n) for n in (5, 9, 2)]

    def client(context):
        if lose and context.node_config["partition-id"] == 1:
            lose(context)
        return FedBoostClient(
            data[context.node_config["partition-id"]], MessageStore(context.state)
        )

    rounds = []
    grid = ClientGrid(InlineGrid(to_client_app(client), 3), clients_per_round=clients_per_round)
    simulate(
        strategy,
        None,
        3,
        {"alpha": strategy.alpha},
        30,
        grid=grid,
        evaluate_every=0,
        callbacks=[rounds.append],
    )
    return (
        strategy.alpha,
        sum(r.trained.bytes_down for r in rounds),
        [f for r in rounds for f in r.failures],
    )


@pytest.mark.parametrize("cache", [3, 8, 12])
def test_a_cache_changes_bytes_and_nothing_else(cache):
    alpha, plain, _ = cached_run(0)
    cached, less, failures = cached_run(cache)
    np.testing.assert_array_equal(cached, alpha)
    assert not failures
    assert less < plain * {3: 0.95, 8: 0.6, 12: 0.35}[cache]


def test_a_client_that_lost_its_cache_is_sent_everything_again():
    calls = []

    def lose(context):
        calls.append(1)
        if len(calls) == 12:
            context.state.clear()

    _, _, failures = cached_run(12, clients_per_round=3, lose=lose)
    assert [(f.client, "the predictor cache was lost" in f.reason) for f in failures] == [(1, True)]


def test_a_budget_above_the_library():
    with pytest.raises(
        ValueError, match=r"budget = 3, but the library holds 2 predictors: choose 1 to 2"
    ):
        FedBoost(TWO, FedBoostOptions(budget=3))


@pytest.mark.slow
def test_clients_can_send_the_predictors():
    """Three clients with distributions of their own: the ensemble of the three fits
    their pooled outcomes exactly.
    """

    class Trains(Frequencies):
        def train_predictor(self, config):
            return {"table": self.frequencies}

    tables = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    clients = [Trains(table, n) for table, n in zip(tables, (50, 30, 20), strict=True)]
    strategy = FedBoost(
        lambda arrays: Tables(arrays["table"]), FedBoostOptions(budget=3, sampling="none", step=0.2)
    )
    run(strategy, clients, 1)
    np.testing.assert_allclose(strategy.library.tables, tables)
    assert strategy.steps == 0
    run(strategy, clients, 1500)
    np.testing.assert_allclose(strategy.alpha, [0.5, 0.3, 0.2], atol=0.01)
    again = FedBoost(lambda arrays: Tables(arrays["table"]), FedBoostOptions(budget=3))
    again.load_state_dict(strategy.state_dict())
    np.testing.assert_allclose(again.library.tables, tables)


def test_fewer_predictors_than_the_budget_are_all_sent():
    class Trains(Frequencies):
        def train_predictor(self, config):
            return {"table": self.frequencies}

    strategy = FedBoost(
        lambda arrays: Tables(arrays["table"]), FedBoostOptions(budget=30, sampling="uniform")
    )
    run(strategy, [Trains([0.5, 0.5]), Trains([0.9, 0.1])], 3)
    assert strategy.budget == 2
    assert strategy.steps == 2


@pytest.mark.parametrize("other", [np.full(4, 0.25), np.full(3, 0.4), np.array([1.1, -0.1, 0.0])])
def test_a_predictor_of_another_shape_or_no_density_is_skipped(other):
    class Trains(Frequencies):
        def train_predictor(self, config):
            return {"table": np.full(3, 0.25) if self.num_examples == 10 else other}

    strategy = FedBoost(lambda arrays: Tables(arrays["table"]), FedBoostOptions(budget=2))
    run(strategy, [Trains([1, 0, 0]), Trains([1, 0, 0], 11), Trains([0, 1, 0])], 1)
    assert strategy.library.q == 2


def test_the_sent_weights_are_unbiased_and_the_output_is_the_running_average():
    """The sent weights are alpha_k / gamma_k; alpha^A is the mean of alpha_1 to
    alpha_T.
    """
    sent, alphas = [], []
    rng = np.random.default_rng(1)
    library = Tables(rng.dirichlet(np.ones(5), 6))
    strategy = FedBoost(library, FedBoostOptions(budget=3, sampling="uniform", step=0.1))

    class Spy(FedBoostClient):
        def fit(self, parameters, config):
            ids, alpha, table = parameters
            sent.append((ids, alpha, table, strategy.alpha.copy()))
            return super().fit(parameters, config)

    app = to_client_app(lambda c: Spy(Frequencies(rng.dirichlet(np.ones(5)))))
    alphas.append(strategy.alpha.copy())
    remember = lambda now: alphas.append(strategy.alpha.copy())
    grid = ClientGrid(InlineGrid(app, 1))
    simulate(
        strategy,
        None,
        1,
        {"alpha": strategy.alpha},
        20,
        grid=grid,
        evaluate_every=0,
        callbacks=[remember],
    )
    for ids, alpha, table, now in sent:
        np.testing.assert_allclose(alpha, now[ids] / 0.5)
        np.testing.assert_array_equal(table, library.tables[ids])
    np.testing.assert_allclose(strategy.average, np.mean(alphas[:20], axis=0))
