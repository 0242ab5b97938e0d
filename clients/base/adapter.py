"""Adapter from NumPyClients to ClientApps of Flower's Message API, which current
strategies need.

    app = to_client_app(client_fn)
        # client_fn(context) -> NumPyClient, as in older Flower apps

Replies carry the array names of the server's model, so that
``result.arrays.to_torch_state_dict()`` works. Metrics keep their types: numbers and
lists of numbers are sent in the MetricRecord ``metrics``; strings (and lists of
strings), bytes and booleans in the ConfigRecord ``info``. The app also answers
``query.identity`` with the client's stable id, which ``strategies.ClientGrid`` asks
for; ``answer_identity(app)`` lets a message-API app of your own answer it too.
``evaluate.newcomer`` scores a client that takes no part in training
(``clients.base.newcomers``).
"""

from collections.abc import Callable, Mapping, Sequence
from logging import ERROR
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.algorithms.contract.sent import Scoring
from fedapps.algorithms.contract.wire import fields, read
from fedapps.clients.base.data import ArrayData, ClientData
from fedapps.clients.base.newcomers import newcomer_metrics
from fedapps.clients.base.options import Config, acknowledged, notice_unread
from fedapps.clients.base.precision import at_precision
from fedapps.clients.base.scores import CONFUSION
from fedapps.clients.base.together import one_of_many

ClientFn = Callable[[Context], NumPyClient | Client]


def to_client_app(
    client_fn: ClientFn,
    mods: Sequence[Any] | None = None,
    writable: bool = True,
    check: Callable[[Context], None] | None = None,
) -> ClientApp:
    """Return a ClientApp whose ``train`` and ``evaluate`` call ``fit`` and ``evaluate``
    of ``client_fn(context)``.

    ``client_fn`` may also return ``numpy_client.to_client()``, as in apps for older
    Flower versions. ``mods`` wrap training only: Flower's clipping and privacy mods
    reject evaluation messages. ``writable=False`` passes the server's arrays without a
    copy, for clients that do not modify them in place. ``check(context)`` raises if a
    client cannot take part, for example because of its data: it is called before the
    first round, and its error message goes into the logs of this client and of the
    server.
    """
    app = ClientApp()

    @app.train(mods=list(mods or []))
    @one_of_many
    def train(message: Message, context: Context) -> Message:
        names, arrays, config = _open(message.content, writable)
        client = _numpy_client(client_fn(context), config)
        notice_unread(type(client), config)
        new_arrays, num_examples, metrics = client.fit(arrays, config)
        came = getattr(client, "came", None)
        metrics = {**acknowledged(type(client)), **metrics, **(came.to_config() if came else {})}
        content = _metric_records(num_examples, metrics)
        if getattr(client, "replies_first", False):  # to a model and arrays for the client alone
            names = names[: len(new_arrays)]
        # the reply is not a model: a method with a wire format of its own
        if len(names) != len(new_arrays):
            names = [str(i) for i in range(len(new_arrays))]
        content["arrays"] = ArrayRecord(
            {n: Array(*fields(np.asarray(a))) for n, a in zip(names, new_arrays, strict=True)}
        )
        return Message(content=content, reply_to=message)

    @app.evaluate()
    @one_of_many
    def evaluate(message: Message, context: Context) -> Message:
        _, arrays, config = _open(message.content, writable)
        client = _numpy_client(client_fn(context), config)
        notice_unread(type(client), config)
        sent = Scoring.from_config(config)
        data = getattr(client, "data", None)
        if isinstance(data, ClientData | ArrayData) and not len(data.test):
            raise ValueError("the client has no samples to be scored on")
        validated: dict[str, float] = {}
        if sent.validation:
            if not hasattr(client, "evaluate_validation"):
                raise ValueError(f"{type(client).__name__} does not score validation samples")
            validated = client.evaluate_validation(arrays, config)
        loss, num_examples, metrics = client.evaluate(arrays, config)
        reported = {"loss": float(loss), **metrics, **validated}
        if not sent.class_counts:
            reported.pop(CONFUSION, None)
        return Message(content=_metric_records(num_examples, reported), reply_to=message)

    @app.evaluate("newcomer")
    @one_of_many
    def newcomer(message: Message, context: Context) -> Message:
        content = message.content
        arrays, more = content["arrays"], content.get("train-arrays", content["arrays"])
        _, received, config = _open(
            RecordDict({"arrays": arrays, "config": content["config"]}), writable
        )
        _, train_received, train_config = _open(
            RecordDict({"arrays": more, "config": content["train-config"]}), writable
        )
        # to be dropped
        own = Context(
            context.run_id, context.node_id, context.node_config, RecordDict(), context.run_config
        )
        epochs = [int(number) for number in content.config_records["new"]["epochs"]]  # type: ignore[union-attr]
        number, metrics = newcomer_metrics(
            _numpy_client(client_fn(own), config),
            (received, config),
            (train_received, train_config),
            epochs,
        )
        return Message(content=_metric_records(number, metrics), reply_to=message)

    return answer_identity(app, check)


def answer_identity(app: ClientApp, check: Callable[[Context], None] | None = None) -> ClientApp:
    """Let ``app`` report its client's id, so that sampling follows client ids and a run
    can be repeated; return it.

    The answer is ``client-id`` or ``partition-id`` of the node's configuration.
    ``check``: as in :func:`to_client_app`.
    """

    @app.query("identity")
    def identity(message: Message, context: Context) -> Message:
        answer = ConfigRecord({"client-id": client_id(context)})
        if isinstance(size := context.node_config.get("num-partitions"), int):
            answer["num-clients"] = size
        if check is not None:
            try:
                check(context)
            # whatever is wrong with a site's data must be reported to the server
            except Exception as error:
                log(ERROR, "client %s cannot take part: %s", answer["client-id"], error)
                answer["fault"] = str(error) or type(error).__name__
        return Message(content=RecordDict({"config": answer}), reply_to=message)

    return app


def is_site(context: Context) -> bool:
    """Return whether a node is configured as somebody's, not as a place of a
    simulation.
    """
    return bool(context.node_config.keys() - {"partition-id", "num-partitions"})


def client_id(context: Context) -> int | str:
    """Return the client's stable id: ``client-id`` or ``partition-id`` of the node
    configuration, else the node id.
    """
    for key in ("client-id", "partition-id"):
        if isinstance(value := context.node_config.get(key), int | str):
            return value
    return context.node_id


def _open(content: RecordDict, writable: bool) -> tuple[list[str], list[Any], dict[str, Any]]:
    # Flower's typed views of a message cost more than all work of a small client
    records = list(content.values())
    (arrays,) = (record for record in records if isinstance(record, ArrayRecord))
    (config,) = (record for record in records if isinstance(record, ConfigRecord))
    return (
        list(arrays),
        [read(array).copy() if writable else read(array) for array in arrays.values()],
        dict(config),
    )


def _numpy_client(client: NumPyClient | Client, config: Config) -> NumPyClient:
    inner = getattr(client, "numpy_client", client)
    if not isinstance(inner, NumPyClient):
        raise TypeError(
            f"client_fn returned {type(client).__name__}: return a flwr.client.NumPyClient"
        )
    return at_precision(inner, config)


def _metric_records(num_examples: int, metrics: Mapping[str, Any]) -> RecordDict:
    numbers, info = MetricRecord({"num-examples": int(num_examples)}), ConfigRecord()
    for name, value in metrics.items():
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()
        if isinstance(value, bool | str | bytes) or (
            isinstance(value, list) and value and all(type(v) is str for v in value)
        ):
            info[name] = value
        elif isinstance(value, int | float):
            numbers[name] = value
        elif isinstance(value, list | tuple) and all(type(v) in (int, float) for v in value):
            whole = all(type(v) is int for v in value)  # Flower accepts only lists of a single type
            numbers[name] = [v if whole else float(v) for v in value]
        else:
            kind = type(value).__name__
            raise TypeError(
                f"metric {name!r} is a {kind}: return a number, a flat list of numbers, text, "
                "bytes or a boolean"
            )
    return RecordDict({"metrics": numbers, **({"info": info} if info else {})})
