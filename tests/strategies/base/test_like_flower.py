"""A stranger changes one import: our FedAvg and Flower's, side by side on the same
grid, say and return the same.
"""

import logging
import re
from itertools import count

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg as FlowerFedAvg,
    Strategy,
)

from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AAggFFD,
    ClientGrid,
    FedAvg,
    FedDyn,
    FedFW,
    FedProx,
    PropFair,
    Robust,
    RobustOptions,
    Scaffold,
    SuPerFed,
    SuPerFedOptions,
    WarmStart,
    run_rounds,
)
from fedapps.strategies.base.named_grid import Exchange, Failure
from fedapps.strategies.base.rounds import usable
from tests.helpers import START, EchoClient, arrays_of, assert_arrays, play, refused, simulate
from tests.strangers import Unruly, stranger

SENT = ArrayRecord({"w": Array(START["w"])})
MINIMA = {"min_train_nodes": 2, "min_evaluate_nodes": 2, "min_available_nodes": 2}


class Uneven(EchoClient):
    """Client i counts i + 1 times; client 1 fails in round 2."""

    def __init__(self, i):
        super().__init__(0.5 * (i + 1), i + 1)
        self.i = i

    def fit(self, parameters, config):
        if self.i == 1 and config["server-round"] == 2:
            raise RuntimeError("the disk of site 1 is full")
        arrays, n, metrics = super().fit(parameters, config)
        return arrays, n, {**metrics, "curve": [float(self.i), config["rate"]]}


def run(strategy, caplog, evaluate_fn=None, rounds=3, **options):
    """Return the Result and the facts of the log: no durations, no empty lines, no
    branches of Flower's tree.
    """
    app = to_client_app(lambda context: Uneven(int(context.node_config["partition-id"])))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(
            InlineGrid(app, 3),
            SENT,
            rounds,
            train_config=ConfigRecord({"rate": 0.25}),
            evaluate_config=ConfigRecord({"topic": "digits"}),
            evaluate_fn=evaluate_fn,
            **options,
        )
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    lines = (
        re.sub(r"\d+\.\d+s$", "... s", re.sub(r"^[\s│├└─>]+", "", line)).strip() for line in said
    )
    return result, [line for line in lines if line]


def score(server_round, arrays):
    return MetricRecord({"w": float(arrays["w"].numpy()[0])}) if server_round != 2 else None


@pytest.mark.parametrize("evaluate_fn", [None, score])
@pytest.mark.parametrize("fraction_evaluate", [1.0, 0.0])
def test_the_result_is_flowers(evaluate_fn, fraction_evaluate, caplog):
    options = {**MINIMA, "fraction_evaluate": fraction_evaluate}
    theirs, _ = run(FlowerFedAvg(**options), caplog, evaluate_fn)
    ours, _ = run(FedAvg(**options), caplog, evaluate_fn)
    np.testing.assert_allclose(arrays_of(ours)["w"], arrays_of(theirs)["w"], rtol=1e-6)
    for part in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        one, other = (getattr(result, part) for result in (ours, theirs))
        assert one.keys() == other.keys()
        for number, metrics in one.items():
            assert_arrays(metrics, other[number], rtol=1e-6)
    assert list(ours.evaluate_metrics_serverapp) == ([0, 1, 3] if evaluate_fn else [])


NUMBER = re.compile(r"\d+\.\d+(?:e[+-]\d+)?")


def alike(line, other):
    """Compare two lines, their decimal fractions to rounding."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (line, other)]
    return NUMBER.sub("#", line) == NUMBER.sub("#", other) and numbers[0] == pytest.approx(
        numbers[1]
    )


def test_the_log_says_what_flowers_says_in_its_order(caplog):
    _, theirs = run(FlowerFedAvg(**MINIMA), caplog, score)
    _, ours = run(FedAvg(**MINIMA), caplog, score)
    rest = iter(ours)
    for line in theirs:
        # ours names the client beside the reason, as a warning
        if not line.startswith("Received error in reply"):
            assert any(alike(line, own) for own in rest), (
                f"{line!r} is missing, or not in its place, among {ours}"
            )
    assert sum("results and" in line for line in ours) == 6
    assert "aggregate_train: Received 2 results and 1 failures" in ours


def test_flowers_own_strategy_in_our_loop_counts_a_round_once(caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        play(FedAdam(), lambda _: EchoClient(1.0), 3, START)
    assert sum("aggregate_train: Received 3 results" in line for line in caplog.messages) == 1


def test_what_a_strategy_changes_in_the_configuration_stays_as_in_flowers_loop():
    """Flower's documentation halves a learning rate in ``configure_train`` every few
    rounds.
    """

    class Halving(FlowerFedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["rate"] *= 0.5
            return super().configure_train(server_round, arrays, config, grid)

    for loop in (run_rounds, FlowerFedAvg.start):
        seen = []
        client = EchoClient(1.0, heard=lambda config, seen=seen: seen.append(config["rate"]))
        grid = InlineGrid(to_client_app(lambda context, client=client: client), 1)
        loop(
            Halving(**dict.fromkeys(MINIMA, 1)),
            grid,
            SENT,
            3,
            train_config=ConfigRecord({"rate": 1.0}),
        )
        assert seen == [0.5, 0.25, 0.125]


def test_the_second_half_of_a_warm_start_is_not_sent_the_firsts_options():
    sent = []
    client = EchoClient(1.0, heard=sent.append)
    simulate(WarmStart(FedProx(), 2, FedAvg()), lambda i, _: client, 1, START, 4)
    assert ["proximal-mu" in config for config in sent] == [True, True, False, False]


# --- which nodes, how many, how weighted ----------------------------------------------


class Gathering(InlineGrid):
    """A grid to which one more node connects each time that somebody looks."""

    def __init__(self, app, num_clients):
        super().__init__(app, num_clients)
        self.looks = count(1)

    def get_node_ids(self):
        return list(self.contexts)[: next(self.looks)]


def gathering(strategy, count, rounds=1):
    """Return the rounds of strangers who come one after the other."""
    grid, seen = ClientGrid(Gathering(stranger(), count), start_timeout=30), []
    simulate(strategy, None, count, START, rounds, grid=grid, callbacks=[seen.append])
    return seen


@pytest.mark.parametrize("minimum", ["min_available_nodes", "min_train_nodes"])
def test_a_run_that_asks_for_eight_hospitals_waits_for_eight(minimum):
    assert [len(now.trained.clients) for now in gathering(FedAvg(**{minimum: 8}), 8, 2)] == [8, 8]


def test_in_flowers_own_loop_the_nodes_are_counted_after_the_wait():
    """Flower's own FedAvg counts first, and then samples one of two."""
    config, strategy = ConfigRecord({"server-round": 1}), FedAvg(min_available_nodes=2)
    assert len(strategy.configure_train(1, SENT, config, Gathering(stranger(), 2))) == 2


@pytest.mark.parametrize("kind", [Scaffold, FedDyn])
def test_who_is_waited_for_is_counted_in_the_first_round(kind):
    """These two ask how many clients there are before they sample: the server steps by
    the share that answers.
    """
    strategy = kind(min_available_nodes=8, fraction_evaluate=0)
    gathering(strategy, 8)
    assert strategy._num_clients == 8


def test_a_run_that_asks_for_more_evaluating_clients_than_it_trains_waits_for_them():
    (now,) = gathering(FedAvg(min_evaluate_nodes=20), 20)
    assert len(now.evaluated.clients) == 20


@pytest.mark.parametrize(
    ("strategy", "nodes", "on", "said", "error"),
    [
        (
            FedAvg(min_available_nodes=8),
            3,
            {"start_timeout": 0.1},
            r"3 of 8 clients connected within 0\.1 s: .* min_available_nodes",
            TimeoutError,
        ),
        *(
            (kind(**options), 8, {"clients_per_round": 5}, said, ValueError)
            for kind, options, said in [
                (FedAvg, {"fraction_train": 0.5}, "clients_per_round = 5"),
                (FedAvg, {"min_train_nodes": 6}, "clients_per_round = 5"),
                (FlowerFedAvg, {"fraction_train": 0.5}, "clients_per_round = 5"),
                (FlowerFedAvg, {"min_train_nodes": 6}, "clients_per_round = 5"),
                # it would wait for ever
                (
                    FlowerFedAvg,
                    {"min_available_nodes": 8},
                    "min_available_nodes = 8 .*num_clients = 8",
                ),
            ]
        ),
    ],
)
def test_missing_nodes_and_two_answers_to_how_many_clients_train_are_named(
    strategy, nodes, on, said, error
):
    grid = ClientGrid(InlineGrid(stranger(), nodes), **on)
    refused(lambda: run_rounds(strategy, grid, SENT, 1), said, error)


def test_ours_waits_for_more_than_it_samples():
    inner, on = lambda *_: InlineGrid(stranger(), 8), {"clients_per_round": 5}
    (now,) = play(FedAvg(min_available_nodes=8), None, 8, START, inner=inner, on=on).seen
    assert len(now.trained.clients) == 5


def test_training_and_evaluation_are_different_draws():
    rounds = play(
        FedAvg(fraction_train=0.5, fraction_evaluate=0.5), lambda _: EchoClient(1.0), 10, START, 6
    ).seen
    assert all(len(now.trained.clients) == len(now.evaluated.clients) == 5 for now in rounds)
    assert sum(now.trained.clients == now.evaluated.clients for now in rounds) <= 1


def test_no_training_means_no_training():
    result = play(FedAvg(fraction_train=0.0), lambda _: EchoClient(1.0), 4, START, 2)
    assert [now.trained.clients for now in result.seen] == [[], []]
    assert list(result.evaluate_metrics_clientapp) == [1, 2]
    np.testing.assert_allclose(arrays_of(result)["w"], 0.0)


def test_under_flowers_own_loop_the_fraction_counts_too():
    """Flower's wrapper starts its own loop, on a grid without client ids."""
    inner = FedAvg(fraction_train=0.5, fraction_evaluate=0.25)
    grid = Unruly(to_client_app(lambda context: EchoClient(1.0)), 8)
    simulate(
        DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e9, 4), None, 8, START, 1, grid=grid
    )
    assert [len(sent) for sent, _ in grid.exchanged] == [4, 2]


@pytest.mark.parametrize("kind", [FedAvg, FlowerFedAvg])
def test_the_keys_of_the_records_and_of_the_weight(kind):
    keys = {"weighted_by_key": "n", "arrayrecord_key": "model", "configrecord_key": "settings"}
    result = run_rounds(
        kind(**MINIMA, **keys), InlineGrid(stranger("n", "model", "settings"), 3), SENT, 1
    )
    np.testing.assert_allclose(arrays_of(result)["w"], (1 + 4 + 9) / 6, rtol=1e-6)
    assert result.evaluate_metrics_clientapp[1]["size"] == pytest.approx((1 + 4 + 9) / 6)


def test_a_weighting_wrapper_uses_the_key_of_the_strategy_inside():
    client = lambda i, _: EchoClient(float(i), metrics={"loss-before": 1.0, "mass": 3})
    result = simulate(
        AAggFFD(FedAvg(weighted_by_key="mass", fraction_evaluate=0)), client, 3, START, 1
    )
    np.testing.assert_allclose(arrays_of(result)["w"], 1.0, rtol=1e-6)


@pytest.mark.parametrize("kind", [FedAvg, Scaffold, FedAdam, FedDyn])
def test_arrays_in_another_order_are_matched_by_name(kind):
    """Two arrays of one shape: by position they would be exchanged without a word."""

    def moved(order):
        app = ClientApp()

        @app.train()
        def train(message, context):
            sent = message.content["arrays"]
            new = {
                name: Array(sent[name].numpy() + np.float32(name[-1] == "a"))
                for name in order(list(sent))
            }
            return Message(
                RecordDict({"arrays": ArrayRecord(new), "m": MetricRecord({"num-examples": 1})}),
                reply_to=message,
            )

        start = ArrayRecord(
            {"a": Array(np.zeros(2, np.float32)), "b": Array(np.full(2, 5, np.float32))}
        )
        return arrays_of(run_rounds(kind(fraction_evaluate=0), InlineGrid(app, 2), start, 2))

    straight, reversed_ = moved(list), moved(lambda names: names[::-1])
    assert list(straight) == list(reversed_) == ["a", "b"]
    for name in straight:
        np.testing.assert_array_equal(straight[name], reversed_[name])
    assert (straight["a"] > 0).all()
    np.testing.assert_array_equal(straight["b"], 5)


# --- what our loop adds ---------------------------------------------------------------


def test_evaluation_every_k_rounds_and_at_the_end():
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 2, START, 7, evaluate_every=3)
    assert list(result.evaluate_metrics_clientapp) == [3, 6, 7]
    assert result.evaluate_metrics_clientapp[3]["loss"] == 3.0  # of the model after that round
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 2, START, 7, evaluate_every=0)
    assert list(result.evaluate_metrics_clientapp) == [7]


def test_rounds_may_start_late_and_their_start_is_not_evaluated_again():
    sent, asked = [], []
    client = EchoClient(1.0, heard=sent.append)
    evaluate = {"evaluate_fn": lambda number, arrays: asked.append(number)}
    simulate(FedAvg(), lambda i, _: client, 1, START, 5, first_round=4, **evaluate)
    assert asked == [4, 5]
    assert [(one["server-round"], one["num-rounds"]) for one in sent] == [(4, 5), (5, 5)]


def test_a_callback_may_stop_the_run_and_all_callbacks_run():
    seen = []
    stop = [lambda now: now.number == 2, lambda now: seen.append(now.number)]
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 1, START, 5, callbacks=stop)
    assert seen == [1, 2]
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_should_stop_is_asked_after_each_round_with_the_result_so_far():
    asked = []

    def should_stop(number, result):
        asked.append((number, sorted(result.evaluate_metrics_clientapp), arrays_of(result)["w"][0]))
        return result.evaluate_metrics_clientapp[number]["loss"] >= 2

    client = lambda i, _: EchoClient(1.0)
    result = simulate(FedAvg(), client, 2, START, 5, should_stop=should_stop)
    assert asked == [(1, [1], 1.0), (2, [1, 2], 2.0)]
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)
    asked.clear()
    simulate(FedAvg(), client, 2, START, 5, first_round=4, should_stop=lambda *_: False)
    assert asked == []


def test_server_evaluation():
    score = lambda number, arrays: MetricRecord({"w": float(arrays["w"].numpy()[0])})
    options = {"evaluate_every": 2, "evaluate_fn": score}
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 1, START, 4, **options)
    scores = {n: m["w"] for n, m in result.evaluate_metrics_serverapp.items()}
    assert scores == {0: 0.0, 2: 2.0, 4: 4.0}


@pytest.mark.parametrize(
    ("valid", "errors", "broken", "away", "said"),
    [
        (1, 1, 0, 0, True),  # half of those that answered
        (1, 0, 1, 5, True),
        (1, 2, 0, 0, None),
        (1, 1, 1, 0, None),
        (1, 0, 2, 0, False),
        (0, 0, 1, 0, False),
        (0, 1, 0, 0, None),
        (0, 0, 0, 2, None),
    ],
)
def test_a_model_is_sound_if_half_of_those_that_answered_could_use_it(
    valid, errors, broken, away, said
):
    failures = [Failure(9, "", broken=False)] * errors + [Failure(9, "")] * broken
    failures += [Failure(9, "", answered=False, broken=False)] * away
    assert usable(Exchange("train", list(range(valid)), failures=failures)) is said


# --- loops that are not ours ----------------------------------------------------------

# Flower's own, or a subclass's `start`, as in Flower's advanced-pytorch.

ROUNDS = 4
LINE = 'train_config["num-rounds"] = num_rounds'


def sent_in(strategy, loop, **given):
    """Return the training configuration of each round in a loop."""
    heard = []
    app = to_client_app(lambda context: EchoClient(1.0, heard=lambda c: heard.append(dict(c))))
    loop(strategy, InlineGrid(app, 3), SENT, num_rounds=ROUNDS, **given)
    return heard


@pytest.mark.parametrize("make", [SuPerFed, lambda: FedFW(L1Ball((2,), 1.0))])
def test_a_missing_number_of_rounds_is_said_once_with_the_line_to_add(make, caplog):
    numbered = {"train_config": ConfigRecord({"num-rounds": ROUNDS})}
    numbered["evaluate_config"] = ConfigRecord({"num-rounds": ROUNDS})
    ours, own = sent_in(make(), type(make()).start), sent_in(make(), Strategy.start, **numbered)
    assert LINE not in caplog.text
    differ = {
        key for one, other in zip(ours, own, strict=True) for key in one if one[key] != other[key]
    }
    assert differ == set()
    without = sent_in(make(), Strategy.start)
    assert [{**one, "num-rounds": ROUNDS} for one in without] != ours or make is not SuPerFed
    assert caplog.text.count(LINE) == 1
    assert "start" not in caplog.text.split(LINE)[1].splitlines()[0]  # a subclass has its own


def test_the_number_of_rounds_need_not_be_said_twice(caplog):
    """Sent with the training, it holds for the evaluation."""
    strategy, given = SuPerFed(), ConfigRecord({"num-rounds": ROUNDS})
    sent_in(strategy, Strategy.start, train_config=given)
    assert LINE not in caplog.text
    assert strategy.rounds_in(ConfigRecord(), 1) == ROUNDS
    # and it is still heard who does the client half
    assert "do not acknowledge its client half" in caplog.text


class Failing(EchoClient):
    def fit(self, parameters, config):
        raise RuntimeError("out of reach")

    def evaluate(self, parameters, config):
        raise RuntimeError("not scored")


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(),
        SuPerFed(SuPerFedOptions(lambda_choice="own")),
        AAggFFD(FedAvg()),
        PropFair(FedAvg()),
        Robust(FedAvg(), RobustOptions(rule="median")),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_client_that_fails_is_named_in_any_loop(strategy, caplog):
    """Once a phase; in our own loop, it is named there."""
    sound, fails = (kind(1.0, metrics={"loss-before": 1.0}) for kind in (EchoClient, Failing))
    app = to_client_app(lambda c: fails if c.node_config["partition-id"] == 1 else sound)
    for loop in (Strategy.start, type(strategy).start):
        caplog.clear()
        configs = {f"{p}_config": ConfigRecord({"num-rounds": 1}) for p in ("train", "evaluate")}
        loop(strategy, InlineGrid(app, 3), SENT, num_rounds=1, **configs)
        warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        named = [text for text in warned if "out of reach" in text or "not scored" in text]
        assert len(named) == 2, named
        assert all("1" in text for text in named)


class Broken(EchoClient):
    """Client 1 sends ``weights`` and ``metrics``; every other reply is sound."""

    def __init__(self, number, weights, metrics):
        super().__init__(1.0, metrics={"loss-before": 1.0, "rows": 1})
        self.broken, self.weights = number == 1, weights
        self.metrics = metrics if self.broken else self.metrics

    def fit(self, parameters, config):
        arrays, samples, metrics = super().fit(parameters, config)
        return self.weights if self.broken else arrays, samples, metrics

    def evaluate(self, parameters, config):
        return 1.0, 1, {"rows": 1, "score": float("nan") if self.broken else 0.5}


GOOD, BAD = np.ones(2, np.float32), np.array([1, np.nan], np.float32)


@pytest.mark.parametrize(
    ("weights", "metrics", "fault"),
    [
        (BAD, {"rows": 1}, "array '0' holds values that are not finite"),
        (np.ones(3, np.float32), {"rows": 1}, "array '0' has shape (3,), but (2,) was sent"),
        (GOOD, {}, "the reply has no 'rows' metric"),
        (GOOD, {"rows": 0}, "rows = 0: must be a number above 0"),
        (GOOD, {"rows": 1, "gain": float("inf")}, "metric 'gain' is not finite"),
    ],
    ids=["nan", "shape", "no weight", "weight 0", "metric"],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda inner: inner,
        AAggFFD,
        PropFair,
        lambda inner: Robust(inner, RobustOptions(rule="median")),
    ],
    ids=["FedAvg", "AAggFFD", "PropFair", "Robust"],
)
@pytest.mark.parametrize("named", [False, True], ids=["plain grid", "client grid"])
def test_a_broken_reply_is_named_and_left_out_in_any_loop(
    around, weights, metrics, fault, named, caplog
):
    """Unchecked, one client's NaN is everybody's model, in silence. The others' metrics
    stay.
    """
    app = to_client_app(lambda c: Broken(c.node_config["partition-id"], [weights], metrics))
    inline, strategy = InlineGrid(app, 3), around(FedAvg(weighted_by_key="rows"))
    grid = ClientGrid(inline, seed=0) if named else inline
    result = Strategy.start(strategy, grid, ArrayRecord([np.zeros(2, np.float32)]), num_rounds=1)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [1, 1]
    (said,) = [line for line in caplog.messages if "left out:" in line]
    culprit = "client 1" if named else "node 1001"
    assert f"{culprit} left out: {fault}" in said
    assert (
        result.train_metrics_clientapp[1]["loss"],
        result.evaluate_metrics_clientapp[1]["score"],
    ) == (1, 0.5)
    assert "metric 'score' is not a number, and left out of the mean" in caplog.text
