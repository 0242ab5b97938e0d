"""What a client keeps between the steps of a secure sum."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

OFFERED, MASKED, SIGNED = "offered", "masked", "signed"


@dataclass
class Open:
    """An open session: its secrets, the neighbours' keys for shares and, once it is
    masked, their shares; how far it is.
    """

    key: str
    own: str
    channels: dict[str, str]
    step: str = OFFERED
    context: str = ""
    shares: dict[str, str] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    survivors: str = ""


@dataclass
class State:
    """What a client keeps between the steps, as text: ``pins`` are the identities of
    other clients that it has met, ``runs`` the number of the latest session by the tag
    of the run, ``cohort`` the survivors of the latest sum that it signed or helped to
    reveal.
    """

    channel: str = ""
    runs: dict[str, int] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    open: dict[str, Open] = field(default_factory=dict)
    cohort: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return the state as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the state in JSON."""
        values: dict[str, Any] = json.loads(data)
        values["open"] = {key: Open(**one) for key, one in values["open"].items()}
        return cls(**values)
