"""A whole contest in the sweeps' pool: ``fedapps contest`` and ``fedapps.contest``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.engines.processes import cores
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.setup import start
from fedapps.lab.contests.trials import PORTFOLIO
from fedapps.lab.contests.verdict import Outcome
from fedapps.lab.sweeps.execution import Way, only_one
from fedapps.lab.sweeps.pool import Pool
from fedapps.notes import each_once


def run_contest(
    given: Mapping[str, Any],
    out: Path,
    *,
    budget: float = 1800.0,
    methods: Sequence[str] | None = None,
    jobs: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Contest, Outcome, str]:
    """Run or continue the contest in ``out``; write and return its verdict."""
    out, jobs = out.expanduser().absolute(), Way(jobs=jobs).jobs or cores()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    # a note on the data holds for all runs
    with only_one(out), each_once(), Pool(jobs) as execute:
        contest = start(
            given,
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
