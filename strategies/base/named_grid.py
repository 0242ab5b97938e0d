"""A Grid that knows its clients by stable ids.

Flower identifies nodes by random numbers. Client ids come from one ``query.identity``
message per node (answered by ``clients.to_client_app`` and
``clients.answer_identity``). Three nodes are asked first: if the app of most has no
answer, no other is asked. Nodes are then identified by their node ids: everything
works, but a simulation is not repeatable.

Who is connected is a mapping node -> client id, sorted by id. A grid that makes its
clients itself (a simulation) offers ``known_clients``. Then no client has to be asked,
and a million clients numbered from 0 take no memory.

An :class:`Exchange` records one phase: messages out, replies back. A
:class:`WrappedGrid` passes on what a subclass does not change.
"""

import logging
import statistics
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from logging import ERROR, INFO, WARNING
from typing import Any, Protocol, cast, runtime_checkable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.common.seeds import generator
from fedapps.strategies.base.flower_private import NO_QUERY, ErrorCode
from fedapps.strategies.base.messages import error_line
from fedapps.strategies.base.reply_validation import LONGEST_FAULT


class PulledGrid(Grid):
    """A ``Grid`` whose replies :meth:`pulled` returns, under both names that Flower has
    had for their ids.
    """

    def pull_messages(  # type: ignore[override, unused-ignore]
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> list[Message]:
        """Return the replies that are here to the messages of these ids;
        ``message_ids``: the name before Flower 1.43.
        """
        given = [ids for ids in (reply_to_message_ids, message_ids) if ids is not None]
        if len(given) != 1:
            raise TypeError("pull_messages: give reply_to_message_ids, the ids of your messages")
        return self.pulled(list(given[0]))

    @abstractmethod
    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Return the replies that are here to the messages of these ids."""


class WrappedGrid(PulledGrid):
    """Passes everything but ``send_and_receive`` on to ``grid``."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Return what Flower knows about them."""
        return self.grid.get_nodes()

    def known_clients(self) -> "Numbered | None":
        """Return the clients that the wrapped grid knows."""
        return self.grid.known_clients() if isinstance(self.grid, KnowingClients) else None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages through the wrapped grid."""
        return self.grid.push_messages(messages)

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Pull replies through the wrapped grid."""
        return list(self.grid.pull_messages(numbers))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message as the wrapped grid does."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run: Any) -> None:
        """Set the run of the wrapped grid."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self.grid.run


ClientId = int | str


class Numbered(Mapping[int, ClientId]):
    """The clients 0 to ``count`` - 1, at the nodes ``first`` to ``first + count -
    1``.
    """

    def __init__(self, first: int, count: int) -> None:
        self.nodes, self.clients = range(first, first + count), range(count)

    def __getitem__(self, node: int) -> ClientId:
        if node not in self.nodes:
            raise KeyError(node)
        return int(node) - self.nodes.start

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True)
class Travel:
    """The traffic of one phase: messages to nodes, and the bytes of their contents and
    of the replies.

    ``summed``: only sums of the clients' models came back, so no client can be skipped
    any more. ``facts``: what else the record of a round repeats, by name.
    """

    messages: int = 0
    down: int = 0
    up: int = 0
    summed: bool = False
    facts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class KnowingClients(Protocol):
    """A grid that knows its clients."""

    def known_clients(self) -> Numbered | None:
        """Return the connected clients; ``None``: they have to be asked after all."""


@runtime_checkable
class Packing(Protocol):
    """A grid whose messages to nodes are not one for each client."""

    travel: Travel


def order(client: ClientId) -> tuple[bool, ClientId]:
    """Return the key by which client ids are sorted: numbers, then names."""
    return isinstance(client, str), client


def called(client: ClientId, names: Sequence[str]) -> ClientId:
    """Return what people call a client: its name among those of clients 0, 1, ..., or
    its id if it has none.
    """
    return names[client] if isinstance(client, int) and 0 <= client < len(names) else client


@dataclass(frozen=True)
class Failure:
    """A client whose reply was not used, the reason (one line), and what people call
    the client. ``answered``: whether it sent anything; ``broken``: whether that was not
    an error, but numbers that are no good; ``died``: whether its worker process did.
    """

    client: ClientId
    reason: str
    name: str = ""
    answered: bool = True
    broken: bool = True
    died: bool = False

    @property
    def called(self) -> ClientId:
        """The client's name, or its id if it has none."""
        return self.name or self.client


@dataclass
class Exchange:
    """Record of one phase: bytes of message contents, ids and metrics of the clients
    with a valid reply, and the failures.

    ``capped``: clients whose weight was lowered; ``shortened``: whose update was.
    ``travel``: what went to nodes and back, where many clients share one. With a clock
    (``strategies.base.timing``), ``sent``: how many messages went out; ``clock``:
    the seconds of the run at its end; ``late``: who was asked and did not answer in
    time; ``ages``: how many updates of the model a client had not seen; ``shares``: of
    its local steps that a client did, if not all.
    """

    kind: str = ""
    clients: list[ClientId] = field(default_factory=list)
    metrics: dict[ClientId, dict[str, Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    capped: list[ClientId] = field(default_factory=list)
    shortened: list[ClientId] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    travel: Travel | None = None
    late: list[ClientId] = field(default_factory=list)
    ages: dict[ClientId, int] = field(default_factory=dict)
    shares: dict[ClientId, float] = field(default_factory=dict)
    sent: int = 0
    clock: float | None = None

    def joined(self, other: "Exchange") -> "Exchange":
        """Return the record of this phase, with the bytes and failures of the phase
        ``other`` that prepared it or follows from it.
        """
        known = {failure.client for failure in self.failures}
        failures = self.failures + [f for f in other.failures if f.client not in known]
        return replace(
            self,
            failures=sorted(failures, key=lambda failure: order(failure.client)),
            bytes_up=self.bytes_up + other.bytes_up,
            bytes_down=self.bytes_down + other.bytes_down,
        )


IDENTITY = f"{MessageType.QUERY}.identity"
# seconds that a run waits for the identity of a node that connects after the start
LATECOMER_TIMEOUT = 60.0
#: Nodes that are asked first whether the app of the clients has an answer.
FIRST_ASKED = 3
LONGEST_NAME = 100


class NamedGrid(WrappedGrid):
    """A ``Grid`` around ``grid``; arguments are those of ``ClientGrid``."""

    def __init__(
        self,
        grid: Grid,
        *,
        seed: int = 0,
        num_clients: int = 0,
        start_timeout: float = 300.0,
        num_new: int = 0,
        new_clients: Iterable[ClientId] = (),
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(grid)
        self.num_new, self.new_clients = num_new, frozenset(new_clients)
        # of a grid that need not ask, without the new clients
        self._members: dict[int, ClientId] | None = None
        self.names = names  # of clients 0, 1, ..., for people
        self.seed = seed
        self.num_clients = num_clients
        self.start_timeout = start_timeout
        self._ids: dict[int, ClientId] = {}
        self._claims: dict[int, ClientId] = {}  # names of nodes whose name is taken by another node
        self._unfit: set[int] = set()  # nodes that report that they cannot take part
        self._keys: dict[ClientId, bytes] = {}  # of clients whose node is registered by name
        # nodes that are left out, with the reason, and those that no phase has recorded
        self._refused: dict[int, str] = {}
        self._unrecorded: list[Failure] = []
        # of a grid that need not ask
        self._known = self.known_clients()
        self._announced: dict[int, int] = {}  # how many clients there are, as the nodes say
        self._met = False  # whether the start is over
        # whether the app of the nodes has no answer to the question who they are
        self._mute = False

    def wait(self, minimum: int = 0) -> Sequence[int]:
        """Wait until all nodes, or ``minimum`` of them if it is given, are connected
        and identified; return all that are.

        Nodes that cannot take part, or that have another's name, are not waited for.
        Raises ``ValueError`` if these are half of the nodes or more, and
        ``TimeoutError`` after ``start_timeout`` seconds.
        """
        deadline, logged = time.monotonic() + self.start_timeout, 0
        while len(nodes := self._connected()) < (
            wanted := minimum or self._expected() - len(self.new_clients) - self._absent()
        ):
            if time.monotonic() > deadline:
                lower = (
                    "min_available_nodes, min_train_nodes or min_evaluate_nodes"
                    if minimum
                    else "num-clients"
                )
                raise TimeoutError(
                    f"{len(nodes)} of {wanted} clients connected within {self.start_timeout:g} s: "
                    f"start more, or lower {lower}"
                )
            # in Flower's words, but once a number instead of once a second
            if logged != (logged := len(nodes) + 1):
                log(
                    INFO,
                    "Waiting for nodes to connect: %d connected (minimum required: %d).",
                    len(nodes),
                    wanted,
                )
            time.sleep(0.05 if self.start_timeout < 1 else 0.2)
        # a single site cannot end the run by its words, but a wrong setting must
        if not self._met and self._absent() >= max(1, len(nodes)):
            raise ValueError("; ".join(self._refused.values()))
        self._met = True
        if self.num_new and not self.new_clients:
            self._keep_out(nodes)
            return self._connected()
        return nodes

    def _absent(self) -> int:
        """Return how many connected nodes are left out."""
        return len(self._refused.keys() & set(self.grid.get_node_ids())) if self._refused else 0

    def _keep_out(self, nodes: Sequence[int]) -> None:
        """Draw the new clients. Raises ``ValueError`` if nobody would be left, or nodes
        have no names to know them by.
        """
        if self._mute:
            raise ValueError(
                "num-new-clients: the nodes do not say which client they are: "
                "clients.answer_identity(app) lets them"
            )
        if self.num_new >= len(nodes):
            raise ValueError(
                f"num-new-clients = {self.num_new}, but {len(nodes)} clients are connected: one at "
                "least must train"
            )
        chosen = generator(self.seed, "new clients").choice(len(nodes), self.num_new, replace=False)
        self.new_clients = frozenset(self.client_id(nodes[place]) for place in chosen)

    def newcomers(self) -> Mapping[int, ClientId]:
        """Node -> id of the connected new clients, sorted by id."""
        everyone = (
            {node: self.client_id(node) for node in self._everyone()} if self.new_clients else {}
        )
        return {node: client for node, client in everyone.items() if client in self.new_clients}

    def _expected(self) -> int:
        # The median: a single wrong number must neither end the run nor start it too
        # early.
        if known := self._known:
            return self.num_clients or len(known)
        return self.num_clients or (
            statistics.median_low(self._announced.values()) if self._announced else 1
        )

    def _connected(self) -> Sequence[int]:
        """Return the connected nodes that take part in training."""
        if self.new_clients and self._known is not None:
            return list(self.clients)
        return (
            [node for node in self._everyone() if self._ids[node] not in self.new_clients]
            if self.new_clients
            else self._everyone()
        )

    def _everyone(self) -> Sequence[int]:
        """Return the connected nodes that have a name, sorted by it; asks new nodes for
        their identity.
        """
        if known := self._known:
            return known.nodes
        nodes = list(self.grid.get_node_ids())
        unknown = sorted(
            node for node in nodes if node not in self._ids and node not in self._unfit
        )
        if unknown:
            self._identify(unknown, set(nodes))
        return sorted(
            (node for node in nodes if node in self._ids), key=lambda node: order(self._ids[node])
        )

    def _identify(self, nodes: Sequence[int], connected: set[int]) -> None:
        """Name new nodes. The first one that answers with a name has it, and so has its
        key, if it is registered by name (`flwr supernode register --name`); another one
        waits until the first is gone. A registered name is only for its node.
        """
        asked = [node for node in nodes if node not in self._claims]
        answers = self._ask(asked)
        if self._mute:
            self._claims |= {node: node for node in asked}
            asked = []
        silent, reasons = set(asked), []
        faults: dict[int, tuple[ClientId, str]] = {}
        for node, answer in answers:
            silent.discard(node)
            name, size = (None, 1) if (why := error_line(answer)) else _introduction(answer.content)
            if name is not None and (fault := _fault(answer.content)):
                faults[node] = name, f"client {name!r} cannot take part: {fault}"
                self._unfit.add(node)
            elif name is not None:
                self._claims[node] = name
                self._announced[node] = size
            elif not (self._met and _gone(answer)):
                reasons.append(why or "no usable client-id in the answer")
                self._claims[node] = node
        # at the start a node without an answer is identified by its node id; a
        # latecomer is asked again
        if not self._met:
            self._claims |= {node: node for node in silent}
            reasons += ["no answer"] * len(silent)
        if reasons:
            log(
                WARNING,
                "%d nodes do not say which client they are (%s): sampling is not repeatable",
                len(reasons),
                reasons[0],
            )
        live = {self._ids[node]: node for node in connected if node in self._ids}
        # what the SuperLink knows of nodes whose keys are registered
        known = {one.node_id: one for one in self.grid.get_nodes()}
        owners = {getattr(told, "name", ""): node for node, told in known.items()}
        for node in [node for node in self._claims if node in set(nodes)]:  # in order of answers
            client = self._claims[node]
            # only registered nodes have a name; others make new keys
            key = known[node].public_key if getattr(known.get(node), "name", "") else b""
            if owners.get(client, node) != node or self._keys.get(client, key) != key:
                # without a registered name nobody knows which of the two lies
                owned = owners.get(client, node) != node
                why = "that is the name of" if owned else "so did, before it,"
                self._refuse(
                    node,
                    node,
                    f"node {node} says that it is client {client!r}, but {why} a node with "
                    "another key: give every node its own client-id, the name of its key",
                )
            elif client not in live:
                live[client] = node
                if key:
                    self._keys[client] = key
                self._ids[node] = self._claims.pop(node)
                self._refused.pop(node, None)
            else:
                self._refuse(
                    node,
                    node,
                    f"two nodes say that they are client {client!r}: give every node its own "
                    "partition-id or client-id. The one that answered later waits until the first "
                    "one is gone",
                )
        for node, (client, why) in faults.items():
            # it may have used another's name
            self._refuse(node, node if client in live else client, why)

    def _refuse(self, node: int, client: ClientId, reason: str) -> None:
        """Leave a node out, and name it once in the log and in the next round."""
        if node not in self._refused:
            self._refused[node] = reason
            log(ERROR, reason)
            name = str(called(client, self.names)) if self.names else ""
            self._unrecorded.append(Failure(client, reason, name, answered=False, broken=False))

    def _ask(self, nodes: Sequence[int]) -> list[tuple[int, Message]]:
        """Ask nodes for their names, three of them first if none has a name yet; return
        (node, answer), nothing if the app of most of these is mute.
        """
        answers: list[tuple[int, Message]] = []
        first = [] if self._ids else list(nodes[:FIRST_ASKED])
        for group in (first, nodes[len(first) :]):
            if not group or self._mute:
                continue
            questions = [
                Message(
                    # mods of the client's app read the round of every message
                    content=RecordDict({"config": ConfigRecord({"server-round": 0})}),
                    message_type=IDENTITY,
                    dst_node_id=node,
                )
                for node in group
            ]
            patience = (
                self.start_timeout if not self._met else min(self.start_timeout, LATECOMER_TIMEOUT)
            )
            with _without_log_of_no_answer():
                heard = list(self.grid.send_and_receive(questions, timeout=patience))
            by_question = {
                question.metadata.message_id: node
                for question, node in zip(questions, group, strict=True)
            }
            answers += [
                (by_question.get(a.metadata.reply_to_message_id, a.metadata.src_node_id), a)
                for a in heard
            ]
            mute = [a for a in heard if a.has_error() and _tells_no_answer(a.error.reason)]
            if group is first and 2 * len(mute) > len(heard):
                self._mute = True
                log(
                    WARNING,
                    "the app of the clients does not answer %s: clients are known by their node "
                    "ids, sampling is not repeatable; "
                    "clients.answer_identity(app) changes that",
                    IDENTITY,
                )
        return [] if self._mute else answers

    def client_id(self, node_id: int) -> ClientId:
        """Return the stable id of a node (its node id while it is unknown)."""
        return (self._known or self._ids).get(node_id, node_id)

    @property
    def clients(self) -> Mapping[int, ClientId]:
        """Node -> id of every connected client that takes part, sampled or not, sorted
        by id.
        """
        if known := self._known:
            if self.new_clients and self._members is None:
                self._members = {
                    node: client for node, client in known.items() if client not in self.new_clients
                }
            return self._members or known
        return {node: self._ids[node] for node in self._connected()}


def clients_of(grid: Grid) -> Mapping[int, ClientId]:
    """Return node -> id of every connected client; on another kind of grid the id is
    the node id.
    """
    return (
        grid.clients
        if isinstance(grid, NamedGrid)
        else {node: node for node in sorted(grid.get_node_ids())}
    )


def _tells_no_answer(text: str | None) -> bool:
    return any(words.format(name="identity") in (text or "") for words in NO_QUERY)


@contextmanager
def _without_log_of_no_answer() -> Iterator[None]:
    """Keep what Flower's simulation logs of an app without an answer, a page with a
    traceback, out of the log: one line says it.
    """

    def keep(record: logging.LogRecord) -> bool:
        said = record.getMessage()  # any other error comes with a traceback of its own
        return not (
            _tells_no_answer(said)
            or said.startswith("An exception was raised when processing a message by")
        )

    logger = logging.getLogger("flwr")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _introduction(content: RecordDict) -> tuple[ClientId | None, int]:
    """Return the client id and the reported number of clients of an answer; ``None``
    for an id unfit for logs or checkpoints.
    """
    try:
        records = list(content.config_records.values())
        name, size = records[0]["client-id"], records[0].get("num-clients", 1)
    except Exception:  # untrusted input
        return None, 1
    usable = type(name) is int or (
        isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
    )
    return cast(ClientId, name) if usable else None, size if type(size) is int else 1


def _fault(content: RecordDict) -> str:
    """Return the reason a node gives for not taking part, on one line; "" if it can."""
    fault = next(iter(content.config_records.values())).get("fault", "")
    return " ".join(fault.split())[:LONGEST_FAULT] if isinstance(fault, str) else ""


def _gone(answer: Message) -> bool:
    return answer.has_error() and answer.error.code in (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.MESSAGE_UNAVAILABLE,
    )
