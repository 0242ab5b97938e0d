"""When a training phase ends, and whose replies it uses: over-selection, deadlines,
asynchronous rounds, on a simulated or a real clock.

A phase starts its messages, lets time pass until enough replies have arrived or the
deadline has come, and leaves the others behind: they are dropped, or kept for a later
phase. A reply to an older model is brought forward to the current one (``staleness``).
What is aggregated depends on who is in the phase, never on the order of polling: the
client grid sorts replies by client.

Clocks: ``VirtualClock`` computes from a ``Fleet`` when each reply would arrive, and
runs a client when that time has come, so a run repeats to the bit. ``RealClock`` pushes
messages and pulls replies.

Source of asynchronous rounds: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba,
"Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv
2106.06639, Algorithm 1. Difference: a client that is done is replaced when the buffer
is full, not at once, so that nobody starts from a model that is about to be replaced.
"""

import heapq
import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from algorithms.common.fleet import Fleet
from algorithms.common.options import Options, option
from strategies.base.flower_private import ErrorCode, number_message
from strategies.base.messages import arrays_of, content_bytes
from strategies.base.roster import ClientId, order

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
        "later replies; keep: they count in the round in which they arrive, brought forward to "
        "its model",
        choices=["drop", "keep"],
    )

    def check(self) -> None:
        """Check combinations of options."""
        if self.late == "keep" and not self.on:
            raise ValueError(
                "late = 'keep': no reply is late without deadline or over-select: set one of them"
            )

    @property
    def on(self) -> bool:
        """Whether a round may end before its last reply."""
        return bool(self.deadline or self.over_select)


@dataclass
class Flight:
    """A message under way. ``number``: its round; ``began``, ``arrived``: seconds of
    the run; ``reply``: when it is here.
    """

    question: Message
    client: ClientId
    number: int
    began: float
    arrived: float = math.inf
    broken: bool = False
    reply: Message | None = None
    fate: str = ""


class VirtualClock:
    """Simulated time. ``work(question, client)``: samples times epochs of a training;
    by default the epochs of its configuration, of one sample.
    """

    def __init__(
        self, fleet: Fleet, work: Callable[[Message, ClientId], float] | None = None
    ) -> None:
        self.fleet, self.now = fleet, 0.0
        self.work = work or (lambda question, client: epochs_of(question))
        self._heap: list[tuple[float, tuple[bool, ClientId], int, Flight]] = []
        self._count = itertools.count()
        self.busy: dict[ClientId, float] = {}  # until when, of clients that were left behind

    @property
    def flights(self) -> list[Flight]:
        """What is under way."""
        return [flight for *_, flight in self._heap]

    def start(self, grid: Grid, flights: Sequence[Flight]) -> None:
        """Compute when the replies will arrive."""
        sizes: dict[int, int] = {}
        copies: dict[int, RecordDict] = {}
        for flight in flights:
            content, client = flight.question.content, flight.client
            if id(content) not in sizes:
                sizes[id(content)] = content_bytes(content)
                copies[id(content)] = as_sent(content)
            flight.question.content = copies[id(content)]
            began = max(self.now, self.busy.pop(client, 0.0))
            work = self.work(flight.question, client)
            training = self.fleet.training(
                client, flight.number, began, work, 2 * sizes[id(content)]
            )
            self.now = flight.began = max(self.now, training.asked)
            flight.arrived, flight.broken = training.arrival, training.broken
            self.take(flight)

    def take(self, flight: Flight) -> None:
        """Add a flight whose time of arrival is known."""
        entry = flight.arrived, order(flight.client), next(self._count), flight
        heapq.heappush(self._heap, entry)

    def next(self, grid: Grid, until: float) -> Flight | None:
        """Return the next flight that arrives, of several at the same time the first
        client's.
        """
        if self._heap and self._heap[0][0] <= until and self._heap[0][0] < math.inf:
            flight = heapq.heappop(self._heap)[-1]
            self.now = max(self.now, flight.arrived)
            return flight
        self.now = until if self.now < until < math.inf else self.now
        return None

    def finish(self, grid: Grid, flights: Sequence[Flight], timeout: float | None) -> None:
        """Run the clients."""
        for flight in flights:
            if flight.broken:
                number_message(flight.question)
                error = Error(ErrorCode.NODE_UNAVAILABLE, "the client broke off (time.dropout)")
                flight.reply = Message(error, reply_to=flight.question)
        asked = [flight for flight in flights if not flight.broken]
        questions = [flight.question for flight in asked]
        replies = grid.send_and_receive(questions, timeout=timeout) if questions else ()
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for flight in asked:  # the grid has numbered the messages
            flight.reply = answers.get(flight.question.metadata.message_id)

    def leave(self, flight: Flight) -> None:
        """Leave a flight behind: its client stays busy until it would have arrived."""
        self._heap = [entry for entry in self._heap if entry[-1] is not flight]
        heapq.heapify(self._heap)
        self.busy[flight.client] = flight.arrived if flight.arrived < math.inf else self.now

    def available(self, client: ClientId) -> bool:
        """Return whether a client can be asked now."""
        return self.fleet.available(client, self.now)


class RealClock:
    """Real time, since the first use. ``pause``: seconds between two polls."""

    def __init__(self, pause: float = 0.1) -> None:
        self.pause, self._start = pause, time.monotonic()
        self._flying: dict[str, Flight] = {}
        self._arrived: deque[Flight] = deque()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @now.setter
    def now(self, value: float) -> None:
        self._start = time.monotonic() - value

    @property
    def flights(self) -> list[Flight]:
        """What is under way."""
        return [*self._flying.values(), *self._arrived]

    def start(self, grid: Grid, flights: Sequence[Flight]) -> None:
        """Push the messages."""
        numbers = list(grid.push_messages([flight.question for flight in flights]))
        for flight, number in zip(flights, numbers, strict=True):
            if number:
                self._flying[number] = flight
                continue
            error = Error(ErrorCode.NODE_UNAVAILABLE, "the node does not take messages")
            self._take(flight, Message(error, reply_to=flight.question), self.now)

    def _take(self, flight: Flight, reply: Message, now: float) -> None:
        flight.reply, flight.arrived, flight.broken = reply, now, reply.has_error()
        self._arrived.append(flight)

    def next(self, grid: Grid, until: float) -> Flight | None:
        """Return the next flight that arrives, of several at one poll the first
        client's.
        """
        while not self._arrived:
            if not self._flying:
                return None
            replies = list(grid.pull_messages(list(self._flying)))
            landed = [(self._flying.pop(r.metadata.reply_to_message_id), r) for r in replies]
            for flight, reply in sorted(landed, key=lambda pair: order(pair[0].client)):
                self._take(flight, reply, min(self.now, until))
            if not landed:
                if self.now >= until:
                    return None
                time.sleep(max(min(self.pause, until - self.now), 0.0))
        return self._arrived.popleft()

    def finish(self, grid: Grid, flights: Sequence[Flight], timeout: float | None) -> None:
        """Do nothing: replies are here."""

    def leave(self, flight: Flight) -> None:
        """Forget a flight."""
        self._flying = {number: f for number, f in self._flying.items() if f is not flight}
        self._arrived = deque(f for f in self._arrived if f is not flight)

    def available(self, client: ClientId) -> bool:
        """Return true: who is connected can be asked."""
        return True


@dataclass
class Phase:
    """A training phase of round ``number``: the flights that have arrived in it, the
    messages that it sent, who was asked and is missing, its seconds, and those of the
    run at its end. ``model``: what it sent or would have sent; ``exponent``: of the
    weight of older replies.
    """

    number: int
    arrived: list[Flight]
    sent: list[Message]
    late: list[ClientId]
    seconds: float
    ended: float
    model: ArrayRecord
    exponent: float

    @property
    def questions(self) -> list[Message]:
        """The messages that are answered, or should be."""
        return [flight.question for flight in self.arrived]

    @property
    def replies(self) -> list[Message]:
        """The replies."""
        return [flight.reply for flight in self.arrived if flight.reply]

    def age(self, question: Message) -> int:
        """Return how many rounds ago a message was sent."""
        asked = next(f.number for f in self.arrived if f.question is question)
        return self.number - asked


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

    @property
    def keeps(self) -> bool:
        """Whether replies may arrive in a later round than their own."""
        return bool(self.buffer) or self.pace.late == "keep"

    def number_to_ask(self, num_clients: int) -> int:
        """Return how many clients a round asks that needs ``num_clients``."""
        if self.buffer:
            return max(num_clients - len(self.clock.flights), 0)
        return math.ceil(num_clients * (1 + self.pace.over_select) - 1e-9)

    def can_be_asked(self, client: ClientId) -> bool:
        """Return whether a client is there and, in asynchronous rounds, idle."""
        busy = self.buffer and any(flight.client == client for flight in self.clock.flights)
        return not busy and self.clock.available(client)

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
        began = clock.now
        under_way = {flight.client for flight in clock.flights}
        fresh = [
            Flight(message, client, number, began)
            for message in messages
            if (client := client_of(message.metadata.dst_node_id)) not in under_way
        ]
        clock.start(grid, fresh)
        began = fresh[0].began if fresh else began  # of the run that is repeated, if there is one
        until = began + (pace.deadline or math.inf)
        if isinstance(clock, RealClock) and timeout is not None:
            until = min(until, began + timeout)
        wanted = self.buffer or int(len(messages) / (1 + pace.over_select) + 1e-9) or 1
        arrived: list[Flight] = []
        while wanted and (flight := clock.next(grid, until)):
            arrived.append(flight)
            wanted -= not flight.broken
        ended = {id(flight) for flight in arrived}
        late = [flight for flight in fresh if id(flight) not in ended]
        seconds = clock.now - began
        left = [] if self.keeps else list(clock.flights)
        overdue = clock.now - (timeout or math.inf)
        if isinstance(clock, RealClock):  # a client that has gone would be busy for ever
            left += [f for f in clock.flights if self.keeps and f.began <= overdue]
        for flight in left:
            clock.leave(flight)
        # a client that was left behind has trained, and keeps what it stores
        clock.finish(grid, [*arrived, *(f for f in left if not f.broken)], timeout)
        for flight in arrived:
            flight.fate = "failed" if not flight.reply or flight.reply.has_error() else "used"
        for flight in left:
            flight.fate = "late"
        self.log([*arrived, *left], number)
        return Phase(
            number,
            arrived,
            [flight.question for flight in fresh],
            [] if self.buffer else [flight.client for flight in late],
            seconds,
            clock.now,
            next(iter(arrays_of(messages[0].content)), ArrayRecord()),
            self.exponent,
        )

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
        for facts in whole["flights"]:
            number = facts["number"]
            arrays = {
                name: Array(state[f"{number}.{place}"])
                for place, name in enumerate(whole["names"][str(number)])
            }
            self._saved.append((facts, ArrayRecord(arrays)))

    def take_off(self, clients: Mapping[int, ClientId]) -> None:
        """Let what was under way at the checkpoint arrive; ``clients``: by node."""
        if not self._saved or not isinstance(self.clock, VirtualClock):
            return
        nodes = {client: node for node, client in clients.items()}
        models: dict[int, ArrayRecord] = {}
        for facts, arrays in self._saved:
            model = models.setdefault(facts["number"], arrays)
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


def as_sent(content: RecordDict) -> RecordDict:
    """Return a content whose configurations stay as they are: the round loop writes
    into its own in every round.
    """
    records = content.items()
    return RecordDict({n: r.copy() if isinstance(r, ConfigRecord) else r for n, r in records})


def epochs_of(question: Message) -> float:
    """Return the local epochs that a training message asks for; 1 if it does not."""
    for record in question.content.values():
        if isinstance(record, ConfigRecord) and "local-epochs" in record:
            return float(str(record["local-epochs"]))
    return 1.0
