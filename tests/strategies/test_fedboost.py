"""FedBoost and AFLBoost through real messages: optimum, saddle point, traffic, faults,
single rounds by hand, and that a draw alone changes no weight.
"""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from fedapps.clients import FedBoostClient, MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import AFLBoost, AFLBoostOptions, ClientGrid, FedBoost, FedBoostOptions
from fedapps.strategies.families.predictor_replies import best_for_all
from tests.ensembles import Frequencies, Tables
from tests.helpers import assert_arrays, play, refused, simulate, that_fails


def run(strategy, clients, rounds):
    client, start = lambda i: FedBoostClient(clients[i]), {"alpha": strategy.alpha}
    return play(strategy, client, len(clients), start, rounds, evaluate_every=0)


TWO = Tables([[0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize("mirror", ["entropy", "euclidean"])
def test_two_predictors_reach_the_closed_form_optimum(mirror):
    """The mixture fits frequencies (f, 1 - f) exactly at alpha_1 = (f - 0.2) / 0.7;
    here f = 0.62 from unequal clients.
    """
    strategy = FedBoost(TWO, FedBoostOptions(budget=2, sampling="none", mirror=mirror, step=0.2))
    run(strategy, [Frequencies([0.8, 0.2], 30), Frequencies([0.2, 0.8], 13)], 400)
    assert (strategy.alpha[0], strategy.alpha.sum()) == (
        pytest.approx(((30 * 0.8 + 13 * 0.2) / 43 - 0.2) / 0.7, abs=0.002),
        pytest.approx(1),
    )


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
        strategy = FedBoost(
            Tables(np.full((q, 4), 0.25)),
            FedBoostOptions(budget=8, sampling="uniform", draw="exact"),
        )
        client = lambda _: FedBoostClient(Frequencies(np.full(4, 0.25)))
        result = play(strategy, client, 2, {"alpha": strategy.alpha}, 2, evaluate_every=0)
        return [(r.trained.bytes_down, r.trained.bytes_up) for r in result.seen]

    assert down(16) == down(4096)


def test_repeats_are_fresh_draws_before_one_step():
    strategy = FedBoost(
        Tables(np.full((50, 4), 0.25)), FedBoostOptions(budget=5, sampling="uniform", repeats=3)
    )
    run(strategy, [Frequencies(np.full(4, 0.25))] * 2, 1)
    assert len({tuple(ids) for ids, _ in strategy._draws}) == 3
    assert strategy.steps == 1


def cached_run(cache, sampled=2, lose=lambda context: None):
    """Return alpha and bytes down of 30 rounds over three clients that keep ``cache``
    predictors.
    """
    rng = np.random.default_rng(3)
    strategy = FedBoost(
        Tables(rng.dirichlet(np.ones(400), 12)),
        FedBoostOptions(budget=6, sampling="uniform", step=0.05, cache=cache),
        seed=1,
    )
    data = [Frequencies(rng.dirichlet(np.ones(400)), n) for n in (5, 9, 2)]

    def client(context):
        number = context.node_config["partition-id"]
        if number == 1:
            lose(context)
        return FedBoostClient(data[number], MessageStore(context.state))

    inner, on = lambda *_: InlineGrid(to_client_app(client), 3), {"clients_per_round": sampled}
    rounds = play(
        strategy, None, 3, {"alpha": strategy.alpha}, 30, inner=inner, on=on, evaluate_every=0
    ).seen
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


# --- single rounds --------------------------------------------------------------------


def watched(strategy, clients, rounds=1, failing=(), **options):
    """Run the strategy; return (round, client, ids) of every message that was
    answered.
    """
    sent = []

    class Client(FedBoostClient):
        def __init__(self, data, number):
            super().__init__(data)
            self.number = number

        def fit(self, parameters, config):
            sent.append((config["server-round"], self.number, parameters[0]))
            return super().fit(parameters, config)

    def client(context):
        k = context.node_config["partition-id"]
        return that_fails(FedBoostClient)(clients[k]) if k in failing else Client(clients[k], k)

    grid = ClientGrid(InlineGrid(to_client_app(client), len(clients)), **options)
    simulate(
        strategy, None, len(clients), {"alpha": strategy.alpha}, rounds, grid=grid, evaluate_every=0
    )
    return sent


LIBRARY = Tables(np.random.default_rng(5).dirichlet(np.ones(4), 6))
SAME = Tables(np.tile([0.4, 0.3, 0.2, 0.1], (6, 1)))
CLIENTS = [
    Frequencies(f, n)
    for f, n in (([0.7, 0.1, 0.1, 0.1], 30), ([0.1, 0.2, 0.3, 0.4], 10), ([0, 0, 0.5, 0.5], 5))
]


class Squared(Frequencies):
    """The same client under the squared loss."""

    def loss_and_gradient(self, predictors, alpha):
        table = predictors["table"]
        mixed = alpha @ table
        loss = mixed @ mixed - 2 * mixed @ self.frequencies + 1
        return float(loss), 2 * table @ (mixed - self.frequencies), (table**2).sum(1)


class Log(Frequencies):
    """A client of the log loss as the contract has it: no norms."""

    def loss_and_gradient(self, predictors, alpha):
        loss, gradient, norms = super().loss_and_gradient(predictors, alpha)
        return loss, gradient, 0 * norms


@pytest.mark.parametrize("gradient", ["sampled", "unbiased"])
def test_the_one_good_predictor_is_found_among_bad_ones(gradient):
    """One of six fits the clients; five predict outcomes that never occur. The paper's
    gradient ends on a bad one with some seeds.
    """
    truth = np.array([0.55, 0.25, 0.15, 0.05])
    wrong = np.tile([0.02, 0.02, 0.06, 0.9], (5, 1))
    library = Tables(np.vstack([wrong[:3], truth, wrong[3:]]))
    for seed in range(2):
        strategy = FedBoost(
            library, FedBoostOptions(budget=3, step=0.1, gradient=gradient), seed=seed
        )
        watched(strategy, [Log(truth)], 100)
        assert strategy.alpha.argmax() == 3
        assert strategy.alpha[3] > 0.8


# --- predictors that are all the same hold no information -----------------------------


@pytest.mark.parametrize("gradient", ["sampled", "unbiased"])
@pytest.mark.parametrize("sampling", ["weighted", "uniform"])
@pytest.mark.parametrize("mirror", ["entropy", "euclidean"])
def test_the_weights_of_equal_predictors_do_not_change(gradient, sampling, mirror):
    options = {"budget": 3, "gradient": gradient, "sampling": sampling, "mirror": mirror}
    options |= {"step": 0.5, "repeats": 2}
    clients = [Log(c.frequencies, c.num_examples) for c in CLIENTS]
    for strategy in (
        FedBoost(SAME, FedBoostOptions(**options)),
        AFLBoost(SAME, AFLBoostOptions(**options, lambda_step=0.3)),
    ):
        watched(strategy, clients, 8, failing=(2,), clients_per_round=2)
        assert strategy.steps == 8
        np.testing.assert_allclose(strategy.alpha, 1 / 6, atol=1e-9)


def test_with_the_papers_gradient_every_drawn_predictor_gains_weight():
    strategy = FedBoost(SAME, FedBoostOptions(budget=3, step=0.5, centred=False))
    drawn = np.isin(np.arange(6), watched(strategy, CLIENTS[:1])[0][2])
    assert 0 < drawn.sum() < 6
    assert strategy.alpha[drawn].min() > 1 / 6 > strategy.alpha[~drawn].max()


def test_the_squared_loss_is_not_centred():
    """The mean of its corrected gradient is the full gradient already."""
    clients = [Squared(c.frequencies, c.num_examples) for c in CLIENTS]
    ends = []
    for centred in (True, False):
        options = FedBoostOptions(budget=3, centred=centred, gradient="unbiased", step=0.1)
        watched(strategy := FedBoost(LIBRARY, options, loss="squared"), clients, 5)
        ends.append(strategy.alpha)
    np.testing.assert_array_equal(*ends)


ONE = FedBoostOptions(budget=1, draw="exact")


@pytest.mark.parametrize(
    ("library", "options", "loss", "message"),
    [
        (
            TWO,
            FedBoostOptions(budget=3),
            "log",
            "budget = 3, but the library holds 2 predictors: choose 1 to 2",
        ),
        (
            LIBRARY,
            ONE,
            "log",
            "budget = 1, draw = exact, centred = true: .*choose a budget of 2 or more",
        ),
        (LIBRARY, FedBoostOptions(), "l2", "loss = 'l2'"),
    ],
)
def test_what_fedboost_cannot_do_is_refused(library, options, loss, message):
    refused(lambda: FedBoost(library, options, loss=loss), message)


def test_one_predictor_per_message_is_possible_without_centring():
    assert FedBoost(LIBRARY, replace(ONE, centred=False)).budget == 1
    assert FedBoost(LIBRARY, ONE, loss="squared").budget == 1


# --- rounds by hand: not every client is asked, one does not answer -------------------


def by_hand(sent, rounds, worst_case, loss, step, lambda_step):
    """Return alpha and lambda after rounds in which ``sent`` were answered, and the
    means of what they were in these rounds; entropy, C = 3 of 6, weighted draws,
    gradient unbiased.
    """
    alpha, lambda_ = np.full(6, 1 / 6), np.full(3, 1 / 3)
    alphas, lambdas = [], []
    for now in range(1, rounds + 1):
        alphas.append(alpha)
        lambdas.append(lambda_)
        answered = [k for of_round, k, _ in sent if of_round == now]
        ids = next(ids for of_round, _, ids in sent if of_round == now)
        gamma, tables = np.clip(3 * alpha, 1e-3, 1), LIBRARY.tables
        at = alpha[ids] / gamma[ids]
        s, h = at.sum(), at @ tables[ids]
        delta, rise = np.zeros(6), np.zeros(3)
        for k in answered:
            f, m = CLIENTS[k].frequencies, sum(CLIENTS[j].num_examples for j in answered)
            scale = 3 / len(answered)  # domains over those that were seen
            share = lambda_[k] * scale if worst_case else CLIENTS[k].num_examples / m
            for one in ids:
                if loss == "squared":
                    own = alpha[one] * (tables[one] @ tables[one]) * (1 / gamma[one] - 1)
                    slope = 2 * ((h - f) @ tables[one] - own) / gamma[one]
                else:
                    slope = (1 / s - f @ (tables[one] / h)) / gamma[one]
                delta[one] += share * slope
            rise[k] = scale * (h @ h - 2 * h @ f + 1 if loss == "squared" else -f @ np.log(h / s))
        alpha = alpha * np.exp(-step * delta)
        alpha /= alpha.sum()
        if worst_case:
            lambda_ = lambda_ * np.exp(lambda_step * rise)
            lambda_ /= lambda_.sum()
    return alpha, lambda_, np.mean(alphas, axis=0), np.mean(lambdas, axis=0)


@pytest.mark.parametrize(
    "asked",
    [{"clients_per_round": 2}, {"failing": (1,)}, {"clients_per_round": 2, "failing": (0,)}],
    ids=["two of three", "one fails", "both"],
)
@pytest.mark.parametrize("loss", ["log", "squared"])
@pytest.mark.parametrize("kind", [FedBoost, AFLBoost])
def test_three_rounds_by_hand(kind, loss, asked):
    options = {"budget": 3, "gradient": "unbiased", "step": 0.3}
    clients = [(Log if loss == "log" else Squared)(c.frequencies, c.num_examples) for c in CLIENTS]
    worst = kind is AFLBoost
    chosen = AFLBoostOptions(**options, lambda_step=0.4) if worst else FedBoostOptions(**options)
    strategy = kind(LIBRARY, chosen, seed=2, loss=loss)
    sent = watched(strategy, clients, 3, **asked)
    # never all three
    assert {len([1 for r, *_ in sent if r == now]) for now in (1, 2, 3)} <= {1, 2}
    alpha, lambda_, average, lambda_average = by_hand(sent, 3, worst, loss, 0.3, 0.4)
    assert_arrays([strategy.alpha, strategy.average], [alpha, average], rtol=1e-9)
    if worst:
        order = [strategy.domains.index(k) for k in range(3)]
        found = strategy.lambda_[order], strategy.lambda_average[order]
        assert_arrays(found, [lambda_, lambda_average], rtol=1e-9)


# --- liars ----------------------------------------------------------------------------


def lying(kind, change):
    class Liar(kind):
        def loss_and_gradient(self, predictors, alpha):
            return change(alpha, *super().loss_and_gradient(predictors, alpha))

    return Liar(CLIENTS[1].frequencies, CLIENTS[1].num_examples)


LIES = {
    "an entry above 0": (Log, lambda a, loss, g, n: (loss, np.r_[0.1, g[1:]], n)),
    "more than all weight": (Log, lambda a, loss, g, n: (loss, g - 0.1 / a.sum(), n)),
    "longer than any": (Squared, lambda a, loss, g, n: (loss, g - 2.1 * (a.sum() + 1), n)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_gradient_of_no_samples_counts_as_no_reply(lie):
    kind, change = LIES[lie]
    clients = [kind(c.frequencies, c.num_examples) for c in CLIENTS]
    loss = "squared" if kind is Squared else "log"
    alphas = []
    for second, failing in ((lying(kind, change), ()), (clients[1], (1,)), (clients[1], ())):
        strategy = FedBoost(LIBRARY, FedBoostOptions(budget=3, step=0.3), seed=2, loss=loss)
        watched(strategy, [clients[0], second, clients[2]], 3, failing=failing)
        alphas.append(strategy.alpha)
    np.testing.assert_array_equal(alphas[0], alphas[1])
    assert not np.allclose(alphas[1], alphas[2], atol=1e-6)


def test_aflboost_takes_no_loss_for_more_than_five_times_the_median():
    lambdas = []
    for lie in (1e14, 30.0):
        liar = lying(Log, lambda a, loss, g, n, lie=lie: (lie, g, n))
        strategy = AFLBoost(LIBRARY, AFLBoostOptions(budget=3, lambda_step=0.2), seed=2)
        watched(strategy, [CLIENTS[0], liar, CLIENTS[2]])
        lambdas.append(strategy.lambda_)
    np.testing.assert_allclose(*lambdas)
    assert 1 / 3 < lambdas[0][1] < 0.7


# --- the rival: one predictor for all clients -----------------------------------------


def test_the_best_single_predictor_is_chosen_by_the_training_losses_of_all_clients():
    """Predictor 1 is best by the weighted losses (0.3), though 2 has the best accuracy;
    lists of another length are ignored.
    """
    few = {
        "num-examples": 10,
        "single-train-loss": [0.1, 0.3, 2.0],
        "single-accuracy": [0.9, 0.6, 1.0],
    }
    many = {
        "num-examples": 90,
        "single-train-loss": [0.45, 0.3, 0.4],
        "single-accuracy": [0.1, 0.8, 1.0],
    }
    odd = {"num-examples": 10**6, "single-train-loss": [0.0, 9.0], "single-accuracy": [1.0, 0.0]}
    wanted = {"pooled-single": 1.0, "pooled-single-accuracy": pytest.approx(0.7)}
    assert best_for_all([few, many, odd, {"num-examples": 5}], "num-examples") == wanted
    assert best_for_all([{"num-examples": 5, "single-train-loss": 0.3}], "num-examples") == {}
