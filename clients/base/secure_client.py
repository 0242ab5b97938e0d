"""The client of a context in secure sums: its keys, the peers that it knows, its state,
and the steps that it has taken.

A SuperNode keeps a state for each run, and two messages at once see the same one. So
with a ``store-dir`` a file remembers what outlives both: the steps that were taken, the
peers that were met, the members of the last sum. It is locked during a step.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context

from fedapps.algorithms.secure.wire import RECORD, Refusal
from fedapps.clients.base.adapter import client_id, is_site
from fedapps.clients.base.locks import locked

if TYPE_CHECKING:  # late: most runs need no cryptography
    from fedapps.algorithms.secure.keys import SigningKey

#: Begins the name of that file.
MEMORY = "secure-memory"


@contextmanager
def secure_client(context: Context) -> Iterator["SecureClient"]:
    """Yield the client of a context for one step. What it has done is kept, on disk
    first, unless the step fails.
    """
    client = SecureClient(context)
    # no other message to this client takes a step meanwhile
    with locked(client.file.with_suffix(".lock")) if client.folder else nullcontext():
        client.load()
        yield client
        client.keep()


class SecureClient:
    """The client of a context; ``participant`` takes the steps."""

    def __init__(self, context: Context) -> None:
        self.context, self.name = context, str(client_id(context))
        folder = context.node_config.get("store-dir")
        self.folder = Path(str(folder)) if folder else None
        self.steps: dict[str, dict[str, int]] = {}  # by run, the last session of each step
        if self.folder:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.file = self.folder / self._named(MEMORY)

    def load(self) -> None:
        """Read the state and the keys. Raises ``ValueError``."""
        from fedapps.algorithms.secure.client import Participant
        from fedapps.algorithms.secure.keys import digest
        from fedapps.algorithms.secure.state import State

        kept = self.context.state.get(RECORD)
        known: Mapping[str, Any] = kept if isinstance(kept, ConfigRecord) else {}
        state = State.from_bytes(bytes(known["state"])) if "state" in known else State()
        if self.folder and self.file.exists():
            try:
                self.steps, state.pins, state.cohort = json.loads(self.file.read_text())
            except ValueError as error:
                raise ValueError(f"{self.file} cannot be read: {error}") from None
        key, self.made = self._key(known)
        node, config = self.context.node_config, sorted(self.context.run_config.items())
        self.participant = Participant(
            self.name,
            key,
            state,
            self._peers(),
            digest("settings", *(f"{name} = {value!r}" for name, value in config)),
            int(str(node.get("secure-corrupted", 0))),
            int(str(node.get("secure-min-change", 0))),
            bool(node.get("secure-consistency", is_site(self.context))),
        )

    def keep(self) -> None:
        """Write the state."""
        state = self.participant.state
        facts: dict[str, Any] = {"state": state.to_bytes()}
        if self.made:
            facts["key"] = self.made
        if self.folder:
            memory = json.dumps([self.steps, state.pins, state.cohort])
            self._write(self.file, memory.encode())
        self.context.state[RECORD] = ConfigRecord(facts)

    def claim(self, session: Any, step: str) -> None:
        """Note that a step of a session is taken. Raises ``Refusal`` if the folder says
        that it was before, whatever the state says.
        """
        steps = self.steps.setdefault(session.tag.hex(), {})
        if steps.get(step, 0) >= session.number:
            raise Refusal(f"step {step} of session {session.number} was taken before")
        steps[step] = session.number

    def _key(self, known: Mapping[str, Any]) -> tuple["SigningKey", bytes]:
        """Return the key for signatures, and its bytes if the state has to keep it."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        from fedapps.algorithms.secure.keys import load_signing_key, new_signing_key

        if path := self.context.node_config.get("secure-key"):
            try:
                return load_signing_key(Path(str(path)).read_bytes()), b""
            except (OSError, ValueError) as error:
                raise ValueError(f"secure-key = {path}: {error}") from None
        if self.folder is None:
            made = bytes(known["key"]) if "key" in known else new_signing_key().private_bytes_raw()
            return Ed25519PrivateKey.from_private_bytes(made), made
        file = self.folder / self._named("secure-key")
        if not file.exists():
            self._write(file, new_signing_key().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(file.read_bytes()), b""

    def _write(self, file: Path, data: bytes) -> None:
        """Write a file that only this user can read, all of it or nothing."""
        draft = file.with_suffix(".partial")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(handle)
        draft.replace(file)

    def _named(self, stem: str) -> str:
        # the name of a client may be any text
        return f"{stem}-{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def _peers(self) -> dict[str, bytes] | None:
        """Return the keys of the sites that this one knows; ``None``: it knows none."""
        path = self.context.node_config.get("secure-peers")
        if not path:
            return None
        if not self.folder:
            raise ValueError(
                "secure-peers needs store-dir: without a folder this site could be made to answer "
                "twice, by two messages at once"
            )
        peers: dict[str, bytes] = {}
        try:
            for number, line in enumerate(Path(str(path)).read_text().splitlines(), start=1):
                words = line.split()
                if not words or line.startswith("#"):
                    continue
                if len(words) < 3 or words[0] in peers:
                    raise ValueError(f"line {number} is not NAME TYPE KEY, or names one again")
                base64.b64decode(words[2], validate=True)
                peers[words[0]] = f"{words[1]} {words[2]}".encode()
        except (OSError, ValueError) as error:
            raise ValueError(f"secure-peers = {path}: {error}") from None
        return peers
