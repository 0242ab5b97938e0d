"""Faults of clients, one by one: each costs that client's reply and nothing else."""

import logging
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedapps.clients import MessageStore, answer_identity, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import FIRST_NODE
from fedapps.strategies import ClientGrid, FedAvg, FedBoost, Patience, TooFewReplies, UpdateBound
from fedapps.strategies.base.flower_private import ErrorCode, identify_process
from fedapps.strategies.base.messages import content_bytes, metrics_of
from fedapps.strategies.base.reply_validation import Rules
from tests.helpers import START, EchoClient, arrays_of, lacking, play, refused, simulate, that_fails
from tests.strangers import Unruly, asks, stranger, unruly

ECHO = to_client_app(lambda context: EchoClient(0))


class Saboteur(EchoClient):
    """Client 1 misbehaves in round 2."""

    def __init__(self, i, fault):
        super().__init__(1.0)
        self.i, self.fault = i, fault

    def fit(self, parameters, config):
        reply = super().fit(parameters, config)
        return self.fault(*reply) if (self.i, config["server-round"]) == (1, 2) else reply


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
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)  # the others' replies made every round
    assert [r.trained.clients for r in result.seen] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    (failure,) = [f for r in result.seen for f in r.failures]
    assert (failure.client, reason in failure.reason) == (1, True), failure.reason


def test_an_empty_round_keeps_the_model():
    result = simulate(FedAvg(), lambda i, _: that_fails(EchoClient, [2])(1.0), 2, START, 3)
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def of_two(client, rounds, **options):
    return play(FedAvg(), client, 2, START, rounds, **options)


@pytest.mark.parametrize(
    ("call", "said", "kind"),
    [
        (
            lambda: of_two(lambda i: that_fails(EchoClient)(1.0), 10),
            "client 0: .*the disk of this site is full",
            TooFewReplies,
        ),
        (lambda: of_two(lambda i: that_fails(EchoClient)(1.0), 1), "no round had", TooFewReplies),
        (
            lambda: of_two(
                lambda i: Saboteur(1 - i, boom),
                3,
                patience=Patience(min_replies=2, max_failed_rounds=1),
            ),
            "round 2: fewer than min-replies = 2",
            TooFewReplies,
        ),
        (
            lambda: met(Unruly(ECHO, 2, says({1000: "site-a", 1001: "site-a"}))),
            "two nodes say that they are client 'site-a'",
            ValueError,
        ),
        (
            lambda: play(FedAvg(), Guest, 3, START, inner=numbered, on={"num_new": 3}),
            "num-new-clients = 3, but 3 clients are connected",
            ValueError,
        ),
    ],
)
def test_a_run_without_the_clients_that_it_needs_is_an_error(call, said, kind):
    refused(call, said, kind)


def test_a_client_that_never_answers():
    mute = unruly(lambda message, reply: None if asks(message, 1001) else reply)
    (now,) = play(FedAvg(), lambda _: EchoClient(1.0), 3, START, inner=mute, timeout=7).seen
    assert [(f.client, f.reason) for f in now.failures] == [(1, "no answer within 7 s")]


@pytest.mark.parametrize(
    ("simulation", "code", "ends"),
    [
        (True, ErrorCode.UNKNOWN, True),
        # a SuperNode may send this code and these words, and a client these words
        (False, ErrorCode.UNKNOWN, False),
        (True, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, False),
    ],
)
def test_a_dead_worker_ends_the_run_of_a_simulation_only(simulation, code, ends):
    """Otherwise it costs a reply."""
    gone = Error(code, "ActorDiedError: the actor died unexpectedly")
    gives_up = lambda m, reply: Message(gone, reply_to=m) if asks(m, 1000) else reply

    class Dying(Unruly):
        if simulation:
            pull_interval = 0.1  # by which its grid is known

    inner = lambda app, count: Dying(app, count, gives_up)
    died = pytest.raises(RuntimeError, match=r"worker process of client 0 died")
    with died if ends else nullcontext():
        np.testing.assert_allclose(
            arrays_of(play(FedAvg(), lambda _: EchoClient(1.0), 2, START, 2, inner=inner))["w"], 2.0
        )


def test_a_wide_array_is_cast_to_the_models_type():
    wide = lambda a, n, m: ([a[0].astype(np.float64)], n, m)
    result = simulate(FedAvg(), lambda i, _: Saboteur(1, wide), 1, START, 3)
    assert arrays_of(result)["w"].dtype == np.float32
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_wide_array_that_does_not_fit_the_models_type_is_left_out():
    wide = lambda a, n, m: ([a[0].astype(np.float32) + 1e6], n, m)
    result = play(FedAvg(), lambda i: Saboteur(i, wide), 3, {"w": np.zeros(2, np.float16)}, 3)
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)
    (failure,) = [f for r in result.seen for f in r.failures]
    assert "not finite" in failure.reason


@pytest.mark.parametrize(
    ("action", "expected", "reasons"),
    [
        ("reject", 1.0, ["the update has the norm 1414.21, above max-update-norm = 2"]),
        ("clip", (1 + 2 / np.sqrt(2)) / 2, []),
    ],
)
def test_a_bound_on_the_norm_of_an_update(action, expected, reasons):
    """Client 0 moves both weights by 1, a norm of 1.41; client 1 by 1000, which clipped
    to 2 is 2 / sqrt(2) each.
    """
    start = {**START, "steps": np.array(3)}  # a counter has no part in the norm
    client, on = lambda i: EchoClient([1.0, 1000.0][i]), {"bound": UpdateBound(2.0, action)}
    result = play(FedAvg(), client, 2, start, on=on)
    np.testing.assert_allclose(arrays_of(result)["w"], expected, rtol=1e-6)
    assert [f.reason for f in result.seen[0].failures] == reasons


def test_the_bound_holds_under_a_wrapper_and_for_fedboosts_gradient():
    identify_process(1)
    rules = Rules(bound=UpdateBound(1.0))
    rules.follow(DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, 2))
    assert (rules.like_model, rules.weight) == (True, "num-examples")
    # no predictors yet: what comes are these, not gradients
    rules.follow(FedBoost(lambda arrays: arrays))
    assert (rules.like_model, rules.updates) == (False, False)
    rules.updates, sent = True, Message(RecordDict(), dst_node_id=1, message_type="train")
    said = "the update has the norm 1.1, above max-update-norm = 1"
    for norm, fault in ((0.9, None), (1.1, said)):
        content = RecordDict({"a": ArrayRecord([np.array([0.0, norm])])})
        content["m"] = MetricRecord({"num-examples": 1})
        assert rules.fault(sent, Message(content, dst_node_id=1, message_type="train")) == fault


@pytest.mark.parametrize(
    ("kind", "fault"), [(np.int64, None), (np.float32, "array '0' holds 2e+06")]
)
def test_places_in_a_vector_of_millions_are_no_large_numbers(kind, fault):
    """The place of an atom; a number of that size is beyond ``max-array-value``."""
    identify_process(1)
    content = RecordDict({"a": ArrayRecord([np.array([2e6], kind)])})
    content["m"] = MetricRecord({"num-examples": 1})
    sent, reply = (
        Message(one, dst_node_id=1, message_type="train") for one in (RecordDict(), content)
    )
    found = Rules(like_model=False).fault(sent, reply)
    assert found is None if fault is None else found.startswith(fault)


def test_a_strategy_gets_the_replies_in_the_order_of_the_clients():
    """Whatever its own is. That the order of arrival does not matter is an exam."""
    seen = []

    class Spy(FedAvg):
        def configure_train(self, *arguments):
            return list(super().configure_train(*arguments))[::-1]

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append([metrics_of(reply.content)["num-examples"] for reply in replies])
            return super().aggregate_train(server_round, replies)

    play(Spy(), lambda i: EchoClient(0.1, 1 + i), 9, START, 4, on={"clients_per_round": 4})
    assert [len(row) for row in seen] == [4] * 4
    assert seen == [sorted(row) for row in seen]


def test_bytes_are_those_of_the_contents():
    grid = Unruly(to_client_app(lambda context: EchoClient(1.0)), 3)
    (now,) = play(FedAvg(), None, 3, {"w": np.zeros(1000, np.float32)}, inner=lambda *_: grid).seen
    for phase, exchanged in zip((now.trained, now.evaluated), grid.exchanged[-2:], strict=True):
        down, up = (sum(content_bytes(m.content) for m in part) for part in exchanged)
        assert (phase.bytes_down, phase.bytes_up) == (down, up)
    assert 3 * 4000 < now.trained.bytes_up < 3 * 4300
    assert now.evaluated.bytes_up < 300


def test_an_empty_list_is_metered_and_harmless():
    record = MetricRecord({"num-examples": 1, "curve": []})
    assert content_bytes(RecordDict({"m": record, "c": ConfigRecord({"new": [], "x": 1})})) > 0
    simulate(FedAvg(), lambda i, _: EchoClient(1.0, 1, {"curve": []}), 2, START, 1)


# --- who a client is ------------------------------------------------------------------


QUESTION = "query.identity"


def met(grid, **options):
    """Return a client grid once its clients have said who they are."""
    client_grid = ClientGrid(grid, **options)
    client_grid.wait()
    return client_grid


@pytest.mark.parametrize(
    "app", [stranger(), ClientApp(client_fn=lambda context: EchoClient(1.0).to_client())]
)
def test_an_app_without_an_answer_is_asked_once_and_costs_one_line(app, caplog):
    def logged(message, reply):
        """Log failures as Flower's simulation does, with their tracebacks."""
        if reply.has_error():
            log(logging.ERROR, reply.error.reason)
        return reply

    grid = Unruly(app, 40, logged)
    assert list(met(grid).clients.values()) == list(grid.contexts)
    assert [len(sent) for sent, _ in grid.exchanged] == [3]
    (said,) = [line for line in caplog.messages if "connect" not in line]
    assert lacking(
        said, "does not answer query.identity", "clients.answer_identity(app)", "\n"
    ) == ["\n"]


def test_one_client_without_an_answer_takes_no_other_its_name():
    app = to_client_app(lambda context: EchoClient(1.0))

    def mute(message, context):
        if context.node_config["partition-id"] == 0:
            return stranger()(message, context)
        return app(message, context)

    assert list(met(InlineGrid(mute, 4)).clients.values()) == [1, 2, 3, 1000]


def test_a_mod_may_read_the_round_of_the_question_who_a_client_is():
    """As the mods of Flower's custom-mods example do, whatever the message is for."""

    def mod(message, context, call_next):
        rounds.append(int(message.content["config"]["server-round"]))
        return call_next(message, context)

    rounds = []
    grid = InlineGrid(answer_identity(ClientApp(mods=[mod])), 3)
    assert list(met(grid).clients.values()) == [0, 1, 2]
    assert rounds == [0, 0, 0]


def test_a_node_that_fails_first_does_not_speak_for_the_app(caplog):
    full = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the disk is full")
    breaks = lambda m, reply: Message(full, reply_to=m) if asks(m, 1000, QUESTION) else reply
    assert met(Unruly(ECHO, 3, breaks)).clients == {1001: 1, 1002: 2, 1000: 1000}
    assert "the disk is full" in caplog.text


def says(names, **more):
    """Return a change of replies: nodes in ``names`` say that they are another
    client.
    """

    def change(message, reply):
        if message.metadata.message_type == QUESTION and reply.metadata.src_node_id in names:
            next(iter(reply.content.config_records.values())).update(
                {"client-id": names[reply.metadata.src_node_id], **more}
            )
        return reply

    return change


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        (says({1002: 0}), 1002, "two nodes say"),
        (says({1002: 2}, fault="no data"), 2, "no data"),
        (says({1002: 0}, fault="no data"), 1002, "no data"),
    ],
    ids=["another's name", "a fault", "a fault of another"],
)
def test_a_node_does_not_end_the_run_by_its_words(change, named, why):
    """The one that has the name keeps it; the liar is named in round 1 and left out."""
    on = {"num_clients": 3}
    rounds = play(
        FedAvg(), lambda _: EchoClient(1.0), 3, START, 2, inner=unruly(change), on=on
    ).seen
    assert [now.trained.clients for now in rounds] == [[0, 1]] * 2
    (failure,) = [failure for now in rounds for failure in now.failures]
    assert failure in rounds[0].trained.failures
    assert failure.client == named
    assert why in failure.reason


def on_nodes(grid, nodes):
    """Return the clients, by node, that a client grid knows once these are on."""
    grid.grid.on = nodes
    return dict(grid.clients)


class Known(NamedTuple):
    """What the SuperLink knows of a node."""

    node_id: int
    name: str
    public_key: bytes


@pytest.mark.parametrize("registered", [True, False])
def test_a_name_belongs_to_the_key_that_is_registered(registered):
    """Node 1002 says that it is client a, and has another key. Before node 1000 came,
    nobody had that name; when it is gone, nobody else gets it, unless nothing is
    registered: a SuperNode without a key of its own makes a new one at every start.
    """
    grid = Unruly(ECHO, 3, says({1000: "a", 1001: "b", 1002: "a"}))
    known = {1000: ("a" if registered else "", b"0"), 1001: ("", b"1"), 1002: ("", b"2")}
    grid.get_nodes = lambda: [Known(node, *known[node]) for node in grid.on]
    client_grid = met(grid, num_clients=2)
    assert client_grid.clients == {1000: "a", 1001: "b"}
    assert on_nodes(client_grid, [1001, 1002]) == {1001: "b"} | ({} if registered else {1002: "a"})
    assert on_nodes(client_grid, [1000, 1001]) == {1000: "a", 1001: "b"}


def test_a_site_that_comes_back_under_a_new_node_id_waits_until_the_old_one_is_gone():
    """The SuperLink lists a killed SuperNode for up to a minute; without authentication
    its successor has another id.
    """
    grid = ClientGrid(Unruly(ECHO, 3, says({1002: 1})), num_clients=2)
    grid.grid.on = [1000, 1001]
    grid.wait()
    assert [on_nodes(grid, nodes) for nodes in ([1000, 1001, 1002], [1000, 1002])] == [
        {1000: 0, 1001: 1},
        {1000: 0, 1002: 1},
    ]


def test_a_latecomer_that_does_not_answer_is_asked_again():
    mute = {1001}
    change = lambda message, reply: None if reply.metadata.src_node_id in mute else reply
    grid = ClientGrid(Unruly(ECHO, 2, change), num_clients=1)
    grid.grid.on = [1000]
    grid.wait()
    assert on_nodes(grid, [1000, 1001]) == {1000: 0}
    mute.clear()
    assert grid.clients == {1000: 0, 1001: 1}


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, 1.5, True, b"site"])
def test_a_name_that_no_log_could_hold_is_not_taken(name):
    assert met(Unruly(ECHO, 2, says({1001: name}))).clients == {1000: 0, 1001: 1001}


# --- clients kept out of training -----------------------------------------------------


class Guest(EchoClient):
    """Moves the model by its number; as a new client it reports the model's value, and
    the number of epochs.
    """

    def __init__(self, number):
        super().__init__(float(number), num_examples=number + 1)
        self.store = MessageStore(RecordDict())

    def evaluate_new(self, epochs, parameters, config, train_parameters, train_config):
        assert self.store.load("kept", config, before=False) is None
        self.store.save("kept", parameters, config)
        return 0.0, 7, {"accuracy": epochs / 10, "loss": float(parameters[0][0]), "other": 1.0}


numbered = partial(InlineGrid, numbered=True)
ONE_NEW = {"num_new": 1}


def test_a_new_client_that_returns_at_another_node_is_still_new():
    grid = Unruly(to_client_app(lambda context: Guest(context.node_config["partition-id"])), 4)
    clients = met(grid, seed=3, num_new=1)
    (new,) = clients.new_clients
    grid.on.remove(FIRST_NODE + new)
    assert clients.newcomers() == {}
    assert len(clients.get_node_ids()) == 3
    other = FIRST_NODE + (new + 1) % 4  # whose node now says that it is the new one
    clients._ids[other] = new
    assert clients.newcomers() == {other: new}
    assert other not in clients.get_node_ids()


def test_a_client_that_cannot_be_new_is_a_failure_of_its_own():
    result = play(FedAvg(), lambda _: EchoClient(1.0), 4, START, 2, inner=numbered, on=ONE_NEW)
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)
    (failure,) = result.seen[-1].failures
    assert "EchoClient has no evaluate_new" in failure.reason


def test_an_accuracy_that_is_none_is_left_out():
    class Boaster(Guest):
        def evaluate_new(self, epochs, *sent):
            return 0.0, 7, {"accuracy": -0.5 if epochs else 0.5, "loss": 1.0}

    result = play(FedAvg(), Boaster, 4, START, inner=numbered, on=ONE_NEW)
    assert "new-accuracy-1" in result.seen[-1].failures[0].reason
