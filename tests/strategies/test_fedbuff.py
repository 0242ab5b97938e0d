"""FedBuff, over-selection and deadlines: who is in a round, what late replies do, and
that a run repeats to the bit.
"""

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam as FlowerFedAdam

from fedapps.algorithms.common.fleet import Fleet, FleetOptions, Measured
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AFL,
    ClientGrid,
    FedAdam,
    FedAvg,
    FedBuff,
    FedBuffOptions,
    FedDyn,
    PaceOptions,
    PrivacyOptions,
    Private,
    RealClock,
    Robust,
    RobustOptions,
    Scaffold,
    Timing,
    VirtualClock,
    WarmStart,
    run_rounds,
)
from fedapps.strategies.base.clocks import Flight
from tests.helpers import EchoClient, arrays_of, assert_arrays, simulate, that_fails

START = {"w": np.zeros(2), "count": np.array(7)}


class Towards(EchoClient):
    """Moves a tenth of the way to its own number: what it sends depends on what it
    got.
    """

    def fit(self, parameters, config):
        w, *others = parameters
        return [w + 0.1 * (self.shift - w), *others], self.num_examples, {"loss": 1.0}


def echo(i, _):
    return EchoClient([1.0, 10.0, 100.0, 1000.0][i % 4])


def towards(i, _):
    return Towards(float(i), num_examples=i + 1)


def measured(*seconds):
    rows = [{"client": str(k), "seconds": str(s)} for k, s in enumerate(seconds)]
    return Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))


def grid_of(client, n, fleet, per_round=0, inner=InlineGrid, pace=None, clock=None, **options):
    app = to_client_app(lambda context: client(int(context.node_config["partition-id"]), context))
    timing = Timing(clock or VirtualClock(fleet), pace)
    grid = ClientGrid(
        inner(app, n, numbered=True), clients_per_round=per_round, timing=timing, **options
    )
    return grid


def run(strategy, client, grid, rounds, start=START):
    """Return the models after each round, and the rounds."""
    seen = []

    def note(now):
        seen.append((now.arrays["w"].numpy().copy(), now))

    result = simulate(
        strategy, client, 0, start, rounds, grid=grid, evaluate_every=0, callbacks=[note]
    )
    return arrays_of(result), seen


def test_the_model_after_each_reply_by_hand():
    # client 0 takes 10 seconds and adds 1, client 1 takes 3 and adds 10
    grid = grid_of(echo, 2, measured(10, 3))
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(buffer=1)), echo, grid, 5)
    models = [float(w[0]) for w, _ in seen]
    # the reply of client 0 is three updates old, then one of client 1 a single one
    wanted = [10, 20, 30, 30 + 1 / 4**0.5, 30 + 1 / 4**0.5 + 10 / 2**0.5]
    np.testing.assert_allclose(models, wanted)
    assert [now.trained.clients for _, now in seen] == [[1], [1], [1], [0], [1]]
    assert [now.trained.ages for _, now in seen] == [{}, {}, {}, {0: 3}, {1: 1}]
    assert [now.trained.clock for _, now in seen] == [3, 6, 9, 10, 12]


def test_weights_of_a_buffer_are_the_wrapped_strategy_s():
    # buffer 2 of 3: clients 1 and 2 first, then the rest with client 0's old reply
    client = lambda i, _: EchoClient([1.0, 10.0, 100.0][i], num_examples=[1, 2, 3][i])
    grid = grid_of(client, 3, measured(5, 2, 2))
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(2, staleness=1.0)), client, grid, 3)
    first = (2 * 10 + 3 * 100) / 5
    second = first + first
    third = second + (1 * 1 / 3 + 2 * 10) / 3  # client 0 has seen neither update
    np.testing.assert_allclose([float(w[0]) for w, _ in seen], [first, second, third])


def test_weights_by_client_by_hand():
    # as above; in the third update client 0's reply is 2 updates old, its cycle is
    # 3; in the fourth client 2's is 1 old, on average 1/3 over its three replies
    client = lambda i, _: EchoClient([1.0, 10.0, 100.0][i], i + 1, {"loss": [7.0, 4.0, 1.0][i]})
    grid = grid_of(client, 3, measured(5, 2, 2))
    by_client = FedBuff(FedAvg(), FedBuffOptions(2, weights="clients"))
    _, seen = run(by_client, client, grid, 4)
    steps = [64, 64, (1 * 3 * 1 + 2 * 10) / 5, (3 * 4 / 3 * 100 + 2 * 10) / 6]
    np.testing.assert_allclose([float(w[0]) for w, _ in seen], np.cumsum(steps))
    # losses are averaged by samples as ever
    losses = [now.train_metrics["loss"] for _, now in seen]
    np.testing.assert_allclose(losses, [11 / 5, 11 / 5, 15 / 3, 11 / 5])


@pytest.mark.slow
@pytest.mark.parametrize("per_round", [6, 12])
def test_by_client_slow_clients_count_as_much_as_fast_ones_in_the_long_run(per_round):
    client = lambda i, _: EchoClient(i, num_examples=1 + i % 3)
    fleet = Fleet(FleetOptions(speed="log-normal", spread=1.0, jitter=0.1))
    grid = grid_of(client, 12, fleet, per_round)
    fedbuff = FedBuff(FedAvg(), FedBuffOptions(2, weights="clients"))
    weights, replies, weighed = np.zeros(12), np.zeros(12), fedbuff._weighed

    def noted(received):
        found = weighed(received)
        for reply in found:
            k = grid.client_id(reply.metadata.src_node_id)
            weights[k] += reply.content["metrics"]["num-examples"] / (1 + k % 3)
            replies[k] += 1
        return found

    fedbuff._weighed = noted
    run(fedbuff, client, grid, 600)
    by_speed = np.argsort([fleet.slowness(k) for k in range(12)])
    fast, slow = by_speed[:4], by_speed[-4:]
    assert replies[slow].sum() < 0.8 * replies[fast].sum()
    assert weights[slow].sum() == pytest.approx(weights[fast].sum(), rel=0.1)


@pytest.mark.parametrize("per_round", [0, 4])
@pytest.mark.parametrize("base", [FedAvg, FedAdam, FlowerFedAdam])
def test_with_equal_speeds_and_a_full_buffer_it_is_the_wrapped_strategy(base, per_round):
    equal = Fleet(FleetOptions(speed="equal"))
    timed = grid_of(towards, 9, equal, per_round)
    buffer = per_round or 9
    got = run_rounds(FedBuff(base(), FedBuffOptions(buffer)), timed, _arrays(), 6, evaluate_every=0)
    plain = grid_of(towards, 9, equal, per_round)
    plain.timing = None
    wanted = run_rounds(base(), plain, _arrays(), 6, evaluate_every=0)
    assert_arrays(arrays_of(wanted), arrays_of(got))


def _arrays():
    return ArrayRecord({"w": Array(np.zeros(2))})


def test_a_run_repeats_and_its_seed_counts():
    def last(seed):
        fleet = Fleet(FleetOptions(speed="log-normal", jitter=0.3, dropout=0.1), seed)
        grid = grid_of(towards, 12, fleet, 5, seed=seed)
        return run(FedBuff(FedAvg(), FedBuffOptions(2)), towards, grid, 15)[0]["w"]

    np.testing.assert_array_equal(last(0), last(0))
    assert (last(0) != last(1)).any()


def test_running_variances_of_late_replies_stay_positive():
    start = {"bn.running_var": np.array([1.0, 4.0]), "w": np.zeros(2)}

    class Shrinks(EchoClient):
        def fit(self, parameters, config):
            return [parameters[0] * 0.01, parameters[1]], 1, {"loss": 1.0}

    client = lambda i, _: Shrinks(0)
    grid = grid_of(client, 2, measured(10, 1))
    arrays, seen = run(FedBuff(FedAvg(), FedBuffOptions(1)), client, grid, 10, start)
    assert seen[-1][1].trained.ages == {0: 9}
    assert (arrays["bn.running_var"] > 0).all()


class Delayed(InlineGrid):
    """Replies come after a real delay of their client."""

    delays = (0.03, 0.11, 0.05, 0.17, 0.02, 0.08)
    reverse = False

    def send_and_receive(self, messages, *, timeout=None):  # of evaluations, at once
        return super().pulled(super().push_messages(messages))

    def push_messages(self, messages):
        messages = list(messages)
        self.pushed = [*getattr(self, "pushed", []), *messages]
        ids = super().push_messages(messages)
        now = time.monotonic()
        self.due = getattr(self, "due", {}) | {
            number: now + self.delays[m.metadata.dst_node_id % 6]
            for number, m in zip(ids, messages, strict=True)
        }
        return ids

    def pulled(self, numbers):
        now = time.monotonic()
        ready = [number for number in numbers if self.due[number] <= now]
        return super().pulled(ready[::-1] if self.reverse else ready)


@pytest.mark.parametrize(
    ("options", "pace"),
    [
        (FedBuffOptions(2), None),
        (None, PaceOptions(deadline=0.1)),
        (None, PaceOptions(over_select=0.5, late="keep")),
    ],
)
def test_a_real_run_is_repeated_on_the_simulated_clock(options, pace):
    strategy = lambda: FedBuff(FedAvg(), options) if options else FedAvg()
    grid = grid_of(towards, 6, None, 4, Delayed, pace, RealClock(pause=0.01))
    flights = []
    grid.timing.log = lambda ended, number: flights.extend((flight, number) for flight in ended)
    real, seen = run(strategy(), towards, grid, 6)
    flights += [(flight, 6) for flight in grid.timing.clock.flights]
    rows = [
        {
            "client": str(f.client),
            "round": str(f.number),
            "asked": repr(f.began),
            "arrived": repr(f.arrived) if f.fate != "late" and f.arrived < 1e9 else "",
            "fate": f.fate,
            "ended": str(ended),
        }
        for f, ended in flights
    ]
    fleet = Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))
    again, repeated = run(strategy(), towards, grid_of(towards, 6, fleet, 4, pace=pace), 6)
    assert [n.trained.clients for _, n in repeated] == [n.trained.clients for _, n in seen]
    np.testing.assert_array_equal(again["w"], real["w"])


def test_the_order_of_polling_does_not_matter():
    def last(kind):
        clock = RealClock(pause=0.4)  # all replies of a round come with one poll
        grid = grid_of(towards, 6, None, 4, kind, None, clock)
        return run(FedBuff(FedAvg(), FedBuffOptions(3)), towards, grid, 4)[0]["w"]

    backwards = type("Backwards", (Delayed,), {"reverse": True})
    np.testing.assert_array_equal(last(backwards), last(Delayed))


def test_a_deadline_drops_the_late_and_changes_nobody_that_is_asked():
    seconds = [1, 2, 3, 4, 50, 60, 70, 80]

    def asked(pace):
        grid = grid_of(towards, 8, measured(*seconds), 4, pace=pace)
        _, seen = run(FedAvg(), towards, grid, 8)
        return [
            (sorted({*now.trained.clients, *now.trained.late}), now.trained.late) for _, now in seen
        ]

    all_in_time, some_late = asked(None), asked(PaceOptions(deadline=10))
    assert [who for who, _ in all_in_time] == [who for who, _ in some_late]
    assert all(not late for _, late in all_in_time)
    assert all(late == [k for k in who if k >= 4] for who, late in some_late)


def test_over_selection_takes_the_first_replies():
    grid = grid_of(towards, 10, measured(*range(1, 11)), 4, pace=PaceOptions(over_select=0.5))
    _, seen = run(FedAvg(), towards, grid, 5)
    for _, now in seen:
        assert len(now.trained.clients) == 4
        assert len(now.trained.late) == 2
        assert not now.failures
    first = seen[0][1].trained  # later, who was dropped is still busy
    assert max(first.clients) < min(first.late)
    assert first.clock == 1 + max(first.clients)


def test_kept_replies_count_in_the_round_in_which_they_arrive():
    # both are asked in every round; client 1 is late in the first and third
    pace = PaceOptions(deadline=4, late="keep")
    grid = grid_of(echo, 2, measured(3, 6), pace=pace)
    _, seen = run(FedAvg(), echo, grid, 2)
    assert seen[0][1].trained.clients == [0]
    assert seen[0][1].trained.late == [1]
    assert seen[1][1].trained.clients == [0, 1]
    assert seen[1][1].trained.sent == 1  # client 1 was still under way
    assert seen[1][1].trained.ages == {1: 1}
    np.testing.assert_allclose(seen[1][0][0], 1 + (1 + 10 / 2**0.5) / 2)


def test_dropped_clients_stay_busy_and_have_trained():
    trained = []

    class Notes(EchoClient):
        def fit(self, parameters, config):
            trained.append((self.shift, config["server-round"]))
            return super().fit(parameters, config)

    # client 1 is busy until 5: asked at 3, it would else answer at 5
    seconds = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 1): 5, (1, 2): 2, (1, 3): 0.5}
    clock = VirtualClock(
        Fleet(FleetOptions(speed="equal", sample_seconds=1.0)),
        lambda question, k: seconds[k, question.content["config"]["server-round"]],
    )
    client = lambda i, _: Notes(float(i))
    grid = grid_of(client, 2, None, pace=PaceOptions(deadline=3), clock=clock)
    _, seen = run(FedAvg(), client, grid, 3)
    assert [now.trained.clients for _, now in seen] == [[0], [0], [0, 1]]
    assert [now.trained.clock for _, now in seen] == [3, 6, 7.5]
    assert sorted(trained) == [(k, r) for k in (0.0, 1.0) for r in (1, 2, 3)]


def test_a_reply_that_is_polled_at_the_deadline_came_in_time():
    app = to_client_app(lambda context: echo(0, context))
    grid, clock = InlineGrid(app, 1), RealClock()
    content = RecordDict({"arrays": _arrays(), "config": ConfigRecord({"server-round": 1})})
    clock.start(grid, [Flight(Message(content, grid.get_node_ids()[0], "train"), 0, 1, 0.0)])
    assert clock.next(grid, until=0.0).arrived == 0.0


def test_a_repeated_run_has_its_own_begins_of_rounds():
    rows = [
        {"client": "0", "round": "1", "asked": "50", "arrived": "52", "fate": "used", "ended": "1"}
    ]
    fleet = Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))
    _, seen = run(FedAvg(), echo, grid_of(echo, 1, fleet, pace=PaceOptions(deadline=10)), 1)
    assert seen[0][1].trained.clients == [0]


def test_a_client_that_never_answers_is_asked_again_after_the_timeout():
    stuck = type("Stuck", (Delayed,), {"delays": (0.01, 0.01, 1e9, 0.01, 0.01, 0.01)})
    pace = PaceOptions(deadline=0.1, late="keep")
    grid = grid_of(towards, 6, None, 0, stuck, pace, RealClock(pause=0.01))
    simulate(
        FedAvg(fraction_evaluate=0), towards, 0, START, 6, grid=grid, evaluate_every=0, timeout=0.25
    )
    asked = sum(m.metadata.dst_node_id % 6 == 2 for m in grid.grid.pushed)
    assert 2 <= asked <= 3


def test_who_breaks_off_is_a_failure_and_frees_its_place():
    fleet = Fleet(FleetOptions(speed="log-normal", dropout=0.4))
    grid = grid_of(towards, 10, fleet, 4)
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(2)), towards, grid, 20)
    reasons = {f.reason for _, now in seen for f in now.failures}
    assert reasons == {"the client broke off (time.dropout)"}
    assert sum(now.trained.sent for _, now in seen) - sum(
        len(now.trained.clients) + len(now.failures) for _, now in seen
    ) == len(grid.timing.clock.flights)
    assert len(grid.timing.clock.flights) <= 3  # four train at a time
    for _, now in seen:  # two replies, or all others of the four have broken off
        assert len(now.trained.clients) == 2 or len(now.failures) >= 3


def test_a_failing_client_is_left_out_of_its_buffer():
    client = lambda i, _: that_fails(Towards)(0) if i == 0 else towards(i, _)
    grid = grid_of(client, 4, measured(1, 2, 3, 4))
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(2)), client, grid, 6)
    assert {f.client for _, now in seen for f in now.failures} == {0}
    assert all(np.isfinite(w).all() for w, _ in seen)


def test_a_client_that_is_not_there_is_not_asked_and_a_million_are_not_looked_at():
    fleet = Fleet(FleetOptions(speed="log-normal", available=0.3, day=50.0))
    looked = []
    there = fleet.available
    fleet.available = lambda client, *now: looked.append(client) or there(client, *now)
    grid = grid_of(towards, 1_000_000, fleet, 10)
    nobody_scores = FedAvg(fraction_evaluate=0)
    _, seen = run(FedBuff(nobody_scores, FedBuffOptions(5)), towards, grid, 8)
    assert all(len(now.trained.clients) == 5 for _, now in seen)
    assert len(looked) < 8 * 200
    for k in seen[0][1].trained.clients:
        assert there(k, 1, 0.0)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (lambda: Scaffold(), "more than an average"),
        (lambda: FedDyn(), "more than an average"),
        (lambda: AFL(FedAvg()), "more than an average"),
        (lambda: Private(FedAvg(), PrivacyOptions(1.0)), "differential privacy"),
    ],
)
def test_strategies_that_late_replies_would_break_are_refused(strategy, why):
    with pytest.raises(ValueError, match=why):
        FedBuff(strategy())
    grid = grid_of(towards, 3, measured(1, 2, 3), pace=PaceOptions(deadline=2, late="keep"))
    with pytest.raises(ValueError, match=why):
        run(strategy(), towards, grid, 2)


def test_krum_chooses_from_a_buffer():
    client = lambda i, _: Towards(1e3 if i == 3 else 1.0)
    grid = grid_of(client, 8, Fleet(FleetOptions(speed="log-normal")), 7)
    robust = Robust(FedBuff(FedAvg(), FedBuffOptions(5)), RobustOptions("multi-krum"))
    arrays, _ = run(robust, client, grid, 20)
    assert (arrays["w"] <= 1).all()


def test_a_buffer_larger_than_who_trains_is_refused():
    grid = grid_of(towards, 6, measured(*range(6)), 3)
    with pytest.raises(ValueError, match="buffer = 4, but 3 clients train"):
        run(FedBuff(FedAvg(), FedBuffOptions(4)), towards, grid, 2)


def test_one_of_flowers_strategies_that_would_wait_for_ever_is_refused():
    grid = grid_of(towards, 6, measured(*range(6)), 3)
    with pytest.raises(ValueError, match="FedAdam waits for 2 clients"):
        run(FedBuff(FlowerFedAdam(), FedBuffOptions(1)), towards, grid, 2)
    few = FlowerFedAdam(min_available_nodes=1, min_train_nodes=1)
    run(FedBuff(few, FedBuffOptions(1)), towards, grid, 4)


def test_as_a_part_of_a_warm_start_it_would_be_synchronous_and_is_refused():
    grid = grid_of(towards, 4, measured(1, 2, 3, 4))
    with pytest.raises(ValueError, match="outermost"):
        run(WarmStart(FedBuff(FedAvg()), 1, FedAvg()), towards, grid, 2)


def test_a_node_that_takes_no_messages_fails_at_once():
    class Closed(Delayed):
        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            return [
                "" if m.metadata.dst_node_id % 6 == 1 else i
                for m, i in zip(messages, ids, strict=True)
            ]

    clock = RealClock(pause=0.01)
    grid = grid_of(towards, 6, None, 0, Closed, PaceOptions(deadline=0.1), clock)
    _, seen = run(FedAvg(), towards, grid, 2)
    assert all(len(now.failures) == 1 for _, now in seen)
