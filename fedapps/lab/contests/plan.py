"""The plan of a contest: its grids and seeds, and about how long they take."""

from collections.abc import Iterable

from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.contests.state import State
from fedapps.lab.contests.trials import AVERAGE, FINETUNE, LOCAL, PARTS, has_rate

#: The methods that are never dropped.
KEPT = (LOCAL, AVERAGE, FINETUNE)
#: Exponents of 10 of the rates: of training alone around the task's own rate, of the
#: others around the best of training alone, and how far a grid is extended.
ALONE_GRID = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
GRID = (-0.75, -0.25, 0.25, 0.75)
STEP = 0.5
FIRST_SEEDS, MOST_SEEDS, FINAL_SEEDS = 3, 10, 5
#: Share of the budget after which no step of the race begins.
RACE_ENDS = 0.6
MARGIN = 1.1


def grid(method: str, centre: float, exponents: Iterable[float]) -> list[float]:
    """Return the rates of a method's grid; one 0 for a method without steps."""
    return [centre * 10**e for e in exponents] if has_rate(method) else [0.0]


def seconds(state: State, method: str, rounds: int, evaluations: int = 1) -> float:
    """Return about how long a run of a method takes."""
    each, evaluation = state.costs.get(method) or map(max, *state.costs.values(), (0.0, 0.0))
    return state.start_seconds + rounds * each + evaluations * evaluation


def wall_seconds(state: State, jobs: int, missing: Iterable[tuple[str, int]]) -> float:
    """Return about how long these rounds of these methods take, each in a run."""
    work = [seconds(state, method, rounds) for method, rounds in missing]
    return sum(work) / jobs + max(work, default=0.0) * (jobs > 1)


def stage_seconds(state: State, jobs: int, rounds: int) -> tuple[float, float, float]:
    """Return about how long the rates, the first step of the race and the final take,
    in which the dearest method may lead.
    """
    grids = {m: len(GRID) if has_rate(m) else 1 for m in state.methods if m != LOCAL}
    first = len(ALONE_GRID) * seconds(state, LOCAL, rounds)
    first += sum(n * seconds(state, m, rounds // PARTS) for m, n in grids.items())
    race = FIRST_SEEDS * sum(
        min(grids.get(m, 1), 2) * seconds(state, m, rounds // 4) for m in state.methods
    )
    finalists = [seconds(state, m, rounds, 4) for m in KEPT]
    finalists += [max(seconds(state, m, rounds, 4) for m in state.methods)]
    return first / jobs, race / jobs, FINAL_SEEDS * sum(finalists) / jobs


def affordable_rounds(state: State, jobs: int, most: int) -> int:
    """Return the most rounds, a multiple of ``PARTS``, with which the contest keeps to
    its budget. Raises ``UserError`` if there are none.
    """
    for rounds in range(most, 0, -PARTS):
        rates, race, final = stage_seconds(state, jobs, rounds)
        least = MARGIN * max((rates + race) / RACE_ENDS, rates + race + final)
        if least <= state.budget:
            return rounds
    raise UserError(
        f"a budget of {seconds_text(state.budget)}: even with {PARTS} rounds the contest takes "
        f"about {seconds_text(least)}: raise it, or name fewer methods"
    )


def described(state: State, jobs: int) -> str:
    """Return what the stages will take, as text."""
    rates, race, final = stage_seconds(state, jobs, state.rounds)
    return (
        f"rates about {seconds_text(rates)}, race {seconds_text(race)} or more, final "
        f"{seconds_text(final)}, of {seconds_text(state.budget)}"
    )
