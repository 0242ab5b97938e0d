"""The record of one phase: messages out, replies back."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedapps.strategies.base.roster import ClientId, Travel, order


@dataclass(frozen=True)
class Failure:
    """A client whose reply was not used, the reason (one line), and what people call
    the client. ``answered``: whether it sent anything; ``broken``: whether that was not
    an error, but numbers that are no good; ``died``: whether its worker process did.
    """

    client: ClientId
    reason: str
    name: str = ""
    answered: bool = True
    broken: bool = True
    died: bool = False

    @property
    def called(self) -> ClientId:
        """The client's name, or its id if it has none."""
        return self.name or self.client


@dataclass
class Exchange:
    """Record of one phase: bytes of message contents, ids and metrics of the clients
    with a valid reply, and the failures.

    ``capped``: clients whose weight was lowered; ``shortened``: whose update was.
    ``travel``: what went to nodes and back, where many clients share one. With a clock
    (``strategies.base.timing``), ``sent``: how many messages went out; ``clock``:
    the seconds of the run at its end; ``late``: who was asked and did not answer in
    time; ``ages``: how many updates of the model a client had not seen; ``shares``: of
    its local steps that a client did, if not all.
    """

    kind: str = ""
    clients: list[ClientId] = field(default_factory=list)
    metrics: dict[ClientId, dict[str, Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    capped: list[ClientId] = field(default_factory=list)
    shortened: list[ClientId] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    travel: Travel | None = None
    late: list[ClientId] = field(default_factory=list)
    ages: dict[ClientId, int] = field(default_factory=dict)
    shares: dict[ClientId, float] = field(default_factory=dict)
    sent: int = 0
    clock: float | None = None

    def after(self, earlier: "Exchange") -> "Exchange":
        """Return the record of this phase, with the bytes and failures of the phase
        ``earlier`` that prepared it.
        """
        known = {failure.client for failure in self.failures}
        failures = self.failures + [f for f in earlier.failures if f.client not in known]
        return replace(
            self,
            failures=sorted(failures, key=lambda failure: order(failure.client)),
            bytes_up=self.bytes_up + earlier.bytes_up,
            bytes_down=self.bytes_down + earlier.bytes_down,
        )
