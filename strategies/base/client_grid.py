"""A Grid with stable client ids, seeded sampling, byte metering and reply validation.

Flower identifies nodes by random numbers, samples them with an unseeded generator,
passes replies on in order of arrival and leaves error replies to the strategy.
``ClientGrid`` wraps any ``Grid`` and changes that:

    strategy.start(grid=ClientGrid(grid, seed=0, clients_per_round=5), ...)
        # a strategy of this package
    run_rounds(FedAdam(...), ClientGrid(grid, seed=0, clients_per_round=5), ...)
        # one of Flower's own, or yours

Seeded sampling needs our round loop; Flower's own ``start`` keeps its own sampling.

Client ids come from one ``query.identity`` message per node (answered by
``clients.to_client_app`` and ``clients.answer_identity``). One node is asked first: if
its app has no answer, none is asked again. Nodes are then identified by their node ids:
everything works, but a simulation is not repeatable.
"""

import logging
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from logging import ERROR, INFO, WARNING
from typing import Any, cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from algorithms.common.seeds import generator
from strategies.base.flower_private import NO_QUERY, WORKER_DIED, ErrorCode, is_simulation
from strategies.base.messages import content_bytes, metrics_of, trains
from strategies.base.relative_bounds import RelativeBounds
from strategies.base.reply_validation import Rules, UpdateBound
from strategies.base.roster import ClientId, KnowingClients, Packing, Travel
from strategies.base.weights import capped
from strategies.base.wrapped_grid import WrappedGrid

IDENTITY = f"{MessageType.QUERY}.identity"
# seconds that a run waits for the identity of a node that connects after the start
LATECOMER_TIMEOUT = 60.0
#: Seconds that a phase waits for replies unless the loop says otherwise, as in Flower.
TIMEOUT = 3600.0
LONGEST_NAME, LONGEST_FAULT = 100, 500


@dataclass(frozen=True)
class Failure:
    """A client whose reply was not used, the reason (one line), and what people call
    the client. ``answered``: whether it sent anything; ``broken``: whether that was not
    an error, but numbers that are no good.
    """

    client: ClientId
    reason: str
    name: str = ""
    answered: bool = True
    broken: bool = True

    @property
    def called(self) -> ClientId:
        """The client's name, or its id if it has none."""
        return self.name or self.client


@dataclass
class Exchange:
    """Record of one phase: bytes of message contents, ids and metrics of the clients
    with a valid reply, and the failures.

    ``capped``: clients whose weight was lowered; ``shortened``: whose update was.
    ``travel``: what went to nodes and
    back, where many clients share one.
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

    def after(self, earlier: "Exchange") -> "Exchange":
        """Return the record of this phase, with the bytes and failures of the phase
        ``earlier`` that prepared it.
        """
        known = {failure.client for failure in self.failures}
        failures = self.failures + [f for f in earlier.failures if f.client not in known]
        return replace(
            self,
            failures=sorted(failures, key=lambda failure: order(failure.client)),
            bytes_up=self.bytes_up + earlier.bytes_up,
            bytes_down=self.bytes_down + earlier.bytes_down,
        )


class ClientGrid(WrappedGrid):
    """A ``Grid`` around ``grid``; see the module docstring.

    ``seed``: of the sampling. ``clients_per_round``: how many clients a training phase
    samples (0: the strategy decides). ``num_clients``: how many nodes to wait for
    before the first round (0: the median of what the nodes report; the virtual nodes of
    a simulation know). ``start_timeout``: seconds to wait for them. ``same_arrays``: a
    training reply must carry arrays of the names, shapes and types that were sent.
    ``bound``: on a client's update and weight. ``rules``: the validation rules for
    replies; ``run_rounds`` sets those that depend on the strategy, and ``timeout``, the
    seconds that a phase waits for replies. ``num_new``: how many clients take no part
    (``strategies.base.newcomers``), drawn by the seed of those that are there at the
    start; ``new_clients``: which, if it is known.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        seed: int = 0,
        clients_per_round: int = 0,
        num_clients: int = 0,
        start_timeout: float = 300.0,
        same_arrays: bool = True,
        bound: UpdateBound | None = None,
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
        self.clients_per_round = clients_per_round
        self.num_clients = num_clients
        self.start_timeout = start_timeout
        self.rules = Rules(like_model=same_arrays, bound=bound or UpdateBound())
        self.last = Exchange()
        self.timeout = TIMEOUT
        self._simulation = is_simulation(grid)
        self._relative = RelativeBounds()
        self._ids: dict[int, ClientId] = {}
        self._claims: dict[int, ClientId] = {}  # names of nodes whose name is taken by another node
        self._unfit: set[int] = set()  # nodes that report that they cannot take part
        self._keys: dict[ClientId, bytes] = {}  # of clients whose node has a registered key
        # nodes that are left out, with the reason, and those that no phase has recorded
        self._refused: dict[int, str] = {}
        self._unrecorded: list[Failure] = []
        self._active: Sequence[int] | None = None
        # of a grid that need not ask
        self._known = grid.known_clients() if isinstance(grid, KnowingClients) else None
        self._announced: dict[int, int] = {}  # how many clients there are, as the nodes say
        self._met = False  # whether the start is over
        # whether the app of the nodes has no answer to the question who they are
        self._mute = False

    # --- identity ---------------------------------------------------------------------

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
        key, if it is registered; another one waits until the first is gone. A
        registered name is only for the node that is registered with it.
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
            name, size = (None, 1) if (why := _error(answer)) else _introduction(answer.content)
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
        known = {one.node_id: one for one in getattr(self.grid, "get_nodes", tuple)()}
        owners = {getattr(one, "name", ""): node for node, one in known.items()}
        for node in [node for node in self._claims if node in set(nodes)]:  # in order of answers
            client = self._claims[node]
            key = getattr(known.get(node), "public_key", b"")
            if owners.get(client, node) != node or self._keys.get(client, key) != key:
                self._refuse(
                    node,
                    node,
                    f"node {node} says that it is client {client!r}, which is the name of a node "
                    "with another key: give every node its own client-id",
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
        """Ask nodes for their names, one of them first if none has a name yet; return
        (node, answer), nothing if the app is mute.
        """
        answers: list[tuple[int, Message]] = []
        first = [] if self._ids else list(nodes[:1])
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
            if (
                group is first
                and heard
                and heard[0].has_error()
                and _tells_no_answer(heard[0].error.reason)
            ):
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

    def sample(
        self, server_round: int, num_clients: int, purpose: str = "sampling"
    ) -> Sequence[int]:
        """Return the nodes of ``num_clients`` clients (all if there are fewer), sampled
        with the seed for this round and purpose.
        """
        nodes = self._connected()
        if num_clients >= len(nodes):
            return nodes
        chosen = generator(self.seed, purpose, server_round=server_round).choice(
            len(nodes), num_clients, replace=False
        )
        return [nodes[i] for i in sorted(chosen)]

    def open_training(self, server_round: int) -> None:
        """Let ``get_node_ids`` return this round's sample until ``close_training``, so
        that Flower's own strategies use it too.
        """
        if self.clients_per_round:
            self._active = self.sample(server_round, self.clients_per_round)

    def close_training(self) -> None:
        """Let ``get_node_ids`` return every client again."""
        self._active = None

    def get_node_ids(self) -> Sequence[int]:
        """Return the sampled nodes while a training phase is being configured, else
        all; sorted by client id.
        """
        return self._connected() if self._active is None else list(self._active)

    # --- messages ---------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send, wait, and return the valid replies sorted by client id. ``last``
        records the traffic and the failures.
        """
        sent = list(messages)
        exchange = Exchange(kind=sent[0].metadata.message_type if sent else "")
        sizes: dict[int, int] = {}  # messages of one phase mostly share their content
        for message in sent:
            if id(message.content) not in sizes:
                sizes[id(message.content)] = content_bytes(message.content)
            exchange.bytes_down += sizes[id(message.content)]
        replies = list(self.grid.send_and_receive(sent, timeout=timeout)) if sent else []
        exchange.travel = self.grid.travel if sent and isinstance(self.grid, Packing) else None
        answered = {reply.metadata.reply_to_message_id: reply for reply in replies}
        valid: list[tuple[ClientId, Message]] = []
        questions: dict[int, Message] = {}  # by the identity of the reply
        dead: list[Failure] = []
        for message in sent:
            client = self.client_id(message.metadata.dst_node_id)
            reply = answered.get(message.metadata.message_id)
            reason = (
                f"no answer within {timeout:g} s"
                if reply is None and timeout
                else "no answer"
                if reply is None
                else None
            )
            if reply is not None and not (reason := _error(reply)):
                exchange.bytes_up += content_bytes(reply.content)
                reason = self.rules.fault(message, reply)
            if reply is None or reason:
                self._leave_out(exchange, client, reason or "no answer", reply)
                if reply is not None and self._simulation and _worker_died(reply):
                    dead += exchange.failures[-1:]
            else:
                valid.append((client, reply))
                questions[id(reply)] = message
        valid.sort(key=lambda pair: order(pair[0]))
        odd = self.rules.agreement.odd(valid, self.rules.alike)
        if odd and exchange.travel and exchange.travel.summed:
            client, reason = valid[min(odd)][0], odd[min(odd)]
            raise ValueError(
                f"client {called(client, self.names)} is to be left out ({reason}), but its model "
                "is in a sum: run without node-sums"
            )
        for place, reason in odd.items():
            self._leave_out(exchange, valid[place][0], reason, valid[place][1])
        valid = [pair for place, pair in enumerate(valid) if place not in odd]
        if sent and trains(sent[0]) and not (exchange.travel and exchange.travel.summed):
            valid = self._bounded(exchange, valid, questions)
        if self.rules.weight and self.rules.bound.max_weight:
            bound = self.rules.bound
            exchange.capped = capped(valid, self.rules.weight, bound.max_weight, bound.liars)
        if self._unrecorded and sent and trains(sent[0]):
            exchange.failures += self._unrecorded
            self._unrecorded = []
        exchange.failures.sort(key=lambda failure: order(failure.client))
        exchange.clients = [client for client, _ in valid]
        exchange.metrics = {client: metrics_of(reply.content) for client, reply in valid}
        self.last = exchange
        if dead:
            raise RuntimeError(
                f"the worker process of client {dead[0].called} died (out of memory?): "
                f"{dead[0].reason}"
            )
        return [reply for _, reply in valid]

    def _bounded(
        self,
        exchange: Exchange,
        valid: list[tuple[ClientId, Message]],
        questions: Mapping[int, Message],
    ) -> list[tuple[ClientId, Message]]:
        """Apply the bounds that compare the replies of a round; return those to use."""
        rules = self.rules
        if not (rules.relative and (rules.like_model or rules.updates)):
            return valid
        wild, exchange.shortened = self._relative.apply(
            [(who, questions[id(reply)], reply) for who, reply in valid],
            rules.bound.max_relative_update,
            models=rules.like_model,
            beside=rules.beside,
            liars=rules.bound.liars,
        )
        for place, reason in wild.items():
            self._leave_out(exchange, valid[place][0], reason, valid[place][1])
        return [pair for place, pair in enumerate(valid) if place not in wild]

    def _leave_out(
        self, exchange: Exchange, client: ClientId, reason: str, reply: Message | None
    ) -> None:
        # a client may have written it, at any length
        reason = " ".join(reason.split())[:LONGEST_FAULT]
        name = str(called(client, self.names)) if self.names else ""
        broken = reply is not None and not reply.has_error()
        exchange.failures.append(Failure(client, reason, name, reply is not None, broken))
        log(WARNING, "client %s left out: %s", name or client, reason)


def called(client: ClientId, names: Sequence[str]) -> ClientId:
    """Return what people call a client: its name among those of clients 0, 1, ..., or
    its id if it has none.
    """
    return names[client] if isinstance(client, int) and 0 <= client < len(names) else client


def clients_of(grid: Grid) -> Mapping[int, ClientId]:
    """Return node -> id of every connected client; on another kind of grid the id is
    the node id.
    """
    return (
        grid.clients
        if isinstance(grid, ClientGrid)
        else {node: node for node in sorted(grid.get_node_ids())}
    )


def _error(reply: Message) -> str | None:
    """Return the reason of an error reply as one short line, or ``None`` for a reply
    with content.
    """
    if not reply.has_error():
        return None
    lines = [
        line.strip() for line in (reply.error.reason or "").strip().splitlines() if line.strip()
    ]
    return (lines[-1] if lines else f"error code {reply.error.code}")[:300]


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


def _worker_died(reply: Message) -> bool:
    # Flower puts a dead Ray actor back into its pool, where it swallows most later
    # messages: the run cannot recover. Asked in a simulation only; the error code is
    # that of Flower's simulation: a client whose own error contains these words has
    # another code.
    words = (
        reply.error.reason or ""
        if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN
        else ""
    )
    return any(name in words for name in WORKER_DIED)


def order(client: ClientId) -> tuple[bool, ClientId]:
    """Return the key by which client ids are sorted: numbers, then names."""
    return isinstance(client, str), client
