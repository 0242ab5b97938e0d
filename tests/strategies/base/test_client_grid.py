"""Faults of clients, one by one: each costs that client's reply and nothing else."""

import logging
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.clients import answer_identity, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, FedAvg, Patience, TooFewReplies, UpdateBound
from fedapps.strategies.base.flower_private import ErrorCode
from fedapps.strategies.base.messages import content_bytes, metrics_of
from tests.helpers import EchoClient, arrays_of, play, simulate, that_fails

START = {"w": np.zeros(2, np.float32)}


class Saboteur(EchoClient):
    """Client 1 misbehaves in round 2."""

    def __init__(self, i, fault):
        super().__init__(1.0)
        self.i, self.fault = i, fault

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        if self.i != 1 or config["server-round"] != 2:
            return arrays, n, metrics
        return self.fault(arrays, n, metrics)


def boom(arrays, n, metrics):
    raise RuntimeError("the disk of site 1 is full")


FAULTS = {
    "the disk of site 1 is full": boom,
    "array 'w' holds values that are not finite": lambda a, n, m: ([a[0] * np.nan], n, m),
    "metric 'loss' is not finite": lambda a, n, m: (a, n, {"loss": float("inf")}),
    "array 'w' has shape (3,), but (2,) was sent": lambda a, n, m: (
        [np.zeros(3, np.float32)],
        n,
        m,
    ),
    "arrays ['0', '1'] in the reply, but ['w'] were sent": lambda a, n, m: (a + a, n, m),
    "num-examples = 0: must be a number above 0": lambda a, n, m: (a, 0, m),
    "metric 'x' is a dict": lambda a, n, m: (a, n, {"x": {}}),
    "array 'w' holds 1e+30 (limit 1e+15): the client has probably diverged, lower its learning "
    "rate": lambda a, n, m: (
        [a[0] * 0 + np.float32(1e30)],
        n,
        m,
    ),
    "array 'w' holds 2e+15 (limit 1e+15)": lambda a, n, m: ([a[0] * 0 - np.float32(2e15)], n, m),
    "the metrics of the reply have 200002 bytes: at most max-metric-bytes = 200000": (
        lambda a, n, m: (a, n, {"a1": [0.0] * 10_000, "a2": [0.0] * 10_000, "a3": [0.0] * 4997})
    ),
    "metric 'loss' is 1e+300 (limit 1e+15)": lambda a, n, m: (a, n, {"loss": -1e300}),
    "num-examples' is 1e+18 (limit 1e+15)": lambda a, n, m: (a, 10**18, m),
    "array 'w' is of type complex64, but float32 was sent": lambda a, n, m: (
        [a[0] * np.complex64(1j)],
        n,
        m,
    ),
    "array 'w' is of type int64, but float32 was sent": lambda a, n, m: (
        [a[0].astype(np.int64)],
        n,
        m,
    ),
    "arrays [] in the reply, but ['w'] were sent": lambda a, n, m: ([], n, m),
    "array 'w' has shape (50000000,), but (2,) was sent": lambda a, n, m: (
        [np.zeros(50_000_000, np.float32)],
        n,
        m,
    ),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_reply_is_left_out_and_named(reason):
    with np.errstate(all="raise"):
        result = play(FedAvg(), lambda i: Saboteur(i, FAULTS[reason]), 3, START, 3)
    rounds = result.seen
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)  # the others' replies made every round
    assert [r.trained.clients for r in rounds] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    (failure,) = [f for r in rounds for f in r.failures]
    assert (failure.client, reason in failure.reason) == (1, True), failure.reason


def test_an_empty_round_keeps_the_model():
    client = lambda i, _: that_fails(EchoClient, [2])(1.0)
    result = simulate(FedAvg(), client, 2, START, 3)
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_a_run_whose_clients_all_fail_is_a_failure():
    client = lambda i, _: that_fails(EchoClient)(1.0)
    with pytest.raises(TooFewReplies, match=r"client 0: .*the disk of this site is full"):
        simulate(FedAvg(), client, 2, START, 10)
    with pytest.raises(TooFewReplies, match="no round had"):
        simulate(FedAvg(), client, 2, START, 1)


def test_min_replies():
    def client(i, _):
        return Saboteur(1 if i == 0 else 0, boom)

    patience = Patience(min_replies=2, max_failed_rounds=1)
    with pytest.raises(TooFewReplies, match="round 2: fewer than min-replies = 2"):
        simulate(FedAvg(), client, 2, START, 3, patience=patience)


class Mute(InlineGrid):
    """A grid on which node 1 never answers training, as a hung client in a
    simulation.
    """

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        return [
            r
            for r in replies
            if not (r.metadata.src_node_id == 1001 and r.metadata.message_type == "train")
        ]


def test_a_client_that_never_answers():
    (now,) = play(FedAvg(), lambda _: EchoClient(1.0), 3, START, inner=Mute, timeout=7).seen
    assert [(f.client, f.reason) for f in now.failures] == [(1, "no answer within 7 s")]


@pytest.mark.parametrize("simulation", [True, False])
def test_a_dead_worker_ends_the_run_of_a_simulation_only(simulation):
    """A SuperNode may send this code and these words as well: they cost its reply."""

    class Dying(InlineGrid):
        """What Flower's simulation answers for a client whose worker is gone: client
        0, in round 1.
        """

        if simulation:
            pull_interval = 0.1  # by which its grid is known

        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            gone = Error(
                code=ErrorCode.UNKNOWN, reason="ActorDiedError: the actor died unexpectedly"
            )
            return [
                Message(gone, reply_to=m)
                if m.metadata.message_type == "train" and m.metadata.dst_node_id == 1000
                else r
                for m, r in zip(messages, replies, strict=True)
            ]

    died = pytest.raises(RuntimeError, match=r"worker process of client 0 died")
    with died if simulation else nullcontext():
        result = play(FedAvg(), lambda _: EchoClient(1.0), 2, START, 2, inner=Dying)
        np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_a_client_that_says_so_is_not_a_dead_worker():
    class Lies(EchoClient):
        def fit(self, parameters, config):
            raise RuntimeError("ActorDiedError: the actor died unexpectedly")

    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0) if i else Lies(0), 2, START, 2)
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_a_wide_array_is_cast_to_the_models_type():
    result = simulate(
        FedAvg(),
        lambda i, _: Saboteur(1, lambda a, n, m: ([a[0].astype(np.float64)], n, m)),
        1,
        START,
        3,
    )
    assert arrays_of(result)["w"].dtype == np.float32
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_wide_array_that_does_not_fit_the_models_type_is_left_out():
    wide = lambda a, n, m: ([a[0].astype(np.float32) + 1e6], n, m)
    start = {"w": np.zeros(2, np.float16)}
    result = play(FedAvg(), lambda i: Saboteur(i, wide), 3, start, 3)
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)
    (failure,) = [f for r in result.seen for f in r.failures]
    assert "not finite" in failure.reason


@pytest.mark.parametrize(
    ("action", "expected"), [("reject", 1.0), ("clip", (1 + 2 / np.sqrt(2)) / 2)]
)
def test_a_bound_on_the_norm_of_an_update(action, expected):
    """Client 0 moves both weights by 1, a norm of 1.41; client 1 by 1000, which clipped
    to 2 is 2 / sqrt(2) each.
    """
    start = {**START, "steps": np.array(3)}  # a counter has no part in the norm
    client, on = lambda i: EchoClient([1.0, 1000.0][i]), {"bound": UpdateBound(2.0, action)}
    result = play(FedAvg(), client, 2, start, on=on)
    np.testing.assert_allclose(arrays_of(result)["w"], expected, rtol=1e-6)
    reasons = [f.reason for f in result.seen[0].failures]
    assert reasons == (
        ["the update has the norm 1414.21, above max-update-norm = 2"] if action == "reject" else []
    )


def test_the_bound_holds_under_a_wrapper_and_for_fedboosts_gradient():
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    from fedapps.strategies import FedBoost
    from fedapps.strategies.base.reply_validation import Rules

    rules = Rules(bound=UpdateBound(1.0))
    rules.follow(DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, 2))
    assert (rules.like_model, rules.weight) == (True, "num-examples")
    # no predictors yet: what comes are these, not gradients
    rules.follow(FedBoost(lambda arrays: arrays))
    assert (rules.like_model, rules.updates) == (False, False)
    rules.updates = True
    for norm, fault in (
        (0.9, None),
        (1.1, "the update has the norm 1.1, above max-update-norm = 1"),
    ):
        content = RecordDict(
            {"a": ArrayRecord([np.array([0.0, norm])]), "m": MetricRecord({"num-examples": 1})}
        )
        InlineGrid(to_client_app(lambda c: EchoClient(0)), 1)
        sent = Message(RecordDict(), dst_node_id=1, message_type="train")
        assert rules.fault(sent, Message(content, dst_node_id=1, message_type="train")) == fault


class Shuffled(InlineGrid):
    """Replies in another order every time, as they arrive under Ray."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        np.random.default_rng().shuffle(replies)
        return replies

    def get_node_ids(self):
        return set(super().get_node_ids())


def test_order_of_arrival_does_not_matter():
    """A strategy gets the replies in the order of the clients, whatever its own is."""
    seen = []

    class Spy(FedAvg):
        def configure_train(self, *arguments):
            return list(super().configure_train(*arguments))[::-1]

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append([metrics_of(reply.content)["num-examples"] for reply in replies])
            return super().aggregate_train(server_round, replies)

    def run():
        client, on = lambda i: EchoClient(0.1 * (1 + i), 1 + i), {"clients_per_round": 4}
        return arrays_of(play(Spy(), client, 9, START, 4, inner=Shuffled, on=on))["w"]

    np.testing.assert_array_equal(run(), run())
    assert [len(row) for row in seen] == [4] * 8
    assert seen == [sorted(row) for row in seen]


def test_bytes_are_those_of_the_contents():
    seen = []

    class Spy(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = super().send_and_receive(messages, timeout=timeout)
            seen.append(
                (
                    sum(content_bytes(m.content) for m in messages),
                    sum(content_bytes(r.content) for r in replies),
                )
            )
            return replies

    big = {"w": np.zeros(1000, np.float32)}
    (now,) = play(FedAvg(), lambda _: EchoClient(1.0), 3, big, inner=Spy).seen
    train, evaluate = now.trained, now.evaluated
    assert seen[-2:] == [
        (train.bytes_down, train.bytes_up),
        (evaluate.bytes_down, evaluate.bytes_up),
    ]
    assert 3 * 4000 < train.bytes_up < 3 * 4300
    assert evaluate.bytes_up < 300


def test_an_empty_list_is_metered_and_harmless():
    record = MetricRecord({"num-examples": 1, "curve": []})
    assert content_bytes(RecordDict({"m": record, "c": ConfigRecord({"new": [], "x": 1})})) > 0
    simulate(FedAvg(), lambda i, _: EchoClient(1.0, 1, {"curve": []}), 2, START, 1)


def test_a_strangers_app_without_identity_still_runs():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = ArrayRecord([a.numpy() + 1 for a in message.content["arrays"].values()])
        arrays = ArrayRecord(dict(zip(message.content["arrays"], arrays.values(), strict=True)))
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}),
            reply_to=message,
        )

    rounds = []
    grid = ClientGrid(InlineGrid(app, 3))
    result = simulate(
        FedAvg(fraction_evaluate=0), None, 3, START, 2, grid=grid, callbacks=[rounds.append]
    )
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)
    assert rounds[0].trained.clients == [1000, 1001, 1002]  # known by node id


class Asked(InlineGrid):
    """A grid that counts the questions and logs failures as Flower's simulation does,
    with their tracebacks.
    """

    questions = 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        self.questions += sum(
            message.metadata.message_type == "query.identity" for message in messages
        )
        for reply in replies:
            if reply.has_error():
                log(logging.ERROR, reply.error.reason)
        return replies


def strangers_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(
            RecordDict(
                {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
            ),
            reply_to=message,
        )

    return app


@pytest.mark.parametrize(
    "app", [strangers_app(), ClientApp(client_fn=lambda context: EchoClient(1.0).to_client())]
)
def test_an_app_without_an_answer_is_asked_once_and_costs_one_line(app, caplog):
    grid = Asked(app, 40)
    client_grid = ClientGrid(grid)
    client_grid.wait()
    assert list(client_grid.clients.values()) == list(grid.contexts)
    assert grid.questions == 1
    (record,) = [record for record in caplog.records if "connect" not in record.getMessage()]
    assert "does not answer query.identity" in record.getMessage()
    assert "clients.answer_identity(app)" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_mod_may_read_the_round_of_the_question_who_a_client_is():
    """As the mods of Flower's custom-mods example do, whatever the message is for."""

    def mod(message, context, call_next):
        rounds.append(int(message.content["config"]["server-round"]))
        return call_next(message, context)

    rounds = []
    client_grid = ClientGrid(InlineGrid(answer_identity(ClientApp(mods=[mod])), 3))
    client_grid.wait()
    assert list(client_grid.clients.values()) == [0, 1, 2]
    assert rounds == [0, 0, 0]


def test_one_line_makes_it_repeatable():
    def run(seed):
        rounds = []
        grid = ClientGrid(
            Asked(answer_identity(strangers_app()), 20), seed=seed, clients_per_round=5
        )
        simulate(
            FedAvg(fraction_evaluate=0), None, 20, START, 2, grid=grid, callbacks=[rounds.append]
        )
        return [now.trained.clients for now in rounds]

    assert run(1) == run(1) != run(2)
    assert max(max(run(1))) < 20  # partition ids


def test_a_node_that_fails_first_does_not_speak_for_the_app(caplog):
    class Broken(Asked):
        def _answer(self, message):
            if (
                message.metadata.dst_node_id == 1000
                and message.metadata.message_type == "query.identity"
            ):
                return Message(
                    Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="the disk is full"),
                    reply_to=message,
                )
            return super()._answer(message)

    client_grid = ClientGrid(Broken(to_client_app(lambda context: EchoClient(0)), 3))
    client_grid.wait()
    assert client_grid.clients == {1001: 1, 1002: 2, 1000: 1000}
    assert "the disk is full" in caplog.text


def test_two_nodes_with_one_name_are_refused():
    app = ClientApp()

    @app.query("identity")
    def identity(message, context):
        return Message(
            RecordDict({"config": ConfigRecord({"client-id": "site-a"})}), reply_to=message
        )

    with pytest.raises(ValueError, match="two nodes say that they are client 'site-a'"):
        ClientGrid(InlineGrid(app, 2)).wait()


@pytest.mark.parametrize("lie", ["another's name", "a fault", "a fault of another"])
def test_a_node_does_not_end_the_run_by_its_words(lie):
    """The one that has the name keeps it; the liar is named in round 1 and left out."""

    class Lying(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            for reply in replies:
                said = next(iter(reply.content.config_records.values()), {})
                if said.get("client-id") == 2:
                    said["client-id"] = 2 if lie == "a fault" else 0
                    said.update({"fault": "no data"} if "fault" in lie else {})
            return replies

    on = {"num_clients": 3}
    rounds = play(FedAvg(), lambda _: EchoClient(1.0), 3, START, 2, inner=Lying, on=on).seen
    assert [now.trained.clients for now in rounds] == [[0, 1]] * 2
    (failure,) = [failure for now in rounds for failure in now.failures]
    assert failure in rounds[0].trained.failures
    assert failure.client == (2 if lie == "a fault" else 1002)
    assert ("two nodes say" if lie == "another's name" else "no data") in failure.reason


@pytest.mark.parametrize("registered", [True, False])
def test_a_name_belongs_to_the_key_that_is_registered(registered):
    """Node 1002 says that it is client a, and has another key. Before node 1000 came,
    nobody had that name; when it is gone, nobody else gets it, unless nothing is
    registered: a SuperNode without a key of its own makes a new one at every start.
    """
    grid = Changing(to_client_app(lambda context: EchoClient(0)), 3)
    grid.names = {1000: "a", 1001: "b", 1002: "a"}
    name = "a" if registered else ""
    known = {1000: (name, b"0"), 1001: ("", b"1"), 1002: ("", b"2")}
    grid.get_nodes = lambda: [Known(node, *known[node]) for node in grid.on]
    client_grid = ClientGrid(grid, num_clients=2)
    client_grid.wait()
    assert client_grid.clients == {1000: "a", 1001: "b"}
    grid.on = [1001, 1002]
    assert client_grid.clients == {1001: "b"} | ({} if registered else {1002: "a"})
    grid.on = [1000, 1001]
    assert client_grid.clients == {1000: "a", 1001: "b"}


class Known(NamedTuple):
    """What the SuperLink knows of a node."""

    node_id: int
    name: str
    public_key: bytes


class Changing(InlineGrid):
    """A grid whose nodes the test switches on and off; nodes in ``names`` say that they
    are another client.
    """

    def __init__(self, app, num_clients):
        super().__init__(app, num_clients)
        self.on = list(self.contexts)
        self.names = {}
        self.mute = set()

    def get_node_ids(self):
        return list(self.on)

    def send_and_receive(self, messages, *, timeout=None):
        replies = [
            r for r in super().send_and_receive(messages) if r.metadata.src_node_id not in self.mute
        ]
        for reply in replies:
            if reply.metadata.src_node_id in self.names:
                next(iter(reply.content.config_records.values()))["client-id"] = self.names[
                    reply.metadata.src_node_id
                ]
        return replies


def test_a_site_that_comes_back_under_a_new_node_id_waits_until_the_old_one_is_gone():
    """The SuperLink lists a killed SuperNode for up to a minute; without authentication
    its successor has another id.
    """
    grid = Changing(to_client_app(lambda context: EchoClient(0)), 3)
    grid.on, grid.names = [1000, 1001], {1002: 1}
    client_grid = ClientGrid(grid, num_clients=2)
    client_grid.wait()
    grid.on = [1000, 1001, 1002]
    assert client_grid.clients == {1000: 0, 1001: 1}
    grid.on = [1000, 1002]
    assert client_grid.clients == {1000: 0, 1002: 1}


def test_a_latecomer_that_does_not_answer_is_asked_again():
    grid = Changing(to_client_app(lambda context: EchoClient(0)), 2)
    grid.on, grid.mute = [1000], {1001}
    client_grid = ClientGrid(grid, num_clients=1)
    client_grid.wait()
    grid.on = [1000, 1001]
    assert client_grid.clients == {1000: 0}
    grid.mute = set()
    assert client_grid.clients == {1000: 0, 1001: 1}


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, 1.5, True, b"site"])
def test_a_name_that_no_log_could_hold_is_not_taken(name):
    grid = Changing(to_client_app(lambda context: EchoClient(0)), 2)
    grid.names = {1001: name}
    client_grid = ClientGrid(grid)
    client_grid.wait()
    assert client_grid.clients == {1000: 0, 1001: 1001}


def test_waiting_ends_with_a_clear_error():
    app = to_client_app(lambda context: EchoClient(0))
    with pytest.raises(TimeoutError, match=r"2 of 3 clients connected within 0\.1 s"):
        ClientGrid(InlineGrid(app, 2), num_clients=3, start_timeout=0.1).wait()
