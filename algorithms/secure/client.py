"""The client's half of a secure sum: what it sends, and what it refuses.

A session goes through ``offer`` (keys and shares), ``mask`` (the vector), ``sign`` (the
list of survivors, if the session asks for it) and ``reveal`` (what removes the masks).
Each happens once. The state between them is a ``State``, which can be stored. Two steps
at once on two copies of it would break the promise that each happens once.

Sources: Bonawitz et al., CCS 2017 (``masks``), Figure 4, of which ``sign`` is the
consistency check; Bell et al., CCS 2020 (``graph``). A difference: a survivor itself
gives the secret of its own mask, and its neighbours' shares are the reserve for one
that is gone by then. It gives it under the same condition as they give theirs.

Why a server that lies unmasks no sum of a few, though it chooses the n clients among
whom each one shares, and c of them help it. A client that reveals has seen more than
(n + c) / 2 signatures of its list, so too few other holders are left to give its key
for masks. Hence its masks with clients of another context stay, and of one context one
list only is revealed: two would have an honest signer in common. Of a client that has
signed it and not revealed, those who could give the key are not in the list; they are
too few, since a client signs no list of (n + c) / 2 clients or fewer. So the masks of
all honest signers cancel in the sum of all of them only: more than (n - c) / 2.

A share that opens shows that its neighbour knows this client's present keys. One that
does not, as a single neighbour can send, is done without where more than (n + c) / 2
neighbours are known so: a server that replays that neighbour's offer leaves the sum one
honest client fewer to hide in.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from fedapps.algorithms.secure.fixed_point import Words
from fedapps.algorithms.secure.graph import least_survivors, shares_fault
from fedapps.algorithms.secure.keys import (
    SECRET,
    SigningKey,
    add_stream,
    agreed,
    agreement_key,
    derived,
    fresh,
    identity,
    opened,
    pair_key,
    public_bytes,
    seal,
    self_key,
    signature,
    signed,
    split,
)
from fedapps.algorithms.secure.messages import (
    Hello,
    Offer,
    Reveal,
    Session,
    commitment,
    context_digest,
    list_digest,
    part_of,
)
from fedapps.algorithms.secure.state import MASKED, OFFERED, SIGNED, Open, State
from fedapps.algorithms.secure.wire import Refusal

#: In the place of both shares of a neighbour.
NO_SHARES = bytes(2 * SECRET)


class Participant:
    """One client. ``key``: signs. ``trusted``: the identities of all clients by name,
    if the site knows them: then lists of survivors must be signed. Without it a client
    is known by the identity that it has when it is first met. ``settings``: of the run,
    a text that all clients must have alike. ``corrupted``, ``min_change`` and
    ``consistency``: the least that a session may have. Raises ``Refusal`` whenever a
    step would reveal more than a sum.
    """

    def __init__(
        self,
        name: str,
        key: SigningKey,
        state: State,
        trusted: Mapping[str, bytes] | None = None,
        settings: bytes = b"",
        corrupted: int = 0,
        min_change: int = 0,
        consistency: bool = False,
    ) -> None:
        self.name, self.key, self.state, self.trusted = name, key, state, trusted
        self.settings, self.corrupted, self.min_change = settings, corrupted, min_change
        self.consistency = consistency or trusted is not None
        self.state.channel = self.state.channel or fresh().hex()
        self._channel = agreement_key(bytes.fromhex(self.state.channel))

    def hello(self) -> Hello:
        """Return who this client is."""
        channel = public_bytes(self._channel)
        proof = signature(self.key, "hello", self.name, channel)
        return Hello(self.name, identity(self.key), channel, proof)

    def offer(self, session: Session, hellos: Sequence[Hello]) -> Offer:
        """Open a session with the neighbours in ``hellos``: new keys, and shares."""
        self._check_session(session)
        return self._offer(session, self._checked(hellos))

    def offer_again(self, session: Session, before: Session) -> Offer:
        """Open a session with the neighbours of an open one."""
        now = self.state.open.get(before.id.hex())
        if now is None:
            raise Refusal(f"session {before.number} is not open here")
        self._check_session(session)
        known = {name: bytes.fromhex(channel) for name, channel in now.channels.items()}
        return self._offer(session, known)

    def _offer(self, session: Session, channels: Mapping[str, bytes]) -> Offer:
        holders = sorted(channels)
        t = session.threshold(len(holders))
        if t > len(holders):
            raise Refusal(
                f"{len(holders)} other clients with {session.corrupted} corrupted: too few for a "
                "sum that hides one"
            )
        secret, own = fresh(), fresh()
        parts = zip(split(secret, t, len(holders)), split(own, t, len(holders)), strict=True)
        public = public_bytes(agreement_key(secret))
        bound = commitment(session, self.name, own)
        sealed = b"".join(
            seal(self._share_key(channels[name], session, self.name, name, public, bound), a + b)
            for name, (a, b) in zip(holders, parts, strict=True)
        )
        self.state.runs[session.tag.hex()] = session.number
        for older in list(self.state.open)[:-1]:
            del self.state.open[older]  # of rounds that have failed
        self.state.open[session.id.hex()] = Open(
            secret.hex(),
            own.hex(),
            {name: channel.hex() for name, channel in channels.items()},
        )
        offer = Offer(self.name, public, bound, self.settings, b"", sealed)
        return replace(
            offer, proof=signature(self.key, "offer", *offer.about(session, self.settings))
        )

    def mask(
        self,
        session: Session,
        members: Sequence[str],
        offers: Sequence[Offer],
        sealed: Mapping[str, bytes],
        content: bytes,
        words: Words,
        weights: Mapping[str, float] | None = None,
    ) -> Words:
        """Return ``words`` (n,) with all masks. ``members``: who takes part;
        ``offers``: those of the neighbours; ``sealed``: the shares in them that are for
        this client; ``content``: the digest of what the members were sent; ``weights``:
        those of all members, if the server has decided them.
        """
        now = self._step(session, OFFERED)
        met = sorted(set(members))
        if len(met) < len(members) or self.name not in met:
            raise Refusal("the list of members names one twice, or not this client")
        if len(met) < (least := self._least(session, now, met)):
            raise Refusal(f"{len(met)} members are too few for a sum, {least} needed")
        if weights and session.min_change:
            raise Refusal("min-change hides no client whose weight changes from sum to sum")
        now.weights = dict(weights or {})
        self._check_weights(session, now, met)
        named = {offer.name: offer for offer in offers}
        wanted = set(now.channels) & set(met)
        if session.consistency and wanted != set(met) - {self.name}:
            raise Refusal("a member is no neighbour, so its signature could not be checked")
        if named.keys() != wanted or len(named) < len(offers):
            raise Refusal("the keys are not those of the neighbours that take part")
        t = session.threshold(len(now.channels))
        if len(named) < t:
            raise Refusal(f"{len(named)} neighbours take part: at least {t} are needed")
        context = context_digest(session, met, content)
        secret = agreement_key(bytes.fromhex(now.key))
        masked = words.copy()
        add_stream(masked, self_key(bytes.fromhex(now.own), context), 1)
        for name, offer in sorted(named.items()):
            about = offer.about(session, self.settings)
            if not signed(self._identity(name), offer.proof, "offer", *about):
                raise Refusal(
                    f"the key for masks of client {name} is not signed by it, for these settings"
                )
            now.shares[name] = self._opened(session, now, offer, sealed.get(name, b"")).hex()
            sign = 1 if self.name < name else -1
            key = pair_key(secret, offer.public, context, self.name, name)
            add_stream(masked, key, sign)
        lacks = [name for name, held in now.shares.items() if not held]
        if lacks and (len(lacks) > 1 or len(named) - 1 < least):
            raise Refusal(
                f"the share of client {lacks[0]}: it was altered, or belongs to another session"
            )
        now.step, now.context, now.members = MASKED, context.hex(), met
        return masked

    def sign(self, session: Session, survivors: Sequence[str]) -> bytes:
        """Return the signature of a list of survivors, the only one of the session."""
        now = self._step(session, MASKED)
        text = self._checked_list(session, now, survivors)
        now.step, now.survivors = SIGNED, text.hex()
        # others may reveal this sum without asking this client again
        self.state.cohort = sorted(survivors)
        return signature(self.key, "survivors", text)

    def reveal(
        self,
        session: Session,
        survivors: Sequence[str],
        signatures: Mapping[str, bytes],
    ) -> Reveal:
        """Return what removes the masks of a list of survivors, and close the session.

        ``signatures``: of the list, by client. Of each neighbour one share is given,
        never both.
        """
        now = self._step(session, SIGNED if session.consistency else MASKED)
        text = self._checked_list(session, now, survivors)
        if session.consistency:
            if text.hex() != now.survivors:
                raise Refusal("the list of survivors is not the one that this client signed")
            valid = {
                name
                for name, proof in signatures.items()
                if name in now.members and signed(self._identity(name), proof, "survivors", text)
            }
            least = self._least(session, now, now.members)
            if len(valid | {self.name}) < least:
                raise Refusal(f"{len(valid)} valid signatures of the survivors, {least} needed")
        alive = set(survivors)
        shares = b"".join(  # the second secret of a survivor, the first of one that is gone
            part_of(bytes.fromhex(now.shares[name]) or NO_SHARES, int(name in alive), SECRET)
            for name in sorted(now.shares)
        )
        del self.state.open[session.id.hex()]
        self.state.cohort = sorted(survivors)
        lacks = sorted(name for name, held in now.shares.items() if not held)
        return Reveal(bytes.fromhex(now.own), shares, lacks)

    # --- checks -----------------------------------------------------------------------

    def _check_session(self, session: Session) -> None:
        if session.number <= (last := self.state.runs.get(session.tag.hex(), 0)):
            raise Refusal(f"session {session.number} is not after session {last}")
        if self.consistency and not session.consistency:
            raise Refusal(
                "this site wants signed lists of survivors: leave secure.consistency = true, or "
                "give it secure-consistency=false"
            )
        least = self.corrupted, self.min_change
        if session.corrupted < least[0] or session.min_change < least[1]:
            raise Refusal(
                f"corrupted = {session.corrupted} and min-change = {session.min_change}, but this "
                f"site asks for at least {least[0]} and {least[1]}"
            )

    def _checked(self, hellos: Sequence[Hello]) -> dict[str, bytes]:
        """Return the keys for shares by name, after a check of who they are from."""
        own = self.hello()
        keys, found = {own.identity}, {}
        for hello in hellos:
            if hello.name in found or hello.name == self.name or hello.identity in keys:
                raise Refusal(f"client {hello.name} is there twice, or has another's key")
            known = self.state.pins.get(hello.name)
            if self.trusted is not None:
                expected = self.trusted.get(hello.name)
                if expected is None:
                    raise Refusal(f"client {hello.name} is none of the sites that this one knows")
                known = expected.hex()
            if known not in (None, hello.identity.hex()):
                raise Refusal(f"client {hello.name} has another key than the one it is known by")
            if not signed(hello.identity, hello.proof, "hello", hello.name, hello.channel):
                raise Refusal(f"client {hello.name} did not sign its key for shares")
            keys.add(hello.identity)
            found[hello.name] = hello.channel
        self.state.pins |= {hello.name: hello.identity.hex() for hello in hellos}
        return found

    def _step(self, session: Session, step: str) -> Open:
        now = self.state.open.get(session.id.hex())
        if now is None:
            raise Refusal(f"session {session.number} is not open here")
        if now.step != step:
            raise Refusal(f"session {session.number} is {now.step}, not {step}: each step is once")
        return now

    def _least(self, session: Session, now: Open, members: Sequence[str]) -> int:
        """Return how many must survive: more than half of those among whom this client
        has shared its secrets. Half of the members is not enough: clients with another
        list of members could give the shares of its key.
        """
        sizes = len(members), len(now.channels) + 1
        return max(least_survivors(size, session.corrupted) for size in sizes)

    def _checked_list(self, session: Session, now: Open, survivors: Sequence[str]) -> bytes:
        """Return the digest of a list of survivors, after a check of who is in it."""
        alive = set(survivors)
        least = self._least(session, now, now.members)
        if len(alive) < len(survivors) or not alive <= set(now.members):
            raise Refusal("the list of survivors names one twice, or one that is no member")
        if self.name not in alive:
            raise Refusal("this client answered, but is not among the survivors")
        if len(alive) < least:
            raise Refusal(
                f"{len(alive)} survivors of {len(now.channels) + 1}: at least {least} needed"
            )
        self._check_weights(session, now, survivors)
        changed = len(alive ^ set(self.state.cohort)) if self.state.cohort else 0
        if 0 < changed < session.min_change:
            raise Refusal(
                f"the survivors differ from those of the last sum by {changed} clients, at least "
                f"{session.min_change} needed: the difference of two sums would show them"
            )
        return list_digest(bytes.fromhex(now.context), survivors)

    def _check_weights(self, session: Session, now: Open, names: Sequence[str]) -> None:
        if now.weights and (why := shares_fault(now.weights, names, session.corrupted)):
            raise Refusal(why)

    def _opened(self, session: Session, now: Open, offer: Offer, sealed: bytes) -> bytes:
        """Return both shares that a neighbour has made for this client, or b"" if they
        cannot be opened: the neighbour, or the server, has altered them. The sum needs
        a share only if the neighbour leaves, and others have theirs.
        """
        channel = bytes.fromhex(now.channels[offer.name])
        keys = offer.public, offer.commitment
        with suppress(Refusal):
            both = opened(self._share_key(channel, session, offer.name, self.name, *keys), sealed)
            return both if len(both) == len(NO_SHARES) else b""
        return b""

    def _identity(self, name: str) -> bytes:
        return identity(self.key) if name == self.name else bytes.fromhex(self.state.pins[name])

    def _share_key(
        self, other: bytes, session: Session, maker: str, holder: str, *keys: bytes
    ) -> bytes:
        """Return the key that seals one text: the ``keys`` of an offer are new."""
        return derived(agreed(self._channel, other), "share", session.id, maker, holder, *keys)
