"""The plan of a contest: grids of rates, lengths of the stages, and about how long they
take.
"""

from collections.abc import Iterable, Sequence

from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.contests.state import State
from fedapps.lab.contests.trials import (
    AVERAGE,
    FINETUNE,
    LOCAL,
    PARTS,
    TREES,
    UNFEDERATED,
    has_rate,
)

#: The methods that are never dropped, where they take part.
KEPT = (*UNFEDERATED, AVERAGE, FINETUNE)
#: The one method beside them of a contest with little time: the first that can run.
ONE_MORE = (TREES, "superfed-mm")
#: Exponents of 10 of the rates: of training alone around the task's own rate, of the
#: others around the best of training alone, and how far a grid is extended.
ALONE_GRID = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
GRID = (-0.5, 0.0, 0.5)
STEP = 0.5
FOLDS = 5
#: Why a method takes no part.
DEAR = "the budget is too small"
MARGIN = 1.1


def grid(method: str, centre: float, exponents: Iterable[float]) -> list[float]:
    """Return the rates of a method's grid; one 0 for a method without steps."""
    return [centre * 10**e for e in exponents] if has_rate(method) else [0.0]


def small(methods: Sequence[str]) -> list[str]:
    """Return the methods of a contest with little time."""
    more = [name for name in ONE_MORE if name in methods][:1]
    return [name for name in methods if name in (*KEPT, *more)]


def seconds(state: State, method: str, rounds: float) -> float:
    """Return about how long a run of a method takes, with one evaluation."""
    rounds = rounds if has_rate(method) else state.tree_rounds
    each, evaluation = state.costs.get(method) or map(max, *state.costs.values(), (0.0, 0.0))
    return state.start_seconds + rounds * each + evaluation


def fold_seconds(state: State, methods: Sequence[str], jobs: int, rounds: int) -> float:
    """Return about how long a fold takes: the rates of all, and then half of those who
    are left until a quarter, half and all of the rounds, and the finalists once more.
    """
    costs = [seconds(state, m, rounds) for m in methods]
    eighth = {m: seconds(state, m, rounds / PARTS) for m in methods}
    work = len(ALONE_GRID) * eighth[LOCAL]
    work += sum(len(GRID if has_rate(m) else "1") * eighth[m] for m in methods if m != LOCAL)
    steps = [cost for m, cost in zip(methods, costs, strict=True) if has_rate(m)]
    n = 2 * len(steps)
    for share in (1 / 8, 1 / 4, 1 / 2):
        work += n * share * sum(steps) / len(steps)
        n = max(n // 2, len(KEPT))
    finalists = [seconds(state, m, rounds) for m in KEPT if m in methods]
    return (work + sum(finalists) + max(costs)) / jobs


def planned(state: State, jobs: int, most: int) -> tuple[list[str], int, int]:
    """Return methods, folds and rounds that keep to the budget: rather fewer rounds
    (down to half) than fewer folds, rather fewer folds than few methods. Raises
    ``UserError`` if even the smallest contest takes longer.
    """
    few = small(state.methods)
    nets = [method for method in few if has_rate(method)]
    choices = [(state.methods, FOLDS), (state.methods, 3), (few, FOLDS), (few, 3), (few, 2)]
    choices += [(nets, 2)]
    for place, (methods, folds) in enumerate(choices):
        least = PARTS if place >= len(choices) - 2 else max(PARTS, most // 2 // PARTS * PARTS)
        for rounds in range(most, least - 1, -PARTS):
            wanted = MARGIN * folds * fold_seconds(state, methods, jobs, rounds)
            if not state.budget or wanted + state.elapsed <= state.budget:
                return list(methods), folds, rounds
    raise UserError(
        f"a budget of {seconds_text(state.budget)}: even with {PARTS} rounds, two folds and "
        f"{len(nets)} methods the contest takes about {seconds_text(wanted)}: raise it"
    )
