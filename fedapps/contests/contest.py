"""The stages of a contest: rates, race, final.

1. Rates, one seed. Training alone gets a grid of seven rates over three decades, at
   full length. The other methods get four rates around its best until an eighth of the
   rounds, and the best two of each go on. A best rate at the edge of a grid extends the
   grid once.
2. Race. Seeds one to three run until a quarter, half and all of the rounds, and more
   seeds follow while there is time. After each step a contestant is dropped if the
   crossed upper bound of its difference to the leader is below -delta / 4. The level of
   each bound is 0.05 divided by the number of steps. Training alone, FedAvg and
   fine-tuning are never dropped.
3. Final. The leader, fine-tuning, FedAvg and training alone run with five fresh seeds
   and are scored on the test samples, which nothing before has read. Bounds hold
   together (``fedapps.results.simultaneous``).

``contest.json`` in the folder keeps what has been decided, so that an interrupted
contest goes on from there.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedapps.contests.trials import (
    AVERAGE,
    FINETUNE,
    LOCAL,
    PARTS,
    RATE,
    Contestant,
    Trial,
    Trials,
    gain_table,
    has_rate,
)
from fedapps.errors import RunFailed, UserError
from fedapps.formats import is_percent
from fedapps.records.files import write_text
from fedapps.results.fair_plots import fair_measure
from fedapps.results.simultaneous import Table, upper_bound

KEPT = (LOCAL, AVERAGE, FINETUNE)
#: Exponents of 10 of the rates: of training alone around the task's own rate, of the
#: others around the best of training alone, and how far a grid is extended.
ALONE_GRID = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
GRID = (-0.75, -0.25, 0.25, 0.75)
STEP = 0.5
FIRST_SEEDS, MOST_SEEDS, FINAL_SEEDS = 3, 10, 5
#: Steps of the race: three with the first seeds, one for each more.
STEPS = 3 + MOST_SEEDS - FIRST_SEEDS
LEVEL = 0.05
#: Share of the budget after which no step of the race begins.
RACE_ENDS = 0.6
SEEDS_APART = 100  # between the seeds of the race and of the final


@dataclass
class State:
    """What a contest has decided so far; it is written after every decision."""

    #: The settings and methods that were asked for, and the settings of all runs.
    asked: dict[str, Any]
    given: dict[str, Any]
    rounds: int
    budget: float
    methods: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    elapsed: float = 0.0
    measure: str = ""
    delta: float = 0.0
    rates: dict[str, list[float]] = field(default_factory=dict)
    tried: dict[str, dict[str, float]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    most_seeds: int = MOST_SEEDS
    begun: int = -1
    race_seeds: list[int] = field(default_factory=list)
    race_ended: bool = False
    finalists: dict[str, float] = field(default_factory=dict)
    leader: str = ""
    race_gains: dict[str, list[float]] = field(default_factory=dict)
    done: bool = False
    costs: dict[str, float] = field(default_factory=dict)
    start_seconds: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)


class Contest:
    """A contest in a folder. ``say(line)`` reports progress. ``jobs``: trials at a
    time. ``clock``: seconds.
    """

    def __init__(
        self,
        state: State,
        trials: Trials,
        say: Callable[[str], None] = lambda line: None,
        jobs: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.trials, self.say, self.jobs, self.clock = state, trials, say, jobs, clock
        self.seed = int(state.given.get("seed", 0))
        self._since = clock()
        trials.errors, trials.costs = state.errors, state.costs
        trials.ended = self._ended

    def run(self) -> None:
        """Run what is left of the contest. Raises ``RunFailed`` if training alone or
        FedAvg fails.
        """
        self.choose_rates()
        self.race()
        self.final()

    # --- 1. rates ---------------------------------------------------------------------

    def choose_rates(self) -> None:
        """Choose one rate of training alone and two of each other method."""
        state = self.state
        if LOCAL not in state.rates:
            start = float(state.given[RATE])
            best = self._best_rates(LOCAL, start, ALONE_GRID, self.trials.rounds)
            if not best:
                raise RunFailed(f"training alone failed at every rate: {self._reason(LOCAL)}")
            state.rates[LOCAL] = best[:1]
            self.save()
        centre, eighth = state.rates[LOCAL][0], self.trials.rounds // PARTS
        open_ = [m for m in state.methods if m not in state.rates]
        # all grids at once, so that no core waits; extensions follow
        self.trials.run(
            Trial(Contestant(m, rate), self.seed, eighth)
            for m in open_
            for rate in _grid(m, centre, GRID)
        )
        for method in open_:
            best = self._best_rates(method, centre, GRID, eighth)
            if not best:
                if method in KEPT:
                    raise RunFailed(f"{method} failed at every rate: {self._reason(method)}")
                state.left_out[method] = f"failed at every rate: {self._reason(method)}"
                state.methods.remove(method)
                continue
            state.rates[method] = best[:2]
            self.save()

    def _best_rates(
        self, method: str, centre: float, exponents: Sequence[float], until: int
    ) -> list[float]:
        """Return the rates of a method from best to worst; its grid is extended once if
        the best is at its edge.
        """
        rates = _grid(method, centre, exponents)
        order = self._ordered(method, rates, until)
        if len(rates) > 1 and order and order[0] in (rates[0], rates[-1]):
            sign = -1 if order[0] == rates[0] else 1
            more = [order[0] * 10 ** (sign * STEP * j) for j in (1, 2)]
            order = self._ordered(method, [*rates, *more], until)
        names = ", ".join(f"{rate:.3g}" for rate in order[:2] if rate)
        if names:
            self.say(f"{method}: best rate{'s' * (method != LOCAL)} {names}")
        return order

    def _ordered(self, method: str, rates: Sequence[float], until: int) -> list[float]:
        trials = {rate: Trial(Contestant(method, rate), self.seed, until) for rate in rates}
        self.trials.run(trials.values())
        state = self.state
        if not state.measure:
            self._choose_measure([t for t in trials.values() if t.folder not in state.errors])
        scores = {rate: self.trials.scores(trial, state.measure) for rate, trial in trials.items()}
        most = max(map(len, scores.values()))
        # a rate at which a client diverges is no rate for all
        means = {rate: fmean(s.values()) for rate, s in scores.items() if s and len(s) == most}
        state.tried[method] = {f"{rate:.4g}": mean for rate, mean in means.items()}
        return sorted(means, key=lambda rate: -means[rate])

    def _choose_measure(self, trials: Sequence[Trial]) -> None:
        """Choose the clients' measure, and delta: one point, or 2 % of the error that
        predicting each client's mean has.
        """
        state, runs = self.state, [self.trials.read(trial) for trial in trials]
        if not runs:
            raise RunFailed(f"training alone failed at every rate: {self._reason(LOCAL)}")
        state.measure = fair_measure(runs)
        if is_percent(state.measure):
            state.delta = 0.01
            return
        errors = [
            float(row["rmse"]) / math.sqrt(1 - float(row["r2"]))
            for row in runs[0].clients
            if isinstance(row.get("r2"), int | float) and float(row["r2"]) < 1
        ]
        state.delta = 0.02 * fmean(errors)

    def _reason(self, method: str) -> str:
        return next(
            (error for name, error in self.state.errors.items() if f"_{method}_" in f"{name}_"),
            "unknown",
        )

    # --- 2. race ----------------------------------------------------------------------

    def contestants(self) -> list[Contestant]:
        """Return who is still in the race."""
        everyone = [Contestant(m, r) for m, rates in self.state.rates.items() for r in rates]
        return [who for who in everyone if str(who) not in self.state.dropped]

    def race(self) -> None:
        """Run the steps that are left, then fix the leader and the finalists."""
        state, rounds = self.state, self.trials.rounds
        if state.race_ended:
            return
        lengths = [(FIRST_SEEDS, rounds // 4), (FIRST_SEEDS, rounds // 2), (FIRST_SEEDS, rounds)]
        lengths += [(n, rounds) for n in range(FIRST_SEEDS + 1, state.most_seeds + 1)]
        for number, (n, until) in enumerate(lengths):
            if number < len(state.steps):
                continue
            seeds = [self.seed + 1 + i for i in range(n)]
            trials = [Trial(who, s, until) for who in self.contestants() for s in seeds]
            # a step that has begun is ended: its trials have left the last step's round
            if number and state.begun < number and not self._worth(number, trials):
                break
            state.begun = number
            self.save()
            self.trials.run(trials)
            self._drop(seeds, until)
            left = len(self.contestants())
            state.steps.append({"seeds": n, "until": until, "left": left})
            state.race_seeds = seeds
            self.say(
                f"race, {n} seeds until round {until}: {left} left, "
                f"{self._leader(self._gains(seeds, until))} leads"
            )
            self.save()
        step = state.steps[-1]
        gains = self._gains(state.race_seeds, int(step["until"]))
        leader = self._leader(gains)
        state.leader = leader.method
        finalists = {leader.method: leader.rate, LOCAL: state.rates[LOCAL][0]}
        for method in (FINETUNE, AVERAGE):
            best = self._leader({who: g for who, g in gains.items() if who.method == method})
            finalists.setdefault(method, best.rate)
        state.finalists = finalists
        state.race_gains = {
            str(who): [float(np.nanmean(table)), self._seconds(who.method)]
            for who, table in gains.items()
        }
        state.race_ended = True
        self.save()

    def _gains(self, seeds: Sequence[int], until: int) -> dict[Contestant, Table]:
        """Return the gains over training alone of those who are left."""
        alone = self.trials.table(
            Contestant(LOCAL, self.state.rates[LOCAL][0]), seeds, until, self.state.measure
        )
        gains = {}
        for who in self.contestants():
            if who.method == LOCAL:
                continue
            table = gain_table(self.trials.table(who, seeds, until, self.state.measure), alone)
            if np.isfinite(table).all():
                gains[who] = table
            else:  # failed, or diverged at a client
                self.state.dropped[str(who)] = "failed, or diverged at a client"
        return gains

    @staticmethod
    def _leader(gains: Mapping[Contestant, Table]) -> Contestant:
        if not gains:
            raise RunFailed("no federated method has finished: see the errors above")
        return max(gains, key=lambda who: float(gains[who].mean()))

    def _drop(self, seeds: Sequence[int], until: int) -> None:
        gains = self._gains(seeds, until)
        leader = self._leader(gains)
        spared = {
            m: self._leader({w: g for w, g in gains.items() if w.method == m})
            for m in (AVERAGE, FINETUNE)
            if any(w.method == m for w in gains)
        }
        for who, table in gains.items():
            if who in (leader, *spared.values()):
                continue
            bound = upper_bound(table - gains[leader], LEVEL / STEPS)
            if bound < -self.state.delta / 4:
                self.state.dropped[str(who)] = (
                    f"behind {leader} after round {until} with {len(seeds)} seeds"
                )

    def _worth(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether a step can still drop somebody, and ends in time for the
        final.
        """
        state = self.state
        if number >= FIRST_SEEDS and len(self.contestants()) <= len(KEPT) + 1:
            return False
        if not state.budget:
            return True
        end = min(RACE_ENDS * state.budget, state.budget - 1.1 * self.final_seconds())
        return self.elapsed() + self.wall_seconds(trials) <= end

    # --- 3. final ---------------------------------------------------------------------

    def final_trials(self) -> list[Trial]:
        """Return the trials of the final."""
        first = self.seed + SEEDS_APART
        return [
            Trial(Contestant(method, rate), first + i, self.trials.rounds, final=True)
            for i in range(FINAL_SEEDS)
            for method, rate in self.state.finalists.items()
        ]

    def final(self) -> None:
        """Run the finalists with fresh seeds, scored on the test samples."""
        if not self.state.done:
            self.say(f"final: {', '.join(self.state.finalists)}, {FINAL_SEEDS} fresh seeds")
        self.trials.run(self.final_trials())
        if failed := [t for t in self.final_trials() if t.folder in self.state.errors]:
            error = self.state.errors[failed[0].folder]
            raise RunFailed(f"the final needs all its runs, and {failed[0].folder} failed: {error}")
        self.state.done = True
        self.save()

    def final_gains(self) -> dict[str, Table]:
        """Return the gains of the finalists over training alone on the test samples."""
        scores = self.final_scores()
        return {m: gain_table(table, scores[LOCAL]) for m, table in scores.items() if m != LOCAL}

    def final_scores(self) -> dict[str, dict[int, dict[str, float]]]:
        """Return the finalists' scores by seed and client."""
        seeds = list(dict.fromkeys(trial.seed for trial in self.final_trials()))
        return {
            method: self.trials.table(
                Contestant(method, rate), seeds, self.trials.rounds, self.state.measure, final=True
            )
            for method, rate in self.state.finalists.items()
        }

    # --- time and state ---------------------------------------------------------------

    def _seconds(self, method: str) -> float:
        costs = self.state.costs
        return costs.get(method, max(costs.values(), default=0.0))

    def wall_seconds(self, trials: Sequence[Trial]) -> float:
        """Return about how long the missing trials take."""
        missing = self.trials.missing(trials)
        work = [self._seconds(t.who.method) * t.until + self.state.start_seconds for t in missing]
        return (sum(work) / self.jobs + max(work, default=0.0) * (self.jobs > 1)) if work else 0.0

    def final_seconds(self) -> float:
        """Return about how long the final takes: the dearest method may lead."""
        rounds = self.trials.rounds
        dear = max((self._seconds(m) for m in self.state.methods), default=0.0)
        per_seed = dear + sum(self._seconds(m) for m in KEPT)
        return FINAL_SEEDS * (per_seed * rounds + 4 * self.state.start_seconds) / self.jobs

    def elapsed(self) -> float:
        """Return the seconds that the contest has taken, in all sessions."""
        return self.state.elapsed + self.clock() - self._since

    def _ended(self, trial: Trial, error: str) -> None:
        if error:
            self.say(f"{trial.folder} failed: {error}")
        self.save()

    def save(self) -> None:
        """Write contest.json."""
        self.state.elapsed, self._since = self.elapsed(), self.clock()
        text = json.dumps(vars(self.state), indent=1, ensure_ascii=False)
        write_text(self.trials.out / "contest.json", text + "\n")


def _grid(method: str, centre: float, exponents: Sequence[float]) -> list[float]:
    """Return the rates of a method's grid; one 0 for a method without steps."""
    return [centre * 10**e for e in exponents] if has_rate(method) else [0.0]


def load_state(out: Path) -> State | None:
    """Return the state of the contest in a folder, or ``None``. Raises ``UserError`` if
    it cannot be read.
    """
    path = out / "contest.json"
    if not path.exists():
        return None
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}): choose another --out, or delete that folder"
        ) from None
