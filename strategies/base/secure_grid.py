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

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.contract.sent import METHOD
from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.secure.fixed_point import BYTES, Words, from_bytes
from fedapps.algorithms.secure.graph import least_survivors, shares_fault
from fedapps.algorithms.secure.messages import (
    Reveal,
    context_digest,
    weighted_digest,
)
from fedapps.algorithms.secure.server import Unmaskable, met, reveal_fault, unmask
from fedapps.algorithms.secure.vector import Layout, Terms, content_digest, from_sum, sum_fault
from fedapps.algorithms.secure.wire import CLEAR, MASKED, RECORD, packed, unpacked
from fedapps.strategies.base.capabilities import WeighingAhead
from fedapps.strategies.base.flower_private import ErrorCode, number_message
from fedapps.strategies.base.messages import arrays_of, metrics_of, trains
from fedapps.strategies.base.named_grid import Travel
from fedapps.strategies.base.secure_sessions import (
    Failed,
    Prepared,
    Protocol,
    SecureCalls,
    Sessions,
    queries,
)


class SecureGrid(SecureCalls):
    """Sums over ``grid``. ``terms(clients)`` returns what a round's clients do alike.
    ``weigher`` decides the weights, if these are not the sample counts.
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
        self.sessions = Sessions(self, protocol)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies; those of clients that train hold
        means.
        """
        asked = list(messages)
        self.travel = Travel()
        if not asked or not trains(asked[0]):
            return self.exchange(asked, timeout)
        for message in asked:
            number_message(message)
        self.faults = {}
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
                reason = self.faults.get(node, f"no secure sum: {why}")
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
        began = time.monotonic()
        nodes = [message.metadata.dst_node_id for message in asked]
        if len(set(nodes)) < len(nodes):
            raise ValueError("a secure sum takes one message per client, but one gets two")
        terms = self.terms(len(nodes))
        sessions, connected = self.sessions, set(self.grid.get_node_ids())
        now, phases = sessions.open(nodes, connected, timeout)
        members = sessions.members(now)
        everyone = len(nodes) == len(connected)
        later = sessions.prepared(nodes, now) if everyone and not _ends(content) else None
        before, weights = time.monotonic(), dict[str, float]()
        parts = {} if self.weigher else sessions.parts(now, members, later)
        replies = self._train(now, members, terms, asked[0], parts, timeout)
        trained = time.monotonic() - before
        if self.weigher:
            decided = self._weights(self.weigher, now, terms, asked, replies)
            members = sessions.members(now)
            weights = {name: decided[name] for name in members}
            parts = sessions.parts(now, members, later)
            asking = {"step": "mask", "weights": weights}
            masking = {now.nodes[name]: {**parts[name], **asking} for name in members}
            replies = now.by_name(self.replies(queries(masking), timeout))
            phases += 1
        layout, vectors, methods = self._vectors(now, terms, content, replies, later)
        survivors = sorted(vectors)
        sessions.enough(now, survivors, members)
        if weights and (why := shares_fault(weights, survivors, self.protocol.corrupted)):
            raise Failed(why)
        facts = asked[0].metadata
        digest = content_digest(facts.message_type, facts.group_id, content, terms)
        context = context_digest(now.session, members, weighted_digest(digest, weights))
        offers = {name: now.offers[name] for name in members}
        reveals = self._reveals(now, members, survivors, timeout)
        total = np.zeros(layout.size(), np.uint64)
        for vector in vectors.values():
            total += vector
        unmask(total, now.session, context, offers, now.graph, survivors, reveals)
        phases += 1 + now.session.consistency
        sessions.later = later
        given = sum(weights[name] for name in survivors) if weights else None
        corrupted = self.protocol.corrupted
        honest = least_survivors(len(members), corrupted) - corrupted
        if why := sum_fault(terms, layout, total, len(survivors), given, honest):
            raise Failed(
                f"no {len(survivors)} clients that keep to the bounds can have this sum: {why}; "
                "one of them lies or has another app, and a sum does not show which"
            )
        told = {
            "secure-asked": len(nodes),
            "secure-survivors": len(survivors),
            "secure-phases": phases,
            "secure-seconds": round(time.monotonic() - began - trained, 4),
        }
        self.travel = replace(self.travel, facts=told)
        means = mean_replies(terms, layout, content, total, survivors, methods)
        return {now.nodes[name]: reply for name, reply in means.items()}

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
        return now.by_name(self.replies(sent, timeout))

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
            with self.noted(now.nodes[name]):
                metrics = metrics_of(RecordDict({CLEAR: reply[CLEAR]}))
                if missing := [key for key in terms.clear if key not in metrics]:
                    raise ValueError(f"its metrics lack {missing[0]!r}, which weights need")
                if not 0 < metrics.get(terms.weight, 1) <= terms.max_weight:
                    raise ValueError(f"{terms.weight} = {metrics[terms.weight]}")
                content = RecordDict({"metrics": MetricRecord(metrics)})
                shown.append(Message(content, reply_to=questions[now.nodes[name]]))
        self.sessions.enough(now, shown, now.offers)
        shares = weigher.weigh(shown, max(1 / (self.protocol.corrupted + 2), 1 / len(shown)))
        names = {node: name for name, node in now.nodes.items()}
        for name in replies:
            if (node := now.nodes[name]) not in shares and node not in self.faults:
                self.faults[node] = "its loss cannot be used"
        top = max(shares.values(), default=1)
        weights = {names[node]: terms.max_weight * (w / top) for node, w in shares.items()}
        now.offers = {name: offer for name, offer in now.offers.items() if name in weights}
        return weights

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
            with self.noted(now.nodes[name]):
                facts = unpacked(reply[RECORD])
                layout = str(facts["layout"])
                vector = vector_of(terms, content, reply, layout)
                found.setdefault(layout, []).append((name, vector, str(facts.get(METHOD, ""))))
                if later is not None and name in later.nodes:
                    self.sessions.take_offer(later, name, facts["offer"])
        if not found:
            raise Failed("no client sent a masked reply")
        usual = max(found, key=lambda layout: len(found[layout]))
        for layout, rows in found.items():
            for name, *_ in rows if layout != usual else ():
                why = "it reports other arrays or metrics than most clients"
                self.faults[now.nodes[name]] = why
        rows = found[usual]
        methods = set.intersection(*(set(method.split()) for *_, method in rows))
        return Layout.from_text(usual), {name: vector for name, vector, _ in rows}, methods

    def _reveals(
        self, now: Prepared, members: list[str], survivors: list[str], timeout: float | None
    ) -> dict[str, Reveal]:
        """Return what the survivors reveal, after they have signed their list."""
        facts = {"session": now.session.to_fields(), "survivors": survivors}
        signatures: dict[str, bytes] = {}
        names = {now.nodes[name]: name for name in survivors}
        if now.session.consistency:
            question = {"step": "sign", **facts}
            questions = dict.fromkeys(names, question)
            for node, answer in self.ask(questions, timeout).items():
                with self.noted(node):
                    signatures[names[node]] = bytes(answer["proof"])
        revealing = {}
        for node, name in names.items():
            if now.session.consistency and name not in signatures:
                continue
            revealing[node] = {"step": "reveal", **facts, "signatures": signatures}
        reveals = {}
        for node, answer in self.ask(revealing, timeout).items():
            with self.noted(node):
                reveal = Reveal.from_fields(answer)
                if why := reveal_fault(reveal, met(now.graph[names[node]], members)):
                    raise ValueError(why)
                reveals[names[node]] = reveal
        return reveals


def _ends(content: RecordDict) -> bool:
    """Return whether a message says that no round follows."""
    return any(
        isinstance(record, ConfigRecord)
        and "num-rounds" in record
        and record["num-rounds"] == record.get("server-round")
        for record in content.values()
    )


def _same(one: RecordDict, other: RecordDict) -> bool:
    return one is other or (
        one.keys() == other.keys()
        and all(one[name] is other[name] or one[name] == other[name] for name in one)
    )


def vector_of(terms: Terms, content: RecordDict, reply: RecordDict, layout: str) -> Words:
    """Return the masked vector in a reply to ``content``. Raises ``ValueError`` if it
    does not have its layout, or that is not the one of such replies.
    """
    found = Layout.from_text(layout)
    if terms.replies == "model":
        (record,) = arrays_of(content)
        want = [(name, tuple(array.shape)) for name, array in record.items()]
        if want != [(name, shape) for name, shape, _ in found.arrays]:
            raise ValueError("its arrays are not those that were sent")
    vector = read(arrays_of(reply)[0][MASKED])
    if vector.size != BYTES * found.size():
        raise ValueError(f"its vector has {vector.size} bytes")
    return from_bytes(vector)


def mean_replies(
    terms: Terms,
    layout: Layout,
    content: RecordDict,
    total: Words,
    survivors: Sequence[str],
    methods: set[str],
) -> dict[str, RecordDict]:
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
        out[name] = reply
    return out
