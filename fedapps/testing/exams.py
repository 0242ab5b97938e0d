"""Exams of a method: does it what a federated method must, whichever it is? For any
strategy and client, on small problems.

    from fedapps.testing import exams

    def test_mine():
        mine = exams.pair(METHOD, MyOptions(pull=1.0))
        exams.reduces(mine, exams.pair("fedavg"))  # pull = 1 is FedAvg
        exams.every(mine)

An exam raises ``AssertionError`` with what it found. They are plain functions, for any
test runner, and take a second or so each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy
from safetensors.numpy import load, save

from clients import to_client_app
from clients.base.adapter import client_id
from clients.base.store import MessageStore, Store
from fedapps.engines.inline import InlineGrid
from fedapps.methods import METHODS, find_method
from fedapps.methods.method import Method
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import checked_strategy, with_defaults
from fedapps.tasks.context import RunContext
from fedapps.testing.problems import Blobs, Named, Problem, Quadratics
from strategies.base.capabilities import MakingSamples, load_state, state_of
from strategies.base.client_grid import ClientGrid
from strategies.base.messages import innermost
from strategies.base.rounds import Patience, run_rounds

#: What clients are told for training, unless an exam says otherwise: momentum, and
#: mini-batches of which the last is smaller.
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

    A client's problem gives it data, net and objective
    (``fedapps.testing.problems.Problem``); what it keeps between rounds is in its
    store. Both are called anew for every run of an exam.
    """

    strategy: Callable[[Any], Strategy]
    client: Callable[[Any, int | str, int, Store], NumPyClient]


def pair(method: str | Method, options: Any = None) -> Pair:
    """Return the halves of a method of ours or yours, by its name or its entry; one
    that wraps another is put around FedAvg.
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
            "the method has no strategy and client of its own, and wraps no other: examine its "
            "parts"
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
    problem: for tasks of yours, and methods that need a task of their own.
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
    """All exams that need no rival and no number: repeats, resumes, survives."""
    for exam in (repeats, resumes, survives):
        exam(mine, problem)


def reduces(
    mine: Pair,
    to: Pair,
    problem: Problem | None = None,
    *,
    num_rounds: int = 3,
    tolerance: float = 1e-5,
    **config: Any,
) -> None:
    """With options that take the method's own part away, it is another method: both
    leave the same model.
    """
    problem = problem or Blobs()
    found, wanted = (play(one, problem, num_rounds, config) for one in (mine, to))
    start = problem.initial_arrays()
    moved = [
        not np.allclose(wanted[name], start[name], rtol=tolerance, atol=tolerance) for name in start
    ]
    assert any(moved), "the other method has not moved: nothing is compared"
    assert found.keys() == wanted.keys(), (
        f"the arrays are {sorted(found)}, the other method's {sorted(wanted)}"
    )
    for name, array in wanted.items():
        np.testing.assert_allclose(
            found[name], array, rtol=tolerance, atol=tolerance, err_msg=f"{name} differs"
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
    """On quadratics the global model comes to rest at ``point``, which you have derived
    (``Quadratics.averaged``: FedAvg's).
    """
    plain = {"momentum": 0.0, "learning-rate": 0.02, "local-epochs": 5}
    found = float(play(mine, problem or Quadratics(), num_rounds, {**plain, **config})["w"][0])
    assert abs(found - point) <= tolerance, f"it comes to {found:.6g}, not to {point:.6g}"


def stays(mine: Pair, *, num_rounds: int = 5, tolerance: float = 1e-5, **config: Any) -> None:
    """Where all clients have the optimum that the run starts from, whatever their
    curvatures, nothing moves.
    """
    problem = Quadratics((1.0, 4.0, 10.0), (2.0, 2.0, 2.0), start=2.0)
    found = float(
        play(mine, problem, num_rounds, {"momentum": 0.0, "learning-rate": 0.02, **config})["w"][0]
    )
    assert abs(found - 2.0) <= tolerance, (
        f"from the optimum of all clients, 2, it moves to {found:.6g}"
    )


def repeats(
    mine: Pair, problem: AnyProblem | None = None, *, num_rounds: int = 3, **config: Any
) -> None:
    """The same seed gives the same bits, in whatever order replies arrive."""
    problem = problem or Blobs()
    first, again = (play(mine, problem, num_rounds, config) for _ in range(2))
    _same(first, again, "a second run with the same seed")
    _same(
        first,
        play(mine, problem, num_rounds, config, grid=_Reversed),
        "a run whose replies arrive the other way round",
    )


def resumes(
    mine: Pair,
    problem: AnyProblem | None = None,
    *,
    num_rounds: int = 4,
    after: int = 2,
    **config: Any,
) -> None:
    """Stopped after a round, saved as arrays and gone on with by a new strategy, a run
    ends as if it had not been.
    """
    problem = problem or Blobs()
    whole = play(mine, problem, num_rounds, config)
    grid = _grid(mine, problem, InlineGrid)  # the clients and what they keep live on
    before = mine.strategy(problem)
    arrays = _rounds(before, grid, _start(before, problem), num_rounds, config, last=after)
    kept = {name: np.array(array, order="C") for name, array in state_of(before).items()}
    state = load(save(kept)) if kept else {}
    for name, array in kept.items():
        same = state[name].dtype == array.dtype and state[name].tobytes() == array.tobytes()
        assert same, f"state {name!r} does not survive a file"
    then = mine.strategy(problem)
    load_state(then, state)
    arrays = _rounds(then, grid, arrays, num_rounds, config, first_round=after + 1)
    _same(
        whole,
        {name: array.numpy() for name, array in arrays.items()},
        f"a run that was resumed after round {after}",
    )


def survives(
    mine: Pair, problem: AnyProblem | None = None, *, lies: Sequence[str] = (), **config: Any
) -> None:
    """A client that fails in round 2 is done without, and one that sends nonsense costs
    no more than one that fails.

    ``lies``: which of ``LIES`` are told, by default all.
    """
    problem = problem or Blobs()
    silent = play(_with_fault(mine, problem, None), problem, 3, config)
    assert all(np.isfinite(array).all() for array in silent.values()), (
        "after a client failed, the model is not finite"
    )
    for lie in lies or LIES:
        found = play(_with_fault(mine, problem, LIES[lie]), problem, 3, config)
        _same(silent, found, f"a run in which a client's reply was {lie}, instead of missing,")


#: What a lying client makes of its arrays and its number of samples.
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


# --- how they are played --------------------------------------------------------------


def play(
    mine: Pair,
    problem: AnyProblem,
    num_rounds: int,
    config: Mapping[str, Any] | None = None,
    grid: type[InlineGrid] = InlineGrid,
) -> Named:
    """Run the method on a problem, all clients in every round; return the arrays of the
    last model by name.
    """
    strategy = mine.strategy(problem)
    start = _start(strategy, problem)
    arrays = _rounds(strategy, _grid(mine, problem, grid), start, num_rounds, config)
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
) -> ArrayRecord:
    told = {
        **CONFIG,
        **{name.replace("_", "-"): value for name, value in (config or {}).items()},
        "first-round": first_round,
    }
    told["checkpoint-round"] = first_round - 1  # what clients keep from later rounds does not count
    result = run_rounds(
        strategy,
        ClientGrid(grid, seed=3),
        arrays,
        num_rounds,
        60.0,
        ConfigRecord(told),
        ConfigRecord(told),
        first_round=first_round,
        evaluate_every=0,
        patience=Patience(1, num_rounds),
        log_result=False,
        # a run that stops there knows of as many rounds as one that goes on
        callbacks=[lambda now: now.number == last],
    )
    return result.arrays


def _start(strategy: Strategy, problem: AnyProblem) -> ArrayRecord:
    inner = innermost(strategy)
    made = inner.first_arrays() if isinstance(inner, MakingSamples) else None
    return _record(problem.initial_arrays() if made is None else made)


def _record(arrays: Named) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _same(wanted: Named, found: Named, what: str) -> None:
    assert wanted.keys() == found.keys(), (
        f"{what} ends with the arrays {sorted(found)}, not {sorted(wanted)}"
    )
    for name, array in wanted.items():
        most = (
            float(np.abs(np.asarray(found[name], float) - array).max())
            if found[name].shape == array.shape
            else float("nan")
        )
        assert np.array_equal(found[name], array), (
            f"{what} ends with another {name!r}: they differ by up to {most:.3g}"
        )


class _Reversed(InlineGrid):
    """A grid whose clients answer, and whose replies arrive, the other way round."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return super().push_messages(list(messages)[::-1])[::-1]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return super().pull_messages(message_ids)[::-1]


def _with_fault(
    mine: Pair, problem: AnyProblem, lie: Callable[[list[Any], int], tuple[list[Any], int]] | None
) -> Pair:
    """Return the pair with a last client that in round 2 fails, or lies, and in later
    rounds fails.
    """

    def client(problem: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        made: Any = mine.client(problem, client_id, num_clients, store)
        if client_id != num_clients - 1:
            return made  # type: ignore[no-any-return]
        fit = made.fit

        def faulty(parameters: Any, config: Any) -> Any:
            number = int(config["server-round"])
            if number > 2 or (number == 2 and lie is None):
                raise RuntimeError("the exam lets this client fail")
            arrays, samples, metrics = fit(parameters, config)
            if number < 2 or lie is None:
                return arrays, samples, metrics
            return *lie(list(arrays), samples), metrics

        made.fit = faulty
        return made  # type: ignore[no-any-return]

    return Pair(mine.strategy, client)
