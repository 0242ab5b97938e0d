"""The runs of a contest: contestants, trials, and what each test row of a trial had.

A trial is one run in ``cells/`` of the contest's folder. It is paused after its round
``until`` and lengthened later, under the same settings: ``num-rounds`` is what
schedules go by. Trees are grown at once: few of them say little about many.

In fold f every client is tested on part f of its rows (``data.folds``). All trials but
those of the end of a fold are scored on held-out samples of the rest (``data.score-
on``): half of each client's validation samples. Methods choose epochs or lambda by the
other half, so no score flatters them. Where the data name their own test samples, a
fold is another seed instead.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.clients.base.scores import ROWS
from fedapps.errors import RunFailed, UserError
from fedapps.lab.contests.rows import Rows, read_rows
from fedapps.lab.sweeps.plan import without_reserved
from fedapps.lab.sweeps.pool import DIED, Ended, PlannedRun
from fedapps.methods import find_method
from fedapps.notes import each_once
from fedapps.records.reader import RunFolder, read_run
from fedapps.records.rounds import status_of
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import check_used, chosen
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import Task
from fedapps.tasks.registry import find_task

LOCAL, AVERAGE, FINETUNE = "local", "fedavg", "finetune"
TREES, TREES_ALONE = "histogram-boosting", "local-boosting"
#: The methods that grow trees together.
GROWN = (TREES, "site-boosting")
#: The methods without federation; the second one where trees take part.
UNFEDERATED = (LOCAL, TREES_ALONE)
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
    *GROWN,
)
RATE = "train.learning-rate"
HELD_OUT = "held-out"
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
    """A run of a contestant in a fold, until a round; ``final``: scored on the fold's
    test rows.
    """

    who: Contestant
    fold: int
    until: int
    final: bool = False

    @property
    def folder(self) -> str:
        """The name of its folder, which does not depend on the round."""
        stage = "test" if self.final else "choice"
        rate = f"_rate-{self.who.rate:.4g}" if self.who.rate else ""
        return f"fold-{self.fold}_{stage}_{self.who.method}{rate}"


@dataclass
class Trials:
    """Executes trials and reads their rows. ``base``: the settings of all runs.
    ``rounds``: of a whole run, a multiple of ``PARTS``. ``folds``: of the rows, 0 where
    the data name their own test samples. ``ended(trial, error)`` is called after each
    trial. ``held_out``: clients that train like all others, and whose rows no stage
    reads.
    """

    base: Mapping[str, Any]
    out: Path
    rounds: int
    folds: int
    execute: Execute
    ended: Callable[[Trial, str], None] = lambda trial, error: None
    errors: dict[str, str] = field(default_factory=dict)
    held_out: Container[str] = ()
    #: Seconds of a round and of an evaluation by method, of its newest trial.
    costs: dict[str, list[float]] = field(default_factory=dict)
    _checked: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The rows that have been read.
    kept: dict[Trial, Rows] = field(default_factory=dict)

    def config(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial that the contest chooses, but ``until``."""
        rounds = self.rounds_of(trial.who.method)
        config: dict[str, Any] = {
            "method": trial.who.method,
            "seed": int(self.base.get("seed", 0)) + trial.fold,
            "num-rounds": rounds,
            # a pause is evaluated
            "evaluate-every": rounds,
            "checkpoint-every": max(rounds // PARTS, 1),
            "data.test-rows": True,
            score_on(self.base): "test" if trial.final else HELD_OUT,
        }
        if self.folds:
            config |= {"data.folds": self.folds, "data.fold": trial.fold}
        if trial.who.rate:
            config[RATE] = trial.who.rate
        return config

    def rounds_of(self, method: str) -> int:
        """Return the rounds of a whole run; of a method without steps its own, which
        are levels of trees.
        """
        return self.rounds if has_rate(method) else int(self.full(method)["num-rounds"])

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
        paused = status == "interrupted" and has_rate(trial.who.method)  # trees never pause
        return done if paused else min(done, trial.until - 1)

    def run(self, trials: Iterable[Trial]) -> None:
        """Execute the trials that are missing; what failed is in ``errors``."""
        planned = {self.out / "cells" / trial.folder: trial for trial in self.missing(trials)}
        pauses = [{"until": t.until} if t.until < self.rounds else {} for t in planned.values()]
        runs = [
            PlannedRun({**self.full(t.who.method), **self.config(t), **pause}, folder)
            for (folder, t), pause in zip(planned.items(), pauses, strict=True)
        ]
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
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for row in self.read(trial).rounds[1:]:  # the first round warms up
            seconds["evaluate" in row].append(float(row["seconds"]))
        if all(seconds.values()):
            each, scored = map(fmean, seconds.values())
            self.costs[trial.who.method] = [each, max(scored - each, 0.0)]

    def read(self, trial: Trial) -> RunFolder:
        """Return the content of a trial's folder."""
        return read_run(self.out / "cells" / trial.folder)

    def rows(self, trial: Trial) -> Rows:
        """Return what each test row of each client had; {} for a failed trial."""
        if trial.folder in self.errors:
            return {}
        if trial not in self.kept:
            folder = self.out / "cells" / trial.folder
            found = read_rows(folder / f"{ROWS}.csv")
            if not found and (folder / "clients.csv").exists():
                raise UserError(
                    f"{folder}: no results of single rows: the score of a task of your own has to "
                    "add clients.base.scores.row_results"
                )
            self.kept[trial] = {k: rows for k, rows in found.items() if k not in self.held_out}
        return self.kept[trial]


def assembled(base: Mapping[str, Any], method: str) -> tuple[Settings, Task]:
    """Return settings and task of a method, scored on held-out samples. Raises
    ``UserError``.
    """
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
) -> tuple[list[str], dict[str, str], Settings, Task]:
    """Return the methods that can run with these settings, why the others cannot, and
    settings and task of training alone. Raises ``UserError`` if that or FedAvg cannot
    run, or if no method uses a setting.
    """
    from fedapps.algorithms.common.modules import normalisation  # it imports PyTorch

    known, left_out = [], {}
    alone: tuple[Settings, Any] | None = None
    used: set[str] = set()
    rivals = [TREES_ALONE] if {*GROWN} & {*methods} else []
    for method in dict.fromkeys((LOCAL, AVERAGE, FINETUNE, *rivals, *methods)):
        find_method(method)  # a name that does not exist is no method that cannot run
        try:
            # asked of training alone's net, before a run of fedbn would say so, too
            if method == "fedbn" and alone and not normalisation(alone[1].work_model()):
                raise UserError("the net has no normalisation layer, so it would be fedavg")
            settings, task = assembled(base, method)
        except (UserError, ValueError) as error:
            if method in (LOCAL, AVERAGE, FINETUNE):
                raise
            left_out[method] = str(error)
            continue
        known.append(method)
        used |= settings.flat().keys()
        alone = alone or (settings, task)
    check_used(base, used)
    assert alone is not None
    return known, left_out, *alone


def has_rate(method: str) -> bool:
    """Return whether a method takes local steps, whose rate is to be chosen."""
    return method not in (*GROWN, TREES_ALONE)
