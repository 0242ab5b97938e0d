"""FedBuff, over-selection and deadlines: who is in a round, what late replies do, and
that a run repeats to the bit.
"""

import time
from typing import ClassVar

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
from tests.helpers import EchoClient, Trains, arrays_of, assert_arrays, refused

START = {"w": np.zeros(2), "count": np.array(7)}


def echo(i):
    return EchoClient([1.0, 10.0, 100.0, 1000.0][i % 4])


def towards(i, goal=None):
    """Return a client that moves a tenth of the way to its own number: what it sends
    depends on what it got.
    """
    to = i if goal is None else goal
    return Trains(lambda sent, _: [sent[0] + 0.1 * (to - sent[0]), *sent[1:]], i + 1)


def measured(*seconds):
    return repeated([{"client": str(k), "seconds": str(s)} for k, s in enumerate(seconds)])


def repeated(rows):
    return Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))


def log_normal(*seed, **options):
    return Fleet(FleetOptions(speed="log-normal", **options), *seed)


def grid_of(n, time, client=towards, per_round=0, pace=None, inner=InlineGrid, **options):
    """Return a grid of ``n`` clients; ``time``: a fleet, or a clock."""
    app = to_client_app(lambda context: client(int(context.node_config["partition-id"])))
    return ClientGrid(
        inner(app, n, numbered=True),
        clients_per_round=per_round,
        timing=Timing(VirtualClock(time) if isinstance(time, Fleet) else time, pace),
        **options,
    )


def run(strategy, grid, rounds, start=START, timeout=60):
    """Return the last model and the rounds."""
    arrays, seen = ArrayRecord({name: Array(value) for name, value in start.items()}), []
    result = run_rounds(
        strategy, grid, arrays, rounds, timeout, evaluate_every=0, callbacks=[seen.append]
    )
    return arrays_of(result), seen


def models(seen):
    return [float(now.arrays["w"].numpy()[0]) for now in seen]


def test_the_model_after_each_reply_by_hand():
    # client 0 takes 10 seconds and adds 1, client 1 takes 3 and adds 10
    strategy = FedBuff(FedAvg(), FedBuffOptions(buffer=1))
    _, seen = run(strategy, grid_of(2, measured(10, 3), echo), 5)
    # the reply of client 0 is three updates old, then one of client 1 a single one
    wanted = [10, 20, 30, 30 + 1 / 4**0.5, 30 + 1 / 4**0.5 + 10 / 2**0.5]
    np.testing.assert_allclose(models(seen), wanted)
    assert [now.trained.clients for now in seen] == [[1], [1], [1], [0], [1]]
    assert [now.trained.ages for now in seen] == [{}, {}, {}, {0: 3}, {1: 1}]
    assert [now.trained.clock for now in seen] == [3, 6, 9, 10, 12]


def three(i):
    return EchoClient([1.0, 10.0, 100.0][i], i + 1, {"loss": [7.0, 4.0, 1.0][i]})


def test_weights_of_a_buffer_are_the_wrapped_strategy_s():
    # buffer 2 of 3: clients 1 and 2 first, then the rest with client 0's old reply
    strategy = FedBuff(FedAvg(), FedBuffOptions(2, staleness=1.0))
    _, seen = run(strategy, grid_of(3, measured(5, 2, 2), three), 3)
    first = (2 * 10 + 3 * 100) / 5
    third = 2 * first + (1 * 1 / 3 + 2 * 10) / 3  # client 0 has seen neither update
    np.testing.assert_allclose(models(seen), [first, 2 * first, third])


def test_weights_by_client_by_hand():
    # as above; in the third update client 0's reply is 2 updates old, its cycle is
    # 3; in the fourth client 2's is 1 old, on average 1/3 over its three replies
    by_client = FedBuff(FedAvg(), FedBuffOptions(2, weights="clients"))
    _, seen = run(by_client, grid_of(3, measured(5, 2, 2), three), 4)
    np.testing.assert_allclose(
        models(seen), np.cumsum([64, 64, (1 * 3 * 1 + 2 * 10) / 5, (3 * 4 / 3 * 100 + 2 * 10) / 6])
    )
    # losses are averaged by samples as ever
    losses = [now.train_metrics["loss"] for now in seen]
    np.testing.assert_allclose(losses, [11 / 5, 11 / 5, 15 / 3, 11 / 5])


@pytest.mark.slow
@pytest.mark.parametrize("per_round", [6, 12])
def test_by_client_slow_clients_count_as_much_as_fast_ones_in_the_long_run(per_round):
    fleet = log_normal(spread=1.0, jitter=0.1)
    grid = grid_of(12, fleet, lambda i: EchoClient(i, num_examples=1 + i % 3), per_round)
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
    run(fedbuff, grid, 600)
    by_speed = np.argsort([fleet.slowness(k) for k in range(12)])
    fast, slow = by_speed[:4], by_speed[-4:]
    assert replies[slow].sum() < 0.8 * replies[fast].sum()
    assert weights[slow].sum() == pytest.approx(weights[fast].sum(), rel=0.1)


@pytest.mark.parametrize("per_round", [0, 4])
@pytest.mark.parametrize("base", [FedAvg, FedAdam, FlowerFedAdam])
def test_with_equal_speeds_and_a_full_buffer_it_is_the_wrapped_strategy(base, per_round):
    timed, plain = (
        grid_of(9, Fleet(FleetOptions(speed="equal")), per_round=per_round) for _ in range(2)
    )
    plain.timing = None
    full = FedBuff(base(), FedBuffOptions(per_round or 9))
    got, wanted = (run(*one, 6, {"w": np.zeros(2)})[0] for one in ((full, timed), (base(), plain)))
    assert_arrays(got, wanted)


def test_running_variances_of_late_replies_stay_positive():
    shrinks = lambda _: Trains(lambda sent, _: [sent[0] * 0.01, sent[1]])
    strategy, grid = FedBuff(FedAvg(), FedBuffOptions(1)), grid_of(2, measured(10, 1), shrinks)
    arrays, seen = run(
        strategy, grid, 10, {"bn.running_var": np.array([1.0, 4.0]), "w": np.zeros(2)}
    )
    assert seen[-1].trained.ages == {0: 9}
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
    grid, flights = grid_of(6, RealClock(pause=0.01), towards, 4, pace, Delayed), []
    grid.timing.log = lambda ended, number: flights.extend((flight, number) for flight in ended)
    real, seen = run(strategy(), grid, 6)
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
    again, then = run(strategy(), grid_of(6, repeated(rows), towards, 4, pace), 6)
    assert [now.trained.clients for now in then] == [now.trained.clients for now in seen]
    np.testing.assert_array_equal(again["w"], real["w"])


def test_the_order_of_polling_does_not_matter():
    def last(kind):
        # all replies of a round come with one poll
        grid = grid_of(6, RealClock(pause=0.2), towards, 4, inner=kind)
        return run(FedBuff(FedAvg(), FedBuffOptions(3)), grid, 4)[0]["w"]

    np.testing.assert_array_equal(
        last(type("Backwards", (Delayed,), {"reverse": True})), last(Delayed)
    )


def test_a_deadline_drops_the_late_and_changes_nobody_that_is_asked():
    def asked(pace):
        _, seen = run(
            FedAvg(), grid_of(8, measured(1, 2, 3, 4, 50, 60, 70, 80), towards, 4, pace), 8
        )
        return [(sorted({*r.trained.clients, *r.trained.late}), r.trained.late) for r in seen]

    all_in_time, some_late = asked(None), asked(PaceOptions(deadline=10))
    assert [who for who, _ in all_in_time] == [who for who, _ in some_late]
    assert all(not late for _, late in all_in_time)
    assert all(late == [k for k in who if k >= 4] for who, late in some_late)


def test_over_selection_takes_the_first_replies():
    _, seen = run(
        FedAvg(), grid_of(10, measured(*range(1, 11)), towards, 4, PaceOptions(over_select=0.5)), 5
    )
    assert [(len(r.trained.clients), len(r.trained.late), r.failures) for r in seen] == [
        (4, 2, [])
    ] * 5
    first = seen[0].trained  # later, who was dropped is still busy
    assert max(first.clients) < min(first.late)
    assert first.clock == 1 + max(first.clients)


def test_kept_replies_count_in_the_round_in_which_they_arrive():
    # both are asked in every round; client 1 is late in the first and third
    pace = PaceOptions(deadline=4, late="keep")
    arrays, (first, second) = run(FedAvg(), grid_of(2, measured(3, 6), echo, pace=pace), 2)
    assert (first.trained.clients, first.trained.late) == ([0], [1])
    assert second.trained.clients == [0, 1]
    assert second.trained.sent == 1  # client 1 was still under way
    assert second.trained.ages == {1: 1}
    np.testing.assert_allclose(arrays["w"][0], 1 + (1 + 10 / 2**0.5) / 2)


def test_dropped_clients_stay_busy_and_have_trained():
    trained = []

    def client(i):
        return EchoClient(
            float(i), heard=lambda config: trained.append((i, config["server-round"]))
        )

    # client 1 is busy until 5: asked at 3, it would else answer at 5
    seconds = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 1): 5, (1, 2): 2, (1, 3): 0.5}
    clock = VirtualClock(
        Fleet(FleetOptions(speed="equal", sample_seconds=1.0)),
        lambda question, k: seconds[k, question.content["config"]["server-round"]],
    )
    _, seen = run(FedAvg(), grid_of(2, clock, client, pace=PaceOptions(deadline=3)), 3)
    assert [now.trained.clients for now in seen] == [[0], [0], [0, 1]]
    assert [now.trained.clock for now in seen] == [3, 6, 7.5]
    assert sorted(trained) == [(k, r) for k in (0, 1) for r in (1, 2, 3)]


def test_a_reply_that_is_polled_at_the_deadline_came_in_time():
    grid, clock = InlineGrid(to_client_app(lambda context: echo(0)), 1), RealClock()
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
    content["config"] = ConfigRecord({"server-round": 1})
    clock.start(grid, [Flight(Message(content, 1000, "train"), 0, 1, 0.0)])
    assert clock.next(grid, until=0.0).arrived == 0.0


def test_a_repeated_run_has_its_own_begins_of_rounds():
    row = {"client": "0", "round": "1", "asked": "50", "arrived": "52", "fate": "used"}
    grid = grid_of(1, repeated([{**row, "ended": "1"}]), echo, pace=PaceOptions(deadline=10))
    assert run(FedAvg(), grid, 1)[1][0].trained.clients == [0]


def test_a_client_that_never_answers_is_asked_again_after_the_timeout():
    grid = grid_of(
        6,
        RealClock(pause=0.01),
        pace=PaceOptions(deadline=0.1, late="keep"),
        inner=type("Stuck", (Delayed,), {"delays": (0.01, 0.01, 1e9, 0.01, 0.01, 0.01)}),
    )
    run(FedAvg(fraction_evaluate=0), grid, 6, timeout=0.25)
    assert 2 <= sum(m.metadata.dst_node_id % 6 == 2 for m in grid.grid.pushed) <= 3


class Leaving(Delayed):
    """Nodes are there from a first to a last second of the run, once they are asked."""

    away: ClassVar = {}

    def known_clients(self):
        return None

    def get_node_ids(self):
        now = time.monotonic() - min(getattr(self, "due", {"": np.inf}).values())
        return [n for n in super().get_node_ids() if not self.is_away(n % 10, now)]

    def is_away(self, place, now):
        begin, end = self.away.get(place, (np.inf, np.inf))
        return begin <= now < end


@pytest.mark.parametrize("away", [{2: (0.0, 0.4)}, {1: (0.0, 0.4), 2: (0.0, 9e9)}, {0: (0, 0.1)}])
def test_a_round_takes_a_reply_while_those_under_way_or_the_others_have_left(away):
    kind = type("Away", (Leaving,), {"away": away, "delays": (0.2, 0, 0, 0, 0.02, 0.1)})
    grid = grid_of(3, RealClock(pause=0.01), inner=kind)
    _, seen = run(FedBuff(FedAvg(fraction_evaluate=0), FedBuffOptions(1)), grid, 12)
    assert [len(now.trained.clients) for now in seen] == [1] * 12


def test_a_round_waits_where_nobody_idle_is_there():
    # of all only a reply in round 1 is known: rounds 2 and 3 take the later ones
    row = {"fate": "used", "round": "1", "asked": "0"}
    rows = [{**row, "client": str(k), "arrived": str(3 + k), "ended": str(1 + k)} for k in range(3)]
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(1)), grid_of(3, repeated(rows)), 3)
    assert [now.trained.clients for now in seen] == [[0], [1], [2]]
    assert [now.trained.sent for now in seen] == [3, 0, 0]


def test_who_is_away_is_there_when_its_part_of_a_day_begins():
    fleet = log_normal(available=0.1, day=1000.0)
    for k, now in enumerate(np.linspace(0, 1e5, 500)):
        opens = fleet.opens(k, now)
        assert opens - 999 < now <= opens
        assert fleet.available(k, 1, opens)
        assert opens == now or not fleet.available(k, 1, opens - 0.01)


@pytest.mark.parametrize("method", [FedAvg, lambda: FedBuff(FedAvg(), FedBuffOptions(1))])
def test_a_round_begins_when_the_first_client_is_there(method):
    options = FleetOptions(speed="equal", sample_seconds=1.0, available=0.1, day=1000.0)
    fleet, now = Fleet(options), 0.0
    _, seen = run(method(), grid_of(3, fleet), 300)
    for one in seen[::13]:
        now = seen[one.number - 2].trained.clock if one.number > 1 else 0.0
        moments = np.arange(now, now + 1000, 0.05)
        first = next(t for t in moments if any(fleet.available(k, 1, t) for k in range(3)))
        assert one.trained.clock == pytest.approx(first + 1, abs=0.1)
        assert all(fleet.available(k, 1, one.trained.clock - 0.99) for k in one.trained.clients)
        assert one.trained.clients


def test_who_breaks_off_is_a_failure_and_frees_its_place():
    grid = grid_of(10, log_normal(dropout=0.4), per_round=4)
    _, seen = run(FedBuff(FedAvg(), FedBuffOptions(2)), grid, 20)
    assert {failure.reason for now in seen for failure in now.failures} == {
        "the client broke off (time.dropout)"
    }
    open_ones = sum(now.trained.sent for now in seen) - sum(
        len(now.trained.clients) + len(now.failures) for now in seen
    )
    assert open_ones == len(grid.timing.clock.flights) <= 3  # four train at a time
    for now in seen:  # two replies, or all others of the four have broken off
        assert len(now.trained.clients) == 2 or len(now.failures) >= 3


def test_a_client_that_is_not_there_is_not_asked_and_a_million_are_not_looked_at():
    fleet, looked = log_normal(available=0.3, day=50.0), []
    there = fleet.available
    fleet.available = lambda client, *now: looked.append(client) or there(client, *now)
    strategy = FedBuff(FedAvg(fraction_evaluate=0), FedBuffOptions(5))
    _, seen = run(strategy, grid_of(1_000_000, fleet, per_round=10), 8)
    assert all(len(now.trained.clients) == 5 for now in seen)
    assert len(looked) < 8 * 200
    assert all(there(k, 1, 0.0) for k in seen[0].trained.clients)


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
    refused(lambda: FedBuff(strategy()), why)
    grid = grid_of(3, measured(1, 2, 3), pace=PaceOptions(deadline=2, late="keep"))
    refused(lambda: run(strategy(), grid, 2), why)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (FedBuff(FedAvg(), FedBuffOptions(4)), "buffer = 4, but 3 clients train"),
        (FedBuff(FlowerFedAdam(), FedBuffOptions(1)), "FedAdam waits for 2 clients"),
        # as a part of a warm start it would be synchronous
        (WarmStart(FedBuff(FedAvg()), 1, FedAvg()), "outermost"),
    ],
)
def test_what_would_wait_for_ever_or_for_all_is_refused(strategy, why):
    refused(lambda: run(strategy, grid_of(6, measured(*range(6)), per_round=3), 2), why)


def test_one_of_flowers_strategies_may_wait_for_one():
    few = FedBuff(FlowerFedAdam(min_available_nodes=1, min_train_nodes=1), FedBuffOptions(1))
    assert len(run(few, grid_of(6, measured(*range(6)), per_round=3), 4)[1]) == 4


def test_krum_chooses_from_a_buffer():
    grid = grid_of(8, log_normal(), lambda i: towards(i, 1e3 if i == 3 else 1.0), 7)
    robust = Robust(FedBuff(FedAvg(), FedBuffOptions(5)), RobustOptions("multi-krum"))
    assert (run(robust, grid, 20)[0]["w"] <= 1).all()


def test_a_node_that_takes_no_messages_fails_at_once():
    class Closed(Delayed):
        def push_messages(self, messages):
            asked = list(messages)
            closed = [message.metadata.dst_node_id % 6 == 1 for message in asked]
            return [
                "" if no else i for no, i in zip(closed, super().push_messages(asked), strict=True)
            ]

    _, seen = run(
        FedAvg(), grid_of(6, RealClock(pause=0.01), pace=PaceOptions(deadline=0.1), inner=Closed), 2
    )
    assert all(len(now.failures) == 1 for now in seen)
