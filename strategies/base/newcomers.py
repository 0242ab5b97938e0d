"""Clients that take no part in training and are scored as new clients: with the model
as it is, and after some local epochs.

``ClientGrid(num_new=k)`` chooses them and hides them from the strategy: they are not
connected, sampled or heard. At an evaluation each gets one message with what the
strategy would send to evaluate, and to train, a client that it meets for the first
time. The client (``clients.base.newcomers``) keeps nothing and sends measures that no
strategy sees. A copy of the strategy writes these messages, so the strategy does not
meet these clients. Of wrappers that decide weights, sum or add noise, only what they
wrote into the round's configurations is sent.
"""

import copy
from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.messages import LOSS_BEFORE, arrays_of, innermost
from fedapps.strategies.base.named_grid import ClientId, Exchange

NEWCOMER = f"{MessageType.EVALUATE}.newcomer"


class NewcomerGrid(ClientGrid):
    """The new clients of ``grid`` that are connected now, all of them in every phase;
    it validates replies by rules of its own.
    """

    def __init__(self, grid: ClientGrid) -> None:
        super().__init__(grid.grid, seed=grid.seed)
        self._newcomers = grid.newcomers()

    def wait(self, minimum: int = 0) -> Sequence[int]:
        """Return the nodes: others that may come are not waited for."""
        return list(self._newcomers)

    def sample(
        self, server_round: int, num_clients: int, purpose: str = "sampling"
    ) -> Sequence[int]:
        """Return the nodes: nothing is drawn."""
        return list(self._newcomers)

    def get_node_ids(self) -> Sequence[int]:
        """Return the nodes."""
        return list(self._newcomers)

    def client_id(self, node_id: int) -> ClientId:
        """Return the stable id of a node."""
        return self._newcomers.get(node_id, node_id)

    @property
    def clients(self) -> Mapping[int, ClientId]:
        """Node -> id, sorted by id."""
        return self._newcomers


def meet(
    strategy: Strategy,
    grid: ClientGrid,
    server_round: int,
    arrays: ArrayRecord,
    configs: Mapping[str, ConfigRecord],
    epochs: Sequence[int],
    timeout: float,
) -> Exchange:
    """Let the new clients of ``grid`` score what ``strategy`` gives them, and
    themselves after ``epochs`` local epochs each.

    ``configs``: those of the round's training (``train``) and evaluation
    (``evaluate``), which stay as they are.
    """
    newcomers = NewcomerGrid(grid)
    newcomers.send_and_receive(
        messages_to(strategy, newcomers, server_round, arrays, configs, epochs), timeout=timeout
    )
    return newcomers.last


def messages_to(
    strategy: Strategy,
    newcomers: NewcomerGrid,
    server_round: int,
    arrays: ArrayRecord,
    configs: Mapping[str, ConfigRecord],
    epochs: Sequence[int],
) -> list[Message]:
    """Return the messages: records ``arrays`` and ``config`` as in an evaluation,
    ``train-arrays`` (if others) and ``train-config``.
    """
    if not newcomers.clients:
        return []
    aside = copy.deepcopy(innermost(strategy))
    train, evaluate = (ConfigRecord({**configs[phase]}) for phase in ("train", "evaluate"))
    train.pop(LOSS_BEFORE, None)  # nobody asks for its loss
    trained = {
        m.metadata.dst_node_id: m
        for m in aside.configure_train(server_round, arrays, train, newcomers)
    }
    scored = {
        m.metadata.dst_node_id: m
        for m in aside.configure_evaluate(server_round, arrays, evaluate, newcomers)
    }
    contents: dict[tuple[int, int], RecordDict] = {}  # clients mostly share what they are sent
    messages = []
    for node in [node for node in newcomers.clients if node in trained and node in scored]:
        first, then = scored[node].content, trained[node].content
        if (key := (id(first), id(then))) not in contents:
            contents[key] = _content(first, then, epochs)
        messages.append(Message(contents[key], node, NEWCOMER, group_id=str(server_round)))
    return messages


def _content(scored: RecordDict, trained: RecordDict, epochs: Sequence[int]) -> RecordDict:
    (arrays,), (more,) = arrays_of(scored), arrays_of(trained)
    (config,), (train_config,) = (
        list(content.config_records.values()) for content in (scored, trained)
    )
    content = RecordDict({"arrays": arrays, "config": config, "train-config": train_config})
    if list(arrays) != list(more) or any(arrays[name] is not more[name] for name in arrays):
        content["train-arrays"] = more
    content["new"] = ConfigRecord({"epochs": list(epochs)})
    return content
