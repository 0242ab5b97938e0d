"""The audit log: who took part in which run, how many bytes went where, and what was
refused. No numbers of a model and no metrics.

JSON lines, one per event, in ``audit.jsonl`` of the results folder and of a site's
``store-dir``. The file is opened for every event, and only to append: other programs
may rotate it at any time.
"""

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.common import log

from fedapps.strategies.base.messages import content_bytes, content_sizes
from fedapps.strategies.base.named_grid import IDENTITY, Packing, WrappedGrid
from fedapps.strategies.base.rounds import Ending, Observer, Round

FILE = "audit.jsonl"
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
LONGEST = 300  # characters of a text that others may have written


class AuditLog:
    """Appends events to a file; ``always``: facts that every line repeats."""

    def __init__(self, path: Path, **always: Any) -> None:
        self.path, self.always = path, always

    def __call__(self, event: str, **facts: Any) -> None:
        """Append an event with its time (UTC). Facts that are ``None`` or "" are
        omitted. If that fails, the log gets a line, and the run goes on.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = {
            key: value[:LONGEST] if isinstance(value, str) else value
            for key, value in (self.always | facts).items()
            if value is not None and value != ""
        }
        text = json.dumps({"time": now, "event": event} | known) + "\n"
        try:
            # a link would send the lines elsewhere, a pipe wait for a reader
            file = os.open(self.path, FLAGS, 0o600)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)
        except OSError as error:
            log(WARNING, "%s: an event is not recorded: %s", self.path, error.strerror)


def key_fingerprint(key: bytes) -> str:
    """Return the fingerprint of a site's public key as ``ssh-keygen -l`` prints it, or
    "" without a key.
    """
    if not key:
        return ""
    from cryptography.hazmat.primitives import serialization  # late: sites need it not

    for load in (serialization.load_der_public_key, serialization.load_pem_public_key):
        with suppress(ValueError):
            loaded = load(key)
            break
    else:
        return ""
    line = loaded.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def round_in(message: Message) -> int | None:
    """Return the round in a message's configuration, if there is one."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and isinstance(record.get("server-round"), int):
            return int(str(record["server-round"])) or None
    return None


class AuditedGrid(WrappedGrid, Observer):
    """Records nodes that come and go, and the messages to them and back; as an observer
    the replies that were not used, and why. ``facts``: of the run.
    """

    def __init__(self, grid: Any, note: AuditLog, **facts: Any) -> None:
        super().__init__(grid)
        self.note, self.facts = note, facts
        self.seen: set[int] = set()  # as the wrapped grid numbers them
        self.there: dict[int, Any] = {}  # as Flower does
        self.clients: dict[int, int | str] = {}  # by node, as the nodes say
        self.under_way: dict[str, tuple[Message, int]] = {}  # pushed messages, and their bytes

    def begin(self) -> None:
        """Record the run with what Flower knows about it: its number, its app, the
        account that started it.
        """
        known = {"run": "run_id", "app": "fab_hash", "account": "account_name"}
        found = {name: getattr(self.grid.run, field, None) for name, field in known.items()}
        self.note("run", **self.facts, **found)

    def end(self, ending: Ending) -> None:
        """Record how the run ended."""
        self.note("ended", status=ending.status)

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        nodes = list(self.grid.get_node_ids())
        if self.seen.symmetric_difference(nodes):
            self.seen = set(nodes)
            self._note_nodes()
        return nodes

    def _note_nodes(self) -> None:
        """Record the nodes of Flower that are new, with name and key if they are
        registered, and those that are gone.
        """
        before, self.there = self.there, {one.node_id: one for one in self.get_nodes()}
        for node in sorted(self.there.keys() - before):
            one = self.there[node]
            self.note("connected", node=node, name=one.name, key=key_fingerprint(one.public_key))
        for node in sorted(before.keys() - self.there):
            self.note("gone", node=node)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies of the wrapped grid."""
        sent = list(messages)
        sizes = content_sizes(sent)
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        if isinstance(self.grid, Packing):
            self.travel = self.grid.travel
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for message in sent:
            reply = answers.get(message.metadata.message_id)
            self._note_reply(message, reply, sizes[id(message.content)])
        return replies

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages, of which a clock pulls the replies."""
        sent = list(messages)
        numbers = list(self.grid.push_messages(sent))
        for message, number in zip(sent, numbers, strict=True):
            if number:
                self.under_way[number] = message, content_bytes(message.content)
            else:
                self._note_reply(message, None, 0)
        return numbers

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Pull replies."""
        replies = super().pulled(numbers)
        for reply in replies:
            message, size = self.under_way.pop(reply.metadata.reply_to_message_id)
            self._note_reply(message, reply, size)
        return replies

    def _note_reply(self, message: Message, reply: Message | None, down: int) -> None:
        node = message.metadata.dst_node_id
        up = content_bytes(reply.content) if reply and reply.has_content() else None
        if reply and up and message.metadata.message_type == IDENTITY:
            self._meet(node, reply)
        self.note(
            "no answer" if reply is None else "failed" if up is None else "answered",
            node=node,
            client=self.clients.get(node),
            type=message.metadata.message_type,
            round=round_in(message),
            **{"bytes-down": down, "bytes-up": up},
        )

    def _meet(self, node: int, reply: Message) -> None:
        with suppress(Exception):  # untrusted input
            said = next(iter(reply.content.config_records.values()))["client-id"]
            if isinstance(said, int | str):
                self.clients[node] = said

    def __call__(self, now: Round) -> None:
        """Record the clients of a round that were left out."""
        for failure in now.failures:
            self.note("left out", client=failure.called, round=now.number, reason=failure.reason)
