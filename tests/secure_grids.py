"""Runs with secure sums on a grid that loses or changes messages."""

import numpy as np
from flwr.app import ConfigRecord

from fedapps.algorithms.secure.wire import RECORD, packed, unpacked
from fedapps.clients import SecureApp, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, FedAvg, SecureOptions, run_rounds
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.named_grid import WrappedGrid
from fedapps.strategies.secure import secured
from tests.helpers import EchoClient, arrays_of

START = {
    "w": np.zeros(3, np.float32),
    "v": np.full((2, 2), 5.0),
    "count": np.array(7),
}
SHIFTS = [0.1, 2.0, -3.0, 1.25, 0.5, -0.75, 4.0]
ON, CLEAR = SecureOptions(on=True), SecureOptions(on=True, clear_losses=True)


def client(i):
    return EchoClient(SHIFTS[i], num_examples=1 + 5 * i, metrics={"half": [0.5 * i, 1.0]})


def app_of(make=client):
    return SecureApp(to_client_app(lambda context: make(int(context.node_config["partition-id"]))))


def losing(i):
    """A client whose loss depends on the model that it is sent."""

    class Client(EchoClient):
        def fit(self, parameters, config):
            loss = abs(float(parameters[0][0]) - SHIFTS[i]) + 0.1 * i
            self.metrics = {"loss-before": loss, "half": 0.5 * i}
            return super().fit(parameters, config)

    return Client(SHIFTS[i], num_examples=1 + 5 * i)


def mean_of(places, name):
    """Return the mean of the models of these clients after a round."""
    weights = np.array([1 + 5 * i for i in places])
    return START[name] + weights @ np.take(SHIFTS, places) / weights.sum()


class Losing(WrappedGrid):
    """A grid between server and clients that loses or changes messages.

    ``lost(step, round, client)`` chooses the messages that get no answer;
    ``change(step, facts, client)`` may change what a client is sent, and
    ``heard(step, round, client, reply)`` what it answers; it returns whether that
    arrives.
    """

    def __init__(
        self,
        grid,
        lost=lambda *_: False,
        change=lambda *_: None,
        heard=lambda *_: True,
    ):
        super().__init__(grid)
        self.lost, self.change, self.heard = lost, change, heard
        self.round, self.steps, self.seen = 0, [], []

    def known_clients(self):
        return self.grid.known_clients()

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        secure = bool(sent) and RECORD in sent[0].content
        step = "train" if sent and sent[0].metadata.message_type == "train" else ""
        step = unpacked(sent[0].content[RECORD]).get("step", step) if secure else step
        self.round += step == "train"
        self.steps += [step] if secure else []
        kept = []
        for message in sent:
            place = message.metadata.dst_node_id - 1000
            if self.lost(step, self.round, place):
                continue
            if secure:
                facts = unpacked(message.content[RECORD])
                self.change(step, facts, place)
                message.content[RECORD] = ConfigRecord(packed(facts))
            kept.append(message)
        replies = [
            reply
            for reply in self.grid.send_and_receive(kept, timeout=timeout)
            if not secure or self.heard(step, self.round, reply.metadata.src_node_id - 1000, reply)
        ]
        self.seen += [(step, reply) for reply in replies if secure]
        return replies


def summed(
    inner, rounds=1, strategy=None, options=ON, start=START, bound=None, num_clients=5, **on
):
    """Run rounds over a grid, with secure sums if there are ``options``; return the
    Result with ``grid``, the client grid, and ``seen``, the rounds.
    """
    strategy, seen = strategy or FedAvg(), []
    grid = ClientGrid(inner, seed=0, num_clients=num_clients, bound=bound, **on)
    if options:
        grid = secured(grid, strategy, options, bound)
    arrays = to_record(list(start), list(start.values()))
    result = run_rounds(strategy, grid, arrays, rounds, callbacks=[seen.append])
    result.grid, result.seen = grid, seen
    return result


def run(strategy, count=5, rounds=1, make=client, start=START, options=None, bound=None, **losing):
    """Return the arrays, the wrapped grid and the Result of a run; without ``options``
    of a plain one.
    """
    app = app_of(make)
    inner = Losing(InlineGrid(app if options else app.app, count), **losing)
    result = summed(inner, rounds, strategy, options, start, bound, count)
    return arrays_of(result), inner, result
