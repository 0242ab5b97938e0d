"""The folds of a contest. Every row of every client is a test row once.

In each fold, on the rows that are not its test rows:

1. Rates. Training alone gets seven rates over three decades, the other methods three
   around its best one, for an eighth of the rounds. A best rate at the edge of a grid
   extends the grid once. Two rates of each method go on.
2. Halving. Who is left trains until a quarter, half and all of the rounds; after each,
   the half with the larger mean gain over training alone on held-out samples goes on,
   and the best rate of training alone, FedAvg and fine-tuning.
3. The choice is the federated method that leads at the end. It and the three run again,
   with all validation samples to choose by, and are scored on the fold's test rows.

Where trees take part, training alone is the better one of a net and of trees alone,
chosen in each fold by the same held-out samples.

No row is scored by a model whose method, rate or epochs it has helped to choose. The
test rows of the choices therefore show the gain of this way to choose, for a user who
chooses with all rows. Test rows of one fold are training rows of the others, so no fold
uses what another has found: its own test rows would have helped to choose it.

``contest.json`` in the folder keeps what has been decided, so that an interrupted
contest goes on from there; after two folds it may end, if time is short.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedapps.errors import RunFailed
from fedapps.lab.contests.plan import ALONE_GRID, GRID, KEPT, STEP, grid, small
from fedapps.lab.contests.rows import Rows, measured
from fedapps.lab.contests.state import State
from fedapps.lab.contests.trials import (
    LOCAL,
    PARTS,
    RATE,
    UNFEDERATED,
    Contestant,
    Trial,
    Trials,
    has_rate,
)

CHOICE, REFERENCE = "the choice", "training alone"
#: What a fold decides, and where it keeps that.
DECIDED = {CHOICE: "choice", REFERENCE: "alone"}


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
        self._since = clock()
        trials.errors, trials.costs = state.errors, state.costs
        trials.ended = self._ended

    def run(self) -> None:
        """Run the folds that are left. Raises ``RunFailed`` if training alone or FedAvg
        fails.
        """
        state = self.state
        while not state.done:
            state.done = len(state.ended) == state.folds or self._no_time()
            if not state.done:
                self.fold(len(state.ended))
            self.save()

    def _no_time(self) -> bool:
        """Return whether the contest ends before its last fold; a second fold that
        would not end in time has few methods.
        """
        state = self.state
        if not state.ended or not state.budget:
            return False
        late = self.elapsed() + state.ended[-1]["seconds"] > state.budget
        if late and len(state.ended) == 1:
            state.methods = small(state.methods)
        return late and len(state.ended) > 1

    def fold(self, number: int) -> None:
        """Choose in a fold, and score the choice on its test rows."""
        state, began, rounds = self.state, self.clock(), self.trials.rounds
        found: dict[str, Any] = {"methods": list(state.methods), "tried": {}}
        left = self._best_rates(number, [LOCAL], state.given[RATE], ALONE_GRID, found)
        others = [m for m in state.methods if m != LOCAL]
        left += self._best_rates(number, others, left[0].rate, GRID, found)
        for until in (rounds // 4, rounds // 2):
            left = self._better_half(self._gains(number, left, until))
        gains = self._gains(number, left, rounds)
        alone = max((w for w in gains if w.method in UNFEDERATED), key=lambda w: gains[w])
        best = max((w for w in gains if w.method not in UNFEDERATED), key=lambda w: gains[w])
        finalists = {w.method: w.rate for w in reversed(self._kept(gains))} | {
            best.method: best.rate
        }
        found |= {
            "finalists": finalists,
            "choice": best.method,
            "alone": alone.method,
            "gain": gains[best],
            "gains": {str(who): value for who, value in gains.items()},
        }
        trials = self.final_trials(number, finalists)
        self.trials.run(trials.values())
        if failed := [t for t in trials.values() if t.folder in state.errors]:
            error = state.errors[failed[0].folder]
            raise RunFailed(f"a fold needs its tests, and {failed[0].folder} failed: {error}")
        found["seconds"] = self.clock() - began
        state.ended.append(found)
        self.say(f"fold {number + 1} of {state.folds}: {best} leads the federated methods")

    def final_trials(self, number: int, finalists: Mapping[str, float]) -> dict[str, Trial]:
        """Return the trials on the test rows of a fold, by method."""
        rounds = self.trials.rounds
        return {
            method: Trial(Contestant(method, rate), number, rounds, final=True)
            for method, rate in finalists.items()
        }

    def tested(self) -> dict[str, list[Rows]]:
        """Return the test rows by fold of the choices and of training alone, and of
        each other method that was tested in all folds.
        """
        found: dict[str, list[Rows]] = {CHOICE: [], REFERENCE: []}
        for number, one in enumerate(self.state.ended):
            for method, trial in self.final_trials(number, one["finalists"]).items():
                found.setdefault(method, []).append(self.trials.rows(trial))
            for name, key in DECIDED.items():
                found[name].append(found[one[key]][-1])
        for key in DECIDED.values():
            chosen = {one[key] for one in self.state.ended}
            if len(chosen) == 1:  # it is the choice
                del found[chosen.pop()]
        return {m: rows for m, rows in found.items() if len(rows) == len(self.state.ended)}

    # --- choosing ---------------------------------------------------------------------

    def _best_rates(
        self,
        number: int,
        methods: Sequence[str],
        centre: float,
        exponents: Sequence[float],
        found: dict[str, Any],
    ) -> list[Contestant]:
        """Return the two best rates of each method. Raises ``RunFailed`` if one of
        ``KEPT`` fails at every rate.
        """
        grids = {m: grid(m, centre, exponents) for m in methods}
        scores: dict[Contestant, float] = {}
        for _ in range(2):  # all grids at once, so that no core waits; then extensions
            everyone = [Contestant(m, rate) for m, rates in grids.items() for rate in rates]
            scores |= self._scores(number, everyone, self.trials.rounds // PARTS)
            more = {}
            for method, rates in grids.items():
                own = {w.rate: s for w, s in scores.items() if w.method == method}
                best = max(own, key=lambda rate: own[rate], default=0.0)
                if len(rates) > 1 and best in (min(rates), max(rates)):
                    sign = -1 if best == min(rates) else 1
                    more[method] = [best * 10 ** (sign * STEP * j) for j in (1, 2)]
            grids = more
        kept: list[Contestant] = []
        for method in methods:
            own_scores = {w: score for w, score in scores.items() if w.method == method}
            found["tried"][method] = {f"{w.rate:.4g}": s for w, s in own_scores.items()}
            best_first = sorted(own_scores, key=lambda w: -own_scores[w])
            if not best_first and method in KEPT:
                raise RunFailed(f"{method} failed at every rate: {self._reason(method)}")
            if not best_first:
                self.state.left_out[method] = f"failed at every rate: {self._reason(method)}"
            kept += best_first[:2]
        return kept

    def _scores(
        self, number: int, everyone: Sequence[Contestant], until: int
    ) -> dict[Contestant, float]:
        """Return the mean over clients of each contestant's measure on held-out samples
        after this round; without those that failed or diverged at a client.
        """
        known = self.state.scores
        whole = self.trials.rounds
        trials = {w: Trial(w, number, until if has_rate(w.method) else whole) for w in everyone}
        names = {who: f"{trial.folder} until {until}" for who, trial in trials.items()}
        missing = {who: trials[who] for who, name in names.items() if name not in known}
        self.trials.run(missing.values())
        for who, trial in missing.items():
            rows = self.trials.rows(trial)
            own = [measured([mine], self.state.measure)[0] for mine in rows.values()]
            defined = [score for score in own if not math.isnan(score)]
            known[names[who]] = [fmean(defined) if defined else 0.0, len(own) * bool(defined)]
        self.save()  # who goes on overwrites its rows
        most = max((known[name][1] for name in names.values()), default=0)
        found = {who: known[name] for who, name in names.items()}
        return {who: score for who, (score, clients) in found.items() if clients == most > 0}

    def _gains(
        self, number: int, left: Sequence[Contestant], until: int
    ) -> dict[Contestant, float]:
        """Return the mean gains over the best one of training alone. Raises
        ``RunFailed`` if that fails, or if no other method is left.
        """
        scores = self._scores(number, left, until)
        alone = [score for who, score in scores.items() if who.method in UNFEDERATED]
        if not alone or len(alone) == len(scores):
            who = "every federated method" if alone else "training alone"
            raise RunFailed(
                f"{who} failed, or diverged at a client: lower {RATE}, or see contest.json"
            )
        return {who: score - max(alone) for who, score in scores.items()}

    @staticmethod
    def _kept(gains: Mapping[Contestant, float]) -> list[Contestant]:
        """Return the best rates of the methods that are never dropped."""
        own = ([w for w in gains if w.method == method] for method in KEPT)
        return [max(rates, key=lambda w: gains[w]) for rates in own if rates]

    def _better_half(self, gains: Mapping[Contestant, float]) -> list[Contestant]:
        order = sorted(gains, key=lambda who: -gains[who])
        return list(dict.fromkeys([*order[: max(len(order) // 2, 1)], *self._kept(gains)]))

    def _reason(self, method: str) -> str:
        return next(
            (error for name, error in self.state.errors.items() if f"_{method}_" in f"{name}_"),
            "it diverged at a client",
        )

    # --- time and the file ------------------------------------------------------------

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
        self.state.write(self.trials.out)
