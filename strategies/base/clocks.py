"""Two clocks for the messages of training phases (``timing``): one of simulated and one
of real seconds.

``VirtualClock`` computes from a ``Fleet`` when each reply would arrive, and runs a
client when that time has come, so a run repeats to the bit. ``RealClock`` pushes
messages and pulls replies. Between equal times, clients come in the order of their ids.
"""

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedapps.algorithms.common.fleet import Fleet
from fedapps.algorithms.common.schedule import samples_of, samples_within
from fedapps.algorithms.contract.sent import PartialWork
from fedapps.strategies.base.flower_private import ErrorCode, number_message
from fedapps.strategies.base.messages import content_bytes
from fedapps.strategies.base.named_grid import ClientId, order
from fedapps.strategies.base.partial_work import ask

#: The share of a deadline that clients on a real clock plan with.
SPARE = 0.9


@dataclass
class Flight:
    """A message under way. ``number``: its round; ``began``, ``arrived``: seconds of
    the run; ``reply``: when it is here. ``share``: of the training that was asked for,
    then that was done; ``whole``: when a reply to all of it would arrive; ``seconds``:
    that the client was given for its steps.
    """

    question: Message
    client: ClientId
    number: int
    began: float
    arrived: float = math.inf
    broken: bool = False
    reply: Message | None = None
    fate: str = ""
    share: float = 1.0
    whole: float = math.inf
    seconds: float = math.inf


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

    def start(self, grid: Grid, flights: Sequence[Flight], deadline: float = math.inf) -> None:
        """Compute when the replies will arrive. Clients that would not be there within
        ``deadline`` seconds are asked for a part of their steps.
        """
        until = self.now + deadline
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
            training = training.within(until, partial(whole_steps, flight.question, work))
            if training.share < 1:
                ask(flight.question, PartialWork(training.share))
            self.now = flight.began = max(self.now, training.asked)
            flight.share, flight.whole = training.share, training.whole
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

    def leave(self, flights: Sequence[Flight]) -> None:
        """Leave flights behind: their clients stay busy until they would have
        arrived.
        """
        gone = set(map(id, flights))
        self._heap = [entry for entry in self._heap if id(entry[-1]) not in gone]
        heapq.heapify(self._heap)
        for flight in flights:
            self.busy[flight.client] = flight.arrived if flight.arrived < math.inf else self.now

    def learn(self, arrived: Sequence[Flight], late: Sequence[Flight]) -> None:
        """Do nothing: the fleet's speeds are known."""

    def patience(self, timeout: float | None) -> float:
        """Return infinity: simulated clients are waited for."""
        return math.inf

    def available(self, client: ClientId, number: int) -> bool:
        """Return whether a client can be asked now, in round ``number``."""
        return self.fleet.available(client, number, self.now)


class RealClock:
    """Real time, since the first use. ``pause``: seconds between two polls.

    A client that may do a part of its steps is given ``SPARE`` of the deadline, less
    what its last training took beside its steps, in seconds. Before the first one that
    is taken to be the median of the others', of nobody's half of the deadline; each
    time a client is late it is raised, so that half of its seconds are left.
    """

    def __init__(self, pause: float = 0.1) -> None:
        self.pause, self._start = pause, time.monotonic()
        self._beside: dict[ClientId, float] = {}
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

    def start(self, grid: Grid, flights: Sequence[Flight], deadline: float = math.inf) -> None:
        """Push the messages. If there is a ``deadline``, in seconds, they say for how
        long a client may train.
        """
        usual = median(self._beside.values() or [deadline / 2])
        for flight in flights if deadline < math.inf else ():
            beside = self._beside.setdefault(flight.client, usual)
            flight.seconds = max(0.0, SPARE * deadline - beside)
            ask(flight.question, PartialWork(seconds=flight.seconds))
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

    def leave(self, flights: Sequence[Flight]) -> None:
        """Forget flights."""
        gone = set(map(id, flights))
        self._flying = {number: f for number, f in self._flying.items() if id(f) not in gone}
        self._arrived = deque(f for f in self._arrived if id(f) not in gone)

    def learn(self, arrived: Sequence[Flight], late: Sequence[Flight]) -> None:
        """Note what trainings took beside their steps: of who arrived, ``seconds`` are
        those of the steps.
        """
        for flight in arrived:
            if flight.seconds < math.inf:
                took = flight.arrived - flight.began
                self._beside[flight.client] = max(0.0, took - flight.seconds)
        for flight in late:
            if flight.seconds < math.inf:
                self._beside[flight.client] += flight.seconds / 2

    def patience(self, timeout: float | None) -> float:
        """Return the seconds that a reply is waited for."""
        return timeout or math.inf

    def available(self, client: ClientId, number: int) -> bool:
        """Return true: who is connected can be asked."""
        return True


def as_sent(content: RecordDict) -> RecordDict:
    """Return a content whose configurations stay as they are: the round loop writes
    into its own in every round.
    """
    records = content.items()
    return RecordDict({n: r.copy() if isinstance(r, ConfigRecord) else r for n, r in records})


def whole_steps(question: Message, work: float, share: float) -> float:
    """Return the share of the whole steps in a ``share`` of a training; ``work``: its
    samples times epochs. Without a ``batch-size`` in the message, a step is an epoch.
    """
    epochs = epochs_of(question)
    samples = max(1, round(work / epochs))
    batch_size = int(_of_config(question, "batch-size", samples))
    whole = samples_of(epochs, samples, batch_size)
    return samples_within(share, samples, batch_size, whole / samples) / whole


def epochs_of(question: Message) -> float:
    """Return the local epochs that a training message asks for; 1 if it does not."""
    return _of_config(question, "local-epochs", 1.0)


def _of_config(question: Message, key: str, default: float) -> float:
    for record in question.content.values():
        if isinstance(record, ConfigRecord) and key in record:
            return float(str(record[key]))
    return default
