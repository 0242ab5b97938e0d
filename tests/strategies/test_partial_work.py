"""Partial work: who would be late does fewer steps, on a simulated and a real clock."""

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
    IFCA,
    ClientGrid,
    FedAvg,
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
from fedapps.strategies.base.partial_work import check_partial
from tests.helpers import EchoClient, refused, that_fails

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


def measured(*seconds):
    return repeated([{"client": str(k), "seconds": str(s)} for k, s in enumerate(seconds)])


def repeated(rows):
    return Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))


def run(clients, clock, pace=PARTIAL, rounds=1, strategy=None, inner=InlineGrid, **config):
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
    return run([Walks(), Walks()], VirtualClock(measured(*seconds)), **options)


def test_a_client_with_half_the_time_does_half_of_its_steps():
    seen, flights, w = two(4, 1)
    np.testing.assert_array_equal(w, (2 + 4) / 2)
    trained = seen[0].trained
    assert (trained.clients, trained.late, trained.shares) == ([0, 1], [], {0: 0.5})
    assert trained.clock == 2.0
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
    seen, (flight,), w = run([Walks(20)], clock, PaceOptions(deadline=3.0, late="partial"), **given)
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
        seen, flights, w = run(clients, clock, pace, rounds=3)
        exchanges = [(r.trained.metrics, r.trained.bytes_up, r.trained.bytes_down) for r in seen]
        return exchanges, [(f.client, f.arrived, f.share, f.fate) for f in flights], w.tobytes()

    assert play(PARTIAL) == play(DROP)


@pytest.mark.parametrize("claim", [1.0, 0.75])
@pytest.mark.parametrize("strange", [EchoClient, Walks])
def test_a_client_that_does_more_than_it_was_asked_for_is_late_as_ever(strange, claim, caplog):
    # it takes 5 seconds: it is busy until 5, and its second training until 10
    stranger = EchoClient(100.0) if strange is EchoClient else Walks(claim=claim)
    seen, flights, w = run([stranger, Walks()], VirtualClock(measured(5, 1)), rounds=3)
    dropped, _, wanted = run([stranger, Walks()], VirtualClock(measured(5, 1)), DROP, rounds=3)
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
    run(clients, VirtualClock(measured(5, 1)), rounds=3)
    told = [(config["server-round"], config.get("work-share")) for config in asked]
    assert told == [(1, 0.25), (2, None), (3, None)]


@pytest.mark.parametrize("claim", [1.5, 0.0, -0.5, float("nan"), [0.5]])
@pytest.mark.parametrize("slow", [4, 1])
def test_a_claim_that_cannot_be_is_left_out(claim, slow):
    seen, flights, w = run(
        [Walks(claim=claim), Walks(), Walks()], VirtualClock(measured(slow, 1, 1))
    )
    np.testing.assert_array_equal(w, 4)
    (failure,) = seen[0].failures
    assert (failure.client, "work-share" in failure.reason) == (0, True)
    assert {f.client: f.fate for f in flights} == {0: "failed", 1: "used", 2: "used"}


def test_replies_in_part_and_whole_are_alike_for_flowers_strategies():
    # Flower's own end the run if replies differ in their metrics
    seen, *_ = two(4, 1, strategy=FlowerFedAdam(fraction_evaluate=0.0))
    assert not seen[0].failures
    assert set(seen[0].trained.shares) == {0}


def test_a_client_that_fails_in_part_is_a_failure():
    seen, _, _ = run([that_fails(Walks)(), Walks()], VirtualClock(measured(4, 1)))
    assert [f.client for f in seen[0].failures] == [0]
    assert seen[0].trained.shares == {}


def test_who_would_break_off_after_the_deadline_answers_in_part():
    # of 20 seconds, clients break off at a random one; 8 steps of 2.5 s
    clock = VirtualClock(Fleet(FleetOptions(speed="equal", sample_seconds=2.5, dropout=0.8)))
    pace = PaceOptions(deadline=10.0, late="partial")
    seen, flights, _ = run([Walks() for _ in range(40)], clock, pace, **{"local-epochs": 8})
    drawn = [clock.fleet.training(k, 1, 0.0, 8.0, 0) for k in range(40)]
    early = {k for k, one in enumerate(drawn) if one.broken and one.arrival <= 10}
    assert 5 < len(early) < 30
    assert {f.client for f in seen[0].failures} == early
    assert {f.client for f in flights if f.fate == "used" and f.share == 0.5} == {
        *range(40)
    } - early


def test_times_of_a_run_repeat_its_shares():
    clients = [Walks(int(n)) for n in np.random.default_rng(0).integers(5, 30, 8)]
    fleet = Fleet(FleetOptions(speed="log-normal", sample_seconds=0.05, jitter=0.5))
    work = lambda question, client: clients[client].samples * 4.0
    given = {"rounds": 4, "batch-size": 3}
    seen, flights, w = run(clients, VirtualClock(fleet, work), **given)
    rows = [
        {"client": str(f.client), "round": str(f.number), "asked": repr(f.began), "fate": f.fate,
         "arrived": repr(f.arrived), "share": repr(f.share) if f.fate == "used" else "",
         "ended": str(f.number)}
        for f in flights
    ]  # fmt: skip
    assert len({f.share for f in flights}) > 4
    again, _, same = run(clients, VirtualClock(repeated(rows)), **given)
    np.testing.assert_array_equal(w, same)
    assert [r.trained.shares for r in again] == [r.trained.shares for r in seen]


# --- a real clock ---------------------------------------------------------------------


class Hands:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


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
    hands = Hands()
    monkeypatch.setattr(clocks, "time", hands)
    kind = type("Site", (Sites,), {"hands": hands, "beside": beside, "due": {}, "told": []})

    # a second client that is always in time, so that no round is without a reply
    class Quick(NumPyClient):
        def fit(self, parameters, config):
            told = {"work-share": 1.0, "work-seconds": 0.0} if "work-seconds" in config else {}
            return [parameters[0]], 1, {"loss": 0.0, **told}

    seen, _, _ = run([client(), Quick()], RealClock(pause=0.125), pace, rounds, inner=kind)
    return [r.trained.shares.get(0) for r in seen], [r.trained.late for r in seen], kind.told[::2]


def test_a_site_learns_how_long_it_has(monkeypatch):
    pace = PaceOptions(deadline=10.0, late="partial")
    shares, late, told = on_site(monkeypatch, 3.0, 3, pace)
    # it is told what is left of 90 % of the deadline: first it may be half of that
    assert (told[0], shares[0]) == (4.0, 4 / 12)
    assert told[1:] == [pytest.approx(9.0 - 3.0, abs=0.125)] * 2
    assert shares[1:] == [pytest.approx(int(told[1]) / 12)] * 2
    assert late == [[], [], []]
    # 4 s and 7 s beside are too much; half of that is in time
    shares, late, told = on_site(monkeypatch, 7.0, 3, pace)
    assert (told[:2], late) == ([4.0, 2.0], [[0], [], []])
    assert told[2] == pytest.approx(9.0 - 7.0, abs=0.125)
    assert shares == [None, 2 / 12, pytest.approx(int(told[2]) / 12)]


def test_a_new_site_is_told_what_the_others_left(monkeypatch):
    monkeypatch.setattr(clocks, "time", Hands())
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


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (lambda: Scaffold(), "number of all local steps"),
        (lambda: FedDyn(), "solved"),
        (lambda: WarmStart(FedAvg(), 1, Scaffold()), "number of all local steps"),
        (lambda: Robust(Scaffold(), RobustOptions("multi-krum")), "number of all local steps"),
        (lambda: type("Own", (FedAvg,), {"aggregate_train": lambda self, r, m: m})(), "does not say"),
    ],
)  # fmt: skip
def test_strategies_that_need_all_steps_are_refused(strategy, why):
    refused(lambda: two(1, 1, strategy=strategy()), f"late = 'partial'.*{why}")


def test_what_averages_is_not_refused():
    for strategy in (IFCA(), Private(FedAvg(), PrivacyOptions(1.0)), FlowerFedAdam()):
        check_partial(strategy, "x")
    refused(lambda: check_partial(FedEvg.__new__(FedEvg), "x"), "not models or updates")
