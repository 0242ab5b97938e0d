"""The first stage of a contest: the rates of every method."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean

from fedapps.errors import RunFailed
from fedapps.formats import counts_in_points
from fedapps.lab.contests.plan import ALONE_GRID, GRID, KEPT, STEP, grid
from fedapps.lab.contests.state import State
from fedapps.lab.contests.trials import LOCAL, PARTS, RATE, Contestant, Trial, Trials
from fedapps.lab.results.fair_plots import fair_measure


class Rates:
    """A contest until its rates are chosen. ``say(line)`` reports progress. ``jobs``:
    trials at a time. ``clock``: seconds.
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
            for rate in grid(m, centre, GRID)
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
        rates = grid(method, centre, exponents)
        order = self._ordered(method, rates, until)
        if len(rates) > 1 and order and order[0] in (rates[0], rates[-1]):
            sign = -1 if order[0] == rates[0] else 1
            more = [order[0] * 10 ** (sign * STEP * j) for j in (1, 2)]
            order = self._ordered(method, [*rates, *more], until)
        kept = order[: 1 if method == LOCAL else 2]
        names = ", ".join(f"{rate:.3g}" for rate in kept if rate)
        if names:
            self.say(f"{method}: best rate{'s' * (len(kept) > 1)} {names}")
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
        if counts_in_points(state.measure):
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
