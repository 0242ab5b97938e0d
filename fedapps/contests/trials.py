"""The runs of a contest: contestants, trials, and the clients' scores of a trial.

A trial is one run in ``cells/`` of the contest's folder. It is paused after its round
``until`` and lengthened later, under the same settings: ``num-rounds`` is what
schedules go by. All but the trials of the final are scored on validation samples
(``data.score-on``), so that test samples are read in the final only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.measures import lower_is_better
from fedapps.errors import UserError
from fedapps.notes import each_once
from fedapps.records.reader import RunFolder, is_number, read_run
from fedapps.records.writer import status_of
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.settings import check_used
from fedapps.sweeps.plan import without_reserved
from fedapps.sweeps.pool import Ended, PlannedRun, run_one

LOCAL, AVERAGE, FINETUNE = "local", "fedavg", "finetune"
#: The methods that take part unless others are named, those without federation first.
PORTFOLIO = (
    LOCAL,
    AVERAGE,
    FINETUNE,
    "fedprox",
    "fedadam",
    "scaffold",
    "fedper",
    "fedrep",
    "apfl",
    "ditto",
    "superfed-mm",
    "aaggff-d",
    "ifca",
    "fedbn",
    "histogram-boosting",
)
RATE = "train.learning-rate"
#: A contest's rounds are cut into this many parts: a trial can pause after each.
PARTS = 8

Execute = Callable[[Sequence[PlannedRun]], Iterable[Ended]]


@dataclass(frozen=True)
class Contestant:
    """A method with a learning rate; 0: its own default, for methods without steps."""

    method: str
    rate: float = 0.0

    def __str__(self) -> str:
        """Return the name in tables."""
        return f"{self.method} at {self.rate:.3g}" if self.rate else self.method


@dataclass(frozen=True)
class Trial:
    """A run of a contestant with a seed, until a round; ``final``: scored on the test
    samples.
    """

    who: Contestant
    seed: int
    until: int
    final: bool = False

    @property
    def folder(self) -> str:
        """The name of its folder, which does not depend on the round."""
        stage = "final" if self.final else "race"
        rate = f"_rate-{self.who.rate:.4g}" if self.who.rate else ""
        return f"{stage}_{self.who.method}{rate}_seed-{self.seed}"


def in_process(runs: Sequence[PlannedRun]) -> Iterator[Ended]:
    """Execute the runs in this process, one after the other."""
    for run in runs:
        try:
            yield Ended(run, run_one(run))
        except Exception as error:  # a run that fails ends its own trial only
            yield Ended(run, {}, f"{type(error).__name__}: {error}")


@dataclass
class Trials:
    """Executes trials and reads their scores. ``base``: the settings of all runs.
    ``rounds``: of a whole run, a multiple of ``PARTS``. ``ended(trial, error)`` is
    called after each trial.
    """

    base: Mapping[str, Any]
    out: Path
    rounds: int
    execute: Execute
    ended: Callable[[Trial, str], None] = lambda trial, error: None
    errors: dict[str, str] = field(default_factory=dict)
    #: Seconds of work per round and method, of the newest trial.
    costs: dict[str, float] = field(default_factory=dict)
    _checked: dict[str, dict[str, Any]] = field(default_factory=dict)

    def config(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial that the contest chooses, but ``until``."""
        part = self.rounds // PARTS
        config: dict[str, Any] = {
            "method": trial.who.method,
            "seed": trial.seed,
            "num-rounds": self.rounds,
            "evaluate-every": part,
            "checkpoint-every": part,
            "data.score-on": "test" if trial.final else "validation",
        }
        if trial.who.rate:
            config[RATE] = trial.who.rate
        return config

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that have not reached their round."""
        return [
            trial
            for trial in dict.fromkeys(trials)
            if trial.folder not in self.errors and not self._reached(trial)
        ]

    def run(self, trials: Iterable[Trial]) -> None:
        """Execute the trials that are missing; what failed is in ``errors``."""
        planned: dict[Path, Trial] = {}
        runs = []
        for trial in self.missing(trials):
            config = {**self.full(trial.who.method), **self.config(trial)}
            if trial.until < self.rounds:
                config["until"] = trial.until
            run = PlannedRun(config, self.out / "cells" / trial.folder)
            planned[run.folder] = trial
            runs.append(run)
        for ended in self.execute(runs) if runs else ():
            trial = planned[ended.run.folder]
            if ended.error:
                self.errors[trial.folder] = ended.error
            else:
                self.note_cost(trial)
            self.ended(trial, ended.error)

    def full(self, method: str) -> dict[str, Any]:
        """Return the settings of a method in full, with the number of clients."""
        if method not in self._checked:
            given = {**self.base, "method": method, "data.score-on": "validation"}
            with each_once():
                settings, *_ = assemble(with_defaults(given))
            self._checked[method] = without_reserved(settings)
        return self._checked[method]

    def note_cost(self, trial: Trial) -> None:
        """Remember the seconds of a round of a trial's method."""
        run = self.read(trial)
        self.costs[trial.who.method] = run.numbers["seconds"] / max(run.rounds_completed, 1)

    def read(self, trial: Trial) -> RunFolder:
        """Return the content of a trial's folder."""
        return read_run(self.out / "cells" / trial.folder)

    def _reached(self, trial: Trial) -> bool:
        folder = self.out / "cells" / trial.folder
        if not (folder / "summary.json").exists():
            return False
        if status_of(folder) == "completed":
            return True
        # paused there; an interrupted trial has no checkpoint of its last round
        rounds = [int(p.name) for p in (folder / "checkpoint").glob("*") if p.name.isdigit()]
        done = max(rounds, default=0)
        return status_of(folder) == "interrupted" and done >= trial.until

    def scores(self, trial: Trial, measure: str) -> dict[str, float]:
        """Return the score of each client, higher is better; {} for a failed trial."""
        if trial.folder in self.errors:
            return {}
        sign = -1.0 if lower_is_better(measure) else 1.0
        return {
            str(row["client"]): sign * float(row[measure])
            for row in self.read(trial).clients
            if is_number(row.get(measure)) and np.isfinite(row[measure])
        }

    def table(
        self, who: Contestant, seeds: Sequence[int], until: int, measure: str, final: bool = False
    ) -> dict[int, dict[str, float]]:
        """Return the scores of a contestant by seed and client."""
        return {seed: self.scores(Trial(who, seed, until, final), measure) for seed in seeds}


def gain_table(
    ours: Mapping[int, Mapping[str, float]], theirs: Mapping[int, Mapping[str, float]]
) -> NDArray[np.float64]:
    """Return d[s, k] = ours - theirs (S, K) over all clients that appear; NaN where one
    has no score.
    """
    clients = sorted({k for table in (*ours.values(), *theirs.values()) for k in table})
    rows = [
        [ours[seed].get(k, np.nan) - theirs[seed].get(k, np.nan) for k in clients] for seed in ours
    ]
    return np.array(rows, dtype=np.float64).reshape(len(ours), len(clients))


def portfolio(
    base: Mapping[str, Any], methods: Sequence[str] = PORTFOLIO
) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """Return the methods that can run with these settings, why the others cannot, and
    the settings in full. Raises ``UserError`` if training alone or FedAvg cannot, or if
    no method uses a setting.
    """
    known, left_out = [], {}
    full: dict[str, Any] = {}
    used: set[str] = set()
    for method in dict.fromkeys((LOCAL, AVERAGE, FINETUNE, *methods)):
        wanted = {**base, "method": method, "data.score-on": "validation"}
        try:
            with each_once():
                settings, task_object, _ = assemble(with_defaults(wanted))
            if method == "fedbn" and not _normalises(task_object):
                raise UserError("the net has no normalisation layer, so it would be fedavg")
        except (UserError, ValueError) as error:
            if method in (LOCAL, AVERAGE, FINETUNE):
                raise
            left_out[method] = str(error)
            continue
        known.append(method)
        used |= settings.flat().keys()
        full = full or without_reserved(settings)
    check_used(base, used)
    return known, left_out, full


def _normalises(task: Any) -> bool:
    from algorithms.common.modules import normalisation

    return bool(normalisation(task.work_model()))


def has_rate(method: str) -> bool:
    """Return whether a method takes local steps, whose rate is to be chosen."""
    return method != "histogram-boosting"
