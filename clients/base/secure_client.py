"""The client of a context in secure sums: its keys, the peers that it knows, its state,
and the steps that it has taken.
"""

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context

from algorithms.secure.wire import RECORD
from clients.base.adapter import client_id

if TYPE_CHECKING:  # late: most runs need no cryptography
    from algorithms.secure.keys import SigningKey

#: The file in ``store-dir`` that says which steps of which sessions were taken.
STEPS = "secure-steps"
MOST_RUNS = 100


class SecureClient:
    """The participant of a context; its state is stored when a step went well."""

    def __init__(self, context: Context) -> None:
        self.context, self.name = context, str(client_id(context))
        folder = context.node_config.get("store-dir")
        self.folder = Path(str(folder)) if folder else None

    def __enter__(self) -> "SecureClient":
        from algorithms.secure.client import Participant
        from algorithms.secure.keys import digest
        from algorithms.secure.state import State

        kept = self.context.state.get(RECORD)
        known: Mapping[str, Any] = kept if isinstance(kept, ConfigRecord) else {}
        state = State.from_bytes(bytes(known["state"])) if "state" in known else State()
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
        )
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            facts: dict[str, Any] = {"state": self.participant.state.to_bytes()}
            if self.made:
                facts["key"] = self.made
            self.context.state[RECORD] = ConfigRecord(facts)

    def _key(self, known: Mapping[str, Any]) -> tuple["SigningKey", bytes]:
        """Return the key for signatures, and its bytes if the state has to keep it."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        from algorithms.secure.keys import load_signing_key, new_signing_key

        if path := self.context.node_config.get("secure-key"):
            try:
                return load_signing_key(Path(str(path)).read_bytes()), b""
            except (OSError, ValueError) as error:
                raise ValueError(f"secure-key = {path}: {error}") from None
        if self.folder is None:
            made = bytes(known["key"]) if "key" in known else new_signing_key().private_bytes_raw()
            return Ed25519PrivateKey.from_private_bytes(made), made
        file = self.folder / self._file("secure-key")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            draft = file.with_suffix(f".{os.getpid()}.partial")
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(handle, new_signing_key().private_bytes_raw())
                os.fsync(handle)
            finally:
                os.close(handle)
            try:
                os.link(draft, file)  # fails if another process was first
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return Ed25519PrivateKey.from_private_bytes(file.read_bytes()), b""

    def _file(self, stem: str) -> str:
        # the name of a client may be any text
        return f"{stem}-{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def _peers(self) -> dict[str, bytes] | None:
        """Return the keys of the sites that this one knows; ``None``: it knows none."""
        path = self.context.node_config.get("secure-peers")
        if not path:
            return None
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

    def claim(self, session: Any, step: str) -> None:
        """Note on disk that a step of a session is taken, if there is a ``store-dir``.
        Raises ``Refusal`` if it was before: two messages at once each see the same
        state.
        """
        from algorithms.secure.keys import Refusal

        if self.folder is None:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, tag = self.folder / self._file(STEPS), session.tag.hex()
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            runs: dict[str, dict[str, int]] = json.loads(text) if text else {}
            steps = runs.pop(tag, {})
            if steps.get(step, 0) >= session.number:
                raise Refusal(f"step {step} of session {session.number} was taken before")
            steps[step] = session.number
            runs[tag] = steps
            file.seek(0)
            file.truncate()
            json.dump(dict(list(runs.items())[-MOST_RUNS:]), file)
            file.flush()
            os.fsync(file.fileno())
