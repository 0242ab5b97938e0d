"""A Grid of many clients behind few nodes: one message holds the messages of all
clients of a node (client half: ``node_app``).

In Flower, each message costs some milliseconds, and a client's whole state is sent both
ways with it. Here a simulation has one node per worker. The clients of a round are
distributed over the nodes so that each node has the same number of samples, as far as
earlier replies have reported them. A message holds the shared model once, together with
the parts that differ. It is split if it, or the replies to it, would exceed
``most_bytes``. A strategy sees single clients: their messages, replies and failures.
Any node can run any client: the states of clients stay here, and those that are not
empty are sent with the messages.

A :class:`GatewayGrid` is one of sites with many clients each, such as a gateway of
devices or a hospital with wards. Every site is asked once for its clients. From then on
they are clients like others, with their own ids, samples, failures and states. In each
phase, one message goes to all clients of a site. Unlike in a simulation, clients and
their states stay at the site.
"""

import heapq
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from logging import ERROR, INFO, WARNING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.engines.inline import failed
from fedapps.engines.node_app import CLIENTS, FIRST_NODE, MANY, Part, pack, unpack
from fedapps.strategies.base.flower_private import ErrorCode, number_message
from fedapps.strategies.base.messages import content_bytes, trains
from fedapps.strategies.base.named_grid import IDENTITY, Numbered, Travel, WrappedGrid

#: Largest size in bytes of a message, or of the expected reply: large enough to make
#: the cost per message negligible, small compared to a worker's memory.
MOST_BYTES = 32 * 2**20
RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION


class NodeGrid(WrappedGrid):
    """``num_clients`` virtual clients behind ``nodes`` of ``grid``, whose app answers
    for many (``answer_for_many``).
    """

    def __init__(
        self, grid: Grid, num_clients: int, nodes: Sequence[int], most_bytes: int = MOST_BYTES
    ) -> None:
        super().__init__(grid)
        self.nodes, self.most_bytes = sorted(nodes), most_bytes
        self.roster = Numbered(FIRST_NODE, num_clients)
        #: Messages and bytes of the last phase.
        self.travel = Travel()
        #: States of the clients that keep one in their context.
        self.states: dict[int | str, RecordDict] = {}
        self._samples = np.zeros(num_clients, np.float32)  # of the clients that have replied

    def known_clients(self) -> Numbered | None:
        """Return all clients: they need not be asked for their ids."""
        return self.roster

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the virtual clients."""
        return self.roster.nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send clients' messages in packages and return the clients' replies that
        arrive within ``timeout`` seconds.
        """
        packages = self._packages(list(messages))
        sent = [package for package, _ in packages]
        replies = {
            reply.metadata.reply_to_message_id: reply
            for reply in self.grid.send_and_receive(sent, timeout=timeout)
        }
        down, up = sum(_bytes(package.content) for package in sent), 0
        out: list[Message] = []
        for package, inside in packages:
            reply = replies.get(package.metadata.message_id)
            if reply is not None:
                up += 0 if reply.has_error() else _bytes(reply.content)
                out += self._opened(inside, reply)
        self.travel = Travel(len(sent), down, up)
        return out

    # --- packing ----------------------------------------------------------------------

    def _packages(self, messages: Sequence[Message]) -> list[tuple[Message, list[Message]]]:
        """Return the packages for the nodes, each with the messages inside."""
        for message in messages:
            number_message(message)
        out = []
        for node, share in self._shares(messages):
            for chunk in self._chunks([messages[place] for place in share]):
                facts = {"num-clients": len(self.roster)}
                content = pack((self._part(message) for message in chunk), facts)
                group = chunk[0].metadata.group_id
                out.append(
                    (Message(content, node, MANY, ttl=chunk[0].metadata.ttl, group_id=group), chunk)
                )
        return out

    def _client(self, message: Message) -> int | str:
        """Return the client that a message is for, as its node names it."""
        return message.metadata.dst_node_id - FIRST_NODE

    def _shares(self, messages: Sequence[Message]) -> Iterable[tuple[int, Sequence[int]]]:
        """Return the nodes, each with the places of the messages for it."""
        clients = [message.metadata.dst_node_id - FIRST_NODE for message in messages]
        return zip(self.nodes, deal(clients, self._costs(clients), len(self.nodes)), strict=True)

    def _part(self, message: Message) -> Part:
        client = self._client(message)
        facts = {
            "client": client,
            "type": message.metadata.message_type,
            "group": message.metadata.group_id,
        }
        return Part(facts, message.content, self.states.get(client))

    def _costs(self, clients: Sequence[int]) -> list[float]:
        """Return the expected cost of each client: its number of samples, or the mean
        of the others if it is not known.
        """
        known = self._samples[clients].astype(float)
        usual = known[known > 0].mean() if (known > 0).any() else 1.0
        return [float(cost) for cost in np.where(known > 0, known, usual)]

    def _chunks(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Split a node's messages so that neither a package nor the replies to it
        exceed ``most_bytes``. The reply of a client that trains is as large as its
        message.
        """
        chunk: list[Message] = []
        load, answers = _Load(), 0
        for message in messages:
            contents = [
                message.content,
                *([state] if (state := self.states.get(self._client(message))) else []),
            ]
            returned = sum(
                load.whole(content) for content in contents[0 if trains(message) else 1 :]
            )
            most = max(
                load.bytes + sum(load.more(content) for content in contents), answers + returned
            )
            if chunk and most > self.most_bytes:
                yield chunk
                chunk, load, answers = [], _Load(), 0
            for content in contents:
                load.add(content)
            answers += returned
            chunk.append(message)
        if chunk:
            yield chunk

    def _opened(self, inside: Sequence[Message], reply: Message) -> list[Message]:
        """Return the clients' replies in a node's reply. A node's error counts for each
        of its clients.
        """
        if reply.has_error():
            return [Message(reply.error, reply_to=message) for message in inside]
        try:
            parts = unpack(reply.content)[1]
            if len(parts) != len(inside):
                raise ValueError(f"{len(parts)} replies to {len(inside)} messages of a node")
        except ValueError as error:
            return [failed(message, RAISED, str(error)) for message in inside]
        return [self._reply(message, part) for message, part in zip(inside, parts, strict=True)]

    def _reply(self, message: Message, part: Part) -> Message:
        client = self._client(message)
        if part.state:
            self.states[client] = part.state
        if part.content is None:
            return failed(message, RAISED, str(part.facts.get("reason", "")))
        if not part.state:
            self.states.pop(client, None)
        for record in part.content.values():
            if isinstance(record, MetricRecord) and "num-examples" in record:
                samples = record["num-examples"]
                if isinstance(client, int) and isinstance(samples, int | float):
                    self._samples[client] = min(max(samples, 0), 1e9)
        return Message(part.content, reply_to=message)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not offered: replies come in packages."""
        raise NotImplementedError("clients that share nodes are reached by send_and_receive")

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Not offered: replies come in packages."""
        raise NotImplementedError("clients that share nodes are reached by send_and_receive")


def shared(grid: Grid, num_clients: int, patience: float = 300.0) -> Grid:
    """Return a grid of ``num_clients`` clients for a simulation with fewer nodes, or
    ``grid`` itself if it has one node per client.

    A simulation never gets more nodes than it reports. Raises ``TimeoutError`` if these
    are not connected, or none answers, after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while not (nodes := list(grid.get_node_ids())) and time.monotonic() < deadline:
        time.sleep(0.05)
    if len(nodes) >= num_clients or not nodes:
        return grid
    question = Message(RecordDict({"config": ConfigRecord()}), nodes[0], IDENTITY)
    replies = list(grid.send_and_receive([question], timeout=patience))
    if not replies:
        raise TimeoutError(
            f"no node of the simulation answered within {patience:g} s: Ray's workers have not "
            "started; free some CPUs or memory, or choose --engine inline"
        )
    answers = [answer.content for answer in replies if answer.has_content()]
    count = answers[0].config_records["config"].get("num-clients") if answers else None
    if not isinstance(count, int) or count >= num_clients:
        return grid
    while len(nodes := list(grid.get_node_ids())) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"only {len(nodes)} of the {count} nodes of the simulation connected within "
                f"{patience:g} s: free some CPUs or memory, or choose fewer --workers"
            )
        time.sleep(0.05)
    log(INFO, "%d clients share %d nodes", num_clients, len(nodes))
    return NodeGrid(grid, num_clients, nodes)


def deal(clients: Sequence[int], costs: Sequence[float], hands: int) -> list[list[int]]:
    """Return ``hands`` lists of indices in ``clients`` with about equal costs. The most
    expensive client comes first; each goes to the list with the lowest cost.

    All messages of a client are in one list, in their order.
    """
    together: dict[int, list[int]] = {}
    for place, client in enumerate(clients):
        together.setdefault(client, []).append(place)
    order = sorted(together.values(), key=lambda places: -sum(costs[place] for place in places))
    loads = [(0.0, hand) for hand in range(hands)]
    out: list[list[int]] = [[] for _ in range(hands)]
    for places in order:
        load, hand = heapq.heappop(loads)
        out[hand] += places
        heapq.heappush(loads, (load + sum(costs[place] for place in places), hand))
    return [sorted(hand) for hand in out]


class _Load:
    """Bytes of contents that are sent together: shared records count once."""

    def __init__(self) -> None:
        self.bytes = 0
        # keeps the counted objects alive, so that no other object gets the same id
        self._seen: dict[int, object] = {}
        self._sizes: dict[int, int] = {}

    def more(self, content: RecordDict) -> int:
        """Return how many bytes ``content`` would add."""
        if id(content) in self._seen:
            return 0
        return sum(size for thing, size in _things(content) if id(thing) not in self._seen)

    def whole(self, content: RecordDict) -> int:
        """Return the bytes of ``content`` alone."""
        if id(content) not in self._sizes:
            self._sizes[id(content)] = sum(size for _, size in _things(content))
        return self._sizes[id(content)]

    def add(self, content: RecordDict) -> None:
        """Add ``content``."""
        if id(content) in self._seen:
            return
        self._seen[id(content)] = content
        for thing, size in _things(content):
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                self.bytes += size


def _things(content: RecordDict) -> list[tuple[Array | ConfigRecord | MetricRecord, int]]:
    """Return the parts of a content with their bytes: single arrays, and whole records
    of other types.
    """
    out: list[tuple[Array | ConfigRecord | MetricRecord, int]] = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            out += [(array, len(name) + len(array.data)) for name, array in record.items()]
        else:
            out.append((record, content_bytes(RecordDict({"": record}))))
    return out


def _bytes(content: RecordDict) -> int:
    return sum({id(thing): size for thing, size in _things(content)}.values())


PATIENCE = 300.0  # seconds to wait for a site's clients: it may read its data first
MOST_CLIENTS = 100_000  # per site


class GatewayGrid(NodeGrid):
    """The clients behind the nodes of ``grid``, distinguished by their names."""

    def __init__(self, grid: Grid, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(grid, 0, (), most_bytes)
        self._behind: dict[int, list[int]] = {}  # node -> virtual nodes, of its clients
        self._homes: dict[int, tuple[int, str]] = {}  # virtual node -> node, client
        self._begun = False

    def known_clients(self) -> Numbered | None:
        """Return ``None``: the clients send their ids, and whether they can take
        part.
        """
        return None

    def get_node_ids(self) -> Iterable[int]:
        """Return the virtual nodes of all connected nodes' clients, after asking new
        nodes.

        Raises ``ValueError`` if a node fails before the first round.
        """
        nodes = sorted(self.grid.get_node_ids())
        self._ask([node for node in nodes if node not in self._behind])
        return [virtual for node in nodes for virtual in self._behind.get(node, ())]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send clients' messages in packages to their sites and return the replies that
        arrive within ``timeout`` seconds.
        """
        asked = list(messages)
        self._begun = self._begun or any(trains(message) for message in asked)
        return super().send_and_receive(asked, timeout=timeout)

    def _ask(self, nodes: Sequence[int]) -> None:
        questions = [
            Message(RecordDict({"config": ConfigRecord()}), node, CLIENTS) for node in nodes
        ]
        answers = self.grid.send_and_receive(questions, timeout=PATIENCE) if questions else ()
        places = {
            question.metadata.message_id: question.metadata.dst_node_id for question in questions
        }
        for answer in answers:
            node = places[answer.metadata.reply_to_message_id]
            names, fault = _clients_of(answer)
            if fault:
                log(
                    ERROR if answer.has_content() else WARNING,
                    "A site did not send its list of clients: %s",
                    fault,
                )
                if not self._begun:  # do not start a run without an expected site
                    raise ValueError(f"a site did not send its list of clients: {fault}")
                continue  # it is asked again later: it may have been stopping
            # Flower's node ids are never negative
            self._behind[node] = [-1 - len(self._homes) - place for place in range(len(names))]
            self._homes |= {
                virtual: (node, name)
                for virtual, name in zip(self._behind[node], names, strict=True)
            }

    def _client(self, message: Message) -> str:
        return self._homes[message.metadata.dst_node_id][1]

    def _shares(self, messages: Sequence[Message]) -> Iterable[tuple[int, Sequence[int]]]:
        """Return the places of the messages for each site."""
        shares: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            shares.setdefault(self._homes[message.metadata.dst_node_id][0], []).append(place)
        return sorted(shares.items())


def _clients_of(answer: Message) -> tuple[list[str], str]:
    """Return the names of a site's clients, or the reason why there are none."""
    if answer.has_error():
        return [], (answer.error.reason or f"error code {answer.error.code}").strip().splitlines()[
            -1
        ][:300]
    try:
        record = answer.content.config_records["config"]
        names, fault = record.get("clients", []), record.get("fault", "")
    except Exception:  # untrusted input
        return [], "its answer cannot be read"
    if fault:
        return [], " ".join(str(fault).split())[:500]
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        return [], "its answer is not a list of different names"
    clients = [name for name in names if isinstance(name, str)]
    return (
        (clients, "")
        if 0 < len(clients) <= MOST_CLIENTS
        else ([], f"it has {len(clients)} clients: 1 to {MOST_CLIENTS:,} are allowed")
    )
