"""The round loop for any Flower strategy: train, aggregate, evaluate every k rounds,
call back.

It calls, logs and returns what Flower's ``Strategy.start`` does. Long runs need these
differences: the first round may be later than 1 (resume); evaluation need not happen
every round (a phase costs 0.1-3 s however small the model); invalid replies do not
reach the strategy; a round without valid replies keeps the model; the result always
holds a model; and a run in which clients fail round after round ends with an error.
Callbacks run after every round.

It logs in Flower's words. An :class:`Observer` has a part at the beginning of a run,
after every round, and at the end, however the run ends.
"""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import TYPE_CHECKING, TypedDict, Unpack

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapps.strategies.base.acknowledgement import Acknowledgements, asked_of, notice_noise
from fedapps.strategies.base.capabilities import counts_replies, is_finished, is_flowers_privacy
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.messages import content_bytes, innermost
from fedapps.strategies.base.named_grid import ClientId, Exchange, Failure, order
from fedapps.strategies.base.newcomers import meet

if TYPE_CHECKING:  # reports import observers and need no Flower
    from flwr.app import ArrayRecord


#: Rounds whose metrics the log repeats at the end.
MOST_TOLD = 200
#: A score on the server, and what a strategy made of the clients' metrics.
SCORED = "\t└──> MetricRecord: %s"
AGGREGATED = "\t└──> Aggregated MetricRecord: %s"


def told(config: ConfigRecord) -> str:
    """Return a configuration for the log, without its bytes."""
    words = [f"'{k}': {'<bytes>' if isinstance(v, bytes) else v}" for k, v in config.items()]
    return f"{{{', '.join(words)}}}" if words else "(empty!)"


def log_result(result: Result) -> None:
    """Log the result as Flower does. Of a very long run, log only the last rounds:
    Flower takes minutes to format thousands.
    """
    parts = [
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ]
    last = [dict(list(part.items())[-MOST_TOLD:]) for part in parts]
    long = any(len(part) > MOST_TOLD for part in parts)
    log(INFO, "Final results:" if not long else f"Final results, of the last {MOST_TOLD} rounds:")
    for line in io.StringIO(str(Result(result.arrays, *last))):
        log(INFO, "\t%s", line.strip("\n"))


def log_replies(phase: str, strategy: Strategy, exchange: Exchange) -> None:
    """Log the number of replies in Flower's words, unless Flower's own code does so and
    sees all failures.
    """
    if exchange.failures or (exchange.clients and not counts_replies(strategy, phase)):
        log(
            INFO,
            "%s: Received %s results and %s failures",
            phase,
            len(exchange.clients),
            len(exchange.failures),
        )


def note(table: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    """Note, and log, what a strategy made of the clients' metrics."""
    if metrics is not None:
        log(INFO, AGGREGATED, metrics)
        table[number] = metrics


class TooFewReplies(RuntimeError):
    """Too few clients sent valid replies, round after round or in the end; ``result``:
    of the rounds until then, with the last model that was of use to the clients.
    """

    result: Result | None = None


@dataclass
class Round:
    """The argument of callbacks: one finished round. ``evaluated`` is ``None`` in
    rounds without evaluation.

    ``newcomers``: of the new clients, in rounds with evaluation; ``new_clients``: their
    ids. ``fault``: why the run cannot end well with this round, its last one, or "".
    """

    number: int
    num_rounds: int
    arrays: ArrayRecord
    trained: Exchange
    train_metrics: MetricRecord | None
    evaluated: Exchange | None = None
    evaluate_metrics: MetricRecord | None = None
    seconds: float = 0.0
    fault: str = ""
    newcomers: Exchange | None = None
    new_clients: Sequence[ClientId] = ()

    @property
    def failures(self) -> list[Failure]:
        """The failures of all phases."""
        return [
            failure
            for phase in (self.trained, self.evaluated, self.newcomers)
            if phase
            for failure in phase.failures
        ]

    @property
    def trainable(self) -> bool | None:
        """Whether the model that the round began with could be used for training; see
        :func:`usable`.
        """
        return usable(self.trained)

    @property
    def scorable(self) -> bool | None:
        """Whether the model of the round could be scored; see :func:`usable`."""
        return usable(self.evaluated)


def usable(phase: Exchange | None) -> bool | None:
    """Return whether the clients of a phase could use the model that they were sent.

    ``True``: at least half of those that answered sent valid numbers. ``False``: more
    sent broken numbers than valid ones. ``None``: nothing is known, since clients did
    not answer, or failed for a reason that may be theirs.
    """
    if phase is None:
        return None
    valid = len(phase.clients)
    answered = valid + sum(failure.answered for failure in phase.failures)
    if answered and 2 * valid >= answered:
        return True
    return False if sum(failure.broken for failure in phase.failures) > valid else None


Callback = Callable[[Round], bool | None]
ShouldStop = Callable[[int, Result], bool]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Patience:
    """Stop when ``max_failed_rounds`` rounds in a row had fewer than ``min_replies``
    valid training replies. ``scored``: a last evaluation that no client answered is an
    error, too; by default it is logged, and the model is returned.
    """

    min_replies: int = 1
    max_failed_rounds: int = 3
    scored: bool = False


@dataclass
class _Tally:
    rounds_with_replies: int = 0
    failed_in_a_row: int = 0
    last: list[Failure] = field(default_factory=list)
    late: int = 0

    def note(self, exchange: Exchange, asked: bool, patience: Patience) -> None:
        if len(exchange.clients) >= patience.min_replies or not asked:
            self.rounds_with_replies, self.failed_in_a_row = self.rounds_with_replies + asked, 0
        else:
            self.failed_in_a_row += 1
            self.last, self.late = exchange.failures or self.last, len(exchange.late)

    def check(self, patience: Patience, server_round: int) -> None:
        if self.failed_in_a_row >= patience.max_failed_rounds:
            raise TooFewReplies(
                f"round {server_round}: fewer than min-replies = {patience.min_replies} valid "
                "replies for "
                f"{self.failed_in_a_row} rounds in a row; {self.why()}"
            )

    def why(self) -> str:
        return _first_of(self.last, _late(self.late) or "no client answered")


def _late(number: int) -> str:
    return f"{number} clients were late: raise rounds.deadline" if number else ""


def _first_of(failures: Sequence[Failure], otherwise: str) -> str:
    return f"client {failures[0].called}: {failures[0].reason}" if failures else otherwise


class Plan(TypedDict, total=False):
    """What :func:`run_rounds` takes by name, beside what ``Strategy.start`` takes.

    ``first_round``: later than 1 in a resumed run. ``evaluate_every``: the clients are
    evaluated after every so manieth round and after the last one; 0: only then.
    ``patience``: when rounds without replies end the run. ``callbacks``: called after
    every round. ``log_result``: whether the log ends with the metrics of all rounds.
    ``new_epochs``: after how many local epochs the new clients of the grid are scored,
    beside as they are; nothing depends on their replies. ``strict``: end the run if
    clients do not say that they do their half of the method; by default that is logged.
    ``until``: stop after this round, which is evaluated.
    """

    first_round: int
    evaluate_every: int
    patience: Patience
    callbacks: Sequence[Callback]
    log_result: bool
    new_epochs: Sequence[int]
    strict: bool
    until: int


def run_rounds(
    strategy: Strategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int = 3,
    timeout: float = 3600,
    train_config: ConfigRecord | None = None,
    evaluate_config: ConfigRecord | None = None,
    evaluate_fn: EvaluateFn | None = None,
    should_stop: ShouldStop | None = None,
    **plan: Unpack[Plan],
) -> Result:
    """Run rounds of ``strategy`` up to ``num_rounds`` and return Flower's ``Result``.

    The arguments shared with ``Strategy.start`` have the same meaning; ``timeout`` is
    in seconds and applies to each phase. ``evaluate_fn`` is called before round 1 and
    whenever the clients are evaluated. ``should_stop`` is called after each round with
    its number and the result so far. If it or a callback returns ``True``, or if the
    strategy's ``finished`` is true, the run stops after this round, which is evaluated
    if ``evaluate_every`` or ``finished`` says so. Configurations are sent with
    ``server-round`` and ``num-rounds`` added; as in Flower's loop, a strategy finds in
    them what it wrote there the round before. The other arguments: :class:`Plan`.

    Raises ``TooFewReplies`` according to ``patience``, if no round had enough valid
    training replies, and if the last round or the last evaluation had not;
    ``TimeoutError`` if fewer clients than the strategy's minima connect in time;
    ``ValueError`` if strategy and ``clients_per_round`` contradict each other, and
    according to ``strict``.
    """
    client_grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
    client_grid.timeout = timeout
    train = ConfigRecord() if train_config is None else train_config
    # what a strategy writes into one is not for the other
    separate = evaluate_config is not None and evaluate_config is not train_config
    evaluate = evaluate_config if separate else ConfigRecord({**(evaluate_config or {})})
    assert evaluate is not None
    configs = {"train": train, "evaluate": evaluate}
    log(INFO, "Starting %s strategy:", type(strategy).__name__)
    log(INFO, "\t├── Number of rounds: %d", num_rounds)
    log(
        INFO, "\t├── ArrayRecord (%.2f MB)", content_bytes(RecordDict({"": initial_arrays})) / 2**20
    )
    for phase, config in configs.items():
        log(INFO, "\t├── ConfigRecord (%s): %s", phase, told(config))
    strategy.summary()
    return _Loop(
        strategy,
        client_grid,
        initial_arrays,
        num_rounds,
        configs,
        evaluate_fn,
        should_stop or (lambda number, result: False),
        **plan,
    ).run()


@dataclass
class _Loop:
    """A run of rounds: what it is, and its state."""

    strategy: Strategy
    grid: ClientGrid
    arrays: ArrayRecord
    num_rounds: int
    configs: dict[str, ConfigRecord]
    evaluate_fn: EvaluateFn | None
    should_stop: ShouldStop
    patience: Patience = Patience()
    first_round: int = 1
    evaluate_every: int = 1
    callbacks: Sequence[Callback] = ()
    log_result: bool = True
    new_epochs: Sequence[int] = (1, 5)
    strict: bool = False
    until: int = 0

    def __post_init__(self) -> None:
        self.result, self.tally, self.warned = Result(), _Tally(), False
        #: The last model that was of use to the clients.
        self.sound = self.result.arrays = self.arrays
        self.heard = Acknowledgements(self.strict)

    def run(self) -> Result:
        began, now = time.monotonic(), None
        if self.first_round == 1:
            self._score(0)
        if is_flowers_privacy(self.strategy):
            notice_noise(self.strategy)
        self.grid.wait()
        self.grid.set_pace(self.strategy)
        first, last = self.first_round, self.num_rounds
        log(INFO, "Rounds %d to %d with %d clients", first, last, len(self.grid.clients))
        for number in range(first, last + 1):
            now = self._round(number)
            if self._is_over(now):
                break
        self._check_end(now)
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        if self.log_result:
            log_result(self.result)
        return self.result

    def _round(self, number: int) -> Round:
        """Train and, if it is due, evaluate; let the callbacks see it."""
        log(INFO, "[ROUND %s/%s]", number, self.num_rounds)
        began = time.monotonic()
        now = self._train(number)
        stopping = number in (self.num_rounds, self.until) or is_finished(self.strategy)
        if stopping or (self.evaluate_every and number % self.evaluate_every == 0):
            self._evaluate(now)
        self.sound = self.arrays if now.scorable else self.sound
        now.seconds = time.monotonic() - began
        if stopping or is_finished(self.strategy):
            now.fault = _fault(now, self.patience)
        return now

    def _train(self, number: int) -> Round:
        """Train a round; a round without valid replies keeps the model."""
        config, grid, strategy = self._config("train", number), self.grid, self.strategy
        _await_minimum(strategy, grid)
        grid.open_training(number)
        try:
            messages = list(strategy.configure_train(number, self.arrays, config, grid))
        finally:
            grid.close_training()
        # every round: the rules of a strategy with phases change
        grid.rules.follow(strategy)
        replies = grid.send_and_receive(messages, timeout=grid.timeout)
        new_clients = sorted(grid.new_clients, key=order)
        now = Round(number, self.num_rounds, self.arrays, grid.last, None, new_clients=new_clients)
        self.sound = self.arrays if now.trainable else self.sound
        log_replies("aggregate_train", strategy, now.trained)
        travel, named = now.trained.travel, zip(now.trained.clients, replies, strict=True)
        self.heard.hear(asked_of(strategy), named, bool(travel and travel.summed))
        if replies:
            arrays, now.train_metrics = strategy.aggregate_train(number, replies)
            if grid.last is not now.trained:  # a strategy may ask how the model should go on
                now.trained = grid.last = now.trained.joined(grid.last)
            self.arrays = self.arrays if arrays is None else arrays
        now.arrays = self.result.arrays = self.arrays
        note(self.result.train_metrics_clientapp, number, now.train_metrics)
        self.tally.note(now.trained, bool(messages), self.patience)
        return now

    def _evaluate(self, now: Round) -> None:
        """Score the model of a round on the clients, on the server, and on the clients
        that are new.
        """
        number, config = now.number, self._config("evaluate", now.number)
        grid, strategy = self.grid, self.strategy
        messages = list(strategy.configure_evaluate(number, self.arrays, config, grid))
        # a strategy may ask the clients before it sends what they score
        asked_first = grid.last if grid.last is not now.trained else Exchange()
        replies = grid.send_and_receive(messages, timeout=grid.timeout)
        if messages:
            now.evaluated = grid.last.joined(asked_first)
            log_replies("aggregate_evaluate", strategy, now.evaluated)
            if not now.evaluated.clients and not self.warned:
                self.warned = True
                log(
                    WARNING,
                    "evaluation after round %d: no client was scored (%s). The run goes on. "
                    "Where clients only train, set fraction_evaluate=0; mods that need a "
                    "trained model (LocalDpMod) go into @app.train(mods=[...])",
                    number,
                    _first_of(now.evaluated.failures, "no answer"),
                )
        if replies:
            now.evaluate_metrics = strategy.aggregate_evaluate(number, replies)
        note(self.result.evaluate_metrics_clientapp, number, now.evaluate_metrics)
        self._score(number)
        if grid.new_clients:
            now.newcomers = meet(
                strategy, grid, number, self.arrays, self.configs, self.new_epochs, grid.timeout
            )

    def _config(self, phase: str, number: int) -> ConfigRecord:
        config = self.configs[phase]
        config.update({"server-round": number, "num-rounds": self.num_rounds})
        return config

    def _score(self, number: int) -> None:
        """Score the model on the server."""
        if self.evaluate_fn is None:
            return
        if number:
            log(INFO, "Global evaluation")
        score = self.evaluate_fn(number, self.arrays)
        log(INFO, SCORED if number else "Initial global evaluation results: %s", score)
        if score is not None:
            self.result.evaluate_metrics_serverapp[number] = score

    def _is_over(self, now: Round) -> bool:
        """Let the callbacks see a round; return whether the run stops after it."""
        # every callback runs, whatever the others return
        wishes = [callback(now) for callback in self.callbacks]
        self.tally.check(self.patience, now.number)
        wants = {
            "a callback": any(wishes),
            "should_stop": self.should_stop(now.number, self.result),
            "until": now.number == self.until,
            "the strategy": is_finished(self.strategy),
        }
        if by := [name for name, stops in wants.items() if stops]:
            log(INFO, "stopped after round %d by %s", now.number, by[0])
            now.fault = now.fault or _fault(now, self.patience)
        return bool(by)

    def _check_end(self, now: Round | None) -> None:
        """Raise ``TooFewReplies`` unless the run has a sound end."""
        fault, tally = now.fault if now else "", self.tally
        if tally.last and not tally.rounds_with_replies:
            fault = f"no round had {self.patience.min_replies} valid replies; {tally.why()}"
        if not fault:
            return
        error = TooFewReplies(fault)
        if now and now.scorable is False:
            self.result.arrays = self.sound
        error.result = self.result
        raise error


def _fault(now: Round, patience: Patience) -> str:
    """Return why a run that ends with this round has no sound end, or ""."""
    phases = [
        ("round", now.trained, patience.min_replies),
        ("evaluation after round", now.evaluated, int(patience.scored)),
    ]
    for phase, exchange, least in phases:
        if exchange is not None and exchange.kind and len(exchange.clients) < least:
            why = _first_of(exchange.failures, _late(len(exchange.late)) or "no answer")
            return (
                f"the last {phase} {now.number} had {len(exchange.clients)} valid replies, at "
                f"least {least} needed; {why}"
            )
    if now.scorable is False:
        return (
            f"most clients could not score the model of the last round {now.number}; "
            f"{_first_of(now.evaluated.failures if now.evaluated else (), '')}"
        )
    return ""


def _await_minimum(strategy: Strategy, grid: ClientGrid) -> None:
    """Wait for the nodes that the strategy asks for, before it counts or the grid
    samples them.

    Raises ``ValueError`` if it asks for more than the grid samples. Flower's strategies
    wait by themselves.
    """
    inner, sampled = innermost(strategy), grid.clients_per_round
    fraction, least = getattr(inner, "fraction_train", 1.0), getattr(inner, "min_train_nodes", 0)
    available, waits = (
        getattr(inner, "min_available_nodes", 0),
        getattr(inner, "waits_for_clients", False),
    )
    if sampled and (0 < fraction < 1 or least > sampled):
        wrong = f"fraction_train = {fraction:g}" if fraction < 1 else f"min_train_nodes = {least}"
        raise ValueError(
            f"{wrong} and clients_per_round = {sampled} contradict each other: leave one of them "
            "out"
        )
    if 0 < sampled < available and not waits:
        raise ValueError(
            f"min_available_nodes = {available} of Flower's {type(inner).__name__}, which sees "
            "only the sampled "
            f"clients_per_round = {sampled}, would wait for ever: wait with ClientGrid(num_clients "
            f"= {available})"
        )
    if fraction and (sampled or waits) and (enough := max(least, available)):
        grid.wait(enough)


@dataclass(frozen=True)
class Ending:
    """How a run ended. ``status``: completed, interrupted or failed. ``arrays``: its
    final model, if it has one. ``error``: what ended it, if something did.
    ``resumable``: whether a resumed run can go on from the state at the end, or must
    know that there is nothing to go on with.
    """

    status: str
    arrays: "ArrayRecord | None" = None
    error: BaseException | None = None
    resumable: bool = False

    @property
    def reason(self) -> str:
        """Why the run failed, or ""."""
        return f"{type(self.error).__name__}: {self.error}" if self.status == "failed" else ""


class Observer:
    """Base of observers, which do nothing by themselves."""

    def begin(self) -> None:
        """Do what is due before the first round."""

    def __call__(self, now: "Round") -> bool | None:
        """Do what is due after a round; return whether to stop the run."""
        return None

    def end(self, ending: Ending) -> None:
        """Do what is due at the end. Raises ``OSError`` if a file cannot be written."""
