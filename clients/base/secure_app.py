"""The client half of secure sums, around any ClientApp of the message API:

    app = SecureApp(app)

It answers ``query.secure`` (keys, survivors, unmasking), lets the app train, and masks
the reply (``algorithms.secure``). Nothing of a training reply leaves in the clear but
the names of its arrays and metrics, and that of the method. An evaluation is scored as
ever, but tells no losses of training samples and no counts by class.
Where the server weights clients by their losses, the reply is kept in the state, the
loss (``clear`` of the terms) leaves in the clear, and once the weights are decided a
step ``mask`` masks what was kept.

The node configuration may name ``secure-key``, a private key for signatures (the one
that the SuperNode is registered with, or an Ed25519 key), and ``secure-peers``, a file
with a line ``NAME TYPE KEY`` for each site of the federation: its client id and its
public key as ``ssh-keygen`` writes it. Without a key the client makes one, and keeps it
in ``store-dir``, if there is one, or else as long as its state. Without the peers it
takes the keys that it is sent first, which a lying server can choose. The peers need a
``store-dir``, and weights by losses ``secure-clear-losses=true`` beside them.
``secure-noise``, ``secure-corrupted`` and ``secure-min-change`` are the least noise
multiplier, corrupted clients and change of members with which this site takes part.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.algorithms.contract.sent import METHOD, Asked, Scoring
from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.secure.wire import (
    CLEAR,
    CLEARED,
    MASKED,
    QUERY,
    RECORD,
    Refusal,
    packed,
    unpacked,
)
from fedapps.clients.base.secure_client import SecureClient, secure_client
from fedapps.clients.base.together import alone

#: Begins the names of the records in the state that hold a reply until it is masked.
KEPT = "secure-kept"


#: Keys of an evaluation's configuration that ask for what a masked reply hides: losses
#: of training samples, from which gradients follow, and counts by class.
UNSEEN = (Asked.key("train_loss"), Asked.key("loss_before"), Scoring.key("class_counts"))


def _asked(message: Message) -> list[str]:
    return [
        key
        for record in message.content.config_records.values()
        for key in UNSEEN
        if record.get(key)
    ]


class SecureApp(ClientApp):
    """``app`` behind masks. ``required(context)``: whether a training message that asks
    for a reply in the clear is refused; by default, always.
    """

    def __init__(
        self, app: ClientApp, required: Callable[[Context], bool] = lambda context: True
    ) -> None:
        super().__init__()
        self.app, self.required = app, required

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        kind = message.metadata.message_type
        if kind == QUERY:
            return self._answer(message, context)
        masks = self.required(context) or {"secure-peers", "secure-noise"} & (
            context.node_config.keys()
        )
        if kind.partition(".")[0] != "train":
            if masks and (asked := _asked(message)):
                raise Refusal(
                    f"{asked[0]} = true: this site masks its replies, so its evaluations report "
                    "no training losses and no class counts"
                )
            return self.app(message, context)
        if RECORD in message.content:
            return self._train(message, context)
        if masks:
            raise Refusal(
                "this site sends masked replies only: set secure.on = true, or use "
                "fedapps.strategies.SecureSum"
            )
        return self.app(message, context)

    def _answer(self, message: Message, context: Context) -> Message:
        from fedapps.algorithms.secure.messages import Hello, Session

        asked = unpacked(message.content[RECORD])
        step = str(asked.get("step"))
        with secure_client(context) as client:
            if step == "hello":
                return _reply(message, client.participant.hello().to_fields())
            session = Session.from_fields(asked["session"])
            client.claim(session, step)
            if step == "mask":
                return _mask(message, client, asked)
            if step == "offer":
                hellos = [Hello.from_fields(row) for row in asked["hellos"]]
                return _reply(message, client.participant.offer(session, hellos).to_fields())
            survivors = [str(name) for name in asked["survivors"]]
            if step == "sign":
                proof = client.participant.sign(session, survivors)
                return _reply(message, {"proof": proof})
            if step == "reveal":
                proofs = {str(name): bytes(proof) for name, proof in asked["signatures"].items()}
                given = client.participant.reveal(session, survivors, proofs)
                return _reply(message, given.to_fields())
            raise Refusal(f"secure sums have no step {step!r}")

    def _train(self, message: Message, context: Context) -> Message:
        from fedapps.algorithms.secure.graph import least_survivors
        from fedapps.algorithms.secure.messages import Session
        from fedapps.algorithms.secure.vector import Terms, content_digest, to_vector

        asked = unpacked(message.content[RECORD])
        session, terms = Session.from_fields(asked["session"]), Terms.from_fields(asked["terms"])
        terms.check()
        node = context.node_config
        least = float(str(node.get("secure-noise", 0)))
        if not terms.noise >= least:
            raise Refusal(
                f"noise-multiplier = {terms.noise:g}, but this site has secure-noise = {least:g}"
            )
        if hidden := set(terms.clear) - CLEARED:
            raise Refusal(f"{sorted(hidden)}: of a training reply only {CLEARED} may be clear")
        if terms.clear and node.get("secure-peers") and not node.get("secure-clear-losses"):
            raise Refusal(
                "this site shows no losses, and takes no weights from the server: set "
                "secure-clear-losses=true in its node configuration, or choose a method without"
            )
        content = RecordDict({n: r for n, r in message.content.items() if n != RECORD})
        facts = message.metadata
        digest = content_digest(facts.message_type, facts.group_id, content, terms)
        sent = _arrays(content)
        message.content = content
        with secure_client(context) as client:
            # before the work, of which the server sees nothing
            client.claim(session, "train" if terms.clear else "mask")
        # a step that is claimed is not taken again
        reply = alone(self.app, message, context)
        if reply.has_error():
            return reply
        arrays, records = _arrays(reply.content), reply.content.values()
        metrics = {n: v for r in records if isinstance(r, MetricRecord) for n, v in r.items()}
        honest = 1
        if terms.noise:
            honest = least_survivors(len(asked["members"]), session.corrupted) - session.corrupted
        words, layout = to_vector(terms, _read(sent), _read(arrays), metrics, honest=honest)
        said: dict[str, Any] = {"layout": layout.to_text(), METHOD: _method(reply.content)}
        with secure_client(context) as client:
            if not terms.clear:
                return _masked(message, client, asked, digest, words, said)
            kept = {**asked, "said": said, "digest": digest.hex()}
            context.state[KEPT] = ConfigRecord(packed(kept))
            context.state[f"{KEPT}-sent"] = sent
            context.state[f"{KEPT}-arrays"] = arrays
            context.state[f"{KEPT}-metrics"] = MetricRecord(metrics)
        shown = MetricRecord({name: metrics[name] for name in terms.clear if name in metrics})
        record = ConfigRecord(packed({}))
        return Message(RecordDict({CLEAR: shown, RECORD: record}), reply_to=message)


def _mask(message: Message, client: SecureClient, asked: Mapping[str, Any]) -> Message:
    """Mask the reply that is kept, with the weight that the server has decided."""
    from fedapps.algorithms.secure.vector import Terms, to_vector

    state = client.context.state
    kept = unpacked(state.pop(KEPT)) if KEPT in state else {}
    if kept.get("session") != asked["session"]:
        raise Refusal("no reply of this session is kept here")
    sent, arrays, metrics = (state.pop(f"{KEPT}-{part}") for part in ("sent", "arrays", "metrics"))
    if not (weight := float(asked["weights"].get(client.name, -1))) >= 0:
        raise Refusal("this client has no weight")
    terms = Terms.from_fields(kept["terms"])
    words, _ = to_vector(terms, _read(sent), _read(arrays), dict(metrics), weight)
    return _masked(message, client, asked, bytes.fromhex(kept["digest"]), words, kept["said"])


def _masked(
    message: Message,
    client: SecureClient,
    asked: Mapping[str, Any],
    digest: bytes,
    words: Any,
    said: dict[str, Any],
) -> Message:
    """Return the masked words, and the offer for the next session if it is asked for.
    ``digest``: of what the client was sent for training.
    """
    from fedapps.algorithms.secure.fixed_point import to_bytes
    from fedapps.algorithms.secure.messages import Offer, Session, weighted_digest

    session = Session.from_fields(asked["session"])
    members = [str(name) for name in asked["members"]]
    offers = [Offer.from_fields({**row, "sealed": b""}) for row in asked["keys"]]
    sealed = {str(name): bytes(part) for name, part in asked["sealed"].items()}
    weights = {str(name): float(weight) for name, weight in asked.get("weights", {}).items()}
    digest = weighted_digest(digest, weights)
    masked = client.participant.mask(session, members, offers, sealed, digest, words, weights)
    if asked.get("next"):
        later = Session.from_fields(asked["next"])
        client.claim(later, "offer")
        said["offer"] = client.participant.offer_again(later, session).to_fields()
    record = ArrayRecord({MASKED: Array(*fields(to_bytes(masked)))})
    return Message(
        RecordDict({MASKED: record, RECORD: ConfigRecord(packed(said))}), reply_to=message
    )


def _reply(message: Message, facts: Mapping[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(packed(facts))}), reply_to=message)


def _arrays(content: RecordDict) -> ArrayRecord:
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    if len(records) != 1:
        raise ValueError(f"{len(records)} records of arrays: a secure sum takes one")
    return records[0]


def _read(record: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: read(array) for name, array in record.items()}


def _method(content: RecordDict) -> str:
    """Return which methods made a reply, the only text of it that leaves."""
    words = (r.get(METHOD) for r in content.values() if isinstance(r, ConfigRecord))
    return " ".join(text for text in words if isinstance(text, str))
