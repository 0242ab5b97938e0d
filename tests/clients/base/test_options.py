"""A key of a configuration that a client class does not read is logged once; declared
keys are known, whichever module defines the class.
"""

from dataclasses import dataclass

import pytest
from flwr.app import ConfigRecord
from flwr.client import NumPyClient

from fedapps.algorithms.contract.sent import Sent
from fedapps.clients import DittoClient, FedAvgClient, FedBABUClient
from fedapps.clients.base import options
from fedapps.clients.base.options import TrainOptions, keys_read, notice_unread
from fedapps.clients.propfair import proportional
from fedapps.strategies import FedAvg
from tests.clients.federation import initial
from tests.helpers import blobs, refused, simulate, small_net


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
