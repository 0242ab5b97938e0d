"""Every grid of this project can be called as Flower's can, by the old and by the new
name of an argument.
"""

import inspect

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedapps.clients import to_client_app
from fedapps.engines.fast_polling import PollingGrid
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import GatewayGrid, NodeGrid
from fedapps.engines.workers import WorkerGrid
from fedapps.records.audit import AuditedGrid
from fedapps.strategies import ClientGrid
from fedapps.strategies.base.named_grid import WrappedGrid
from fedapps.strategies.base.newcomers import NewcomerGrid
from fedapps.strategies.base.secure_sessions import SecureCalls
from tests.helpers import EchoClient, refused

KINDS = [
    AuditedGrid,
    ClientGrid,
    GatewayGrid,
    InlineGrid,
    NewcomerGrid,
    NodeGrid,
    PollingGrid,
    SecureCalls,
    WorkerGrid,
    WrappedGrid,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_called_as_flowers_are(kind):
    for name in ("push_messages", "pull_messages", "send_and_receive", "create_message"):
        flowers = inspect.signature(getattr(Grid, name)).parameters
        assert flowers.keys() <= inspect.signature(getattr(kind, name)).parameters.keys(), name


@pytest.mark.parametrize("name", ["reply_to_message_ids", "message_ids", None])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda grid: grid,
        ClientGrid,
        PollingGrid,
        lambda grid: AuditedGrid(grid, lambda *_, **__: None),
    ],
)
def test_replies_are_pulled_by_either_name(wrapped, name):
    grid = wrapped(InlineGrid(to_client_app(lambda context: EchoClient(0.0)), 2))
    ids = grid.push_messages([Message(RecordDict(), node, "query.no") for node in (1000, 1001)])
    replies = grid.pull_messages(**{name: ids}) if name else grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids


@pytest.mark.parametrize("given", [{}, {"reply_to_message_ids": [], "message_ids": []}])
def test_replies_to_whatever_are_not_pulled(given):
    refused(
        lambda: InlineGrid(to_client_app(lambda context: EchoClient(0.0)), 2).pull_messages(
            **given
        ),
        "reply_to_message_ids",
        TypeError,
    )
