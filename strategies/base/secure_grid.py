"""A Grid that learns the sum of the clients' training replies, and no single one.

Strategies and round loop do not notice: every client that is in the sum seems to have
replied with the mean. A round has these phases (``algorithms.secure``; client half:
``clients.base.secure_app``):

    hello    keys of clients that are met for the first time
    offer    keys and shares of this round's session; not needed where the reply of
             the round before has brought them
    train    the model down, masked vectors up
    mask     only with a weigher: training brings metrics in the clear, from which it
             decides the weights; these go down, the masked vectors come up
    sign     the survivors (those whose vector arrived) sign their list
    reveal   what removes the masks

A client may be missing in any of them. If too few are left, the round fails: every
client counts as failed, and the model stays as it is.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from algorithms.common.sent import METHOD
from algorithms.common.wire import fields, read
from algorithms.secure.fixed_point import BYTES, from_bytes
from algorithms.secure.graph import (
    check_degree,
    least_survivors,
    local_threshold,
    neighbours,
    shares_fault,
)
from algorithms.secure.keys import fresh
from algorithms.secure.messages import (
    Hello,
    Offer,
    Reveal,
    Session,
    bytes_of,
    content_digest,
    context_digest,
    text_of,
    weighted_digest,
)
from algorithms.secure.server import Unmaskable, fault, unmask
from algorithms.secure.vector import Layout, Terms, content_parts, from_sum
from algorithms.secure.wire import CLEAR, MASKED, QUERY, RECORD, packed, unpacked
from strategies.base.capabilities import WeighingAhead
from strategies.base.flower_private import ErrorCode, number_message
from strategies.base.messages import arrays_of, content_bytes, trains
from strategies.base.roster import KnowingClients, Numbered, Travel
from strategies.base.wrapped_grid import WrappedGrid

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


class SecureGrid(WrappedGrid):
    """Sums over ``grid``. ``terms(clients)`` returns what a round's clients do
    alike.
    """

    def __init__(
        self,
        grid: Grid,
        protocol: Protocol,
        terms: Callable[[int], Terms],
        weigher: WeighingAhead | None = None,
    ) -> None:
        super().__init__(grid)
        self.protocol, self.terms, self.weigher = protocol, terms, weigher
        #: Messages and bytes of the last phase, all of them included.
        self.travel = Travel()
        self._tag, self._number = fresh(), 0
        self._hellos: dict[int, Hello] = {}
        self._known: dict[str, bytes] = {}  # identities by name
        self._failed: set[int] = set()  # nodes that may have lost their state
        self._later: Prepared | None = None
        self._faults: dict[int, str] = {}

    def known_clients(self) -> Numbered | None:
        """Return the clients that the wrapped grid knows."""
        return self.grid.known_clients() if isinstance(self.grid, KnowingClients) else None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies; those of clients that train hold
        means.
        """
        asked = list(messages)
        self.travel = Travel()
        if not asked or not trains(asked[0]):
            return self._exchange(asked, timeout)
        for message in asked:
            number_message(message)
        self._faults = {}
        try:
            summed = self._sum(asked, timeout)
        except (Failed, Unmaskable) as error:
            log(INFO, "no secure sum: %s", error)
            summed, why = {}, str(error)
        else:
            why = "it is not in the sum"
        out = []
        for message in asked:
            node = message.metadata.dst_node_id
            if node in summed:
                out.append(Message(summed[node], reply_to=message))
            else:
                reason = self._faults.get(node, f"no secure sum: {why}")
                failure = Error(ErrorCode.MOD_FAILED_PRECONDITION, reason)
                out.append(Message(failure, reply_to=message))
        return out

    # --- a round ----------------------------------------------------------------------

    def _sum(self, asked: list[Message], timeout: float | None) -> dict[int, RecordDict]:
        content = asked[0].content
        if any(not _same(message.content, content) for message in asked[1:]):
            raise ValueError(
                "a secure sum needs the same model and settings for all clients of a round, but "
                "this method sends them different ones"
            )
        began, phases = time.monotonic(), 0
        nodes = [message.metadata.dst_node_id for message in asked]
        if len(set(nodes)) < len(nodes):
            raise ValueError("a secure sum takes one message per client, but one gets two")
        terms = self.terms(len(nodes))
        connected = set(self.grid.get_node_ids())
        for node in [n for n in self._hellos if n in self._failed or n not in connected]:
            del self._hellos[node]
        self._failed = set()
        phases += self._greet([node for node in nodes if node not in self._hellos], timeout)
        hellos = {h.name: h for node in nodes if (h := self._hellos.get(node))}
        # offers of the last round are of use to the same clients with the same keys
        now = self._later if self._later and self._later.hellos == hellos else None
        now, self._later = now or self._prepared(nodes), None
        phases += self._gather(now, timeout)
        members = self._members(now)
        later = self._prepared(nodes, now) if len(nodes) == len(connected) else None
        before = time.monotonic()
        facts = {} if self.weigher else self._parts(now, members, later)
        replies = self._train(now, members, terms, asked[0], facts, timeout)
        trained = time.monotonic() - before
        weights: dict[str, float] = {}
        if self.weigher:
            weights = self._weights(self.weigher, now, terms, asked, replies)
            members = self._members(now)
            replies = self._masked(now, members, weights, later, timeout)
            phases += 1
        layout, vectors, methods = self._vectors(now, terms, content, replies, later)
        survivors = sorted(vectors)
        self._enough(survivors, members)
        if weights and (why := shares_fault(weights, survivors, self.protocol.corrupted)):
            raise Failed(why)
        digest = content_digest(content_parts(content, terms))
        context = context_digest(now.session, members, weighted_digest(digest, weights))
        reveals = self._reveals(now, survivors, timeout)
        total = np.zeros(layout.size(), np.uint64)
        for vector in vectors.values():
            total += vector
        offers = {name: now.offers[name] for name in members}
        unmask(total, now.session, context, offers, survivors, reveals)
        phases += 1 + now.session.consistency
        self._later = later
        facts = {
            "secure-asked": len(nodes),
            "secure-survivors": len(survivors),
            "secure-phases": phases,
            "secure-seconds": round(time.monotonic() - began - trained, 4),
        }
        self.travel = replace(self.travel, facts=facts)
        return self._means(now, terms, layout, content, total, survivors, methods)

    def _greet(self, nodes: Sequence[int], timeout: float | None) -> int:
        """Learn the keys of nodes that are not known; return the number of phases."""
        taken = {hello.name for hello in self._hellos.values()}
        question = {"step": "hello"}
        for node, facts in self._ask(dict.fromkeys(nodes, question), timeout).items():
            with self._noted(node):
                hello = Hello.from_fields(facts)
                if hello.name in taken:
                    raise ValueError(f"another client is called {hello.name}, too")
                if self._known.setdefault(hello.name, hello.identity) != hello.identity:
                    raise ValueError(
                        f"client {hello.name} has another key than before, which the others "
                        "refuse: give its node secure-key or store-dir"
                    )
                taken.add(hello.name)
                self._hellos[node] = hello
        return bool(nodes)

    def _prepared(self, nodes: Sequence[int], like: Prepared | None = None) -> Prepared:
        """Return a new session of nodes, with the graph of another one if its nodes are
        the same.
        """
        protocol = self.protocol
        self._number += 1
        session = Session(
            self._tag,
            self._number,
            protocol.corrupted,
            protocol.consistency,
            protocol.min_change,
        )
        names = {self._hellos[node].name: node for node in nodes if node in self._hellos}
        hellos = {name: self._hellos[node] for name, node in names.items()}
        if like is not None:
            return Prepared(session, names, hellos, like.graph, {})
        if 0 < protocol.degree < len(names) - 1:
            gone = math.ceil(GONE * len(names))
            check_degree(len(names), protocol.degree, protocol.corrupted, gone)
        graph = neighbours(sorted(names), protocol.degree)
        return Prepared(session, names, hellos, graph, {})

    def _gather(self, now: Prepared, timeout: float | None) -> int:
        """Ask for the offers that are missing; return the number of phases."""
        questions = {}
        for name, node in now.nodes.items():
            if name not in now.offers:
                hellos = [now.hellos[other].to_fields() for other in now.graph[name]]
                facts = {"step": "offer", "session": now.session.to_fields(), "hellos": hellos}
                questions[node] = facts
        names = {node: name for name, node in now.nodes.items()}
        for node, facts in self._ask(questions, timeout).items():
            with self._noted(node):
                self._take_offer(now, names[node], facts)
        return bool(questions)

    def _take_offer(self, now: Prepared, name: str, facts: Any) -> None:
        offer = Offer.from_fields(facts)
        if why := fault(offer, name, now.graph[name]):
            raise ValueError(why)
        now.offers[name] = offer

    def _members(self, now: Prepared) -> list[str]:
        """Return who takes part: clients that made offers, as enough neighbours did."""
        members = sorted(now.offers)
        while True:
            count = len(now.nodes)
            kept = [
                name
                for name in members
                if len(set(now.graph[name]) & set(members))
                >= local_threshold(
                    len(now.graph[name]) + 1, len(now.graph[name]), self.protocol.corrupted
                )
            ]
            if len(kept) == len(members):
                break
            members = kept
        if len(members) < least_survivors(len(members), self.protocol.corrupted):
            raise Failed(f"{len(members)} of {count} clients have made their keys")
        return members

    def _parts(
        self, now: Prepared, members: list[str], later: Prepared | None
    ) -> dict[str, dict[str, Any]]:
        """Return what the members need to mask, by client."""
        shown = {name: _public(now.offers[name]) for name in members}
        alive, out = set(members), {}
        for name in members:
            near = [now.offers[other] for other in now.graph[name] if other in alive]
            facts: dict[str, Any] = {
                "session": now.session.to_fields(),
                "members": members,
                "keys": [shown[offer.name] for offer in near],
                "sealed": {o.name: text_of(o.sealed[o.holders.index(name)]) for o in near},
            }
            if later is not None:
                facts["next"] = later.session.to_fields()
            out[name] = facts
        return out

    def _train(
        self,
        now: Prepared,
        members: list[str],
        terms: Terms,
        first: Message,
        parts: Mapping[str, dict[str, Any]],
        timeout: float | None,
    ) -> dict[str, RecordDict]:
        """Send the training messages; return the replies by client."""
        shared = {"session": now.session.to_fields(), "terms": terms.to_fields()}
        sent = []
        for name in members:
            facts = ConfigRecord(packed({**shared, **parts.get(name, {})}))
            message = Message(
                RecordDict({**first.content, RECORD: facts}),
                now.nodes[name],
                first.metadata.message_type,
                ttl=first.metadata.ttl,
                group_id=first.metadata.group_id,
            )
            sent.append(message)
        replies = self._replies(sent, timeout)
        return {name: replies[node] for name, node in now.nodes.items() if node in replies}

    def _weights(
        self,
        weigher: WeighingAhead,
        now: Prepared,
        terms: Terms,
        asked: Sequence[Message],
        replies: Mapping[str, RecordDict],
    ) -> dict[str, float]:
        """Return the weights that the strategy decides, the largest one ``max_weight``;
        clients without one leave the session.
        """
        questions = {message.metadata.dst_node_id: message for message in asked}
        shown = []
        for name, reply in sorted(replies.items()):
            with self._noted(now.nodes[name]):
                metrics = dict(reply[CLEAR])
                if missing := [key for key in terms.clear if key not in metrics]:
                    raise ValueError(f"its metrics lack {missing[0]!r}, which weights need")
                if not 0 < metrics.get(terms.weight, 1) <= terms.max_weight:
                    raise ValueError(f"{terms.weight} = {metrics[terms.weight]}")
                content = RecordDict({"metrics": MetricRecord(metrics)})
                shown.append(Message(content, reply_to=questions[now.nodes[name]]))
        self._enough(shown, now.offers)
        most = max(1 / (self.protocol.corrupted + 2), 1 / len(shown))
        shares = weigher.weigh(shown, most)
        names = {node: name for name, node in now.nodes.items()}
        for reply in shown:
            if (node := reply.metadata.src_node_id) not in shares:
                self._faults[node] = "its loss cannot be used"
        top = max(shares.values(), default=1)
        weights = {names[node]: terms.max_weight * (w / top) for node, w in shares.items()}
        now.offers = {name: offer for name, offer in now.offers.items() if name in weights}
        return weights

    def _masked(
        self,
        now: Prepared,
        members: list[str],
        weights: Mapping[str, float],
        later: Prepared | None,
        timeout: float | None,
    ) -> dict[str, RecordDict]:
        """Send the members the weights; return the masked replies by client."""
        facts = {"step": "mask", "weights": {name: weights[name] for name in members}}
        parts = self._parts(now, members, later)
        questions = {now.nodes[name]: {**parts[name], **facts} for name in members}
        replies = self._replies(_questions(questions), timeout)
        return {name: replies[node] for name, node in now.nodes.items() if node in replies}

    def _vectors(
        self,
        now: Prepared,
        terms: Terms,
        content: RecordDict,
        replies: Mapping[str, RecordDict],
        later: Prepared | None,
    ) -> tuple[Layout, dict[str, Any], set[str]]:
        """Return the layout, the masked vectors of the clients that have it, and the
        methods that these acknowledge.
        """
        found: dict[str, list[tuple[str, Any, str]]] = {}
        for name, reply in sorted(replies.items()):
            with self._noted(now.nodes[name]):
                facts = unpacked(reply[RECORD])
                layout = str(facts["layout"])
                if why := _misfit(terms, Layout.from_text(layout), content):
                    raise ValueError(why)
                vector = read(arrays_of(reply)[0][MASKED])
                if vector.size != BYTES * Layout.from_text(layout).size():
                    raise ValueError(f"its vector has {vector.size} bytes")
                row = name, from_bytes(vector), str(facts.get(METHOD, ""))
                found.setdefault(layout, []).append(row)
                if later is not None and name in later.nodes:
                    self._take_offer(later, name, facts["offer"])
        if not found:
            raise Failed("no client sent a masked reply")
        usual = max(found, key=lambda layout: len(found[layout]))
        for layout, rows in found.items():
            for name, *_ in rows if layout != usual else ():
                why = "it reports other arrays or metrics than most clients"
                self._faults[now.nodes[name]] = why
        rows = found[usual]
        methods = set.intersection(*(set(method.split()) for *_, method in rows))
        return Layout.from_text(usual), {name: vector for name, vector, _ in rows}, methods

    def _enough(self, survivors: Sized, members: Sized) -> None:
        least = least_survivors(len(members), self.protocol.corrupted)
        if len(survivors) < least:
            raise Failed(f"{len(survivors)} of {len(members)} clients are left, {least} needed")

    def _reveals(
        self, now: Prepared, survivors: list[str], timeout: float | None
    ) -> dict[str, Reveal]:
        """Return what the survivors reveal, after they have signed their list."""
        facts = {"session": now.session.to_fields(), "survivors": survivors}
        signatures: dict[str, str] = {}
        names = {now.nodes[name]: name for name in survivors}
        if now.session.consistency:
            question = {"step": "sign", **facts}
            questions = dict.fromkeys(names, question)
            for node, answer in self._ask(questions, timeout).items():
                with self._noted(node):
                    signatures[names[node]] = text_of(bytes_of(answer["proof"]))
        revealing = {}
        for node, name in names.items():
            if now.session.consistency and name not in signatures:
                continue
            revealing[node] = {"step": "reveal", **facts, "signatures": signatures}
        reveals = {}
        for node, answer in self._ask(revealing, timeout).items():
            with self._noted(node):
                reveals[names[node]] = Reveal.from_fields(answer)
        for node in names:  # they are in the sum, whatever became of them since
            self._faults.pop(node, None)
        return reveals

    def _means(
        self,
        now: Prepared,
        terms: Terms,
        layout: Layout,
        content: RecordDict,
        total: Any,
        survivors: Sequence[str],
        methods: set[str],
    ) -> dict[int, RecordDict]:
        """Return a reply of every survivor: the mean, or the total and zeros."""
        (record,) = arrays_of(content)
        key = next(name for name, one in content.items() if one is record)
        sent = {name: read(array) for name, array in record.items()}
        arrays, metrics, count = from_sum(terms, layout, sent, total)
        share = count / len(survivors)
        metrics[terms.weight] = int(share) if share.is_integer() else share
        shared = {name: Array(*fields(value)) for name, value in arrays.items()}
        zeros = {name: Array(*fields(np.zeros_like(value))) for name, value in arrays.items()}
        out = {}
        for place, name in enumerate(survivors):
            reply = RecordDict(
                {
                    key: ArrayRecord(zeros if terms.replies == "sums" and place else shared),
                    "metrics": MetricRecord(dict(metrics)),
                }
            )
            if methods:
                reply["info"] = ConfigRecord({METHOD: " ".join(sorted(methods))})
            out[now.nodes[name]] = reply
        return out

    # --- messages ---------------------------------------------------------------------

    def _ask(
        self, questions: Mapping[int, Mapping[str, Any]], timeout: float | None
    ) -> dict[int, Any]:
        """Send each node its question; return the answers that can be read."""
        answers = {}
        for node, reply in self._replies(_questions(questions), timeout).items():
            with self._noted(node):
                answers[node] = unpacked(reply[RECORD])
        return answers

    def _replies(self, messages: Iterable[Message], timeout: float | None) -> dict[int, RecordDict]:
        """Send messages; return the contents of the replies by node, and note the
        faults of the others.
        """
        sent = list(messages)
        waited = f"no answer within {timeout:g} s" if timeout else "no answer"
        self._faults |= {message.metadata.dst_node_id: waited for message in sent}
        replies = {
            reply.metadata.reply_to_message_id: reply for reply in self._exchange(sent, timeout)
        }
        out = {}
        for message in sent:
            node, reply = message.metadata.dst_node_id, replies.get(message.metadata.message_id)
            if reply is None:
                continue
            if reply.has_error():
                self._faults[node] = reply.error.reason or f"error code {reply.error.code}"
            else:
                del self._faults[node]
                out[node] = reply.content
        self._failed |= self._faults.keys()
        return out

    def _exchange(self, sent: list[Message], timeout: float | None) -> list[Message]:
        """Send messages and return the replies; count both."""
        if not sent:
            return []
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        inner = getattr(self.grid, "travel", None)
        now = inner or Travel(
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

    def _noted(self, node: int) -> "_Noted":
        return _Noted(self._faults, self._failed, node)


class _Noted:
    """Turns what can be wrong with an answer into a fault of its node."""

    def __init__(self, faults: dict[int, str], failed: set[int], node: int) -> None:
        self.faults, self.failed, self.node = faults, failed, node

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        text = " ".join(str(error).split())[:300] or type(error).__name__
        self.failed.add(self.node)
        self.faults[self.node] = f"its part of a secure sum cannot be used: {text}"
        return True


def _misfit(terms: Terms, layout: Layout, content: RecordDict) -> str:
    """Return why a vector is not that of a reply to ``content``, or ""."""
    if terms.replies != "model":
        return ""
    (record,) = arrays_of(content)
    want = [(name, tuple(array.shape)) for name, array in record.items()]
    got = [(name, shape) for name, shape, _ in layout.arrays]
    return "" if want == got else "its arrays are not those that were sent"


def _questions(questions: Mapping[int, Mapping[str, Any]]) -> list[Message]:
    """Return the messages for nodes, of which many may get the same facts."""
    records = {id(facts): ConfigRecord(packed(facts)) for facts in questions.values()}
    return [
        Message(RecordDict({RECORD: records[id(facts)]}), node, QUERY)
        for node, facts in questions.items()
    ]


def _same(one: RecordDict, other: RecordDict) -> bool:
    return one is other or (
        one.keys() == other.keys()
        and all(one[name] is other[name] or one[name] == other[name] for name in one)
    )


def _public(offer: Offer) -> dict[str, Any]:
    """Return the fields of an offer that neighbours need."""
    return {k: v for k, v in offer.to_fields().items() if k not in ("holders", "sealed")}
