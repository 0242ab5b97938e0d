"""FedBuff, over-selection and deadlines: who is in a round, what late replies do, and
that a run repeats to the bit.
"""

import time
from typing import ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAdam as FlowerFedAdam

from fedapps.algorithms.common.fleet import Fleet, FleetOptions, Measured
from fedapps.algorithms.common.schedule import samples_within
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AFL,
    IFCA,
    ClientGrid,
    FedAdam,
    FedAvg,
    FedBuff,
    FedBuffOptions,
    FedDyn,
    FedEvg,
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
from fedapps.strategies.base import clocks
from fedapps.strategies.base.clocks import Flight
from fedapps.strategies.base.partial_work import check_partial
from tests.helpers import Clock, EchoClient, Trains, arrays_of, assert_arrays, refused, that_fails

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
    assert [(now.trained.clients, now.trained.ages, now.trained.clock) for now in seen] == [
        ([1], {}, 3),
        ([1], {}, 6),
        ([1], {}, 9),
        ([0], {0: 3}, 10),
        ([1], {1: 1}, 12),
    ]


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
    # client 1 was still under way: it is not asked again
    assert (second.trained.clients, second.trained.sent, second.trained.ages) == ([0, 1], 1, {1: 1})
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
    assert [(now.trained.clients, now.trained.clock) for now in seen] == [
        ([0], 3),
        ([0], 6),
        ([0, 1], 7.5),
    ]
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
    assert [(now.trained.clients, now.trained.sent) for now in seen] == [
        ([0], 3),
        ([1], 0),
        ([2], 0),
    ]


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


# --- partial work ---------------------------------------------------------------------

# Who would be late does fewer steps, on a simulated and a real clock.

PARTIAL, DROP = PaceOptions(deadline=2.0, late="partial"), PaceOptions(deadline=2.0)


class Walks(NumPyClient):
    """Adds 1 in every step; ``claim`` replaces the share that it reports."""

    def __init__(self, samples=1, claim=None):
        self.samples, self.claim = samples, claim

    def fit(self, parameters, config):
        epochs, size = config["local-epochs"], config.get("batch-size", self.samples)
        share, more = config.get("work-share"), {}
        seen = samples_within(share or 1.0, self.samples, size, epochs)
        if share or self.claim is not None:
            more = {"work-share": seen / self.samples / epochs}
        if self.claim is not None:
            more = {"work-share": self.claim}
        steps = seen // self.samples * -(-self.samples // size) + seen % self.samples // size
        return [parameters[0] + steps], self.samples, {"loss": float(steps), **more}


def run_partial(clients, clock, pace=PARTIAL, rounds=1, strategy=None, inner=InlineGrid, **config):
    """Return the rounds, the flights that ended and the last model; without a batch
    size, a step is an epoch.
    """
    app = to_client_app(lambda context: clients[int(context.node_config["partition-id"])])
    flights, seen = [], []
    grid = ClientGrid(
        inner(app, len(clients), numbered=True),
        timing=Timing(clock, pace, log=lambda ended, number: flights.extend(ended)),
    )
    result = run_rounds(
        strategy or FedAvg(fraction_evaluate=0), grid, ArrayRecord({"w": Array(np.zeros(2))}),
        rounds, train_config=ConfigRecord({"local-epochs": 4, **config}),
        evaluate_every=0, callbacks=[seen.append],
    )  # fmt: skip
    return seen, flights, result.arrays["w"].numpy()


def two(*seconds, **options):
    """Run two clients that take so many seconds."""
    return run_partial([Walks(), Walks()], VirtualClock(measured(*seconds)), **options)


def test_a_client_with_half_the_time_does_half_of_its_steps():
    seen, flights, w = two(4, 1)
    np.testing.assert_array_equal(w, (2 + 4) / 2)
    trained = seen[0].trained
    assert (trained.clients, trained.late, trained.shares, trained.clock) == (
        [0, 1],
        [],
        {0: 0.5},
        2.0,
    )
    assert {f.client: (f.arrived, f.share, f.fate) for f in flights} == {
        0: (2.0, 0.5, "used"),
        1: (1.0, 1.0, "used"),
    }
    # the metric is for the server alone
    assert dict(seen[0].train_metrics) == {"loss": 3.0}


@pytest.mark.parametrize(
    ("seconds", "steps"), [(8.01, 0), (8, 1), (5.4, 1), (4, 2), (2.8, 2), (2.66, 3), (2.0, 4)]
)
def test_it_does_the_most_steps_that_are_in_time(seconds, steps):
    seen, flights, w = two(seconds, 1)
    (flight,) = (f for f in flights if f.client == 0)
    late = not steps  # not even one is
    assert (seen[0].trained.late, flight.fate) == (([0], "late") if late else ([], "used"))
    assert seen[0].trained.clock == (2.0 if late else flight.arrived) <= 2.0
    assert late or flight.arrived == pytest.approx(seconds * steps / 4)
    np.testing.assert_array_equal(w, 4 if late else (steps + 4) / 2)


@pytest.mark.parametrize(
    ("share", "samples"), [(1, 50), (0.999, 45), (0.9, 45), (0.5, 25), (0.49, 20), (0.19, 0)]
)
def test_steps_in_a_share_with_a_smaller_last_mini_batch(share, samples):
    # epochs of 25 samples: 10 + 10 + 5
    assert samples_within(share, 25, 10, 2) == samples


def test_every_whole_number_of_steps_survives_its_share():
    for samples, size, epochs in [(7, 3, 5), (64, 10, 3), (997, 32, 11), (100_003, 10, 7)]:
        ends = [e * samples + min(size * (k + 1), samples)
                for e in range(epochs) for k in range(-(-samples // size))]  # fmt: skip
        for end in ends[:: max(1, len(ends) // 500)]:
            assert samples_within(end / (samples * epochs), samples, size, epochs) == end


def test_seconds_are_those_of_the_steps_and_of_the_messages():
    # 20 samples of 0.1 s in steps of 8 + 8 + 4; messages of 16 bytes and some
    options = FleetOptions(speed="equal", sample_seconds=0.1, bandwidth=1000)
    clock = VirtualClock(Fleet(options), lambda question, client: 20.0 * 2)
    given = {"local-epochs": 2, "batch-size": 8}
    seen, (flight,), w = run_partial(
        [Walks(20)], clock, PaceOptions(deadline=3.0, late="partial"), **given
    )
    messages = flight.whole - 4.0
    steps, samples = max(
        (k, n) for k, n in enumerate([8, 16, 20, 28, 36, 40], 1) if messages + n * 0.1 <= 3.0
    )
    assert 1 < steps < 6
    np.testing.assert_array_equal(w, steps)
    assert flight.arrived == pytest.approx(messages + samples * 0.1)
    assert seen[0].trained.shares == {0: samples / 40}


def test_if_everyone_is_fast_it_is_drop_to_the_bit():
    def play(pace):
        clock, clients = VirtualClock(measured(1, 2, 1, 1.5)), [Walks(k + 1) for k in range(4)]
        seen, flights, w = run_partial(clients, clock, pace, rounds=3)
        exchanges = [(r.trained.metrics, r.trained.bytes_up, r.trained.bytes_down) for r in seen]
        return exchanges, [(f.client, f.arrived, f.share, f.fate) for f in flights], w.tobytes()

    assert play(PARTIAL) == play(DROP)


@pytest.mark.parametrize("claim", [1.0, 0.75])
@pytest.mark.parametrize("strange", [EchoClient, Walks])
def test_a_client_that_does_more_than_it_was_asked_for_is_late_as_ever(strange, claim, caplog):
    # it takes 5 seconds: it is busy until 5, and its second training until 10
    stranger = EchoClient(100.0) if strange is EchoClient else Walks(claim=claim)
    seen, flights, w = run_partial([stranger, Walks()], VirtualClock(measured(5, 1)), rounds=3)
    dropped, _, wanted = run_partial(
        [stranger, Walks()], VirtualClock(measured(5, 1)), DROP, rounds=3
    )
    np.testing.assert_array_equal(w, wanted)
    for now, other in zip(seen, dropped, strict=True):
        assert (now.trained.clients, now.trained.late) == ([1], [0])
        assert now.trained.clock == other.trained.clock == 2.0 * now.number
    assert {f.fate for f in flights if f.client == 0} == {"late"}
    (line,) = [line for line in caplog.messages if "work-share" in line]
    assert "client 0 was asked for 0.25" in line


def test_who_did_more_is_busy_until_it_would_have_answered():
    # it trains until 5, then until 10: nothing is in time for 4, and for 6
    clients = [EchoClient(1.0, heard=(asked := []).append), Walks()]
    run_partial(clients, VirtualClock(measured(5, 1)), rounds=3)
    told = [(config["server-round"], config.get("work-share")) for config in asked]
    assert told == [(1, 0.25), (2, None), (3, None)]


@pytest.mark.parametrize("claim", [1.5, 0.0, -0.5, float("nan"), [0.5]])
@pytest.mark.parametrize("slow", [4, 1])
def test_a_claim_that_cannot_be_is_left_out(claim, slow):
    seen, flights, w = run_partial(
        [Walks(claim=claim), Walks(), Walks()], VirtualClock(measured(slow, 1, 1))
    )
    np.testing.assert_array_equal(w, 4)
    (failure,) = seen[0].failures
    assert (failure.client, "work-share" in failure.reason) == (0, True)
    assert {f.client: f.fate for f in flights} == {0: "failed", 1: "used", 2: "used"}


def test_replies_in_part_and_whole_are_alike_for_flowers_strategies():
    # Flower's own end the run_partial if replies differ in their metrics
    seen, *_ = two(4, 1, strategy=FlowerFedAdam(fraction_evaluate=0.0))
    assert not seen[0].failures
    assert set(seen[0].trained.shares) == {0}


def test_a_client_that_fails_in_part_is_a_failure():
    seen, _, _ = run_partial([that_fails(Walks)(), Walks()], VirtualClock(measured(4, 1)))
    assert [f.client for f in seen[0].failures] == [0]
    assert seen[0].trained.shares == {}


def test_who_would_break_off_after_the_deadline_answers_in_part():
    # of 20 seconds, clients break off at a random one; 8 steps of 2.5 s
    clock = VirtualClock(Fleet(FleetOptions(speed="equal", sample_seconds=2.5, dropout=0.8)))
    pace = PaceOptions(deadline=10.0, late="partial")
    seen, flights, _ = run_partial([Walks() for _ in range(40)], clock, pace, **{"local-epochs": 8})
    drawn = [clock.fleet.training(k, 1, 0.0, 8.0, 0) for k in range(40)]
    early = {k for k, one in enumerate(drawn) if one.broken and one.arrival <= 10}
    assert 5 < len(early) < 30
    assert {f.client for f in seen[0].failures} == early
    assert {f.client for f in flights if f.fate == "used" and f.share == 0.5} == {
        *range(40)
    } - early


# --- a real clock ---------------------------------------------------------------------


class Sites(InlineGrid):
    """A reply comes as many seconds after its message as its steps took, the first
    client's ``beside`` seconds later.
    """

    hands, beside, step, told = None, 0.0, 1.0, ()

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for place, (number, message) in enumerate(zip(ids, messages, strict=True)):
            reply, config = self._replies[number], message.content["config"]
            taken = dict(reply.content["metrics"]).get("work-seconds", 12 * self.step)
            self.due[number] = self.hands.now + taken + (self.beside if place == 0 else 0)
            self.told.append(config.get("work-seconds"))
        return ids

    def pulled(self, numbers):
        return super().pulled([number for number in numbers if self.due[number] <= self.hands.now])


class Stops(NumPyClient):
    """Takes up to 12 steps of a second that end in the seconds that it has, at least
    one.
    """

    def fit(self, parameters, config):
        seconds = config.get("work-seconds")
        steps = 12 if seconds is None else min(max(1, int(seconds)), 12)
        told = {} if seconds is None else {"work-share": steps / 12, "work-seconds": float(steps)}
        return [parameters[0] + steps], 1, {"loss": 0.0, **told}


def on_site(monkeypatch, beside, rounds, pace, client=Stops):
    hands = Clock()
    monkeypatch.setattr(clocks, "time", hands)
    kind = type("Site", (Sites,), {"hands": hands, "beside": beside, "due": {}, "told": []})

    # a second client that is always in time, so that no round is without a reply
    class Quick(NumPyClient):
        def fit(self, parameters, config):
            told = {"work-share": 1.0, "work-seconds": 0.0} if "work-seconds" in config else {}
            return [parameters[0]], 1, {"loss": 0.0, **told}

    seen, _, _ = run_partial([client(), Quick()], RealClock(pause=0.125), pace, rounds, inner=kind)
    return [r.trained.shares.get(0) for r in seen], [r.trained.late for r in seen], kind.told[::2]


def test_a_site_learns_how_long_it_has(monkeypatch):
    pace = PaceOptions(deadline=10.0, late="partial")
    shares, late, told = on_site(monkeypatch, 3.0, 3, pace)
    # it is told what is left of 90 % of the deadline: first it may be half of that
    assert (told[0], shares[0], late) == (4.0, 4 / 12, [[], [], []])
    assert told[1:] == [pytest.approx(9.0 - 3.0, abs=0.125)] * 2
    assert shares[1:] == [pytest.approx(int(told[1]) / 12)] * 2
    # 4 s and 7 s beside are too much; half of that is in time
    shares, late, told = on_site(monkeypatch, 7.0, 3, pace)
    assert (told[:2], late) == ([4.0, 2.0], [[0], [], []])
    assert told[2] == pytest.approx(9.0 - 7.0, abs=0.125)
    assert shares == [None, 2 / 12, pytest.approx(int(told[2]) / 12)]


def test_a_new_site_is_told_what_the_others_left(monkeypatch):
    monkeypatch.setattr(clocks, "time", Clock())
    clock, grid = RealClock(), InlineGrid(to_client_app(lambda context: Stops()), 5)
    flights = []
    for client, beside in enumerate([1.0, 2.0, 6.0, None]):
        content = RecordDict({"config": ConfigRecord({"local-epochs": 12})})
        flights.append(
            clocks.Flight(Message(content, grid.get_node_ids()[client], "train"), client, 1, 0.0)
        )
        clock.start(grid, flights[-1:], 10.0)
        if beside:
            flights[-1].arrived, flights[-1].seconds = beside + 3.0, 3.0
            clock.learn(flights[-1:], [])
    # half of the deadline; of the medians of the others
    assert [m.question.content["config"]["work-seconds"] for m in flights] == [
        4.0, 8.0, 7.5, 7.0,
    ]  # fmt: skip


def test_a_fast_site_does_all_steps_and_one_that_is_too_slow_stays_late(monkeypatch):
    pace = PaceOptions(deadline=15.0, late="partial")
    shares, late, _ = on_site(monkeypatch, 0.5, 3, pace)
    assert (shares, late) == ([6 / 12, None, None], [[], [], []])
    shares, late, told = on_site(monkeypatch, 20.0, 8, pace)
    assert (shares, late) == ([None] * 8, [[0]] * 8)
    assert told[-1] < 0.2


def test_a_site_that_does_not_read_the_seconds_is_in_time_if_it_is_fast(monkeypatch):
    whole = type("Whole", (Stops,), {"fit": lambda self, p, c: ([p[0] + 12], 1, {"loss": 0.0})})
    fast, slow = (PaceOptions(deadline=d, late="partial") for d in (20.0, 10.0))
    shares, late, _ = on_site(monkeypatch, 0.5, 2, fast, whole)
    assert (shares, late) == ([None] * 2, [[], []])
    _, late, _ = on_site(monkeypatch, 0.5, 2, slow, whole)
    assert late == [[0], [0]]


# --- which strategies -----------------------------------------------------------------


def run_with_late_replies(strategy):
    grid = grid_of(3, measured(1, 2, 3), pace=PaceOptions(deadline=2, late="keep"))
    return run(strategy, grid, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda strategy=strategy: run(
                    strategy, grid_of(6, measured(*range(6)), per_round=3), 2
                ),
                why,
            )
            for strategy, why in [
                (FedBuff(FedAvg(), FedBuffOptions(4)), "buffer = 4, but 3 clients train"),
                (FedBuff(FlowerFedAdam(), FedBuffOptions(1)), "FedAdam waits for 2 clients"),
                # as a part of a warm start it would be synchronous
                (WarmStart(FedBuff(FedAvg()), 1, FedAvg()), "outermost"),
            ]
        ),
        *(
            (lambda strategy=strategy: two(1, 1, strategy=strategy()), f"late = 'partial'.*{why}")
            for strategy, why in [
                (lambda: Scaffold(), "number of all local steps"),
                (lambda: FedDyn(), "solved"),
                (lambda: WarmStart(FedAvg(), 1, Scaffold()), "number of all local steps"),
                (
                    lambda: Robust(Scaffold(), RobustOptions("multi-krum")),
                    "number of all local steps",
                ),
                (
                    lambda: type("Own", (FedAvg,), {"aggregate_train": lambda self, r, m: m})(),
                    "does not say",
                ),
            ]
        ),
        *(
            (lambda call=call, strategy=strategy: call(strategy()), why)
            for call in (FedBuff, run_with_late_replies)
            for strategy, why in [
                (Scaffold, "more than an average"),
                (FedDyn, "more than an average"),
                (lambda: AFL(FedAvg()), "more than an average"),
                (lambda: Private(FedAvg(), PrivacyOptions(1.0)), "differential privacy"),
            ]
        ),
        (lambda: check_partial(FedEvg.__new__(FedEvg), "x"), "not models or updates"),
    ],
)
def test_what_cannot_be_asynchronous_or_done_in_part_is_refused(call, message):
    refused(call, message)


def test_what_averages_is_not_refused():
    for strategy in (IFCA(), Private(FedAvg(), PrivacyOptions(1.0)), FlowerFedAdam()):
        check_partial(strategy, "x")
