"""A Grid with stable client ids, seeded sampling, byte metering and reply validation.

Flower identifies nodes by random numbers, samples them with an unseeded generator,
passes replies on in order of arrival and leaves error replies to the strategy.
``ClientGrid`` wraps any ``Grid`` and changes that:

    strategy.start(grid=ClientGrid(grid, seed=0, clients_per_round=5), ...)
        # a strategy of this package
    run_rounds(FedAdam(...), ClientGrid(grid, seed=0, clients_per_round=5), ...)
        # one of Flower's own, or yours

Seeded sampling needs our round loop; Flower's own ``start`` keeps its own sampling.
Where the ids come from: ``named_grid``. When a training phase ends: ``timing``.
"""

from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.seeds import generator
from fedapps.strategies.base.agreement import keep_common, without
from fedapps.strategies.base.capabilities import buffering
from fedapps.strategies.base.flower_private import WORKER_DIED, ErrorCode, is_simulation
from fedapps.strategies.base.messages import (
    capped,
    content_bytes,
    content_sizes,
    error_line,
    metrics_of,
    trains,
)
from fedapps.strategies.base.named_grid import (
    ClientId,
    Exchange,
    Failure,
    NamedGrid,
    Packing,
    called,
    order,
)
from fedapps.strategies.base.partial_work import check_partial, take_out
from fedapps.strategies.base.relative_bounds import RelativeBounds
from fedapps.strategies.base.reply_validation import LONGEST_FAULT, Rules, UpdateBound
from fedapps.strategies.base.staleness import brought_forward, check_stale
from fedapps.strategies.base.timing import Phase, Timing

#: Clients that a line about a round names.
MOST_NAMED = 5
#: Seconds that a phase waits for replies unless the loop says otherwise, as in Flower.
TIMEOUT = 3600.0


class Answer(NamedTuple):
    """A client's reply, and the question."""

    client: ClientId
    question: Message
    reply: Message


class ClientGrid(NamedGrid):
    """A ``Grid`` around ``grid``; see the module docstring.

    ``seed``: of the sampling. ``clients_per_round``: how many clients a training phase
    samples (0: the strategy decides); in asynchronous rounds, how many train at a time.
    ``num_clients``: how many nodes to wait for
    before the first round (0: the median of what the nodes report; the virtual nodes of
    a simulation know). ``start_timeout``: seconds to wait for them. ``same_arrays``: a
    training reply must carry arrays of the names, shapes and types that were sent.
    ``bound``: on a client's update and weight. ``rules``: the validation rules for
    replies; ``run_rounds`` sets those that depend on the strategy, and ``timeout``, the
    seconds that a phase waits for replies. ``num_new``: how many clients take no part
    (``strategies.base.newcomers``), drawn by the seed of those that are there at the
    start; ``new_clients``: which, if it is known. ``names``: of clients 0, 1, ..., for
    people. ``timing``: when training phases end; ``None``: with the last reply.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        seed: int = 0,
        clients_per_round: int = 0,
        num_clients: int = 0,
        start_timeout: float = 300.0,
        same_arrays: bool = True,
        bound: UpdateBound | None = None,
        num_new: int = 0,
        new_clients: Iterable[ClientId] = (),
        names: Sequence[str] = (),
        timing: Timing | None = None,
    ) -> None:
        super().__init__(
            grid,
            seed=seed,
            num_clients=num_clients,
            start_timeout=start_timeout,
            num_new=num_new,
            new_clients=new_clients,
            names=names,
        )
        self.clients_per_round = clients_per_round
        self.rules = Rules(like_model=same_arrays, bound=bound or UpdateBound())
        self.last = Exchange()
        self.timeout = TIMEOUT
        self.timing = timing
        self._simulation = is_simulation(grid)
        self._relative = RelativeBounds()
        self._round = 0
        self._active: Sequence[int] | None = None

    def set_pace(self, strategy: Strategy) -> None:
        """Take from a strategy whether its rounds are asynchronous. Raises
        ``ValueError`` if it cannot use the late replies that it will get.
        """
        if asynchronous := buffering(strategy):
            self.timing = self.timing or Timing()
            training = self.clients_per_round or len(self.clients)
            self.timing.buffer = asynchronous.buffer_size(training)
            self.timing.exponent = asynchronous.exponent
        elif self.timing and self.timing.keeps:
            check_stale(strategy, "rounds.late = 'keep'")
        elif self.timing and self.timing.partial:
            check_partial(strategy, "rounds.late = 'partial'")
        if self.timing:
            self.timing.take_off(self.clients)

    # --- sampling ---------------------------------------------------------------------

    def sample(
        self, server_round: int, num_clients: int, purpose: str = "sampling"
    ) -> Sequence[int]:
        """Return the nodes of ``num_clients`` clients (all if there are fewer), sampled
        with the seed for this round and purpose; for training, of those that can be
        asked.
        """
        nodes = self._connected()
        timing = self.timing if purpose == "sampling" else None
        if num_clients >= len(nodes) and not timing:
            return nodes
        fits = timing.can_be_asked(server_round) if timing else lambda client: True
        number = num_clients
        while True:  # a draw of more, if too few of these can be asked
            chosen = generator(self.seed, purpose, server_round=server_round).choice(
                len(nodes), min(number, len(nodes)), replace=False
            )
            fit = [i for i in chosen if fits(self.client_id(nodes[i]))]
            if len(fit) >= num_clients or number >= len(nodes):
                return [nodes[i] for i in sorted(fit[:num_clients])]
            number *= 2

    def open_training(self, server_round: int) -> None:
        """Let ``get_node_ids`` return this round's sample until ``close_training``, so
        that Flower's own strategies use it too.
        """
        self._round = server_round
        wanted = self.clients_per_round
        busy = self._busy()
        if self.timing:
            wanted = self.timing.number_to_ask(wanted or len(self._connected()), len(busy))
        if wanted or self.timing:
            self._active = self.sample(server_round, wanted)
        # without a message a round would not wait; a client under way is sent nothing
        if not self._active and busy:
            self._active = busy[:1]
        elif self.timing and not self._active:
            self.timing.wait_for(self.clients.values())
            self._active = self.sample(server_round, wanted)

    def _busy(self) -> list[int]:
        """Return the connected nodes of clients that have not answered yet, in
        asynchronous rounds.
        """
        if not (self.timing and self.timing.buffer):
            return []
        if self._known:  # of a million nodes, as many as train
            return [flight.question.metadata.dst_node_id for flight in self.timing.clock.flights]
        under_way = self.timing.under_way
        return [node for node in self._connected() if self.client_id(node) in under_way]

    def close_training(self) -> None:
        """Let ``get_node_ids`` return every client again."""
        self._active = None

    @property
    def chooses(self) -> bool:
        """Whether ``get_node_ids`` returns a sample now."""
        return self._active is not None

    def get_node_ids(self) -> Sequence[int]:
        """Return the sampled nodes while a training phase is being configured, else
        all; sorted by client id.
        """
        return self._connected() if self._active is None else list(self._active)

    # --- messages ---------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send, wait, and return the valid replies sorted by client id. ``last``
        records the traffic and the failures.
        """
        sent = list(messages)
        training = bool(sent) and trains(sent[0])
        exchange = Exchange(kind=sent[0].metadata.message_type if sent else "")
        phase = None
        if training and self.timing:
            phase = self.timing.exchange(self.grid, sent, self.client_id, self._round, timeout)
            exchange.sent, exchange.late, exchange.clock = len(phase.sent), phase.late, phase.ended
        asked = phase.questions if phase else sent
        sent = phase.sent if phase else sent
        sizes = content_sizes(sent)
        exchange.bytes_down = sum(sizes[id(message.content)] for message in sent)
        if phase:
            replies = phase.replies
        else:
            replies = list(self.grid.send_and_receive(sent, timeout=timeout)) if sent else []
        exchange.travel = self.grid.travel if asked and isinstance(self.grid, Packing) else None
        answers = self._valid(exchange, phase, asked, replies, timeout)
        answers = self._alike(exchange, answers)
        if training and not (exchange.travel and exchange.travel.summed):
            answers = self._bounded(exchange, answers)
        if phase:
            answers = self._brought_forward(exchange, phase, answers)
            exchange.shares = self._shares(phase, answers) if phase.shares else {}
        if training and self.rules.weight and (most := self.rules.bound.max_weight):
            pairs = [(one.client, one.reply) for one in answers]
            exchange.capped = capped(pairs, self.rules.weight, most)
        if self._unrecorded and training:
            exchange.failures += self._unrecorded
            self._unrecorded = []
        exchange.failures.sort(key=lambda failure: order(failure.client))
        exchange.clients = [one.client for one in answers]
        exchange.metrics = {one.client: metrics_of(one.reply.content) for one in answers}
        self.last = exchange
        if dead := next((failure for failure in exchange.failures if failure.died), None):
            raise RuntimeError(
                f"the worker process of client {dead.called} died (out of memory?): {dead.reason}"
            )
        return [one.reply for one in answers]

    def _valid(
        self,
        exchange: Exchange,
        phase: Phase | None,
        asked: Sequence[Message],
        replies: Iterable[Message],
        timeout: float | None,
    ) -> list[Answer]:
        """Return the replies that are valid by themselves, sorted by client id."""
        answered = {reply.metadata.reply_to_message_id: reply for reply in replies}
        answers: list[Answer] = []
        silent = f"no answer within {timeout:g} s" if timeout else "no answer"
        self.rules.undefined.clear()
        for message in asked:
            client = self.client_id(message.metadata.dst_node_id)
            reply = answered.get(message.metadata.message_id)
            if reply is None:
                self._leave_out(exchange, client, silent, None)
                continue
            if not (reason := error_line(reply)):
                exchange.bytes_up += content_bytes(reply.content)
                name = f"client {called(client, self.names)}"
                reason = self.rules.checked(message, reply, name)
                if phase and self.timing and self.timing.partial:
                    reason = reason or phase.faults.get(client)
                    take_out(reply)
            if reason:
                self._leave_out(exchange, client, reason, reply)
            else:
                answers.append(Answer(client, message, reply))
        return sorted(answers, key=lambda one: order(one.client))

    def _alike(self, exchange: Exchange, answers: list[Answer]) -> list[Answer]:
        """Return the replies that agree with most others, where replies must."""
        if not self.rules.relative and answers and trains(answers[0].question):  # private
            keep_common([one.reply for one in answers])
            return answers
        for one in answers if self.rules.alike else ():  # no mean without one of them
            without(one.reply, self.rules.undefined)
        odd = self.rules.agreement.odd(
            [(one.client, one.reply) for one in answers], self.rules.alike
        )
        if odd and exchange.travel and exchange.travel.summed:
            first = min(odd)
            raise ValueError(
                f"client {called(answers[first].client, self.names)} is to be left out "
                f"({odd[first]}), but its model is in a secure sum: run without secure.on"
            )
        return self._without(exchange, answers, odd)

    def _bounded(self, exchange: Exchange, answers: list[Answer]) -> list[Answer]:
        """Apply the bounds that compare the replies of a round; return those to use."""
        rules = self.rules
        if not (rules.relative and rules.like_model):
            return answers
        key, bound = rules.weight, rules.bound
        weights = (
            [float(str(metrics_of(one.reply.content)[key])) for one in answers]
            if key and rules.by_weight and bound.max_weight
            else []
        )
        wild, exchange.shortened = self._relative.apply(
            answers,
            bound.max_relative_update,
            beside=rules.beside,
            weights=weights,
            most_weight=bound.max_weight,
        )
        return self._without(exchange, answers, wild)

    def _brought_forward(
        self, exchange: Exchange, phase: Phase, answers: list[Answer]
    ) -> list[Answer]:
        """Bring replies to older models forward to the current one; return those that
        can be used.
        """
        faults: dict[int, str] = {}
        for place, (client, question, reply) in enumerate(answers):
            if not (age := phase.ages.get(client, 0)):
                continue
            factor = (1 + age) ** -phase.exponent
            try:
                reply = brought_forward(reply, question, phase.model, factor, self.rules.updates)
            except ValueError as error:
                faults[place] = str(error)
            else:
                answers[place], exchange.ages[client] = Answer(client, question, reply), age
        return self._without(exchange, answers, faults)

    def _without(
        self, exchange: Exchange, answers: list[Answer], faults: Mapping[int, str]
    ) -> list[Answer]:
        """Leave out the replies at the places in ``faults``; return the others."""
        for place, reason in faults.items():
            self._leave_out(exchange, answers[place].client, reason, answers[place].reply)
        return [one for place, one in enumerate(answers) if place not in faults]

    def _shares(self, phase: Phase, answers: Sequence[Answer]) -> dict[ClientId, float]:
        """Return, and log, which of the clients did a part of their steps, and what
        part.
        """
        shares = {
            one.client: phase.shares[one.client] for one in answers if one.client in phase.shares
        }
        told = [f"{called(c, self.names)} {100 * s:.0f} %" for c, s in shares.items()]
        more = ", ..." if len(told) > MOST_NAMED else ""
        if told:
            log(
                INFO,
                "%d of %d replies are partial work: %s%s",
                len(told),
                len(answers),
                ", ".join(told[:MOST_NAMED]),
                more,
            )
        return shares

    def _leave_out(
        self, exchange: Exchange, client: ClientId, reason: str, reply: Message | None
    ) -> None:
        # a client may have written it, at any length
        reason = " ".join(reason.split())[:LONGEST_FAULT]
        name = str(called(client, self.names)) if self.names else ""
        broken = reply is not None and not reply.has_error()
        died = self._simulation and reply is not None and _worker_died(reply)
        exchange.failures.append(Failure(client, reason, name, reply is not None, broken, died))
        log(WARNING, "client %s left out: %s", name or client, reason)


def _worker_died(reply: Message) -> bool:
    # Flower puts a dead Ray actor back into its pool, where it swallows most later
    # messages: the run cannot recover. Asked in a simulation only; the error code is
    # that of Flower's simulation: a client whose own error contains these words has
    # another code.
    words = (
        reply.error.reason or ""
        if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN
        else ""
    )
    return any(name in words for name in WORKER_DIED)
