"""Sessions of secure sums: the keys of the clients, whom each of them masks with, and
their offers.

:class:`SecureCalls` asks nodes: what is sent and comes back, the bytes of it, and which
nodes have failed, and why.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedapps.algorithms.secure.graph import check_degree, least_survivors, neighbours
from fedapps.algorithms.secure.keys import fresh
from fedapps.algorithms.secure.messages import Hello, Offer, Session
from fedapps.algorithms.secure.server import hello_fault, met, offer_fault
from fedapps.algorithms.secure.wire import QUERY, RECORD, packed, unpacked
from fedapps.strategies.base.messages import content_bytes, most_common, trains
from fedapps.strategies.base.named_grid import Travel, WrappedGrid


class SecureCalls(WrappedGrid):
    """Base of ``SecureGrid``: its messages through ``grid``."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        #: Messages and bytes of the last phase, all of them included.
        self.travel = Travel()
        #: Nodes that may have lost their state, and what is wrong with nodes by now.
        self.failed: set[int] = set()
        self.faults: dict[int, str] = {}

    def ask(
        self, questions: Mapping[int, Mapping[str, Any]], timeout: float | None
    ) -> dict[int, Any]:
        """Send each node its question; return the answers that can be read."""
        answers = {}
        for node, reply in self.replies(queries(questions), timeout).items():
            with self.noted(node):
                answers[node] = unpacked(reply[RECORD])
        return answers

    def replies(self, messages: Iterable[Message], timeout: float | None) -> dict[int, RecordDict]:
        """Send messages; return the contents of the replies by node, and note the
        faults of the others.
        """
        sent = list(messages)
        waited = f"no answer within {timeout:g} s" if timeout else "no answer"
        self.faults |= {message.metadata.dst_node_id: waited for message in sent}
        replies = {
            reply.metadata.reply_to_message_id: reply for reply in self.exchange(sent, timeout)
        }
        out = {}
        for message in sent:
            node, reply = message.metadata.dst_node_id, replies.get(message.metadata.message_id)
            if reply is None:
                continue
            if reply.has_error():
                self.faults[node] = reply.error.reason or f"error code {reply.error.code}"
            else:
                del self.faults[node]
                out[node] = reply.content
        self.failed |= self.faults.keys()
        return out

    def exchange(self, sent: list[Message], timeout: float | None) -> list[Message]:
        """Send messages and return the replies; count both."""
        if not sent:
            return []
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        now = getattr(self.grid, "travel", None) or Travel(
            len(sent),
            sum(content_bytes(message.content) for message in sent),
            sum(content_bytes(reply.content) for reply in replies if reply.has_content()),
        )
        self.travel = Travel(
            self.travel.messages + now.messages,
            self.travel.down + now.down,
            self.travel.up + now.up,
            summed=trains(sent[0]) or self.travel.summed,
        )
        return replies

    @contextmanager
    def noted(self, node: int) -> Iterator[None]:
        """Take whatever is wrong with an answer for a fault of its node."""
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            self.failed.add(node)
            self.faults[node] = f"its part of a secure sum cannot be used: {text}"


def queries(questions: Mapping[int, Mapping[str, Any]]) -> list[Message]:
    """Return the messages for nodes, of which many may get the same facts."""
    records = {id(facts): ConfigRecord(packed(facts)) for facts in questions.values()}
    return [
        Message(RecordDict({RECORD: records[id(facts)]}), node, QUERY)
        for node, facts in questions.items()
    ]


#: Share of a round's clients that may be gone, for the check of a graph of neighbours.
GONE = 0.1


@dataclass(frozen=True)
class Protocol:
    """How sums are made. ``degree``: neighbours of a client (0: all others).
    ``corrupted``: clients of a round that may collude with the server. ``consistency``:
    clients sign the list of survivors. ``min_change``: by how many clients two cohorts
    must differ.
    """

    degree: int = 0
    corrupted: int = 0
    consistency: bool = True
    min_change: int = 0


class Failed(RuntimeError):
    """A round cannot be summed."""


@dataclass
class Prepared:
    """A session for which offers are made: its nodes and their keys by client name, its
    graph.
    """

    session: Session
    nodes: dict[str, int]
    hellos: dict[str, Hello]
    graph: dict[str, list[str]]
    offers: dict[str, Offer]

    def by_name(self, replies: Mapping[int, RecordDict]) -> dict[str, RecordDict]:
        """Return the replies of nodes by client name."""
        return {name: replies[node] for name, node in self.nodes.items() if node in replies}


class Sessions:
    """The sessions of a run, whose questions go through ``calls``."""

    def __init__(self, calls: SecureCalls, protocol: Protocol) -> None:
        self.calls, self.protocol = calls, protocol
        self._tag, self._number = fresh(), 0
        self._hellos: dict[int, Hello] = {}
        self._known: dict[str, bytes] = {}  # identities by name
        self.later: Prepared | None = None
        #: What a node's client is called, if that is known: else the first one to take
        #: a name has it.
        self.name_of: Callable[[int], int | str] | None = None

    def open(
        self, nodes: Sequence[int], connected: set[int], timeout: float | None
    ) -> tuple[Prepared, int]:
        """Return a session of nodes, with the offers of those that made one, and the
        number of phases that this took.
        """
        for node in [n for n in self._hellos if n in self.calls.failed or n not in connected]:
            del self._hellos[node]
        self.calls.failed.clear()
        phases = self._greet([node for node in nodes if node not in self._hellos], timeout)
        hellos = {h.name: h for node in nodes if (h := self._hellos.get(node))}
        # Offers of the last round are of use to the same clients with the same keys, if
        # all have arrived: a client whose reply was lost makes no second one for a
        # session.
        now, self.later = self.later, None
        if now is None or now.hellos != hellos or now.offers.keys() != hellos.keys():
            now = self.prepared(nodes)
        return now, phases + self._gather(now, timeout)

    def _greet(self, nodes: Sequence[int], timeout: float | None) -> int:
        """Learn the keys of nodes that are not known; return the number of phases."""
        question = {"step": "hello"}
        for node, facts in self.calls.ask(dict.fromkeys(nodes, question), timeout).items():
            with self.calls.noted(node):
                hello = Hello.from_fields(facts)
                if self.name_of and hello.name != (name := str(self.name_of(node))):
                    raise ValueError(f"it calls itself {hello.name}, but is client {name}")
                if why := hello_fault(hello, self._hellos.values()):
                    raise ValueError(why)
                if self._known.setdefault(hello.name, hello.identity) != hello.identity:
                    raise ValueError(
                        f"client {hello.name} has another key than before, which the others "
                        "refuse: give its node secure-key or store-dir"
                    )
                self._hellos[node] = hello
        return bool(nodes)

    def prepared(self, nodes: Sequence[int], like: Prepared | None = None) -> Prepared:
        """Return a new session of nodes, with the graph of another one if its nodes are
        the same.
        """
        protocol = self.protocol
        self._number += 1
        names = {self._hellos[node].name: node for node in nodes if node in self._hellos}
        hellos = {name: self._hellos[node] for name, node in names.items()}
        session = Session(
            self._tag,
            self._number,
            protocol.corrupted,
            protocol.consistency,
            protocol.min_change,
            len(names) if protocol.degree else 0,
        )
        if like is not None:
            return Prepared(session, names, hellos, like.graph, {})
        if 0 < protocol.degree < len(names) - 1:
            gone = math.ceil(GONE * len(names))
            check_degree(len(names), protocol.degree, protocol.corrupted, gone)
        return Prepared(session, names, hellos, neighbours(sorted(names), protocol.degree), {})

    def _gather(self, now: Prepared, timeout: float | None) -> int:
        """Ask for the offers that are missing; return the number of phases."""
        questions = {}
        for name, node in now.nodes.items():
            if name not in now.offers:
                hellos = [now.hellos[other].to_fields() for other in now.graph[name]]
                facts = {"step": "offer", "session": now.session.to_fields(), "hellos": hellos}
                questions[node] = facts
        names = {node: name for name, node in now.nodes.items()}
        for node, facts in self.calls.ask(questions, timeout).items():
            with self.calls.noted(node):
                self.take_offer(now, names[node], facts)
        return bool(questions)

    def take_offer(self, now: Prepared, name: str, facts: Any) -> None:
        """Note a client's offer. Raises ``ValueError``."""
        offer = Offer.from_fields(facts)
        if why := offer_fault(offer, now.session, now.hellos[name], now.graph[name]):
            raise ValueError(why)
        now.offers[name] = offer

    def members(self, now: Prepared) -> list[str]:
        """Return who takes part: clients that made offers, for the settings that most
        of them have, as enough neighbours did.
        """
        usual = most_common([offer.settings for offer in now.offers.values()] or [b""])
        for name in [n for n, offer in now.offers.items() if offer.settings != usual]:
            del now.offers[name]
            self.calls.faults[now.nodes[name]] = "its run has other settings than most clients'"
        members = sorted(now.offers)
        while True:
            kept = [
                name
                for name in members
                if len(set(now.graph[name]) & set(members))
                >= now.session.threshold(len(now.graph[name]))
            ]
            if len(kept) == len(members):
                break
            members = kept
        self.enough(now, members, members)
        return members

    def enough(self, now: Prepared, survivors: Sized, members: Sized) -> None:
        """Raise ``Failed`` if too few clients are left for the clients to answer."""
        sizes = len(members), max(map(len, now.graph.values()), default=0) + 1
        least = max(least_survivors(size, self.protocol.corrupted) for size in sizes)
        if len(survivors) < least:
            raise Failed(f"{len(survivors)} of {max(sizes)} clients are left, {least} needed")

    def parts(
        self, now: Prepared, members: list[str], later: Prepared | None
    ) -> dict[str, dict[str, Any]]:
        """Return what the members need to mask, by client."""
        shown = {name: _public(now.offers[name]) for name in members}
        alive, out = set(members), {}
        for name in members:
            near = [now.offers[other] for other in met(now.graph[name], alive)]
            facts: dict[str, Any] = {
                "session": now.session.to_fields(),
                "members": members,
                "keys": [shown[offer.name] for offer in near],
                "sealed": {o.name: o.sealed_for(name, now.graph[o.name]) for o in near},
            }
            if later is not None:
                facts["next"] = later.session.to_fields()
            out[name] = facts
        return out


def _public(offer: Offer) -> dict[str, Any]:
    """Return the fields of an offer that neighbours need."""
    return {k: v for k, v in offer.to_fields().items() if k != "sealed"}
