"""Secure sums through Flower's messages: the plain mean, dropouts in every phase, a
server that lies, and what is refused.
"""

import re
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from threading import Thread

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.secure.fixed_point import from_bytes, to_bytes
from fedapps.algorithms.secure.messages import Offer, Session
from fedapps.algorithms.secure.vector import Layout, Terms, to_vector
from fedapps.algorithms.secure.wire import MASKED, QUERY, RECORD, Refusal, packed, unpacked
from fedapps.clients import SecureApp
from fedapps.clients.base.secure_client import secure_client
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLOptions,
    ClientGrid,
    FedAdam,
    FedAvg,
    FedDyn,
    FedProx,
    PropFair,
    Scaffold,
    SecureOptions,
    SecureSum,
    SuPerFed,
    TERMOptions,
    TooFewReplies,
    UpdateBound,
    run_rounds,
)
from fedapps.strategies.base.records import to_record
from fedapps.strategies.base.secure_grid import SecureGrid
from fedapps.strategies.base.secure_replies import mean_replies, vector_of
from fedapps.strategies.base.secure_sessions import Failed, Prepared, Protocol, Sessions
from fedapps.strategies.base.wrapped_grid import WrappedGrid
from fedapps.strategies.secure import secured
from tests.helpers import EchoClient, arrays_of
from tests.secure_grids import ON, SHIFTS, START, Losing, app_of, client, run


@pytest.mark.parametrize(
    "make", [FedAvg, FedAdam, FedDyn, FedProx, lambda: FedAvg(weights="uniform"), flower.FedAvg]
)
def test_the_model_is_that_of_the_plain_run(make):
    # Flower's own makes real numbers of counters
    start = {k: v for k, v in START.items() if k != "count" or make is not flower.FedAvg}
    plain, *_, one = run(make(), rounds=3, start=start)
    found, inner, _, other = run(make(), rounds=3, start=start, options=ON)
    for name, array in plain.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)
        assert found[name].dtype == array.dtype
    for number in (1, 2, 3):
        a, b = one.train_metrics_clientapp[number], other.train_metrics_clientapp[number]
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-4)
    # two phases before the first round, then one that signs and one that reveals
    assert inner.steps == ["hello", "offer", *["train", "sign", "reveal"] * 3]


def test_one_extra_phase_a_round_where_the_server_follows_the_protocol():
    _, inner, grid, _ = run(FedAvg(), rounds=2, options=SecureOptions(on=True, consistency=False))
    assert inner.steps == ["hello", "offer", *["train", "reveal"] * 2]
    assert grid.last.travel is None or grid.grid.travel.messages > 0


def test_few_neighbours_hold_the_shares_of_a_client():
    """Of 30 clients each has 28 neighbours, the fewest that are allowed."""
    asked = []
    note = lambda step, facts, _: (
        step == "train" and asked.append((facts["session"]["clients"], len(facts["sealed"])))
    )
    options = SecureOptions(on=True, neighbours=28, consistency=False)
    lost = lambda step, _, place: step == "train" and place == 7
    make = lambda i: EchoClient(0.25 * i)
    found, *_ = run(
        FedAvg(weights="uniform"), 30, options=options, make=make, change=note, lost=lost
    )
    assert asked == [(30, 28)] * 29
    mean = 0.25 * (sum(range(30)) - 7) / 29
    np.testing.assert_allclose(found["v"], START["v"] + mean, rtol=1e-6)


def test_clients_without_enough_neighbours_leave_until_all_have_enough():
    """Of y too few neighbours made offers; without y, x has too few."""
    graph = {one: sorted(set("abcde") - {one}) for one in "abcde"}
    graph |= {"x": ["a", "b", "w", "y"], "y": ["a", "v", "w", "x"]}
    session = Session(bytes(16), 1, 0, False, 0, 9)
    offers = {name: Offer(name, *[b""] * 4) for name in "abcdexy"}
    now = Prepared(session, {}, {}, graph, offers)
    sessions = Sessions(None, Protocol(degree=4, consistency=False))
    assert sessions.members(now) == list("abcde")


def test_a_client_whose_reply_is_lost_is_back_in_the_next_round(tmp_path):
    """It has noted on disk that it made its shares for that round already."""
    base, failures = InlineGrid(app_of(), 5), []
    for context in map(base.contexts.__getitem__, range(1000, 1005)):
        context.node_config["store-dir"] = str(tmp_path)

    class Deaf(Losing):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            return replies[1:] if self.round == 1 and self.steps[-1:] == ["train"] else replies

    strategy = FedAvg()
    grid = secured(ClientGrid(Deaf(base), seed=0, num_clients=5), strategy, ON)
    start = to_record(list(START), list(START.values()))
    note = lambda now: failures.append(len(now.failures))
    run_rounds(strategy, grid, start, 2, callbacks=[note])
    assert failures == [1, 0]


@pytest.mark.parametrize(
    ("per_round", "rounds", "brought"), [(5, 3, [True, True, False]), (4, 2, [False, False])]
)
def test_shares_for_the_next_round_come_if_it_is_known_whom_it_asks(per_round, rounds, brought):
    """Not in the last round, nor if some clients are sampled."""
    asked = []
    note = lambda step, facts, _: step == "train" and asked.append("next" in facts)
    inner = Losing(InlineGrid(app_of(), 5), change=note)
    some = {"num_clients": 5} if per_round == 5 else {"clients_per_round": per_round}
    grid = secured(ClientGrid(inner, seed=0, **some), FedAvg(), ON)
    run_rounds(FedAvg(), grid, to_record(list(START), list(START.values())), rounds)
    assert asked == [one for one in brought for _ in range(per_round)]


def mean_of(places, name, start=START):
    weights = np.array([1 + 5 * i for i in places])
    moved = np.sum([w * SHIFTS[i] for w, i in zip(weights, places, strict=True)]) / weights.sum()
    return start[name] + moved


@pytest.mark.parametrize("step", ["hello", "offer", "train", "sign", "reveal"])
@pytest.mark.parametrize("consistency", [True, False])
def test_a_client_that_is_lost_in_a_phase(step, consistency):
    if step == "sign" and not consistency:
        return
    options = SecureOptions(on=True, consistency=consistency)
    lost = lambda now, _, place: now == step and place == 2
    found, _, grid, _ = run(FedAvg(), options=options, lost=lost)
    late = step in ("sign", "reveal")  # it is in the sum already
    places = [0, 1, 2, 3, 4] if late else [0, 1, 3, 4]
    np.testing.assert_allclose(found["v"], mean_of(places, "v"), rtol=1e-6)
    assert grid.last.clients == places or grid.last.kind == "evaluate"


def test_too_few_survivors_leave_the_model_as_it_is():
    lost = lambda step, number, place: step == "train" and number == 1 and place < 3
    found, inner, _, result = run(FedAvg(), 5, rounds=2, options=ON, lost=lost)
    assert 1 not in result.train_metrics_clientapp  # two of five, three needed
    assert inner.steps == ["hello", "offer", "train", "hello", "offer", "train", "sign", "reveal"]
    np.testing.assert_allclose(found["v"], mean_of(range(5), "v"), rtol=1e-6)
    with pytest.raises(TooFewReplies, match=r"2 of 5 clients are left, 3 needed|no answer"):
        run(FedAvg(), 5, rounds=1, options=ON, lost=lost)


@pytest.mark.parametrize(
    ("corrupted", "left", "enough"), [(0, 3, True), (2, 3, False), (2, 4, True)]
)
def test_a_sum_needs_more_clients_than_work_with_the_server(corrupted, left, enough):
    graph = {name: [other for other in "abcde" if other != name] for name in "abcde"}
    now = Prepared(None, {}, {}, graph, {})
    sessions = Sessions(None, Protocol(corrupted=corrupted))
    with (
        nullcontext()
        if enough
        else pytest.raises(Failed, match="3 of 5 clients are left, 4 needed")
    ):
        sessions.enough(now, "abcde"[:left], "abcde")


class Answering(WrappedGrid):
    """A grid on which client 2 answers the steps of ``change`` with other facts."""

    def __init__(self, grid, **change):
        super().__init__(grid)
        self.change = change

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        first = sent[0].content.get(RECORD) if sent else None
        step = unpacked(first).get("step", "train") if first else ""
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        for reply in replies if step in self.change else ():
            if reply.metadata.src_node_id == 1002 and reply.has_content():
                facts = unpacked(reply.content[RECORD])
                self.change[step](facts)
                reply.content[RECORD] = ConfigRecord(packed(facts))
        return replies


def flipped(name, place=0):
    """Return a change of one bit of a field."""

    def change(facts):
        held = facts if name in facts else facts.get("offer", {})
        if data := bytearray(held.get(name, b"")):
            data[place] ^= 1
            held[name] = bytes(data)

    return change


#: What client 2 answers, what is said of it, and the clients of the first and second
#: sum; ``None``: only that of the first is without it.
FORGED = {
    "a hello that it did not sign": (
        {"hello": flipped("proof")},
        "is not signed by its key",
        [[0, 1, 3, 4]] * 2,
    ),
    "another key for shares": ({"hello": flipped("channel")}, "is not signed by its key", None),
    "an offer that it did not sign": (
        {"offer": flipped("proof"), "train": flipped("proof")},
        "is not signed by its key",
        [[0, 1, 3, 4]] * 2,
    ),
    "another key for masks": ({"offer": flipped("public")}, "is not signed by its key", None),
    "an altered share": (
        {"offer": flipped("sealed", 3), "train": flipped("sealed", 3)},
        "",
        [[0, 1, 2, 3, 4]] * 2,
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_one_client_that_forges_its_part_stops_no_sum_and_no_other_client(forged):
    change, said, wanted = FORGED[forged]
    inner, sums = InlineGrid(app_of(), 5), []
    grid = secured(ClientGrid(Answering(inner, **change), seed=0, num_clients=5), FedAvg(), ON)
    start = to_record(list(START), list(START.values()))
    rounds = []
    result = run_rounds(FedAvg(), grid, start, 2, callbacks=[rounds.append])
    for now in rounds:
        sums.append(now.trained.clients)
        others = [one.reason for one in now.trained.failures if one.client != 2]
        assert not others, others
        assert all(said in one.reason for one in now.trained.failures)
    assert sums == (wanted or [[0, 1, 3, 4], sums[1]])
    assert 2 not in sums[0] or not said
    if sums[0] == sums[1]:
        moved = 2 * mean_of(sums[0], "v") - START["v"]
        np.testing.assert_allclose(arrays_of(result)["v"], moved, rtol=1e-6)


def test_the_mask_of_a_client_that_is_gone_needs_no_share_that_it_altered():
    """Its key comes from the other neighbours."""
    lost = lambda step, _, place: step == "train" and place == 2
    inner = Losing(InlineGrid(app_of(), 6), lost=lost)
    inner = Answering(inner, offer=flipped("sealed", 3))
    grid = secured(ClientGrid(inner, seed=0, num_clients=6), FedAvg(), ON)
    result = run_rounds(FedAvg(), grid, to_record(list(START), list(START.values())), 1)
    found = arrays_of(result)["v"]
    np.testing.assert_allclose(found, mean_of([0, 1, 3, 4, 5], "v"), rtol=1e-6)


def test_a_client_that_takes_another_ones_name_does_not_keep_it_out():
    """It may answer first."""
    inner = Answering(InlineGrid(app_of(), 5), hello=lambda facts: facts.update(name="3"))
    grid = secured(ClientGrid(inner, seed=0, num_clients=5), FedAvg(), ON)
    rounds = []
    start = to_record(list(START), list(START.values()))
    run_rounds(FedAvg(), grid, start, 1, callbacks=[rounds.append])
    assert rounds[0].trained.clients == [0, 1, 3, 4]
    assert "it calls itself 3, but is client 2" in rounds[0].trained.failures[0].reason


class Lying(WrappedGrid):
    """A grid on which client 2 adds 2^46 to every masked number in one round."""

    def __init__(self, grid, number):
        super().__init__(grid)
        self.left = number

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        masked = [m for m in replies if any(MASKED in r for r in m.content.array_records.values())]
        self.left -= bool(masked)
        for message in masked if not self.left else ():
            if message.metadata.src_node_id == 1002:
                (record,) = message.content.array_records.values()
                words = from_bytes(read(record[MASKED])) + np.uint64(2**46)
                record[MASKED] = Array(*fields(to_bytes(words)))
        return replies


def test_one_lie_costs_one_round_and_not_the_model():
    plain, *_ = run(FedAvg(), rounds=2, options=ON)
    grid = ClientGrid(Lying(InlineGrid(app_of(), 5), 2), seed=0, num_clients=5)
    start = to_record(list(START), list(START.values()))
    result = run_rounds(FedAvg(), secured(grid, FedAvg(), ON), start, 3)
    for name, array in arrays_of(result).items():
        np.testing.assert_array_equal(array, plain[name])
    assert [*result.train_metrics_clientapp] == [1, 3]


def test_survivors_are_most_of_those_with_shares_not_of_the_members():
    """Three of five members are too few where seven clients were to get shares."""
    lost = lambda step, number, place: (
        (step == "offer" and number == 0 and place > 4)
        or (step == "train" and number == 1 and place in (3, 4))
    )
    _, inner, *_ = run(FedAvg(), 7, rounds=2, options=ON, lost=lost)
    assert inner.steps.count("train") == 2
    assert inner.steps.count("sign") == 1


@pytest.mark.parametrize("folder", [True, False])
def test_a_site_that_comes_back_with_a_new_state_is_met_again(folder, tmp_path):
    """Without a folder it has another key, which the others refuse: it is left out."""
    seen = []

    def forget(step, facts, place):
        # after round 1 the state of client 2 is gone: its SuperNode restarts
        if step == "train" and inner and len(seen) == 1 and place == 2:
            inner[0].contexts[1002].state.clear()
        if step == "train" and place == 0:
            seen.append(facts)

    base = InlineGrid(app_of(), 5)
    inner = [base]
    grid = ClientGrid(Losing(base, change=forget), seed=0, num_clients=5)
    if folder:
        base.contexts[1002].node_config["store-dir"] = str(tmp_path)
    strategy = FedAvg()
    result = run_rounds(
        strategy, secured(grid, strategy, ON), to_record(list(START), list(START.values())), 3
    )
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    losing = grid.grid.grid
    # all, and client 2 once more, or in each round
    assert losing.steps.count("hello") == (2 if folder else 3)
    assert ("has another key than before" in grid.grid.faults.get(1002, "")) != folder


def test_no_reply_in_the_clear():
    marker = EchoClient(0.123456789, num_examples=31_337, metrics={"loss": 0.987654321})
    _, inner, _, _ = run(FedAvg(), 4, options=ON, make=lambda i: marker)
    trained = [reply for step, reply in inner.seen if step == "train"]
    assert len(trained) == 4
    for reply in trained:
        assert set(reply.content) == {"masked", RECORD}
        assert not any(isinstance(record, MetricRecord) for record in reply.content.values())
        text = bytes(reply.content[RECORD]["json"])
        assert b"31337" not in text
        assert b"0.98" not in text
    vectors = [read(reply.content["masked"]["masked"]) for reply in trained]
    # all four clients sent the same numbers
    assert all((a != b).mean() > 0.9 for a, b in pairwise(vectors))
    # six bytes for each of the eight numbers, two metrics, weight and sample count
    assert len(vectors[0]) == 6 * (8 + 1 + 2)


def test_the_same_seed_gives_the_same_model_and_other_masks():
    first, one, *_ = run(FedAvg(), 4, options=ON)
    second, other, *_ = run(FedAvg(), 4, options=ON)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes()
    masks = [
        [bytes(read(r.content["masked"]["masked"])) for s, r in grid.seen if s == "train"]
        for grid in (one, other)
    ]
    assert not set(masks[0]) & set(masks[1])


# --- weights by losses ----------------------------------------------------------------

CLEAR = SecureOptions(on=True, clear_losses=True)


def losing(i):
    """A client whose loss depends on the model that it is sent."""

    class Client(EchoClient):
        def fit(self, parameters, config):
            loss = abs(float(parameters[0][0]) - SHIFTS[i]) + 0.1 * i
            self.metrics = {"loss-before": loss, "half": 0.5 * i}
            return super().fit(parameters, config)

    return Client(SHIFTS[i], num_examples=1 + 5 * i)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AAggFFS(FedAdam()),
        lambda: AAggFFS(FedAvg(), AAggFFOptions(prior="samples")),
        lambda: AAggFFD(FedAvg()),
        lambda: AFL(FedProx(), AFLOptions(gamma=0.02)),
        lambda: TERM(FedAdam(), TERMOptions(lambda_=0.1, prior="samples")),
        lambda: PropFair(AAggFFS(FedAvg())),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_weights_by_losses_are_those_of_the_plain_run(make, gone):
    """Also where a client is lost in training, another one in each round."""
    lost = lambda step, number, place: gone and step == "train" and place == number % 7
    one, other = make(), make()
    plain, *_, first = run(one, 7, rounds=5, make=losing, lost=lost)
    found, inner, _, second = run(other, 7, rounds=5, make=losing, lost=lost, options=CLEAR)
    for name, array in plain.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)
        assert found[name].dtype == array.dtype
    for number in range(1, 6):
        a, b = (r.train_metrics_clientapp[number] for r in (first, second))
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-4)
    one, other = (s.strategy if isinstance(s, PropFair) else s for s in (one, other))
    assert len(one.last_weights) == 7 - gone
    assert other.last_weights == pytest.approx(one.last_weights, rel=1e-5)
    assert max(other.last_weights.values()) > 1.1 * min(other.last_weights.values())
    assert inner.steps.count("mask") == 5


def test_a_client_that_is_lost_after_its_loss_has_no_weight():
    """The weights are those of all losses, renormalised over the clients that stay."""
    lost = lambda step, number, place: step == "mask" and place == 2
    plain = TERM(FedAvg(), TERMOptions(lambda_=0.3))
    run(plain, make=losing)
    found, *_ = run(
        left := TERM(FedAvg(), TERMOptions(lambda_=0.3)), make=losing, lost=lost, options=CLEAR
    )
    weights = {i: w for i, w in plain.last_weights.items() if i != 2}
    want = sum(w * SHIFTS[i] for i, w in weights.items()) / sum(weights.values())
    np.testing.assert_allclose(found["v"], START["v"] + want, rtol=1e-6)
    assert left.last_weights.keys() == weights.keys()
    assert sum(left.last_weights.values()) == pytest.approx(1)


def test_a_loss_that_is_refused_leaves_its_client_out(caplog):
    def make(i):
        return EchoClient(SHIFTS[i], 10, {"loss-before": -1.0 if i == 1 else 0.5 + i})

    plain, *_ = run(AAggFFS(FedAvg()), make=make)
    with caplog.at_level("INFO", "flwr"):
        found, inner, *_ = run(AAggFFS(FedAvg()), make=make, options=CLEAR)
    np.testing.assert_allclose(found["v"], plain["v"], rtol=1e-6)
    assert "each client's loss-before is in the clear" in caplog.text
    assert "its loss cannot be used" in caplog.text
    shown = [r for s, r in inner.seen if s == "train"]
    assert all(set(r.content) == {"clear", RECORD} for r in shown)
    assert all(set(r.content["clear"]) == {"loss-before"} for r in shown)


class Boasting(WrappedGrid):
    """A grid on which client 2 says that it has a number of samples."""

    def __init__(self, grid, samples):
        super().__init__(grid)
        self.samples = samples

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            if "clear" in reply.content and reply.metadata.src_node_id == 1002:
                reply.content["clear"]["num-examples"] = self.samples
        return replies


@pytest.mark.parametrize("samples", [0, 65_536])
def test_samples_outside_of_the_bounds_give_no_weight(samples):
    inner = Boasting(InlineGrid(app_of(losing), 5), samples)
    strategy = AAggFFS(FedAvg(), AAggFFOptions(prior="samples"))
    grid, rounds = secured(ClientGrid(inner, seed=0, num_clients=5), strategy, CLEAR), []
    start = to_record(list(START), list(START.values()))
    run_rounds(strategy, grid, start, 1, callbacks=[rounds.append])
    (failure,) = rounds[0].trained.failures
    assert (failure.client, rounds[0].trained.clients) == (2, [0, 1, 3, 4])
    assert f"num-examples = {samples}" in failure.reason


def test_a_weight_above_a_half_counts_as_a_half():
    def make(i):
        return EchoClient(SHIFTS[i], 10, {"loss-before": 30.0 if i == 3 else 0.5})

    options = TERMOptions(lambda_=1.0)
    found, *_ = run(strategy := TERM(FedAvg(), options), make=make, options=CLEAR)
    assert strategy.last_weights[3] == pytest.approx(0.5)
    want = 0.5 * SHIFTS[3] + 0.125 * sum(SHIFTS[i] for i in (0, 1, 2, 4))
    np.testing.assert_allclose(found["v"], START["v"] + want, rtol=1e-6)
    # without client 4 it would be more: nobody is asked for signatures
    lost = lambda step, number, place: (step, number, place) == ("mask", 1, 4)
    strategy = TERM(FedAvg(), options)
    *_, inner, _, _ = run(strategy, rounds=2, make=make, options=CLEAR, lost=lost)
    assert inner.steps.count("train") == inner.steps.count("mask") == 2
    assert inner.steps.count("sign") == 1


def test_a_site_that_knows_its_peers_shows_losses_only_if_it_says_so(tmp_path):
    base = InlineGrid(app_of(losing), 4)
    (tmp_path / "peers").write_text("")
    node = base.contexts[1000].node_config
    node["secure-peers"], node["store-dir"] = str(tmp_path / "peers"), str(tmp_path)
    terms = Terms("model", "num-examples", True, 4, 16.0, 10, 0.0, False, clear=["loss-before"])
    facts = {"session": Session(b"1", 1, 0, True, 0).to_fields(), "terms": terms.to_fields()}
    for allowed in (False, True):
        node["secure-clear-losses"] = allowed
        content = RecordDict({"arrays": to_record(["w"], [START["w"]]), "config": ConfigRecord()})
        content[RECORD] = ConfigRecord(packed(facts))
        (reply,) = base.send_and_receive([Message(content, 1000, "train")])
        assert reply.has_error() != allowed
        assert allowed or "this site shows no losses" in reply.error.reason


# --- a server that lies ---------------------------------------------------------------


def refusals(inner, options=ON, strategy=None, outcome=None):
    """Run a round; return what clients said that refused a step, by step. By default
    what is left of the masks may even look like a model.
    """
    strategy = strategy or FedAvg()
    grid = secured(ClientGrid(inner, seed=0, num_clients=5), strategy, options)
    with outcome or suppress(TooFewReplies):
        run_rounds(strategy, grid, to_record(list(START), list(START.values())), 1)
    said = {step: [] for step in inner.steps}
    for step, reply in inner.seen:
        said[step] += [reply.error.reason] if reply.has_error() else []
    return said


def mask(of):
    """Return a server that sends the weights ``of(members, place)``."""
    return lambda step, facts, place: (
        step == "mask" and facts.update(weights=of(facts["members"], place))
    )


def exchanged(step, facts, place):
    if step == "train":
        one, other = facts["keys"][:2]
        one["public"], other["public"] = other["public"], one["public"]


def altered(step, facts, place):
    if step == "train":
        one, other = sorted(facts["sealed"])[:2]
        facts["sealed"] |= {one: facts["sealed"][other], other: facts["sealed"][one]}


single = lambda members, _: {name: 1.0 if name == "0" else 1e-6 for name in members}
SIGNED = "is not signed by it"
#: What a server changes; at which step how many clients refuse, and what they say; what
#: weighs the clients, if not FedAvg; whether there is no sum.
LIES = {
    "weights that single out a client": (mask(single), "mask", 5, "would show it", AAggFFS, 1),
    "the same for one client: the masks do not cancel": (
        lambda step, facts, place: place == 1 and mask(single)(step, facts, place),
        *("mask", 1, "the sum would show it", AAggFFS, 0),
    ),
    "fair weights, but others for each, that leave client 0's update": (
        mask(lambda members, place: dict.fromkeys(members, 1.0) | {str(place): 10.0**-place}),
        *("reveal", 5, "valid signatures", AFL, 0),
    ),
    "no weights": (mask(lambda *_: {}), "mask", 5, "Refusal", AAggFFS, 1),
    "without one a client would count with -1": (
        mask(lambda *_: {"0": 1.0, "1": 1.0}),
        *("mask", 5, "Refusal", AAggFFS, 1),
    ),
    "another session": (
        lambda step, facts, _: step == "mask" and facts["session"].update(number=9),
        *("mask", 5, "no reply of this session is kept", AAggFFS, 1),
    ),
    "other metrics in the clear": (
        lambda step, facts, _: step == "train" and facts["terms"].update(clear=["half"]),
        *("train", 5, "may be clear", AAggFFS, 1),
    ),
    # terms that would round the others' numbers away are not those of client 0
    "other settings for one client": (
        lambda step, facts, place: (
            step == "train" and place > 0 and facts["terms"].update(bound=1e6)
        ),
        *("reveal", 1, "[01] valid signatures", None, 0),
    ),
    "a split list": (
        lambda step, facts, place: (
            step in ("sign", "reveal") and place < 2 and facts.update(survivors=["0", "1", "2"])
        ),
        *("reveal", 2, "valid signatures of the survivors", None, 0),
    ),
    "swapped keys": (exchanged, "train", 5, SIGNED, None, 1),
    "altered shares": (altered, "train", 5, "altered, or belongs to another session", None, 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_changes_what_clients_are_sent_is_refused(lie):
    change, step, count, said, rule, ends = LIES[lie]
    inner = Losing(InlineGrid(app_of(losing if rule else client), 5), change=change)
    outcome = pytest.raises(TooFewReplies) if ends else suppress(TooFewReplies)
    refused = refusals(inner, CLEAR if rule else ON, rule and rule(FedAvg()), outcome)[step]
    assert len(refused) == count
    assert all(re.search(said, text) for text in refused), refused


def test_another_round_for_one_client_gives_no_sum():
    """Flower's apps may read the round from the message instead of its content."""

    class Later(Losing):
        def send_and_receive(self, messages, *, timeout=None):
            sent = list(messages)
            for message in sent:
                if message.metadata.dst_node_id == 1000 and message.metadata.group_id:
                    message.metadata.group_id = "9"
            return super().send_and_receive(sent, timeout=timeout)

    (refused,) = refusals(Later(InlineGrid(app_of(), 5)))["reveal"]
    assert "0 valid signatures" in refused or "1 valid signatures" in refused


def test_a_refusal_does_not_name_what_it_is_about():
    """Nobody meets these bounds, so errors would show the server all numbers."""
    make = lambda i: EchoClient(0.1234, num_examples=987, metrics={"half": -0.4321})
    for terms in ({"bound": 1e-9}, {"max_weight": 1}, {"max_norm": 1e-9}, {"weight": "half"}):
        change = lambda step, facts, _: step == "train" and facts["terms"].update(terms)
        said = refusals(Losing(InlineGrid(app_of(make), 5), change=change))
        texts = [text for step in said.values() for text in step]
        assert any("ValueError" in text for text in texts)
        assert not any(part in text for text in texts for part in ("234", "987", "0.432", "246"))


@pytest.mark.parametrize("says", [None, False, True])
def test_a_site_wants_signed_lists_unless_it_says_otherwise(says):
    """A server that lies would leave out the signatures, and send two lists."""
    base = InlineGrid(app_of(), 5)
    node = base.contexts[1002].node_config
    node["client-id"] = 2
    if says is not None:
        node["secure-consistency"] = says
    options = SecureOptions(on=True, consistency=False)
    grid = secured(ClientGrid(base, seed=0, num_clients=5), FedAvg(), options)
    rounds = []
    start = to_record(list(START), list(START.values()))
    run_rounds(FedAvg(), grid, start, 1, callbacks=[rounds.append])
    assert (2 in rounds[0].trained.clients) == (says is False)
    assert ("wants signed lists" in str(rounds[0].trained.failures)) == (says is not False)


@pytest.mark.parametrize("key", ["train-loss", "loss-before", "class-counts"])
@pytest.mark.parametrize("masked", [True, False])
def test_an_evaluation_tells_nothing_that_a_masked_reply_hides(key, masked):
    """Losses of training samples at models that a server chooses are gradients."""
    app = SecureApp(app_of().app, lambda context: masked)
    sent = to_record(list(START), list(START.values()))
    for value, refused in ((True, masked), (False, False)):
        content = RecordDict({"arrays": sent, "config": ConfigRecord({key: value})})
        (reply,) = InlineGrid(app, 1).send_and_receive([Message(content, 1000, "evaluate")])
        assert reply.has_error() == refused
        assert not refused or f"{key} = true: this site masks its replies" in reply.error.reason


def test_a_site_has_its_own_floors():
    """The server's word on how many are corrupted is not enough."""
    for name, options in (("corrupted", {}), ("min-change", {"corrupted": 1})):
        base = InlineGrid(app_of(), 5)
        base.contexts[1002].node_config[f"secure-{name}"] = 1
        grid = ClientGrid(base, seed=0, num_clients=5)
        grid = secured(grid, FedAvg(), SecureOptions(on=True, **options))
        start = to_record(list(START), list(START.values()))
        run_rounds(FedAvg(), grid, start, 1)
        assert "but this site asks for at least" in grid.grid.faults[1002]


@pytest.mark.parametrize("lies", [False, True])
def test_other_settings_of_the_run_for_one_client_are_refused(lies, monkeypatch):
    """The others would train with a rate of 0, and the sum be its update. A server that
    does not lie leaves it out.
    """
    inner = Losing(InlineGrid(app_of(), 5))
    inner.grid.contexts[1003].run_config = {"rate": 0.1}
    if not lies:
        assert not any(refusals(inner).values())
        said = inner.seen[-1][1].metadata.src_node_id
        assert said != 1003
        return
    monkeypatch.setattr(Sessions, "members", lambda self, now: sorted(now.offers))
    texts = refusals(inner, outcome=pytest.raises(TooFewReplies))["train"]
    assert len(texts) == 5
    assert all("is not signed by it, for these settings" in text for text in texts)


def test_a_message_that_asks_for_a_reply_in_the_clear_is_refused():
    app = app_of()
    grid = InlineGrid(app, 3)
    content = RecordDict({"arrays": ArrayRecord(), "config": MetricRecord()})
    (reply,) = grid.send_and_receive([Message(content, 1000, "train")])
    assert "this site sends masked replies only" in reply.error.reason


@pytest.mark.parametrize(
    ("step", "taken"),
    [
        ("offer", "offer of session 1"),
        ("train", "mask of session 1"),
        ("sign", "sign of session 1"),
        ("reveal", "reveal of session 1"),
        ("offer again", "offer of session 2"),
    ],
)
def test_a_second_message_at_once_is_refused(tmp_path, step, taken):
    """Two messages that each see the same old state: the folder knows better. "offer
    again": for the session for which the training reply has brought an offer.
    """
    grid = InlineGrid(app_of(), 4)
    for context in map(grid.contexts.__getitem__, range(1000, 1004)):
        context.node_config["store-dir"] = str(tmp_path)
    state, again, offers = grid.contexts[1000].state, [], []

    class Twice(Losing):
        def send_and_receive(self, messages, *, timeout=None):
            sent = list(messages)
            facts = unpacked(sent[0].content[RECORD]) if RECORD in sent[0].content else {}
            old, now = dict(state), facts.get("step", "train" if facts else "")
            copy = Message(
                sent[0].content, sent[0].metadata.dst_node_id, sent[0].metadata.message_type
            )
            replies = super().send_and_receive(sent, timeout=timeout)
            if now == "offer":
                offers.append((facts, copy))
            if now == "train" and step == "offer again" and "next" in facts:
                asked, copy = offers[0]
                asked = {**asked, "session": facts["next"]}
                copy.content[RECORD] = ConfigRecord(packed(asked))
            if now and (now == step or (now, step) == ("train", "offer again")) and not again:
                later = dict(state)
                replace_all(state, old)
                again.extend(self.grid.send_and_receive([copy]))
                replace_all(state, later)
            return replies

    strategy = FedAvg()
    client_grid = ClientGrid(Twice(grid), seed=0, num_clients=4)
    start = to_record(list(START), list(START.values()))
    run_rounds(strategy, secured(client_grid, strategy, ON), start, 2)
    assert f"step {taken} was taken before" in again[0].error.reason


def with_folder(tmp_path, count=5, app=None):
    """Return a grid of sites that each have a folder, as after a restart: with no
    state."""
    grid = InlineGrid(app or app_of(), count)
    for place in range(count):
        grid.contexts[1000 + place].node_config["store-dir"] = str(tmp_path / str(place))
    return grid


def test_a_key_is_known_from_the_first_meeting_on_in_all_runs(tmp_path):
    assert not any(refusals(Losing(with_folder(tmp_path))).values())
    (key,) = (tmp_path / "2").glob("secure-key-*")
    key.unlink()
    refused = refusals(Losing(with_folder(tmp_path)))["offer"]
    assert len(refused) == 4
    assert all("client 2 has another key than the one it is known by" in text for text in refused)


def test_the_difference_of_sums_has_a_floor_in_all_runs(tmp_path):
    options = SecureOptions(on=True, min_change=2)
    assert not any(refusals(Losing(with_folder(tmp_path)), options).values())
    lost = lambda step, _, place: step == "train" and place == 2
    refused = refusals(Losing(with_folder(tmp_path), lost), options)["sign"]
    assert len(refused) == 4
    assert all("differ from those of the last sum by 1 clients" in text for text in refused)


def test_steps_are_never_forgotten(tmp_path, monkeypatch):
    context = with_folder(tmp_path).contexts[1000]
    first = Session(bytes(16), 1, 0, True, 0)

    def take(session):
        context.state.clear()
        with secure_client(context) as client:
            client.claim(session, "sign")

    take(first)
    for number in range(1, 151):  # of other runs
        take(replace(first, tag=number.to_bytes(16)))
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)  # a write that ends half way
    with suppress(ZeroDivisionError):
        take(replace(first, tag=bytes(15)))
    monkeypatch.undo()
    context.node_config["client-id"] = "0"  # as a message for many clients calls it
    with pytest.raises(Refusal, match="step sign of session 1 was taken before"):
        take(first)


def test_two_messages_at_once_wait_for_each_other(tmp_path):
    context = with_folder(tmp_path).contexts[1000]
    copy, session, said = deepcopy(context), Session(bytes(16), 1, 0, True, 0), []

    def second():
        with pytest.raises(Refusal) as caught, secure_client(copy) as client:
            client.claim(session, "sign")
        said.append(str(caught.value))

    other = Thread(target=second)
    with secure_client(context) as client:
        client.claim(session, "sign")
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join()
    assert said == ["step sign of session 1 was taken before"]


def test_nobody_else_reads_what_a_site_keeps(tmp_path):
    with secure_client(with_folder(tmp_path).contexts[1000]):
        pass
    kept = [path for path in (tmp_path / "0").iterdir() if path.suffix != ".lock"]
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


@pytest.mark.parametrize(
    ("folder", "peers", "why"),
    [
        (False, "", "secure-peers needs store-dir"),
        (True, "0 ssh-ed25519 AAAA\n\n0 ssh-ed25519 BBBB", "line 3 is not NAME TYPE KEY, or names"),
        (True, "# all\n0 ssh-ed25519", "line 2 is not NAME TYPE KEY"),
        (True, "0 ssh-ed25519 A*A", "secure-peers = "),
        (True, "# all\n0 ssh-ed25519 AAAA bern\n1 ssh-ed25519 AAAA", ""),
    ],
)
def test_what_a_file_of_peers_may_hold(folder, peers, why, tmp_path):
    grid = with_folder(tmp_path) if folder else InlineGrid(app_of(), 3)
    (tmp_path / "peers").write_text(peers)
    grid.contexts[1000].node_config["secure-peers"] = str(tmp_path / "peers")
    question = RecordDict({RECORD: ConfigRecord(packed({"step": "hello"}))})
    (reply,) = grid.send_and_receive([Message(question, 1000, QUERY)])
    assert reply.has_error() == bool(why)
    assert not why or why in reply.error.reason


def replace_all(state, records):
    state.clear()
    state.update(records)


# --- what fits and what is refused ----------------------------------------------------


@pytest.mark.parametrize("make", [FedAvg, FedAdam, Scaffold, FedDyn, SuPerFed, flower.FedYogi])
def test_what_needs_sums_only_is_taken(make):
    SecureSum(make())


@pytest.mark.parametrize(
    ("make", "bound", "why"),
    [
        (lambda i: EchoClient(17.0 if i == 1 else 0.1), None, "changes by more than bound = 16"),
        (lambda i: EchoClient(np.nan if i == 1 else 0.1), None, "or is not finite"),
        (lambda i: EchoClient(0.1, 70_000 if i == 1 else 10), None, "max-weight = 65535"),
        (
            lambda i: EchoClient(0.1, 10, {"x": np.inf} if i == 1 else {"x": 1.0}),
            None,
            "metric 'x'",
        ),
        (lambda i: EchoClient(0.1, 10, {"y": 1.0} if i == 1 else {"x": 1.0}), None, "other arrays"),
        (
            lambda i: EchoClient(5.0 if i == 1 else 0.1),
            UpdateBound(max_update_norm=1.0),
            "the norm of the update is above 1",
        ),
    ],
)
def test_a_client_outside_of_its_bounds_is_left_out(make, bound, why):
    start = {"w": START["w"], "v": START["v"]}
    found, _, grid, _ = run(FedAvg(), 5, make=make, options=ON, bound=bound, start=start)
    np.testing.assert_allclose(found["w"], 0.1, rtol=1e-5)
    inner = grid.grid
    assert isinstance(inner, SecureGrid)
    assert why in inner.faults[1001]


def test_updates_are_clipped_by_the_clients():
    bound = UpdateBound(max_update_norm=1.0, on_large_update="clip")
    plain, *_ = run(FedAvg(), 5, bound=bound)
    found, *_ = run(FedAvg(), 5, options=ON, bound=bound)
    np.testing.assert_allclose(found["v"], plain["v"], rtol=1e-6)


def test_too_few_neighbours_for_the_clients_are_refused():
    with pytest.raises(ValueError, match=r"neighbours = 4: with 7 clients, .* choose"):
        run(FedAvg(), 7, options=SecureOptions(on=True, neighbours=4, consistency=False))


def test_a_vector_has_the_length_of_its_layout():
    terms = Terms("model", "num-examples", True, 4, 16.0, 10, 0.0, False)
    layout = Layout([("v", (2, 2), "float64")]).to_text()
    content = RecordDict({"arrays": to_record(["v"], [START["v"]])})
    reply = RecordDict({"masked": to_record(["masked"], [np.zeros(6 * 5, np.uint8)])})
    with pytest.raises(ValueError, match="its vector has 30 bytes"):
        vector_of(terms, content, reply, layout)


def test_sums_are_the_reply_of_one_client():
    terms = Terms("sums", "num-examples", False, 4, 16.0, 10, 0.0, False)
    arrays, metrics = {"n": np.array([3, -4])}, {"num-examples": 2}
    words, layout = to_vector(terms, {}, arrays, metrics)
    content = RecordDict({"arrays": to_record(["v"], [START["v"]])})
    replies = mean_replies(terms, layout, content, 3 * words, ["0", "1", "2"], set())
    sums = [read(reply["arrays"]["n"]) for reply in replies.values()]
    assert np.sum(sums, axis=0).tolist() == [9, -12]


def test_two_nodes_of_one_client_are_one_client(tmp_path):
    """With one folder they have one key, too."""
    base = InlineGrid(app_of(), 5)
    for node in (1000, 1004):
        base.contexts[node].node_config |= {"store-dir": str(tmp_path), "partition-id": 0}
    grid = secured(base, FedAvg(), ON)
    content = RecordDict({"arrays": to_record(["v"], [START["v"]]), "config": ConfigRecord()})
    replies = grid.send_and_receive([Message(content, 1000 + k, "train") for k in range(5)])
    assert [reply.has_error() for reply in replies] == [False] * 4 + [True]
    assert "another client is called 0, too" in replies[4].error.reason


@pytest.mark.parametrize(
    ("nodes", "shifts", "why"),
    [
        ([1000, 1001, 1002, 1000], [0, 0, 0, 0], "one message per client, but one gets two"),
        ([1000, 1001, 1002, 1003], [0, 0, 0, 1], "the same model and settings for all clients"),
    ],
)
def test_messages_that_cannot_be_summed(nodes, shifts, why):
    grid = secured(InlineGrid(app_of(), 5), FedAvg(), ON)
    contents = [
        RecordDict({"arrays": to_record(["v"], [START["v"] + shift]), "config": ConfigRecord()})
        for shift in shifts
    ]
    messages = [Message(*pair, "train") for pair in zip(contents, nodes, strict=True)]
    with pytest.raises(ValueError, match=why):
        grid.send_and_receive(messages)


def test_flowers_own_loop_and_app():
    """A stranger's project: Flower's strategy, loop and message API."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        place = int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_numpy_ndarrays()
        record = to_record(list(message.content["arrays"]), [a + SHIFTS[place] for a in arrays])
        metrics = MetricRecord({"num-examples": 1 + 5 * place, "loss": 0.5})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    app = SecureApp(app)
    start = {"v": START["v"]}
    strategy = SecureSum(flower.FedAvg(fraction_evaluate=0.0))
    result = strategy.start(InlineGrid(app, 5), to_record(["v"], [start["v"]]), num_rounds=1)
    np.testing.assert_allclose(arrays_of(result)["v"], mean_of(range(5), "v"), rtol=1e-6)
    with pytest.raises(ValueError, match="call its start"):
        strategy.configure_train(1, ArrayRecord(), None, None)
