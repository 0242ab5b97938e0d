"""Exams check that a method does what every federated method must do. They run any
strategy and client on small problems.

    from fedapps.testing import exams

    def test_mine():
        mine = exams.pair(METHOD, MyOptions(pull=1.0))
        exams.reduces(mine, exams.pair("fedavg"))  # pull = 1 is FedAvg
        exams.every(mine)

An exam raises ``AssertionError`` with the reason. Exams are plain functions for any
test runner, and each takes about a second.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy
from safetensors.numpy import load, save

from fedapps.algorithms.common.fleet import Fleet
from fedapps.clients import to_client_app
from fedapps.clients.base.adapter import client_id
from fedapps.clients.base.store import MessageStore, Store
from fedapps.engines.inline import InlineGrid
from fedapps.methods import METHODS, find_method
from fedapps.methods.method import Method
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import checked_strategy, with_defaults
from fedapps.strategies.base.capabilities import (
    StartingElsewhere,
    buffering,
    load_state,
    state_of,
)
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.clocks import VirtualClock
from fedapps.strategies.base.messages import innermost
from fedapps.strategies.base.rounds import Patience, run_rounds
from fedapps.strategies.base.timing import Timing
from fedapps.tasks.context import RunContext
from fedapps.testing.problems import Blobs, Named, Problem, Quadratics

#: The training configuration of clients, unless an exam changes it: with momentum, and
#: with mini-batches of which the last is smaller.
CONFIG = {
    "local-epochs": 2,
    "batch-size": 8,
    "learning-rate": 0.05,
    "momentum": 0.9,
    "weight-decay": 0.0,
    "lr-decay": 1.0,
    "seed": 3,
}


@dataclass(frozen=True)
class Pair:
    """The two halves of a method: ``strategy(problem)``, and ``client(problem,
    client_id, num_clients, store)``.

    The problem provides a client's data, net and objective
    (``fedapps.testing.problems.Problem``). The store holds its state between rounds.
    Both functions are called for every run of an exam.
    """

    strategy: Callable[[Any], Strategy]
    client: Callable[[Any, int | str, int, Store], NumPyClient]


def pair(method: str | Method, options: Any = None) -> Pair:
    """Return the halves of a method, ours or yours, given by its name or its entry. A
    method that wraps another one is put around FedAvg.
    """
    entry = find_method(method) if isinstance(method, str) else method
    chosen = options if options is not None or entry.options is None else entry.options()
    if entry.strategy is not None and entry.client is not None:
        make, client = entry.strategy_factory, entry.client_factory
        return Pair(
            lambda problem: make(chosen, problem, RunContext()), lambda *at: client(chosen, *at)
        )
    if entry.wrap is None:
        raise ValueError(
            "the method neither has a strategy and a client nor wraps another method: examine the "
            "methods that it uses"
        )
    wrap, inner = entry.wrap, pair("fedavg")
    if entry.loss is None:
        return Pair(lambda problem: wrap(inner.strategy(problem), chosen), inner.client)
    with_loss = METHODS["fedavg"].client.with_loss(entry.loss)  # type: ignore[union-attr]
    return Pair(
        lambda problem: wrap(inner.strategy(problem), chosen), lambda *at: with_loss(None, *at)
    )


def of_run(config: Mapping[str, Any]) -> tuple[Pair, "RunProblem"]:
    """Return the method and the task of a run with these settings, as halves and a
    problem. Use it for your own tasks, and for methods that need a special task.
    """
    settings = with_defaults(config)
    task = build_task(settings)
    checked_strategy(settings, task)
    halves = Pair(
        lambda problem: build_strategy(settings, problem.task),
        lambda problem, client, _, store: build_client(
            settings, problem.task, client, settings.num_clients, store
        ),
    )
    return halves, RunProblem(task, min(settings.num_clients, 4))


class RunProblem:
    """A run's task as a problem of exams, with the first ``num_clients`` of its
    clients.
    """

    def __init__(self, task: Any, num_clients: int) -> None:
        self.task, self.num_clients = task, num_clients

    def initial_arrays(self) -> Named:
        """Return the arrays that a run starts from."""
        return dict(self.task.initial_arrays())


AnyProblem = Problem | RunProblem


# --- the exams ------------------------------------------------------------------------


def every(mine: Pair, problem: AnyProblem | None = None) -> None:
    """Run all exams that need only the method: repeats, resumes, survives."""
    problem = problem or Blobs()
    whole = play(mine, problem, 4)
    repeats(mine, problem, num_rounds=4, whole=whole)
    resumes(mine, problem, whole=whole)
    survives(mine, problem)


def reduces(
    mine: Pair,
    to: Pair,
    problem: Problem | None = None,
    *,
    num_rounds: int = 3,
    tolerance: float = 1e-5,
    **config: Any,
) -> None:
    """Check that with these options the method equals another method: both end with the
    same model.
    """
    problem = problem or Blobs()
    result, wanted = (play(one, problem, num_rounds, config) for one in (mine, to))
    start = problem.initial_arrays()
    moved = [
        not np.allclose(wanted[name], start[name], rtol=tolerance, atol=tolerance) for name in start
    ]
    assert any(moved), "the other method did not change the model, so nothing can be compared"
    assert result.keys() == wanted.keys(), (
        f"the arrays are {sorted(result)}, the other method's are {sorted(wanted)}"
    )
    for name, array in wanted.items():
        np.testing.assert_allclose(
            result[name], array, rtol=tolerance, atol=tolerance, err_msg=f"{name} differs"
        )


def finds(
    mine: Pair,
    point: float,
    problem: Quadratics | None = None,
    *,
    num_rounds: int = 60,
    tolerance: float = 1e-3,
    **config: Any,
) -> None:
    """Check that on quadratics the global model converges to ``point``, which you have
    derived (``Quadratics.averaged``: FedAvg's).
    """
    plain = {"momentum": 0.0, "learning-rate": 0.02, "local-epochs": 5}
    end = float(play(mine, problem or Quadratics(), num_rounds, {**plain, **config})["w"][0])
    assert abs(end - point) <= tolerance, f"the model ends at {end:.6g}, not at {point:.6g}"


def stays(mine: Pair, *, num_rounds: int = 5, tolerance: float = 1e-5, **config: Any) -> None:
    """Check that the model stays where it is if the run starts from the common optimum
    of all clients, whatever their curvatures.
    """
    problem = Quadratics((1.0, 4.0, 10.0), (2.0, 2.0, 2.0), start=2.0)
    end = float(
        play(mine, problem, num_rounds, {"momentum": 0.0, "learning-rate": 0.02, **config})["w"][0]
    )
    assert abs(end - 2.0) <= tolerance, (
        f"the model moves from 2, the optimum of all clients, to {end:.6g}"
    )


def repeats(
    mine: Pair,
    problem: AnyProblem | None = None,
    *,
    num_rounds: int = 3,
    whole: Named | None = None,
    **config: Any,
) -> None:
    """Check that the same seed gives the same bits, in any order of replies.

    ``whole``: the end of a run of this many rounds, if you have it; also below.
    """
    problem = problem or Blobs()
    first = whole or play(mine, problem, num_rounds, config)
    other = play(mine, problem, num_rounds, config, grid=_Reversed)
    if not _equal(first, other):
        _same(first, play(mine, problem, num_rounds, config), "a second run with the same seed")
        _same(first, other, "a run whose replies arrive in reverse order")


def resumes(
    mine: Pair,
    problem: AnyProblem | None = None,
    *,
    num_rounds: int = 4,
    after: int = 2,
    whole: Named | None = None,
    **config: Any,
) -> None:
    """Check that a run can be resumed: stopped after a round, saved as arrays and
    continued by a new strategy, it ends like an uninterrupted run.
    """
    problem = problem or Blobs()
    whole = whole or play(mine, problem, num_rounds, config)
    grid = _grid(mine, problem, InlineGrid)  # clients keep their states
    before = mine.strategy(problem)
    clock, later = _timing(before), _timing(before)
    start = _start(before, problem)
    arrays = _rounds(before, grid, start, num_rounds, config, last=after, timing=clock)
    if clock and later:
        later.load_state_dict(load(save(clock.state_dict())))
    kept = {name: np.array(array, order="C") for name, array in state_of(before).items()}
    state = load(save(kept)) if kept else {}
    for name, array in kept.items():
        same = state[name].dtype == array.dtype and state[name].tobytes() == array.tobytes()
        assert same, f"state {name!r} changes when it is saved to a file and loaded"
    then = mine.strategy(problem)
    load_state(then, state)
    begin = after + 1
    arrays = _rounds(then, grid, arrays, num_rounds, config, first_round=begin, timing=later)
    _same(
        whole,
        {name: array.numpy() for name, array in arrays.items()},
        f"a run that was resumed after round {after}",
    )


def survives(
    mine: Pair, problem: AnyProblem | None = None, *, lies: Sequence[str] = (), **config: Any
) -> None:
    """Check that a run continues without a client that fails from round 2 on, and that
    an invalid reply has the same effect as a missing one.

    ``lies``: the names in ``LIES`` to try, by default all: one a round.
    """
    problem, tried = problem or Blobs(), list(lies or LIES)
    num_rounds = max(3, 1 + len(tried))
    silent = play(_with_fault(mine, problem, ()), problem, num_rounds, config)
    assert all(np.isfinite(array).all() for array in silent.values()), (
        "after a client failed, the model is not finite"
    )
    together = play(_with_fault(mine, problem, tried), problem, num_rounds, config)
    if not _equal(silent, together):
        for lie in tried:
            result = play(_with_fault(mine, problem, [lie]), problem, num_rounds, config)
            _same(silent, result, f"a run in which a client's reply was {lie}, instead of missing,")
        _same(silent, together, f"a run in which a client's replies were {tried}, not missing,")


#: Functions that make an invalid reply from a client's arrays and number of samples.
LIES: dict[str, Callable[[list[Any], int], tuple[list[Any], int]]] = {
    "not a number": lambda arrays, n: ([np.full_like(array, np.nan) for array in arrays], n),
    "infinite": lambda arrays, n: ([np.full_like(array, np.inf) for array in arrays], n),
    "of another shape": lambda arrays, n: (
        [np.concatenate([array.ravel(), array.ravel()[:1]]) for array in arrays],
        n,
    ),
    "short of an array": lambda arrays, n: (arrays[:-1], n),
    "of less than no samples": lambda arrays, n: (arrays, -n),
}


# --- execution of the exams -----------------------------------------------------------


def play(
    mine: Pair,
    problem: AnyProblem,
    num_rounds: int,
    config: Mapping[str, Any] | None = None,
    grid: type[InlineGrid] = InlineGrid,
) -> Named:
    """Run the method on a problem, with all clients in every round. Return the arrays
    of the last model by name.
    """
    strategy = mine.strategy(problem)
    start = _start(strategy, problem)
    timing, grid_ = _timing(strategy), _grid(mine, problem, grid)
    arrays = _rounds(strategy, grid_, start, num_rounds, config, timing=timing)
    return {name: array.numpy() for name, array in arrays.items()}


def _grid(mine: Pair, problem: AnyProblem, kind: type[InlineGrid]) -> InlineGrid:
    n = problem.num_clients
    app = to_client_app(
        lambda context: mine.client(problem, client_id(context), n, MessageStore(context.state))
    )
    return kind(app, n)


def _rounds(
    strategy: Strategy,
    grid: InlineGrid,
    arrays: ArrayRecord,
    num_rounds: int,
    config: Mapping[str, Any] | None,
    first_round: int = 1,
    last: int = 0,
    timing: Timing | None = None,
) -> ArrayRecord:
    sent = {
        **CONFIG,
        **{name.replace("_", "-"): value for name, value in (config or {}).items()},
        "first-round": first_round,
    }
    sent["checkpoint-round"] = first_round - 1  # clients ignore their states of later rounds
    result = run_rounds(
        strategy,
        ClientGrid(grid, seed=3, timing=timing),
        arrays,
        num_rounds,
        60.0,
        ConfigRecord(sent),
        ConfigRecord(sent),
        first_round=first_round,
        evaluate_every=0,
        patience=Patience(1, num_rounds),
        log_result=False,
        # stops after round `last`; the strategy still gets the full number of rounds
        callbacks=[lambda now: now.number == last],
    )
    return result.arrays


def _timing(strategy: Strategy) -> Timing | None:
    """Return the simulated clock that asynchronous rounds need to be repeatable."""
    return Timing(VirtualClock(Fleet(seed=3))) if buffering(strategy) else None


def _start(strategy: Strategy, problem: AnyProblem) -> ArrayRecord:
    inner = innermost(strategy)
    made = inner.first_arrays() if isinstance(inner, StartingElsewhere) else None
    return _record(problem.initial_arrays() if made is None else made)


def _record(arrays: Named) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _equal(one: Named, other: Named) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _same(wanted: Named, result: Named, what: str) -> None:
    assert wanted.keys() == result.keys(), (
        f"{what} ends with the arrays {sorted(result)}, not {sorted(wanted)}"
    )
    for name, array in wanted.items():
        most = (
            float(np.abs(np.asarray(result[name], float) - array).max())
            if result[name].shape == array.shape
            else float("nan")
        )
        assert np.array_equal(result[name], array), (
            f"{what} ends with another {name!r}: they differ by up to {most:.3g}"
        )


class _Reversed(InlineGrid):
    """A grid whose clients answer, and whose replies arrive, in reverse order."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return super().push_messages(list(messages)[::-1])[::-1]

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        return super().pulled(numbers)[::-1]


def _with_fault(mine: Pair, problem: AnyProblem, lies: Sequence[str]) -> Pair:
    """Return the pair with a last client that sends these lies, one a round from round
    2 on, and then fails.
    """

    def client(problem: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        made: Any = mine.client(problem, client_id, num_clients, store)
        if client_id != num_clients - 1:
            return made  # type: ignore[no-any-return]
        fit = made.fit

        def faulty(parameters: Any, config: Any) -> Any:
            number = int(config["server-round"])
            if number > 1 + len(lies):
                raise RuntimeError("the exam lets this client fail")
            arrays, samples, metrics = fit(parameters, config)
            if number > 1:
                arrays, samples = LIES[lies[number - 2]](list(arrays), samples)
            return arrays, samples, metrics

        made.fit = faulty
        return made  # type: ignore[no-any-return]

    return Pair(mine.strategy, client)
