"""The runs of a contest: contestants, trials, and the clients' scores of a trial.

A trial is one run in ``cells/`` of the contest's folder. It is paused after its round
``until`` and lengthened later, under the same settings: ``num-rounds`` is what
schedules go by. All but the trials of the final are scored on held-out samples
(``data.score-on``): half of each client's validation samples. Methods choose epochs or
lambda by the other half, so no score flatters them. Test samples are read in the final
only.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.errors import RunFailed, UserError
from fedapps.lab.client_samples import names_of
from fedapps.lab.results.simultaneous import Table
from fedapps.lab.sweeps.plan import without_reserved
from fedapps.lab.sweeps.pool import DIED, Ended, PlannedRun, run_one
from fedapps.methods import find_method
from fedapps.notes import each_once
from fedapps.records.measures import MARK
from fedapps.records.reader import RunFolder, is_number, read_run
from fedapps.records.rounds import status_of
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import check_used, chosen
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet, SplitsSamples, Task
from fedapps.tasks.registry import find_task

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
HELD_OUT = "held-out"
#: A contest's rounds are cut into this many parts: a trial can pause after each.
PARTS = 8

Execute = Callable[[Sequence[PlannedRun]], Iterable[Ended]]
#: The score of each client, higher is better.
Scores = Mapping[str, float]


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
    called after each trial. ``held_out``: clients that train like all others, and whose
    scores no stage reads.
    """

    base: Mapping[str, Any]
    out: Path
    rounds: int
    execute: Execute
    ended: Callable[[Trial, str], None] = lambda trial, error: None
    errors: dict[str, str] = field(default_factory=dict)
    held_out: Container[str] = ()
    #: Seconds of a round and of an evaluation by method, of its newest trial.
    costs: dict[str, list[float]] = field(default_factory=dict)
    _checked: dict[str, dict[str, Any]] = field(default_factory=dict)
    _scores: dict[tuple[Trial, str], Scores] = field(default_factory=dict)

    def config(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial that the contest chooses, but ``until``."""
        config: dict[str, Any] = {
            "method": trial.who.method,
            "seed": trial.seed,
            "num-rounds": self.rounds,
            # a pause is evaluated; the final's curves have four points
            "evaluate-every": self.rounds // 4 if trial.final else self.rounds,
            "checkpoint-every": self.rounds // PARTS,
            score_on(self.base): "test-halves" if trial.final else HELD_OUT,
        }
        if trial.who.rate:
            config[RATE] = trial.who.rate
        return config

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that have not reached their round."""
        return [
            trial
            for trial in dict.fromkeys(trials)
            if trial.folder not in self.errors and self.done(trial) < trial.until
        ]

    def done(self, trial: Trial) -> int:
        """Return how many rounds of a trial are done; of one that was killed fewer than
        it is for.
        """
        folder = self.out / "cells" / trial.folder
        status = status_of(folder) if (folder / "summary.json").exists() else None
        if status == "completed":
            return self.rounds
        rounds = [int(p.name) for p in (folder / "checkpoint").glob("*") if p.name.isdigit()]
        done = max(rounds, default=0)
        return done if status == "interrupted" else min(done, trial.until - 1)

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
            if ended.error == DIED:  # no fault of the method
                raise RunFailed(
                    "a process of the contest died, probably out of memory: lower --jobs, and "
                    "repeat the command to go on"
                )
            if ended.error:
                self.errors[trial.folder] = ended.error
            else:
                self.note_cost(trial)
            self.ended(trial, ended.error)

    def full(self, method: str) -> dict[str, Any]:
        """Return the settings of a method in full, with the number of clients."""
        if method not in self._checked:
            self._checked[method] = without_reserved(assembled(self.base, method)[0])
        return self._checked[method]

    def note_cost(self, trial: Trial) -> None:
        """Remember the seconds of a trial's method, unless all its rounds have an
        evaluation.
        """
        plain: list[float] = []
        scored: list[float] = []
        for row in self.read(trial).rounds[1:]:  # the first round warms up
            (scored if "evaluate" in row else plain).append(float(row["seconds"]))
        if plain and scored:
            each = fmean(plain)
            self.costs[trial.who.method] = [each, max(fmean(scored) - each, 0.0)]

    def read(self, trial: Trial) -> RunFolder:
        """Return the content of a trial's folder, without the clients held out."""
        run = read_run(self.out / "cells" / trial.folder)
        return replace(run, clients=[c for c in run.clients if c["client"] not in self.held_out])

    def scores(self, trial: Trial, measure: str) -> Scores:
        """Return the score of each client; {} for a failed trial."""
        if trial.folder in self.errors:
            return {}
        if (trial, measure) not in self._scores:
            self._scores[trial, measure] = scores_of(self.read(trial), measure)
        return self._scores[trial, measure]

    def newcomers(self, trial: Trial) -> set[str]:
        """Return the clients that take no part with this seed (``num-new-clients``)."""
        return {str(row["client"]) for row in self.read(trial).clients if row.get(MARK)}


def scores_of(run: RunFolder, measure: str) -> Scores:
    """Return the scores of the clients that have one, higher is better."""
    sign = -1.0 if lower_is_better(measure) else 1.0
    return {
        str(row["client"]): sign * float(row[measure])
        for row in run.clients
        if is_number(row.get(measure)) and np.isfinite(row[measure])
    }


def as_table(scores: Mapping[int, Scores], clients: Sequence[str]) -> Table:
    """Return scores as a table (S, K); NaN where a client has none."""
    return np.array([[own.get(k, np.nan) for k in clients] for own in scores.values()])


def assembled(base: Mapping[str, Any], method: str) -> tuple[Settings, Task]:
    """Return settings and task of a method in the race. Raises ``UserError``."""
    with each_once():
        settings, task, _ = assemble(
            with_defaults({**base, "method": method, score_on(base): HELD_OUT})
        )
    return settings, task


def score_on(base: Mapping[str, Any]) -> str:
    """Return the setting of the part that clients are scored on."""
    kind = find_task(chosen(base)[1])
    return f"{kind.table if hasattr(kind.options, 'score_on') else 'data'}.score-on"


def portfolio(
    base: Mapping[str, Any], methods: Sequence[str] = PORTFOLIO
) -> tuple[list[str], dict[str, str], dict[str, Any], dict[str, str]]:
    """Return the methods that can run with these settings, why the others cannot, the
    settings in full, and the clients that the race cannot score. Raises ``UserError``
    if training alone or FedAvg cannot run, or if no method uses a setting.
    """
    known, left_out = [], {}
    net: Any = None
    full: dict[str, Any] = {}
    unscored: dict[str, str] = {}
    used: set[str] = set()
    for method in dict.fromkeys((LOCAL, AVERAGE, FINETUNE, *methods)):
        find_method(method)  # a name that does not exist is no method that cannot run
        try:
            # asked of training alone's net, before a run of fedbn would say so, too
            if method == "fedbn" and not _normalises(net):
                raise UserError("the net has no normalisation layer, so it would be fedavg")
            settings, task = assembled(base, method)
        except (UserError, ValueError) as error:
            if method in (LOCAL, AVERAGE, FINETUNE):
                raise
            left_out[method] = str(error)
            continue
        known.append(method)
        used |= settings.flat().keys()
        if not full:
            full, unscored = without_reserved(settings), _unscored(task, settings)
            net = task
    check_used(base, used)
    return known, left_out, full, unscored


def _unscored(task: Task, settings: Settings) -> dict[str, str]:
    total = settings.num_clients

    def scored(k: int) -> int:
        if isinstance(task, SplitsSamples):
            return len(task.split(k, total)[2])
        return len(task.client_data(k, total).test) if isinstance(task, HasNet) else 1

    names = names_of(task, total)
    return {names[k]: "no validation samples" for k in range(total) if not scored(k)}


def _normalises(task: Any) -> bool:
    from fedapps.algorithms.common.modules import normalisation

    return bool(normalisation(task.work_model()))


def has_rate(method: str) -> bool:
    """Return whether a method takes local steps, whose rate is to be chosen."""
    return method != "histogram-boosting"
