"""The adapter, stores of clients, and the keys of a configuration that they read."""

from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient

from fedapps.algorithms.contract.sent import Sent
from fedapps.clients import (
    DiskStore,
    DittoClient,
    FedAvgClient,
    FedBABUClient,
    MessageStore,
    to_client_app,
)
from fedapps.clients.base import options
from fedapps.clients.base.options import TrainOptions, keys_read, notice_unread
from fedapps.clients.propfair import proportional
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import FedAvg
from tests.clients.federation import initial
from tests.helpers import EchoClient, Trains, blobs, refused, simulate, small_net


def asked(client_fn, kind, config=None, **node):
    """Return the reply, and the client's state afterwards."""
    grid = InlineGrid(to_client_app(client_fn), 1)
    (context,) = grid.contexts.values()
    context.node_config.update(node)
    arrays = ArrayRecord({"layer.w": Array(np.arange(3.0)), "layer.b": Array(np.ones(1))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config or {})})
    (reply,) = grid.send_and_receive([Message(content, 1000, kind)])
    return reply, grid.contexts[1000].state


def ask(*given, **more):
    return asked(*given, **more)[0]


def test_metric_types():
    metrics = {
        "i": 1,
        "f": 0.5,
        "np": np.float32(2),
        "list": [1, 2.5],
        "array": np.arange(3),
        "tuple": (1.0,),
        "flag": True,
        "text": "ok",
        "raw": b"xy",
    }
    for kind in ("train", "evaluate"):
        content = ask(lambda c: EchoClient(0, 7, metrics), kind).content
        numbers, info = dict(content["metrics"]), dict(content["info"])
        assert {k: numbers[k] for k in ("i", "f", "np", "list", "array", "tuple")} == {
            "i": 1, "f": 0.5, "np": 2.0, "list": [1, 2.5], "array": [0, 1, 2], "tuple": [1.0],
        }  # fmt: skip
        assert info == {"flag": True, "text": "ok", "raw": b"xy"}
    assert (numbers["loss"], numbers["num-examples"]) == (1.0, 7)


def test_an_unsendable_metric_is_named():
    client = EchoClient(0, 7, {"history": {"a": 1}})
    assert (
        "metric 'history' is a dict: return a number" in ask(lambda c: client, "train").error.reason
    )


def test_old_style_client_fn():
    assert (
        ask(lambda c: EchoClient(0, 7).to_client(), "train").content["metrics"]["num-examples"] == 7
    )
    assert "client_fn returned str" in ask(lambda c: "oops", "train").error.reason


def test_other_numbers_of_arrays_are_numbered():
    atom = Trains(lambda *_: [np.int64(3)])
    assert list(ask(lambda c: atom, "train").content["arrays"]) == ["0"]


@pytest.mark.parametrize(
    ("node", "want"), [({}, 0), ({"client-id": "lab-b"}, "lab-b"), ({"partition-id": 9}, 9)]
)
def test_identity(node, want):
    assert (
        ask(lambda c: EchoClient(0), "query.identity", **node).content["config"]["client-id"]
        == want
    )


def test_state_of_a_failed_message_is_dropped():
    def fails(context):
        context.state["seen"] = ConfigRecord({"n": 1})
        raise RuntimeError("no")

    reply, state = asked(fails, "train")
    assert "no" in reply.error.reason
    assert not state


# --- stores ---------------------------------------------------------------------------


def config(server_round, first=1, checkpoint=None):
    return {"server-round": server_round, "first-round": first} | (
        {} if checkpoint is None else {"checkpoint-round": checkpoint}
    )


def value(store, c, before=False):
    arrays = store.load("m", c, before)
    return None if arrays is None else float(arrays[0][0])


def put(store, c, number):
    store.save("m", [np.float32([number]), np.zeros((2, 3))], c)


@pytest.fixture(params=["message", "disk"])
def store(request, tmp_path):
    return MessageStore(RecordDict()) if request.param == "message" else DiskStore(tmp_path, 1)


def test_round_trip(store):
    assert store.load("m", config(1), before=True) is None
    store.save("m", [np.float32([5]), np.zeros((2, 3)), np.array(7)], config(1))
    arrays = store.load("m", config(2), before=True)
    # a single number stays one: a model checks the shapes
    kinds = [(a.shape, a.dtype) for a in arrays]
    assert kinds == [((1,), np.float32), ((2, 3), np.float64), ((), np.int64)]
    assert value(store, config(1)) == 5
    assert store.load("other", config(2), before=True) is None


def test_a_state_that_diverged_leaves_the_last_sound_one(store):
    put(store, config(1), 5)
    put(store, config(2), np.nan)
    assert value(store, config(3), before=True) == 5


@pytest.mark.parametrize("checkpoint", [None, 2])
def test_a_round_that_comes_twice_starts_from_the_one_before(checkpoint, tmp_path):
    store = DiskStore(tmp_path, 1)
    for number in (1, 2, 3):
        put(store, config(number, checkpoint=checkpoint), number)
    assert [value(store, config(3), before=before) for before in (True, False)] == [2, 3]


def test_a_resumed_run_sees_the_checkpoint_and_not_what_came_after(tmp_path):
    first = DiskStore(tmp_path, 111)
    for number in (2, 4, 5, 7):  # the checkpoint was written after round 4; the run died in round 8
        put(first, config(number, checkpoint=4 if number > 4 else 2 if number > 2 else 0), number)
    resumed = DiskStore(tmp_path, 222)
    # not the 7 of the run that died
    assert [value(resumed, config(t, first=5), before=True) for t in (5, 8)] == [4, 4]
    put(resumed, config(7, first=5, checkpoint=4), 70)
    assert value(resumed, config(8, first=5), before=True) == 70
    again = DiskStore(tmp_path, 333)  # resumed once more from the checkpoint of round 4
    assert value(again, config(6, first=5), before=True) == 4


def test_three_versions_are_kept_at_most(tmp_path):
    """Three versions are kept: the newest, and those of the last two checkpoints or, if
    the client took no part in their rounds, the last ones before.
    """
    store = DiskStore(tmp_path, 1)
    for number in [*range(1, 8), *range(12, 30)]:
        put(store, config(number, checkpoint=(number - 1) // 10 * 10), number)
        assert sorted(int(p.name.split(".")[1]) for p in tmp_path.iterdir()) == sorted(
            {number} | ({7} if 10 < number < 21 else {7, 20} if number > 20 else set())
        )
    for number in (30, 31):  # no checkpoints
        put(store, config(number), number)
    assert {p.name.split(".")[1] for p in tmp_path.iterdir()} == {"30", "31"}


def test_a_broken_file_is_a_clear_error(tmp_path):
    store = DiskStore(tmp_path, 1)
    put(store, config(1), 1)
    next(tmp_path.iterdir()).write_bytes(b"torn")
    refused(
        lambda: store.load("m", config(1), before=False),
        r"cannot be read .*: delete it to start this client's state anew",
    )


def test_drafts_of_killed_processes_go_with_the_next_save(tmp_path):
    """A draft of this run and round may belong to a process that still writes it."""
    for name in ("m.1.1.77.partial", "m.2.9.77.partial", "m.2.1.78.partial"):
        (tmp_path / name).touch()
    put(DiskStore(tmp_path, 1), config(2), 2)
    assert {path.name for path in tmp_path.iterdir()} == ({"m.2.1.78.partial", "m.2.1.safetensors"})


# --- keys that a client class does not read -------------------------------------------

# Logged once; declared keys are known, whichever module defines the class.


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch):
    monkeypatch.setattr(options, "_logged", set())


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "learning-rate"),
        ("learning_rate", "learning-rate"),
        ("learnin-rate", "learning-rate"),
        ("batch_size", "batch-size"),
        ("epochs", "local-epochs"),
        ("weight-deacy", "weight-decay"),
        ("ditto_mu", "ditto-mu"),
    ],
)
def test_a_misspelt_option_is_logged_once_with_the_one_that_is_meant(key, meant, caplog):
    config = {key: 0.5, "server-round": 1}
    for _ in range(3):
        notice_unread(DittoClient, config)
    assert TrainOptions.from_config(config) == TrainOptions()
    (line,) = caplog.messages
    assert f"that DittoClient does not read: {key!r} (did you mean {meant!r}?)" in line


def test_all_keys_that_it_did_not_know_are_in_one_line(caplog):
    notice_unread(FedAvgClient, {"lr": 1.0, "colour": "red", "momentum": 0.5})
    notice_unread(FedAvgClient, {"lr": 1.0, "zzz": 3})
    none = "(no such option; a class declares its own in reads)"
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        f"'lr' (did you mean 'learning-rate'?), 'colour' {none}",
        f"'zzz' {none}",
    ]


@dataclass(frozen=True)
class MineSent(Sent, prefix="mine-"):
    pull: float


class MineClient(FedAvgClient):
    reads = (MineSent,)


class Further(MineClient):
    """Reads what its base reads."""


def test_a_class_in_a_file_of_ones_own_declares_its_keys(caplog):
    for kind in (MineClient, Further, proportional(MineClient)):
        notice_unread(kind, {**MineSent(0.5).to_config(), "seed": 3, "loss-before": True})
    assert not caplog.messages
    notice_unread(FedAvgClient, MineSent(0.5).to_config())
    assert "FedAvgClient does not read: 'mine-pull'" in caplog.text


def test_a_class_reads_what_its_bases_read():
    read = keys_read(FedBABUClient)
    assert read is not None
    assert {"fedbabu-part", "share", "loss-before", "learning-rate", "seed"} <= read
    assert keys_read(NumPyClient) is None


def test_the_adapter_looks_at_every_message(caplog):
    make = lambda i, _: FedAvgClient(small_net, blobs(i), i)
    odd = ConfigRecord({"odd-evaluate": 1})
    simulate(FedAvg(), make, 1, initial(), 1, {"odd-train": 1}, evaluate_config=odd)
    for key in ("odd-train", "odd-evaluate"):
        assert f"FedAvgClient does not read: {key!r}" in caplog.text


def test_what_is_sent_is_what_is_read_and_what_is_missing_is_named():
    assert MineSent(1).to_config() == {"mine-pull": 1}
    assert MineSent.from_config({"mine-pull": 1}) == MineSent(1.0)
    refused(
        lambda: MineSent.from_config({"seed": 1}), r"'mine-pull' is missing .* must send MineSent"
    )
