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
   together (``fedapps.lab.results.simultaneous``).

``contest.json`` in the folder keeps what has been decided, so that an interrupted
contest goes on from there.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapps.errors import RunFailed
from fedapps.lab.contests.plan import (
    FINAL_SEEDS,
    FIRST_SEEDS,
    KEPT,
    MOST_SEEDS,
    RACE_ENDS,
    stage_seconds,
    wall_seconds,
)
from fedapps.lab.contests.rates import Rates
from fedapps.lab.contests.trials import (
    AVERAGE,
    FINETUNE,
    LOCAL,
    Contestant,
    Scores,
    Trial,
    as_table,
)
from fedapps.lab.results.simultaneous import LEVEL, Table, upper_bound

#: Steps of the race: three with the first seeds, one for each more.
STEPS = 3 + MOST_SEEDS - FIRST_SEEDS
SEEDS_APART = 100  # between the seeds of the race and of the final


class Contest(Rates):
    """A contest in a folder."""

    def run(self) -> None:
        """Run what is left of the contest. Raises ``RunFailed`` if training alone or
        FedAvg fails.
        """
        self.choose_rates()
        self.race()
        self.final()

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
            trials = [t for who in self.contestants() for t in self._trials(who, seeds, until)]
            # a step that has begun is ended: its trials have left the last step's round
            if number and state.begun < number and not self._worth(number, trials):
                break
            state.begun = number
            self.save()
            self.trials.run(trials)
            leader = self._drop(seeds, until)
            left = len(self.contestants())
            state.steps.append({"seeds": n, "until": until, "left": left})
            state.race_seeds = seeds
            self.say(f"race, {n} seeds until round {until}: {left} left, {leader} leads")
            self.save()
        gains = self._gains(state.race_seeds, int(state.steps[-1]["until"]))
        leader = self._leader(gains)
        state.leader = leader.method
        state.finalists = {leader.method: leader.rate, LOCAL: state.rates[LOCAL][0]}
        for best in self._baselines(gains):
            state.finalists.setdefault(best.method, best.rate)
        state.race_gains = {str(who): mean_of(table) for who, table in gains.items()}
        state.race_ended = True
        self.save()

    def _gains(self, seeds: Sequence[int], until: int) -> dict[Contestant, Table]:
        """Return the gains over training alone (S, K) of those who are left, NaN for a
        client that takes no part with a seed. A client where training alone diverges is
        left out; who diverges at another is dropped.
        """
        state, gains = self.state, {}
        trials = self._trials(Contestant(LOCAL, state.rates[LOCAL][0]), seeds, until)
        alone = self._scores(trials)
        new = {trial.seed: self.trials.newcomers(trial) for trial in trials}
        everyone = sorted({k for own in alone.values() for k in own})
        clients = [k for k in everyone if all(k in alone[s] or k in new[s] for s in seeds)]
        if not clients:
            raise RunFailed("training alone diverges at every client: lower train.learning-rate")
        state.unscored |= {k: "training alone diverges" for k in everyone if k not in clients}
        for who in self.contestants():
            if who.method == LOCAL:
                continue
            own = self._scores(self._trials(who, seeds, until))
            lost = [k for k in clients if any(k in alone[s] and k not in own[s] for s in seeds)]
            if lost:
                shown = ", ".join(lost[:5]) + (", ..." if len(lost) > 5 else "")
                state.dropped[str(who)] = f"failed, or diverged at {shown}"
            else:
                gains[who] = as_table(own, clients) - as_table(alone, clients)
        return gains

    @staticmethod
    def _trials(who: Contestant, seeds: Sequence[int], until: int) -> list[Trial]:
        return [Trial(who, seed, until) for seed in seeds]

    def _scores(self, trials: Sequence[Trial]) -> dict[int, Scores]:
        return {trial.seed: self.trials.scores(trial, self.state.measure) for trial in trials}

    @staticmethod
    def _leader(gains: Mapping[Contestant, Table]) -> Contestant:
        if not gains:
            raise RunFailed(
                "every federated method failed or diverged at a client: lower train.learning-rate"
            )
        return max(gains, key=lambda who: mean_of(gains[who]))

    def _baselines(self, gains: Mapping[Contestant, Table]) -> list[Contestant]:
        """Return fine-tuning and FedAvg, each at its best rate."""
        kept = [{w: g for w, g in gains.items() if w.method == m} for m in (FINETUNE, AVERAGE)]
        return [self._leader(own) for own in kept if own]

    def _drop(self, seeds: Sequence[int], until: int) -> Contestant:
        """Drop who is behind the leader, and return the leader."""
        gains = self._gains(seeds, until)
        leader = self._leader(gains)
        spared = {leader, *self._baselines(gains)}
        for who, table in gains.items():
            if who in spared:
                continue
            bound = upper_bound(table - gains[leader], LEVEL / STEPS)
            if bound < -self.state.delta / 4:
                self.state.dropped[str(who)] = (
                    f"behind {leader} after round {until} with {len(seeds)} seeds"
                )
        return leader

    def _worth(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether a step can still drop somebody, and ends in time for the
        final.
        """
        state = self.state
        if number >= FIRST_SEEDS and len(self.contestants()) <= len(KEPT) + 1:
            return False
        if not state.budget:
            return True
        final = stage_seconds(state, self.jobs, self.trials.rounds)[2]
        end = min(RACE_ENDS * state.budget, state.budget - 1.1 * final)
        missing = [
            (t.who.method, t.until - self.trials.done(t)) for t in self.trials.missing(trials)
        ]
        return self.elapsed() + wall_seconds(state, self.jobs, missing) <= end

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

    def final_scores(self, prefix: str = "") -> dict[str, dict[int, Scores]]:
        """Return the finalists' scores by seed and client; those of half of the test
        samples with the ``prefix`` HALF.
        """
        by_method: dict[str, dict[int, Scores]] = {}
        for trial in self.final_trials():
            own = self.trials.scores(trial, prefix + self.state.measure)
            by_method.setdefault(trial.who.method, {})[trial.seed] = own
        return by_method


def mean_of(table: Table) -> float:
    """Return the mean over seeds of the clients' means."""
    return float(np.nanmean(table, axis=1).mean())
