"""A whole contest in the sweeps' pool, for ``fedapps contest`` and ``fedapps.contest``:
who takes part, what a round costs, how many rounds the budget allows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.plan import KEPT, affordable_rounds, described
from fedapps.lab.contests.state import State, load_state
from fedapps.lab.contests.trials import (
    LOCAL,
    PARTS,
    PORTFOLIO,
    Contestant,
    Execute,
    Trial,
    Trials,
    assembled,
    portfolio,
    score_on,
)
from fedapps.lab.contests.verdict import Outcome
from fedapps.lab.sweeps.execution import Way, only_one, uses_gpu
from fedapps.lab.sweeps.pool import Pool
from fedapps.notes import each_once

#: Settings that a contest chooses itself.
RESERVED = ("method", "train.learning-rate", "evaluate-every", "checkpoint-every", "until", "out")
PILOT_ROUNDS = 3
#: Share of the validation samples, the same for all methods.
VALIDATION = 0.2


def run_contest(
    given: Mapping[str, Any],
    out: Path,
    *,
    way: Way,
    budget: float = 1800.0,
    methods: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Contest, Outcome, str]:
    """Run or continue the contest in ``out``; write and return its verdict. ``way``:
    how many runs go at a time.
    """
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
                say=say,
            )
            contest.run()
        result, text = write_verdict(contest)
    return contest, result, text


def base_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all runs, with those that a contest fills in. Raises
    ``UserError``.
    """
    if "data.source" in given:  # the default task has a data set of its own
        given = {"task": "classification", **given}
    scored = score_on(given)
    for key in (*RESERVED, scored):
        if key in given:
            raise UserError(f"{key}: a contest chooses it: leave it out")
    if given.get("data.split-seed", "0") == "seed":
        raise UserError(
            "data.split-seed = 'seed': the seeds of a contest must share their test samples: "
            "choose a number"
        )
    return {f"{scored.partition('.')[0]}.validation": VALIDATION, **given}


def start(
    given: Mapping[str, Any],
    out: Path,
    execute: Execute,
    *,
    budget: float = 0.0,
    methods: Sequence[str] = PORTFOLIO,
    jobs: int = 1,
    most_seeds: int = 10,
    say: Callable[[str], None] = lambda line: None,
) -> Contest:
    """Return the contest in ``out``: the one that is there, or a new one, whose cost
    is measured and reported. Raises ``UserError``.

    ``given``: settings of all runs. ``budget``: seconds, 0: no limit. ``jobs``: runs at
    a time. ``most_seeds``: of the race.
    """
    given = base_of(given)
    began = time.monotonic()
    known, left_out, full, unscored = portfolio(given, methods)
    asked = {"given": dict(given), "methods": list(methods)}
    if (state := load_state(out)) is not None:
        if state.asked != asked:
            raise UserError(
                f"{out} holds a contest with other settings or methods: choose another --out, or "
                "delete that folder"
            )
        state.budget = budget
        contest = Contest(state, Trials(given, out, state.rounds, execute), say, jobs)
        contest.say(f"going on after {seconds_text(state.elapsed)} in {out}")
        return contest
    out.mkdir(parents=True, exist_ok=True)
    for name, reason in {**left_out, **unscored}.items():
        say(f"{name} is left out{' of the race' * (name in unscored)}: {reason}")
    most = int(full["num-rounds"]) // PARTS * PARTS
    if not most:
        raise UserError(f"num-rounds = {full['num-rounds']}: a contest needs at least {PARTS}")
    state = State(asked, full, most, budget, known, left_out, unscored=unscored)
    state.most_seeds = most_seeds
    if budget:
        measure_costs(state, given, out / "pilot", execute, jobs)
        state.rounds = affordable_rounds(state, jobs, most)
    if state.rounds != full["num-rounds"]:
        say(f"{state.rounds} rounds instead of num-rounds = {full['num-rounds']}")
    contest = Contest(state, Trials(given, out, state.rounds, execute), say, jobs)
    if budget:
        say(f"{len(state.methods)} methods, {jobs} runs at a time: {described(state, jobs)}")
    state.elapsed = time.monotonic() - began
    contest.save()
    return contest


def measure_costs(
    state: State, given: Mapping[str, Any], out: Path, execute: Execute, jobs: int
) -> None:
    """Measure what a round of each method costs, and what a run costs beside its
    rounds.
    """
    pilot = Trials(given, out, PARTS, execute)
    # starts the processes, once for the whole contest
    pilot.run(Trial(Contestant(LOCAL), seed, 1) for seed in range(1, jobs + 1))
    trials = [Trial(Contestant(method), 0, PILOT_ROUNDS) for method in state.methods]
    began = time.monotonic()
    pilot.run(trials)
    wall, work = time.monotonic() - began, 0.0
    for trial in trials:
        if trial.folder in pilot.errors:
            if trial.who.method in KEPT:
                raise UserError(f"{trial.who.method}: {pilot.errors[trial.folder]}")
            state.left_out[trial.who.method] = pilot.errors[trial.folder]
            state.methods.remove(trial.who.method)
            continue
        work += pilot.read(trial).numbers["seconds"]
    state.costs |= pilot.costs
    state.start_seconds = max(wall * min(jobs, len(trials)) - work, 0.0) / len(trials)
