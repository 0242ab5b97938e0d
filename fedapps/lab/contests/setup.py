"""A whole contest in the sweeps' pool, for ``fedapps contest`` and ``fedapps.contest``:
who takes part, what is measured, what a round costs, what the budget allows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from fedapps.data.columns import OddCellsError
from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.plan import DEAR, FOLDS, KEPT, planned
from fedapps.lab.contests.state import State, load_state
from fedapps.lab.contests.trials import (
    GROWN,
    LOCAL,
    PARTS,
    PORTFOLIO,
    Contestant,
    Execute,
    Trial,
    Trials,
    assembled,
    has_rate,
    portfolio,
    score_on,
)
from fedapps.lab.contests.verdict import Outcome
from fedapps.lab.sweeps.execution import Way, only_one, uses_gpu
from fedapps.lab.sweeps.plan import without_reserved
from fedapps.lab.sweeps.pool import Pool
from fedapps.notes import each_once
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import with_defaults
from fedapps.tasks.dealt_samples import DealtSamples

#: Settings that a contest chooses itself.
RESERVED = (
    *("method", "train.learning-rate", "evaluate-every", "checkpoint-every", "until", "out"),
    *("data.folds", "data.fold", "data.test-rows", "num-new-clients"),
)
PILOT_ROUNDS = 3
#: Share of the validation samples, the same for all methods.
VALIDATION = 0.2
#: More whole numbers than this are predicted as numbers, fewer are classes.
MOST_CLASSES = 20
#: A class with a larger share of the rows makes the accuracy a poor measure.
LARGEST = 0.7


def run_contest(
    given: Mapping[str, Any],
    out: Path,
    *,
    way: Way,
    budget: float = 1800.0,
    methods: Sequence[str] | None = None,
    delta: float = 0.0,
    price: float = 0.0,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Contest, Outcome, str]:
    """Run or continue the contest in ``out``; write and return its verdict. ``way``:
    how many runs go at a time.
    """
    for key, gain in (("delta", delta), ("price", price)):
        if not 0 <= gain < np.inf:
            raise UserError(f"{key} = {gain!r}: give a gain, or 0 for the usual one")
    out = out.expanduser().absolute()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(out), each_once():  # a note on the data holds for all runs
        base = base_of(given)
        settings, _ = assembled(base, LOCAL)
        jobs, gpus = way.processes(uses_gpu(settings))
        with Pool(jobs, gpus) as execute:
            contest = start(
                base,
                out,
                execute,
                budget=budget,
                methods=PORTFOLIO if methods is None else methods,
                jobs=jobs,
                delta=delta,
                price=price,
                say=say,
            )
            contest.run()
        result, text = write_verdict(contest)
    return contest, result, text


def base_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all runs, with those that a contest fills in. Raises
    ``UserError``.
    """
    if "data.source" in given and "task" not in given:
        given = {"task": task_of(given), **given}
    scored = score_on(given)
    for key in (*RESERVED, scored):
        if key in given:
            raise UserError(f"{key}: a contest chooses it: leave it out")
    if given.get("data.natural-id", "") == given.get("data.label") != "":
        raise UserError(
            f"data.natural-id = {given['data.natural-id']!r}: is the label, too, so every client "
            "would have one answer: name the column of clients"
        )
    if given.get("data.split-seed", "0") == "seed":
        raise UserError(
            "data.split-seed = 'seed': the folds of a contest must share their rows: choose a "
            "number"
        )
    return {f"{scored.partition('.')[0]}.validation": VALIDATION, **given}


def task_of(given: Mapping[str, Any]) -> str:
    """Return the task of a data set: ``regression`` for a table whose label is a
    number, ``tabular`` for one with classes, else ``classification``.
    """
    why = ""
    for name in ("regression", "tabular"):
        try:
            task: Any = build_task(with_defaults({**given, "task": name, "method": LOCAL}))
            if not task.is_table:
                return "classification"
        except OddCellsError as error:
            raise UserError(f"{error} (classes: task = 'tabular')") from None
        except UserError as error:
            why = str(error)
            continue
        if name == "tabular":
            return name
        y = task.targets
        if (y != np.round(y)).any() or len(np.unique(y)) > MOST_CLASSES:
            return name
    return "regression" if "label" in why else "tabular"  # whose error is not of the label


def start(
    given: Mapping[str, Any],
    out: Path,
    execute: Execute,
    *,
    budget: float = 0.0,
    methods: Sequence[str] = PORTFOLIO,
    jobs: int = 1,
    delta: float = 0.0,
    price: float = 0.0,
    say: Callable[[str], None] = lambda line: None,
) -> Contest:
    """Return the contest in ``out``: the one that is there, or a new one, whose cost
    is measured and reported. Raises ``UserError``.

    ``given``: settings of all runs. ``budget``: seconds, 0: no limit. ``jobs``: runs at
    a time. ``delta``: the gain that counts, 0: the usual one. ``price``: of federation,
    in the measure's units.
    """
    given = base_of(given)
    asked = {"given": dict(given), "methods": list(methods)}
    state = load_state(out)
    if state is None:
        state = begun(asked, out, execute, budget, jobs, say)
    elif state.asked != asked:
        raise UserError(
            f"{out} holds a contest with other settings or methods: choose another --out, or "
            "delete that folder"
        )
    else:
        new = ": it has ended; for another budget choose another --out" * state.done
        say(f"going on after {seconds_text(state.elapsed)} in {out}{new}")
    state.budget, state.price, state.delta = budget, price, delta or state.usual or state.delta
    folds = 0 if state.same_rows else state.folds
    contest = Contest(state, Trials(given, out, state.rounds, folds, execute), say, jobs)
    contest.save()
    return contest


def begun(
    asked: dict[str, Any],
    out: Path,
    execute: Execute,
    budget: float,
    jobs: int,
    say: Callable[[str], None],
) -> State:
    """Return the state of a new contest: who takes part, what is measured, and what the
    budget allows. Raises ``UserError``.
    """
    began, given = time.monotonic(), asked["given"]
    known, left_out, settings, task = portfolio(given, asked["methods"])
    out.mkdir(parents=True, exist_ok=True)
    full, total = without_reserved(settings), settings.num_clients
    if total < 2:
        raise UserError("one client: a contest compares clients that could train together")
    most = int(full["num-rounds"]) // PARTS * PARTS
    if not most:
        raise UserError(f"num-rounds = {full['num-rounds']}: a contest needs at least {PARTS}")
    same_rows = not isinstance(task, DealtSamples) or task.own_test(total)
    state = State(asked, full, most, budget, known, FOLDS, same_rows, left_out)
    state.measure, state.why, state.usual = measure_of(task, total)
    for line in state.why_left_out():
        say(f"left out: {line}")
    say(f"measure: {state.measure}, {state.why}")
    if budget:
        measure_costs(state, given, out / "pilot", execute, jobs)
        state.elapsed = time.monotonic() - began
        state.methods, state.folds, state.rounds = planned(state, jobs, most)
        for name in set(known) - set(state.methods):
            state.left_out[name] = DEAR
        say(
            f"{len(state.methods)} methods, {state.folds} folds, {state.rounds} rounds, {jobs} "
            f"runs at a time, in {seconds_text(budget)}"
        )
    return state


def measure_of(task: Any, total: int) -> tuple[str, str, float]:
    """Return the leading measure, the reason, and the gain that counts: one point, or
    2 % of the error that predicting each client's mean has.
    """
    if task.name == "survival":
        return "concordance", "since times are ranked", 0.01
    if (y := getattr(task, "targets", None)) is not None:
        errors = [np.sqrt(y[rows].var(0).mean()) for rows in task.partition(total)]
        return "rmse", "since numbers are predicted", 0.02 * float(np.mean(errors))
    labels = getattr(getattr(task, "samples", None), "labels", None)
    if labels is None:
        return "accuracy", "the share of right answers", 0.01
    own = [labels[rows] for rows in task.partition(total)]
    counts = np.bincount(np.concatenate(own))
    share = counts.max() / counts.sum()
    said = f"the largest class has {100 * share:.0f} % of the rows"
    if (counts > 0).sum() == 2 and any(len(set(labels)) == 2 for labels in own):
        return "auroc", f"which {100 * share:.0f} % of one class cannot flatter", 0.01
    return ("macro-recall" if share > LARGEST else "accuracy"), f"since {said}", 0.01


def measure_costs(
    state: State, given: Mapping[str, Any], out: Path, execute: Execute, jobs: int
) -> None:
    """Measure what a round of the methods that are kept and of trees costs, and what a
    run costs beside its rounds; others count as the dearest of them.
    """
    rmtree(out, ignore_errors=True)  # of a contest that was refused
    pilot = Trials(given, out, PARTS, 0, execute)
    # starts the processes, once for the whole contest
    pilot.run(Trial(Contestant(LOCAL), fold, 1) for fold in range(1, jobs + 1))
    methods = [method for method in (*KEPT, *GROWN) if method in state.methods]
    trials = [Trial(Contestant(method), 0, PILOT_ROUNDS) for method in methods]
    grown = (pilot.rounds_of(method) for method in methods if not has_rate(method))
    state.tree_rounds = max(grown, default=0)
    began = time.monotonic()
    pilot.run(trials)
    wall, work = time.monotonic() - began, 0.0
    for trial in trials:
        if trial.folder in pilot.errors:
            raise UserError(f"{trial.who.method}: {pilot.errors[trial.folder]}")
        work += pilot.read(trial).numbers["seconds"]
    state.costs |= pilot.costs
    state.start_seconds = max(wall * min(jobs, len(trials)) - work, 0.0) / len(trials)
