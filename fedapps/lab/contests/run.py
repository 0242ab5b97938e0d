"""A whole contest in the sweeps' pool: ``fedapps contest`` and ``fedapps.contest``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.setup import base_of, start
from fedapps.lab.contests.trials import LOCAL, PORTFOLIO, assembled
from fedapps.lab.contests.verdict import Outcome
from fedapps.lab.sweeps.execution import Way, only_one, uses_gpu
from fedapps.lab.sweeps.pool import Pool
from fedapps.notes import each_once


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
        found, text = write_verdict(contest)
    return contest, found, text
