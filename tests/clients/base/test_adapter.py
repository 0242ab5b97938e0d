import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid


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


class Client(NumPyClient):
    metrics = {}  # noqa: RUF012

    def fit(self, parameters, config):
        return [p * config.get("factor", 1) for p in parameters], 7, self.metrics

    def evaluate(self, parameters, config):
        return 0.25, 3, self.metrics


def test_metric_types():
    client = Client()
    client.metrics = {
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
        content = ask(lambda c: client, kind).content
        numbers, info = dict(content["metrics"]), dict(content["info"])
        assert {k: numbers[k] for k in ("i", "f", "np", "list", "array", "tuple")} == {
            "i": 1, "f": 0.5, "np": 2.0, "list": [1, 2.5], "array": [0, 1, 2], "tuple": [1.0],
        }  # fmt: skip
        assert info == {"flag": True, "text": "ok", "raw": b"xy"}
    assert (numbers["loss"], numbers["num-examples"]) == (0.25, 3)


def test_an_unsendable_metric_is_named():
    client = Client()
    client.metrics = {"history": {"a": 1}}
    assert (
        "metric 'history' is a dict: return a number" in ask(lambda c: client, "train").error.reason
    )


def test_old_style_client_fn():
    assert ask(lambda c: Client().to_client(), "train").content["metrics"]["num-examples"] == 7
    assert "client_fn returned str" in ask(lambda c: "oops", "train").error.reason


def test_other_numbers_of_arrays_are_numbered():
    class Atom(Client):
        def fit(self, parameters, config):
            return [np.int64(3)], 1, {}

    assert list(ask(lambda c: Atom(), "train").content["arrays"]) == ["0"]


@pytest.mark.parametrize(
    ("node", "want"), [({}, 0), ({"client-id": "lab-b"}, "lab-b"), ({"partition-id": 9}, 9)]
)
def test_identity(node, want):
    assert ask(lambda c: Client(), "query.identity", **node).content["config"]["client-id"] == want


def test_state_of_a_failed_message_is_dropped():
    def fails(context):
        context.state["seen"] = ConfigRecord({"n": 1})
        raise RuntimeError("no")

    reply, state = asked(fails, "train")
    assert "no" in reply.error.reason
    assert not state
