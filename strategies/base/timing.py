"""When a training phase ends, and whose replies it uses: over-selection, deadlines,
partial work (``partial_work``), asynchronous rounds, on a simulated or a real clock.

A phase starts its messages, lets time pass until enough replies have arrived or the
deadline has come, and leaves the others behind: they are dropped, or kept for a later
phase. A reply to an older model is brought forward to the current one (``staleness``).
What is aggregated depends on who is in the phase, never on the order of polling: the
client grid sorts replies by client.

Source of asynchronous rounds: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba,
"Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv
2106.06639, Algorithm 1. Difference: a client that is done is replaced when the buffer
is full, not at once, so that nobody starts from a model that is about to be replaced.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import PartialWork
from fedapps.strategies.base.clocks import Flight, RealClock, VirtualClock
from fedapps.strategies.base.messages import arrays_of
from fedapps.strategies.base.named_grid import ClientId, order
from fedapps.strategies.base.partial_work import ROUNDING, came

#: How much less a reply counts that is s updates old: (1 + s) ** -STALENESS.
STALENESS = 0.5


@dataclass(frozen=True)
class PaceOptions(Options):
    """Options of the end of a round, in the time of its training."""

    deadline: float = option(
        0.0, "seconds after which a round goes on without the missing replies; 0: none", low=0
    )
    over_select: float = option(
        0.0,
        "share of further clients that are asked; a round ends with as many replies as it needs "
        "without them",
        low=0,
        high=10,
    )
    late: str = option(
        "drop",
        "later replies; keep: they count when they arrive; partial: clients take the steps that "
        "are in time",
        choices=["drop", "keep", "partial"],
    )

    def check(self) -> None:
        """Check combinations of options."""
        if self.late == "keep" and not self.on:
            raise ValueError(
                "late = 'keep': no reply is late without deadline or over-select: set one of them"
            )
        if self.late == "partial" and not self.deadline:
            raise ValueError("late = 'partial': clients end early for a deadline: set deadline")

    @property
    def on(self) -> bool:
        """Whether a round may end before its last reply."""
        return bool(self.deadline or self.over_select)


@dataclass
class Phase:
    """A training phase of round ``number``: the flights that have arrived in it, the
    messages that it sent, who was asked and is missing, and the seconds of the run at
    its end. ``model``: what it sent or would have sent; ``exponent``: of the weight of
    older replies; ``faults``: what replies say about their work that cannot be.
    """

    number: int
    arrived: list[Flight]
    sent: list[Message]
    late: list[ClientId]
    ended: float
    model: ArrayRecord
    exponent: float
    faults: dict[ClientId, str] = field(default_factory=dict)

    @property
    def questions(self) -> list[Message]:
        """The messages that are answered, or should be."""
        return [flight.question for flight in self.arrived]

    @property
    def replies(self) -> list[Message]:
        """The replies."""
        return [flight.reply for flight in self.arrived if flight.reply]

    @property
    def ages(self) -> dict[ClientId, int]:
        """How many rounds ago a client was asked, of those asked before this one."""
        numbers = {flight.client: flight.number for flight in self.arrived}
        return {client: self.number - n for client, n in numbers.items() if n < self.number}

    @property
    def shares(self) -> dict[ClientId, float]:
        """The share of its work that a client did, of those that did not do all."""
        return {flight.client: flight.share for flight in self.arrived if flight.share < 1}


class Timing:
    """The rule by which phases end, and their clock. ``buffer``: replies with which an
    asynchronous round ends, while the others train on; 0: rounds are synchronous.
    ``log``: called with the flights that have ended in a round.
    """

    def __init__(
        self,
        clock: "VirtualClock | RealClock | None" = None,
        pace: PaceOptions | None = None,
        log: Callable[[Iterable[Flight], int], None] = lambda flights, number: None,
    ) -> None:
        self.clock, self.pace, self.log = clock or RealClock(), pace or PaceOptions(), log
        self.buffer, self.exponent = 0, STALENESS
        self._saved: list[tuple[dict[str, Any], ArrayRecord]] = []
        self._whole: set[ClientId] = set()  # who was logged as training in full

    @property
    def under_way(self) -> set[ClientId]:
        """The clients that have been asked and have not answered yet."""
        return {flight.client for flight in self.clock.flights}

    @property
    def keeps(self) -> bool:
        """Whether replies may arrive in a later round than their own."""
        return bool(self.buffer) or self.pace.late == "keep"

    @property
    def partial(self) -> bool:
        """Whether clients that would be late do a part of their steps."""
        return self.pace.late == "partial"

    def number_to_ask(self, num_clients: int, busy: int) -> int:
        """Return how many clients a round asks that needs ``num_clients``, if ``busy``
        of those connected have not answered yet.
        """
        if self.buffer:
            return max(num_clients - busy, 0)
        return math.ceil(num_clients * (1 + self.pace.over_select) - 1e-9)

    def can_be_asked(self, number: int) -> Callable[[ClientId], bool]:
        """Return which clients are there in round ``number`` and, in asynchronous
        rounds, idle now.
        """
        busy = self.under_way if self.buffer else set()
        return lambda client: client not in busy and self.clock.available(client, number)

    def wait_for(self, clients: Iterable[ClientId]) -> None:
        """Let simulated time pass until one of the clients is there."""
        if isinstance(self.clock, VirtualClock):
            now, fleet = self.clock.now, self.clock.fleet
            self.clock.now = min((fleet.opens(client, now) for client in clients), default=now)

    def exchange(
        self,
        grid: Grid,
        messages: Sequence[Message],
        client_of: Callable[[int], ClientId],
        number: int,
        timeout: float | None,
    ) -> Phase:
        """Run a phase of round ``number``."""
        clock, pace = self.clock, self.pace
        began, under_way = clock.now, self.under_way
        fresh = [
            Flight(message, client, number, began)
            for message in messages
            if (client := client_of(message.metadata.dst_node_id)) not in under_way
        ]
        clock.start(grid, fresh, pace.deadline if self.partial else math.inf)
        began = fresh[0].began if fresh else began  # of the run that is repeated, if there is one
        patience = clock.patience(timeout)
        until = began + min(pace.deadline or math.inf, patience)
        wanted = self.buffer or int(len(messages) / (1 + pace.over_select) + 1e-9) or 1
        arrived: list[Flight] = []
        while wanted and (flight := clock.next(grid, until)):
            arrived.append(flight)
            wanted -= not flight.broken
        # a client that has gone would be busy for ever
        overdue = clock.now - patience if self.keeps else math.inf
        left = [flight for flight in clock.flights if flight.began <= overdue]
        clock.leave(left)
        # a client that was left behind has trained, and keeps what it stores
        clock.finish(grid, [*arrived, *(f for f in left if not f.broken)], timeout)
        for flight in arrived:
            flight.fate = "failed" if not flight.reply or flight.reply.has_error() else "used"
        faults = self._hear(arrived) if self.partial else {}
        if over := [flight for flight in arrived if flight.fate == "late"]:
            clock.leave(over)
            clock.now = until
            arrived = [flight for flight in arrived if flight.fate != "late"]
            left += over
        for flight in left:
            flight.fate = "late"
        clock.learn(arrived, left)
        ended = {id(flight) for flight in arrived}
        late = [flight for flight in fresh if id(flight) not in ended]
        self.log([*arrived, *left], number)
        return Phase(
            number,
            arrived,
            [flight.question for flight in fresh],
            [] if self.buffer else [flight.client for flight in late],
            clock.now,
            next(iter(arrays_of(messages[0].content)), ArrayRecord()),
            self.exponent,
            faults,
        )

    def _hear(self, flights: Sequence[Flight]) -> dict[ClientId, str]:
        """Note in the flights how far their clients came; return what is wrong with the
        replies. On a simulated clock, who did more than it was asked for is late.
        """
        faults = {}
        for flight in flights:
            used = flight.reply if flight.fate == "used" else None
            work, fault = came(used) if used else (PartialWork(), "")
            did = 1.0 if work.share is None else work.share
            flight.seconds = math.inf if work.seconds is None else work.seconds
            if fault:
                faults[flight.client], flight.fate = fault, "failed"
            elif used and did > flight.share + ROUNDING:
                flight.fate, flight.arrived = "late", flight.whole
                if flight.client not in self._whole:
                    self._whole.add(flight.client)
                    log(
                        WARNING,
                        "client %s was asked for %.3g of its local steps and did %.3g: its replies "
                        "are late (does its client read work-share?)",
                        flight.client,
                        flight.share,
                        did,
                    )
            flight.share = did
        return faults

    # --- checkpoints ------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the clock, and on a simulated one what is under way."""
        clock, flights, models = self.clock, list[dict[str, Any]](), dict[int, ArrayRecord]()
        if isinstance(clock, VirtualClock):
            for flight in sorted(clock.flights, key=lambda flight: order(flight.client)):
                question = flight.question
                (arrays,) = arrays_of(question.content)
                models[flight.number] = arrays
                named = {
                    name: None if record is arrays else dict(record.items())
                    for name, record in question.content.items()
                }
                facts = {f.name: getattr(flight, f.name) for f in fields(flight)}
                facts |= {"question": named, "kind": question.metadata.message_type}
                flights.append({**facts, "reply": None})
        busy = clock.busy if isinstance(clock, VirtualClock) else {}
        whole = {"now": clock.now, "flights": flights, "busy": list(busy.items())}
        names = {number: list(arrays) for number, arrays in models.items()}
        text = json.dumps({**whole, "names": names}).encode()
        return {
            "state": np.frombuffer(text, np.uint8),
            **{
                f"{number}.{place}": array.numpy()
                for number, arrays in models.items()
                for place, array in enumerate(arrays.values())
            },
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        whole = json.loads(state["state"].tobytes())
        self.clock.now = whole["now"]
        if not isinstance(self.clock, VirtualClock):
            return
        self.clock.busy = dict(map(tuple, whole["busy"]))
        models = {
            int(number): ArrayRecord(
                {name: Array(state[f"{number}.{place}"]) for place, name in enumerate(names)}
            )
            for number, names in whole["names"].items()
        }
        self._saved = [(facts, models[facts["number"]]) for facts in whole["flights"]]

    def take_off(self, clients: Mapping[int, ClientId]) -> None:
        """Let what was under way at the checkpoint arrive; ``clients``: by node."""
        if not self._saved or not isinstance(self.clock, VirtualClock):
            return
        nodes = {client: node for node, client in clients.items()}
        for facts, model in self._saved:
            content = RecordDict(
                {
                    name: model if record is None else ConfigRecord(record)
                    for name, record in facts.pop("question").items()
                }
            )
            group, kind = str(facts["number"]), facts.pop("kind")
            question = Message(content, nodes[facts["client"]], kind, group_id=group)
            self.clock.take(Flight(question=question, **facts))
        self._saved = []
