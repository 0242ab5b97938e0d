"""Secure sums where somebody does not follow the protocol: clients that forge their
part, a server that lies, messages that come twice, sites with terms of their own.
"""

import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from threading import Thread

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.secure.fixed_point import from_bytes, to_bytes
from fedapps.algorithms.secure.messages import Session
from fedapps.algorithms.secure.wire import QUERY, RECORD, Refusal, packed, unpacked
from fedapps.clients import SecureApp
from fedapps.clients.base.secure_client import secure_client
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import AFL, AAggFFS, FedAvg, SecureOptions, TooFewReplies
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.secure_sessions import Sessions
from tests.helpers import EchoClient, arrays_of, refused
from tests.secure_grids import (
    CLEAR,
    ON,
    START,
    Losing,
    app_of,
    client,
    losing,
    mean_of,
    run,
    summed,
)


def masked_by(inner):
    """Return the masked vectors that a grid has heard."""
    return [
        read(reply.content["masked"]["masked"]) for step, reply in inner.seen if step == "train"
    ]


def test_no_reply_in_the_clear():
    marker = EchoClient(0.123456789, num_examples=31_337, metrics={"loss": 0.987654321})
    _, inner, _ = run(FedAvg(), 4, options=ON, make=lambda i: marker)
    trained = [reply for step, reply in inner.seen if step == "train"]
    assert len(trained) == 4
    for reply in trained:
        assert set(reply.content) == {"masked", RECORD}
        assert not any(isinstance(record, MetricRecord) for record in reply.content.values())
        assert not re.search(b"31337|0[.]98", bytes(reply.content[RECORD]["json"]))
    # all four clients sent the same numbers
    assert all((a != b).mean() > 0.9 for a, b in pairwise(masked_by(inner)))
    # six bytes for each of the eight numbers, two metrics, weight and sample count
    assert len(masked_by(inner)[0]) == 6 * (8 + 1 + 2)


def test_the_same_seed_gives_the_same_model_and_other_masks():
    first, one, _ = run(FedAvg(), 4, options=ON)
    second, other, _ = run(FedAvg(), 4, options=ON)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes()
    assert not set(map(bytes, masked_by(one))) & set(map(bytes, masked_by(other)))


# --- clients --------------------------------------------------------------------------


def answering(**change):
    """Let client 2 answer the steps of ``change`` with other facts."""

    def heard(step, _, place, reply):
        if place == 2 and step in change and reply.has_content():
            facts = unpacked(reply.content[RECORD])
            change[step](facts)
            reply.content[RECORD] = ConfigRecord(packed(facts))
        return True

    return heard


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
    "another client's name": (
        {"hello": lambda facts: facts.update(name="3")},  # it may answer first
        "it calls itself 3, but is client 2",
        [[0, 1, 3, 4]] * 2,
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_one_client_that_forges_its_part_stops_no_sum_and_no_other_client(forged):
    change, said, wanted = FORGED[forged]
    result = summed(Losing(InlineGrid(app_of(), 5), heard=answering(**change)), 2)
    for now in result.seen:
        others = [one.reason for one in now.trained.failures if one.client != 2]
        assert not others, others
        assert all(said in one.reason for one in now.trained.failures)
    sums = [now.trained.clients for now in result.seen]
    assert sums == (wanted or [[0, 1, 3, 4], sums[1]])
    assert 2 not in sums[0] or not said
    if sums[0] == sums[1]:
        np.testing.assert_allclose(
            arrays_of(result)["v"], 2 * mean_of(sums[0], "v") - START["v"], rtol=1e-6
        )


def test_the_mask_of_a_client_that_is_gone_needs_no_share_that_it_altered():
    """Its key comes from the other neighbours."""
    lost = lambda step, _, place: step == "train" and place == 2
    result = summed(
        Losing(InlineGrid(app_of(), 6), lost, heard=answering(offer=flipped("sealed", 3))),
        num_clients=6,
    )
    np.testing.assert_allclose(arrays_of(result)["v"], mean_of([0, 1, 3, 4, 5], "v"), rtol=1e-6)


def test_one_lie_costs_one_round_and_not_the_model():
    """In round 2, client 2 adds 2^46 to every masked number."""

    def lie(step, number, place, reply):
        if (step, number, place) == ("train", 2, 2):
            words = from_bytes(read(reply.content["masked"]["masked"])) + np.uint64(2**46)
            reply.content["masked"]["masked"] = Array(*fields(to_bytes(words)))
        return True

    plain, *_ = run(FedAvg(), rounds=2, options=ON)
    result = summed(Losing(InlineGrid(app_of(), 5), heard=lie), 3)
    for name, array in arrays_of(result).items():
        np.testing.assert_array_equal(array, plain[name])
    assert [*result.train_metrics_clientapp] == [1, 3]


@pytest.mark.parametrize("folder", [True, False])
def test_a_site_that_comes_back_with_a_new_state_is_met_again(folder, tmp_path):
    """Without a folder it has another key, which the others refuse: it is left out."""
    base = InlineGrid(app_of(), 5)
    inner = Losing(base)

    def forget(step, facts, place):
        # in round 1 the state of client 2 is gone: its SuperNode restarts
        if (step, inner.round, place) == ("train", 1, 2):
            base.contexts[1002].state.clear()

    inner.change = forget
    if folder:
        base.contexts[1002].node_config["store-dir"] = str(tmp_path)
    result = summed(inner, 3)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    # all, and client 2 once more, or in each round
    assert inner.steps.count("hello") == (2 if folder else 3)
    assert ("has another key than before" in result.grid.grid.faults.get(1002, "")) != folder


# --- a server that lies ---------------------------------------------------------------


def refusals(inner, options=ON, strategy=None, outcome=None):
    """Run a round; return what clients said that refused a step, by step. By default
    what is left of the masks may even look like a model.
    """
    with outcome or suppress(TooFewReplies):
        summed(inner, strategy=strategy, options=options)
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
    "swapped keys": (exchanged, "train", 5, "is not signed by it", None, 1),
    "altered shares": (altered, "train", 5, "altered, or belongs to another session", None, 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_changes_what_clients_are_sent_is_refused(lie):
    change, step, count, said, rule, ends = LIES[lie]
    inner = Losing(InlineGrid(app_of(losing if rule else client), 5), change=change)
    outcome = pytest.raises(TooFewReplies) if ends else suppress(TooFewReplies)
    refused = refusals(inner, CLEAR if rule else ON, rule and rule(FedAvg()), outcome)[step]
    assert [bool(re.search(said, text)) for text in refused] == [True] * count, refused


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


@pytest.mark.parametrize(
    "terms", [{"bound": 1e-9}, {"max_weight": 1}, {"max_norm": 1e-9}, {"weight": "half"}]
)
def test_a_refusal_does_not_name_what_it_is_about(terms):
    """Nobody meets these bounds, so errors would show the server all numbers."""
    make = lambda i: EchoClient(0.1234, num_examples=987, metrics={"half": -0.4321})
    change = lambda step, facts, _: step == "train" and facts["terms"].update(terms)
    said = refusals(Losing(InlineGrid(app_of(make), 5), change=change))
    texts = [text for step in said.values() for text in step]
    assert any("ValueError" in text for text in texts)
    assert not any(part in text for text in texts for part in ("234", "987", "0.432", "246"))


@pytest.mark.parametrize("lies", [False, True])
def test_other_settings_of_the_run_for_one_client_are_refused(lies, monkeypatch):
    """The others would train with a rate of 0, and the sum be its update. A server that
    does not lie leaves it out.
    """
    inner = Losing(InlineGrid(app_of(), 5))
    inner.grid.contexts[1003].run_config = {"rate": 0.1}
    if not lies:
        assert not any(refusals(inner).values())
        assert inner.seen[-1][1].metadata.src_node_id != 1003
        return
    monkeypatch.setattr(Sessions, "members", lambda self, now: sorted(now.offers))
    texts = refusals(inner, outcome=pytest.raises(TooFewReplies))["train"]
    assert ["is not signed by it, for these settings" in text for text in texts] == [True] * 5


# --- what a site insists on -----------------------------------------------------------


@pytest.mark.parametrize("says", [None, False, True])
def test_a_site_wants_signed_lists_unless_it_says_otherwise(says):
    """A server that lies would leave out the signatures, and send two lists."""
    base = InlineGrid(app_of(), 5)
    base.contexts[1002].node_config |= {"client-id": 2}
    base.contexts[1002].node_config |= {} if says is None else {"secure-consistency": says}
    (now,) = summed(base, options=SecureOptions(on=True, consistency=False)).seen
    assert (2 in now.trained.clients) == (says is False)
    assert ("wants signed lists" in str(now.trained.failures)) == (says is not False)


@pytest.mark.parametrize(("name", "options"), [("corrupted", {}), ("min-change", {"corrupted": 1})])
def test_a_site_has_its_own_floors(name, options):
    """The server's word on how many are corrupted is not enough."""
    base = InlineGrid(app_of(), 5)
    base.contexts[1002].node_config[f"secure-{name}"] = 1
    result = summed(base, options=SecureOptions(on=True, **options))
    assert "but this site asks for at least" in result.grid.grid.faults[1002]


@pytest.mark.parametrize("key", ["train-loss", "loss-before", "class-counts"])
@pytest.mark.parametrize("masked", [True, False])
def test_an_evaluation_tells_nothing_that_a_masked_reply_hides(key, masked):
    """Losses of training samples at models that a server chooses are gradients."""
    app = SecureApp(app_of().app, lambda context: masked)
    sent = to_record(list(START), list(START.values()))
    for value, masks in ((True, masked), (False, False)):
        content = RecordDict({"arrays": sent, "config": ConfigRecord({key: value})})
        (reply,) = InlineGrid(app, 1).send_and_receive([Message(content, 1000, "evaluate")])
        assert reply.has_error() == masks
        assert not masks or f"{key} = true: this site masks its replies" in reply.error.reason


def test_a_message_that_asks_for_a_reply_in_the_clear_is_refused():
    content = RecordDict({"arrays": ArrayRecord(), "config": MetricRecord()})
    (reply,) = InlineGrid(app_of(), 3).send_and_receive([Message(content, 1000, "train")])
    assert "this site sends masked replies only" in reply.error.reason


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


# --- what a site remembers ------------------------------------------------------------


def with_folder(tmp_path):
    """Return a grid of five sites that each have a folder, as after a restart: with no
    state.
    """
    grid = InlineGrid(app_of(), 5)
    for place in range(5):
        grid.contexts[1000 + place].node_config["store-dir"] = str(tmp_path / str(place))
    return grid


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
    grid = with_folder(tmp_path)
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
                copy.content[RECORD] = ConfigRecord(packed({**asked, "session": facts["next"]}))
            if now and (now == step or (now, step) == ("train", "offer again")) and not again:
                later = dict(state)
                replace_all(state, old)
                again.extend(self.grid.send_and_receive([copy]))
                replace_all(state, later)
            return replies

    summed(Twice(grid), 2)
    assert f"step {taken} was taken before" in again[0].error.reason


def replace_all(state, records):
    state.clear()
    state.update(records)


def test_a_key_is_known_from_the_first_meeting_on_in_all_runs(tmp_path):
    assert not any(refusals(Losing(with_folder(tmp_path))).values())
    (key,) = (tmp_path / "2").glob("secure-key-*")
    key.unlink()
    said = "client 2 has another key than the one it is known by"
    assert [said in text for text in refusals(Losing(with_folder(tmp_path)))["offer"]] == [True] * 4


def test_the_difference_of_sums_has_a_floor_in_all_runs(tmp_path):
    options = SecureOptions(on=True, min_change=2)
    assert not any(refusals(Losing(with_folder(tmp_path)), options).values())
    refused = refusals(
        Losing(with_folder(tmp_path), lambda step, _, place: step == "train" and place == 2),
        options,
    )["sign"]
    assert ["differ from those of the last sum by 1 clients" in text for text in refused] == (
        [True] * 4
    )


SESSION = Session(bytes(16), 1, 0, True, 0)


def test_steps_are_never_forgotten(tmp_path, monkeypatch):
    context = with_folder(tmp_path).contexts[1000]

    def take(session):
        context.state.clear()
        with secure_client(context) as client:
            client.claim(session, "sign")

    take(SESSION)
    for number in range(1, 151):  # of other runs
        take(replace(SESSION, tag=number.to_bytes(16)))
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)  # a write that ends half way
    with suppress(ZeroDivisionError):
        take(replace(SESSION, tag=bytes(15)))
    monkeypatch.undo()
    context.node_config["client-id"] = "0"  # as a message for many clients calls it
    refused(lambda: take(SESSION), "step sign of session 1 was taken before", Refusal)


def test_two_messages_at_once_wait_for_each_other(tmp_path):
    context, said = with_folder(tmp_path).contexts[1000], []
    copy = deepcopy(context)

    def second():
        with pytest.raises(Refusal) as caught, secure_client(copy) as client:
            client.claim(SESSION, "sign")
        said.append(str(caught.value))

    other = Thread(target=second)
    with secure_client(context) as client:
        client.claim(SESSION, "sign")
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
