"""Who answers with whom: only messages that ask for blocks, so many at a time, and
never two of the same client.
"""

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from algorithms.common.turns import meet
from fedapps.engines.block_turns import answers, block_size

BLOCKS = {"compile": "blocks", "block": 3}


def asked(*clients, **config):
    return [(client, RecordDict({"config": ConfigRecord(config)})) for client in clients]


def together(messages):
    """Return who was answered, and with whom."""

    def answer(message):
        return message[0], tuple(
            meet("all", message[0], lambda clients: [list(clients)] * len(clients))
        )

    return list(answers(iter(messages), answer, lambda message: message))


def test_blocks_of_messages_that_ask_for_them():
    found = together(
        [
            *asked(*"abcde", **BLOCKS),
            *asked("f", "g", compile="off", block=3),
            *asked("h", "i", **BLOCKS),
        ]
    )
    assert [who for who, _ in found] == list("abcdefghi")
    assert ["".join(others) for _, others in found] == ["abc"] * 3 + ["de"] * 2 + ["f", "g"] + [
        "hi"
    ] * 2


def test_a_client_is_never_answered_beside_itself():
    assert ["".join(others) for _, others in together(asked(*"abac", **BLOCKS))] == [
        "ab",
        "ab",
        "ac",
        "ac",
    ]


def test_on_asks_for_blocks_where_there_is_a_gpu(monkeypatch):
    on = RecordDict({"config": ConfigRecord({"compile": "on", "block": 5})})
    assert block_size(on) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert block_size(on) == 5


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compile": "off", "block": 5},
        {"compile": "blocks", "block": "many"},
        {"compile": "blocks"},
    ],
)
def test_other_messages_are_answered_alone(config):
    assert block_size(RecordDict({"config": ConfigRecord(config)})) == 1
    assert block_size(RecordDict()) == block_size(None) == 1


def test_the_messages_beyond_a_block_are_not_made_before_it_is_answered():
    made = []

    def messages():
        for message in asked(*"abcdef", **BLOCKS):
            made.append(message[0])
            yield message

    found = answers(messages(), lambda message: len(made), lambda message: message)
    assert next(found) <= 4
