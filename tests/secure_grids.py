"""Runs with secure sums on a grid that loses or changes messages."""

import numpy as np
from flwr.app import ConfigRecord

from fedapps.algorithms.secure.wire import RECORD, packed, unpacked
from fedapps.clients import SecureApp, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, SecureOptions, run_rounds
from fedapps.strategies.base.records import to_record
from fedapps.strategies.base.wrapped_grid import WrappedGrid
from fedapps.strategies.secure import secured
from tests.helpers import EchoClient, arrays_of

START = {
    "w": np.zeros(3, np.float32),
    "v": np.full((2, 2), 5.0),
    "count": np.array(7),
}
SHIFTS = [0.1, 2.0, -3.0, 1.25, 0.5, -0.75, 4.0]


def client(i):
    return EchoClient(SHIFTS[i], num_examples=1 + 5 * i, metrics={"half": [0.5 * i, 1.0]})


def app_of(make=client):
    return SecureApp(to_client_app(lambda context: make(int(context.node_config["partition-id"]))))


class Losing(WrappedGrid):
    """A grid between server and clients that loses or changes messages.

    ``lost(step, round, client)`` chooses the messages that get no answer;
    ``change(step, facts, client)`` may change what a client is sent.
    """

    def __init__(self, grid, lost=lambda *_: False, change=lambda *_: None):
        super().__init__(grid)
        self.lost, self.change = lost, change
        self.round, self.steps, self.seen = 0, [], []

    def known_clients(self):
        return self.grid.known_clients()

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        first = sent[0].content.get(RECORD) if sent else None
        if first is None:
            train = bool(sent) and sent[0].metadata.message_type == "train"
            self.round += train  # of a plain run
            step = "train" if train else ""
            place = lambda message: message.metadata.dst_node_id - 1000
            sent = [m for m in sent if not self.lost(step, self.round, place(m))]
            return self.grid.send_and_receive(sent, timeout=timeout)
        step = unpacked(first).get("step", "train")
        self.round += step == "train"
        self.steps.append(step)
        kept = []
        for message in sent:
            place = message.metadata.dst_node_id - 1000
            if self.lost(step, self.round, place):
                continue
            facts = unpacked(message.content[RECORD])
            self.change(step, facts, place)
            message.content[RECORD] = ConfigRecord(packed(facts))
            kept.append(message)
        replies = self.grid.send_and_receive(kept, timeout=timeout)
        self.seen += [(step, reply) for reply in replies]
        return replies


def run(strategy, count=5, rounds=1, make=client, start=START, options=None, bound=None, **losing):
    """Return the arrays, the wrapped grid and the client grid of a run; without
    ``options`` of a plain one."""
    inner = Losing(InlineGrid(app_of(make) if options else app_of(make).app, count), **losing)
    grid = ClientGrid(inner, seed=0, num_clients=count, bound=bound)
    if options:
        grid = secured(grid, strategy, options, bound)
    result = run_rounds(strategy, grid, to_record(list(start), list(start.values())), rounds)
    return arrays_of(result), inner, grid, result


ON = SecureOptions(on=True)
