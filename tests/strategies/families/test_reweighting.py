"""The wrapper: what it passes on and refuses, which clients the weights belong to, and
the effect of faults.
"""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.averaging import weighted_average
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    AFLOptions,
    Capabilities,
    ClientGrid,
    FedAdam,
    FedAvg,
    FedProx,
    QFedAvg,
    QFedAvgOptions,
    SuPerFed,
    TERMOptions,
)
from fedapps.strategies.base.slots import Slots, pack_ids, unpack_ids
from tests.helpers import (
    START,
    EchoClient,
    LossyClient,
    arrays_of,
    assert_arrays,
    play,
    refused,
    simulate,
)

LOSSES, SHIFTS, SIZES = [0.5, 1.0, 4.0], [1.0, 2.0, 6.0], [5, 1, 2]
TILTED = np.exp(LOSSES) / np.exp(LOSSES).sum()
FREE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def client(i, _=None):
    return LossyClient(SHIFTS[i], LOSSES[i], SIZES[i])


def tilted(strategy):
    return TERM(strategy, TERMOptions(1.0))


def q_fair(strategy):
    return QFedAvg(strategy, QFedAvgOptions(q=1.0, lipschitz=1.0))


class Recording(FedAvg):
    """A third-party subclass that calls ``super``, records its arguments and declares
    its capabilities.
    """

    capabilities = FedAvg.capabilities

    def aggregate_train(self, server_round, replies):
        self.replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, self.replies)
        return arrays, {**metrics, "own": 7.0}


class FromScratch(flower.FedAvg):
    """A third-party average with declared capabilities."""

    capabilities = Capabilities("model", "weighted average")

    def aggregate_train(self, server_round, replies):
        contents = [reply.content for reply in replies]
        weights = [content["metrics"]["num-examples"] for content in contents]
        assert min(weights) > 0
        (mean,) = weighted_average(
            [[content["arrays"]["w"].numpy()] for content in contents], weights
        )
        return ArrayRecord({"w": Array(mean)}), None


@pytest.mark.parametrize(
    "strategy",
    [FedAvg, FedProx, SuPerFed, Recording] + [lambda kind=kind: kind(**FREE) for kind in (flower.FedAvg, flower.FedAvgM,
     flower.FedProx, FromScratch)],
)  # fmt: skip
def test_any_average_is_taken_with_the_decided_weights(strategy):
    result = simulate(tilted(strategy()), client, 3, START, 2)
    np.testing.assert_allclose(arrays_of(result)["w"], 2 * TILTED @ SHIFTS, rtol=1e-6)


def test_metrics_are_weighted_by_samples_and_keep_those_of_the_wrapped_strategy():
    strategy = tilted(Recording())
    result = simulate(strategy, client, 3, START, 1)
    assert result.train_metrics_clientapp[1] == {
        "loss": 1.0,
        "loss-before": pytest.approx(np.dot(SIZES, LOSSES) / sum(SIZES)),
        "own": 7.0,
        "weight-max": pytest.approx(TILTED[2]),
        "objective": pytest.approx(TILTED @ LOSSES),
    }
    assert [
        r.content["metrics"]["num-examples"] for r in strategy.strategy.replies
    ] == pytest.approx(TILTED)
    assert strategy.last_weights == pytest.approx(dict(enumerate(TILTED)))


def test_the_strategy_inside_a_flower_wrapper_is_checked():
    clip = flower.DifferentialPrivacyServerSideFixedClipping
    result = simulate(tilted(clip(flower.FedAvg(**FREE), 0.0, 1e6, 3)), client, 3, START, 1)
    np.testing.assert_allclose(arrays_of(result)["w"], TILTED @ SHIFTS, rtol=1e-5)
    refused(lambda: tilted(clip(flower.FedMedian(), 0.0, 1.0, 3)), "FedMedian does not average")


def test_under_flowers_own_start_nodes_are_their_ids():
    strategy = tilted(flower.FedAvg())
    grid = InlineGrid(to_client_app(lambda context: client(context.node_config["partition-id"])), 3)
    result = Strategy.start(strategy, grid, ArrayRecord({"w": Array(np.zeros(2, np.float32))}), 2)
    np.testing.assert_allclose(arrays_of(result)["w"], 2 * TILTED @ SHIFTS, rtol=1e-6)
    assert strategy.last_weights == pytest.approx({1000 + i: w for i, w in enumerate(TILTED)})


def test_replies_without_the_loss_are_an_error_that_names_a_client_and_a_fix():
    refused(
        lambda: simulate(tilted(FedAvg()), lambda i, _: EchoClient(1.0), 3, START, 1),
        r"client 0 \(node 1000\) has no number 'loss-before', nor has any other: return the mean",
    )


@pytest.mark.parametrize("loss", [-0.1, float("nan"), float("inf"), None])
def test_a_client_with_an_impossible_loss_is_skipped(loss, caplog):
    """Also one without a loss."""
    odd = EchoClient(SHIFTS[2]) if loss is None else LossyClient(SHIFTS[2], loss)
    strategy = tilted(FedAvg())
    result = simulate(strategy, lambda i, _: client(i) if i < 2 else odd, 3, START, 1)
    share = TILTED[:2] / TILTED[:2].sum()
    np.testing.assert_allclose(arrays_of(result)["w"], share @ SHIFTS[:2], rtol=1e-6)
    assert strategy.last_weights == pytest.approx(dict(enumerate(share)))
    assert "client 2 left out" in caplog.text


@pytest.mark.parametrize("rule", [tilted, q_fair, AAggFFS], ids=["term", "q-fedavg", "aaggff-s"])
def test_a_loss_is_at_most_five_times_the_largest_median(rule):
    """What counts of a lie is the bound, of the start although later losses are small;
    honest losses stay below it, and count as they are.
    """
    fall = {1: 2.0, 2: 0.1, 3: 0.1}

    def weights(lie):
        strategy = rule(FedAvg())
        losses = [lambda t: fall[t], lambda t: fall[t], lie]
        simulate(strategy, lambda i, _: LossyClient(SHIFTS[i], losses[i]), 3, START, 3)
        return strategy.last_weights

    assert weights(lambda t: 1e14) == weights(lambda t: 10.0) != weights(lambda t: 9.9)
    assert weights(lambda t: 9.9) != weights(lambda t: 9.8)


FAIR = {
    "afl": lambda: AFL(FedAvg(), AFLOptions(1.0)),
    "term": lambda: tilted(FedAvg()),
    "aaggff-s": lambda: AAggFFS(FedAvg()),
    "aaggff-d": lambda: AAggFFD(FedAvg()),
    "q-fedavg": lambda: QFedAvg(FedAvg(), QFedAvgOptions(q=1.0, step="average")),
}


@pytest.mark.parametrize("rule", FAIR)
@pytest.mark.parametrize("length", [0.5, 1.0, 3.0, 100.0])
def test_hardened_what_a_liar_moves_is_at_most_two_tenths_of_a_median_update(rule, length):
    """Weight times length, of ten clients. The weight has the cap as well."""
    hardened, before = FAIR[rule](), FAIR[rule]()
    hardened.harden()
    for strategy in (hardened, before):
        clients = [LossyClient(1.0, 1.0)] * 9 + [LossyClient(-length, 1e14)]
        simulate(strategy, lambda i, _: clients[i], 10, START, 20)
    assert hardened.last_weights[9] * length <= min(2.0, 3 * length) / 10 * (1 + 1e-6)
    assert sum(hardened.last_weights.values()) == pytest.approx(1)
    if length >= 1:
        assert before.last_weights[9] > hardened.last_weights[9]


@pytest.mark.parametrize("loss", [1e-9, 1e14])
def test_hardened_no_loss_stops_q_fedavg(loss):
    """The Lipschitz estimate divides by the loss: 1e-9 from one of ten would make the
    step a millionth.
    """
    fair = QFedAvg(FedAvg(), QFedAvgOptions(lipschitz=0.1))
    fair.harden()
    result = simulate(fair, lambda i, _: LossyClient(1.0, loss if i == 9 else 1.0), 10, START, 1)
    assert arrays_of(result)["w"].min() > 0.9


def test_a_round_without_a_valid_loss_keeps_the_model():
    result = simulate(
        tilted(FedAvg()),
        lambda i, _: LossyClient(1.0, lambda t: -1.0 if t == 2 else 1.0),
        2,
        START,
        3,
    )
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_a_weight_of_zero_breaks_no_average():
    """The projection leaves the first two clients exactly 0, and one of them is alone
    in reporting a metric. ``FromScratch`` refuses clients without examples.
    """
    clients = [client(i) for i in range(3)]
    clients[0].metrics = {"alone": 3.0}
    for inner in (FromScratch(**FREE), FedAvg()):
        with np.errstate(all="raise"):
            result = simulate(AFL(inner, AFLOptions(1.0)), lambda i, _: clients[i], 3, START, 1)
        np.testing.assert_array_equal(arrays_of(result)["w"], np.float32([6, 6]))
    assert result.train_metrics_clientapp[1]["alone"] == 3.0


class Shuffled(InlineGrid):
    """Returns replies in a new order every time; ``away``: disconnected nodes."""

    away = frozenset()

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        np.random.default_rng().shuffle(replies)
        return replies

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node - 1000 not in self.away]


def lossy_app(loss, shift=0.1):
    """Return an app whose client i reports ``loss(i, round)``."""

    def client_fn(context):
        i = context.node_config["partition-id"]
        return LossyClient(shift, lambda t: loss(i, t))

    return to_client_app(client_fn)


def test_without_sampling_the_order_of_replies_does_not_matter_either():
    shifts = np.random.default_rng(0).normal(size=(9, 200)).astype(np.float32)
    app = to_client_app(
        lambda c: LossyClient(shifts[k := c.node_config["partition-id"]], 1 / (1 + k))
    )
    start = ArrayRecord({"w": Array(np.zeros(200, np.float32))})
    first, *others = (
        arrays_of(Strategy.start(AAggFFS(FedAvg()), Shuffled(app, 9), start, 3))["w"]
        for _ in range(4)
    )
    for other in others:
        np.testing.assert_array_equal(other, first)


def weights_over_rounds(strategy, loss, rounds, away=lambda number: (), per_round=0):
    """Return each round's weights of six clients; ``away(round)``: those that are not
    connected.
    """
    grid, seen = Shuffled(lossy_app(loss), 6), []
    grid.away = away(1)

    def note(now):
        seen.append(dict(strategy.last_weights))
        grid.away = away(now.number + 1)

    outer = ClientGrid(grid, seed=3, clients_per_round=per_round, num_clients=6 - len(grid.away))
    simulate(
        strategy, None, 6, START, rounds, grid=outer, **{"evaluate_every": 0, "callbacks": [note]}
    )
    return seen


def rising(i, t):
    return 1 + i * (1 + t % 3)


@pytest.mark.parametrize(("after", "known"), [(2, {1, 2, 3, 4, 5}), (3, {0, 1, 2, 3, 4, 5})])
def test_an_absent_client_is_forgotten(after, known):
    """Client 4 comes in round 4, when client 0 goes."""
    strategy = AFL(FedAvg(), AFLOptions(0.01, forget_after=after))
    weights_over_rounds(strategy, rising, 6, lambda number: {4} if number < 4 else {0}, 3)
    assert set(strategy.clients) == known


def test_a_new_client_starts_at_the_mean():
    strategy = AFL(FedAvg(), AFLOptions(forget_after=0))
    grid = Shuffled(lossy_app(rising), 6)
    client_grid = ClientGrid(grid, num_clients=1)
    grid.away = {4}
    strategy._meet(client_grid, 1)
    strategy.rule.p = np.array([0.1, 0.2, 0.3, 0.3, 0.1])
    grid.away = {0}
    strategy._meet(client_grid, 2)
    assert strategy.clients == [1, 2, 3, 5, 4]
    np.testing.assert_allclose(
        strategy.rule.p, np.append((np.array([0.2, 0.3, 0.3, 0.1]) / 0.9) * 4, 1) / 5
    )
    grid.away = {1, 2, 3, 4, 5}
    strategy._meet(client_grid, 3)
    assert strategy.clients == [0]
    np.testing.assert_array_equal(strategy.rule.p, [1.0])


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD, AFL])
@pytest.mark.parametrize("rounds_away", [1, 5])
def test_a_client_that_comes_back_has_its_old_weight(kind, rounds_away):
    """The worst-served client restarts; the others' rounds without it count as if its
    response were their mean.
    """
    away = lambda number: {2} if 20 <= number < 20 + rounds_away else ()
    seen = weights_over_rounds(kind(FedAvg()), lambda i, t: 5.0 if i == 2 else 1.0, 30, away)
    for weights in seen[19 : 19 + rounds_away]:
        assert 2 not in weights
        assert sum(weights.values()) == pytest.approx(1)
    before, after = seen[18], seen[19 + rounds_away]
    assert before[2] > 2 * before[0]  # its weight is above the uniform one
    assert after[2] > 0.9 * before[2]
    assert seen[-1][2] >= after[2] - 1e-9


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD, lambda base: AFL(base, AFLOptions(0.01))])
def test_a_client_that_is_away_in_every_second_round_still_gains_weight(kind):
    """The worst-served of six: rounds in which it is away count neither for nor against
    it.
    """
    loss = lambda i, t: 1.5 if i == 2 else 1.0
    some, always = (
        weights_over_rounds(kind(FedAvg()), loss, 41, away)[-1][2]
        for away in (lambda number: () if number % 2 else {2}, lambda number: ())
    )
    assert 1.1 / 6 < some <= always + 1e-9


def test_how_long_a_client_has_been_away_is_saved():
    grid = Shuffled(lossy_app(rising), 4)
    first, second = (AFL(FedAvg(), AFLOptions(forget_after=3)) for _ in range(2))
    for number in range(1, 4):
        first._meet(ClientGrid(grid, num_clients=1), number)
        grid.away = {3}
    second.load_state_dict(first.state_dict())
    for number in (4, 5):
        assert 3 in second.clients
        second._meet(ClientGrid(grid, num_clients=1), number)
    assert second.clients == [0, 1, 2]


def test_the_prior_counts_a_silent_client_as_the_mean_and_is_restored():
    first, second = (AFL(FedAvg(), AFLOptions(0.05, prior="samples")) for _ in range(2))
    silent = LossyClient(1.0, -1.0, 100)
    simulate(first, lambda i, _: silent if i == 1 else client(i), 3, START, 2)
    np.testing.assert_allclose(first.rule.prior, np.array([5, 3.5, 2]) / 10.5)
    second.load_state_dict(first.state_dict())
    assert_arrays((second.rule.prior, second.rule.p), (first.rule.prior, first.rule.p))


def test_the_scale_of_the_losses_and_the_state_of_the_wrapped_strategy_are_saved():
    """A liar in the first round after a resume is cut as in any other."""
    first, second = AAggFFD(FedAdam()), AAggFFD(FedAdam())
    simulate(first, lambda i, _: LossyClient(0.1 * (i + 1), 1.0), 3, START, 2)
    second.load_state_dict(first.state_dict())
    assert_arrays((second.strategy.m, second.strategy.v), (first.strategy.m, first.strategy.v))
    assert second.loss_scale == first.loss_scale > 0


# --- very many clients ----------------------------------------------------------------

# Clients by position, and who is connected.

KINDS = {
    "numbers": range(6),
    "a list": [3, 1, 2],
    "names": ["b", "a", 3, "3"],
    "none": [],
    "from 4": range(4, 9),
}


@pytest.mark.parametrize("clients", KINDS.values(), ids=KINDS)
def test_positions_and_ids_belong_together_and_are_saved(clients):
    slots = Slots(clients)
    assert slots == list(slots) == list(clients)
    assert slots.at(clients).tolist() == list(range(len(slots)))
    assert list(Slots.unpacked(pack_ids(slots))) == unpack_ids(pack_ids(slots)) == list(clients)
    assert all(client in slots for client in clients)
    for stranger in (99, "x"):
        assert stranger not in slots
        refused(lambda: slots.at([stranger]), "", KeyError)


def test_those_who_leave_close_the_gaps_and_those_who_come_are_last():
    slots = Slots(range(5))
    assert slots.newcomers({1: 4, 2: "new", 3: 5}) == ["new", 5]
    changed = slots.changed([1, 3], ["new", 5])
    assert changed == [0, 2, 4, "new", 5]
    assert changed.at(["new", 4]).tolist() == [3, 2]


def run(count, rounds, numbered=True):
    strategy, seen = AAggFFD(FedAvg(fraction_evaluate=0.0)), []
    note = lambda now: seen.append((now.trained.clients, dict(strategy.last_weights)))
    client, start = lambda i: LossyClient(1.0, 1.0 + i % 7, 3), {"w": np.zeros(2, np.float32)}
    options = {"on": {"seed": 4, "clients_per_round": 10}, "callbacks": [note], "log_result": False}
    inner = partial(InlineGrid, numbered=numbered)
    play(strategy, client, count, start, rounds, inner=inner, **options)
    return strategy, seen


def test_clients_that_are_known_by_number_are_sampled_and_weighed_like_others():
    assert run(60, 4)[1] == run(60, 4, numbered=False)[1]


def test_what_the_server_keeps_is_a_hundred_bytes_a_client_at_most():
    count = 300_000
    tracemalloc.start()
    strategy, _ = run(count, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(strategy.clients) == count
    assert peak < 100 * count
