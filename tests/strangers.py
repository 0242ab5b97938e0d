"""Apps and grids of strangers, who know nothing of this project or break its rules."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.engines.inline import InlineGrid


def stranger(
    weight="num-examples", arrays="arrays", config="config", size=lambda i: i + 1, more=lambda i: {}
):
    """Return a message-API app that knows nothing of this project; client i adds
    ``size(i)``, counts that many times (or once), and sends ``more(i)`` beside it.
    """
    app = ClientApp()

    def answer(message, context, records):
        number = context.node_config["partition-id"]
        assert message.content[config]["server-round"] > 0
        metrics = {weight: size(number) or 1, "size": float(size(number))}
        content = {**records, "my-metrics": MetricRecord(metrics), **more(number)}
        return Message(RecordDict(content), reply_to=message)

    @app.train()
    def train(message, context):
        step = np.float32(size(context.node_config["partition-id"]))
        sent = message.content[arrays].items()
        new = ArrayRecord({name: Array(array.numpy() + step) for name, array in sent})
        return answer(message, context, {"my-model": new})

    @app.evaluate()
    def evaluate(message, context):
        return answer(message, context, {})

    return app


class Unruly(InlineGrid):
    """A grid whose nodes a test switches ``on`` and off; ``change(message, reply)``
    returns what arrives instead of a reply, if anything. ``exchanged``: what was sent,
    and what arrived, by phase.
    """

    def __init__(self, app, num_clients, change=lambda message, reply: reply):
        super().__init__(app, num_clients)
        self.on, self.change, self.exchanged = list(self.contexts), change, []

    def get_node_ids(self):
        return list(self.on)

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        pairs = zip(sent, super().send_and_receive(sent), strict=True)
        replies = [changed for pair in pairs if (changed := self.change(*pair))]
        self.exchanged.append((sent, replies))
        return replies


def unruly(change):
    """Return a kind of grid whose replies a function changes."""
    return lambda app, num_clients: Unruly(app, num_clients, change)


def asks(message, node, kind="train"):
    """Return whether a message is of a kind and for a node."""
    return (message.metadata.message_type, message.metadata.dst_node_id) == (kind, node)
