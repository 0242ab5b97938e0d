"""One and three workers give the same bits, for each kind of method: with sampled
clients, with momentum and partial batches (the defaults), and with a client that fails
after it has trained. The runs of a sweep share the cores.
"""

import multiprocessing
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Context, Message

from fedapps.engines import workers
from fedapps.engines.inline import InlineGrid
from fedapps.engines.processes import Cores
from fedapps.engines.workers import WorkerGrid, forks_train
from fedapps.lab.sweeps import pool
from fedapps.runs import inline_grid
from fedapps.runs.assembly import build_task
from fedapps.runs.client_factory import share
from fedapps.runs.execution import execute
from fedapps.runs.inline_grid import load_app, number_of_workers
from fedapps.runs.prepare import with_defaults
from fedapps.strategies.base.messages import trains
from tests.helpers import outcome_of
from tests.small_jobs import SMALL

JOB = {
    "num-clients": 8,
    "clients-per-round": 5,
    "num-rounds": 3,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "train.local-epochs": 1,
}
TIMES = {"time.dropout": 0.1, "time.jitter": 0.5}
#: A method for each kind of message and state, with its job.
KINDS = {
    **{
        name: {"method": name, **SMALL.get(name, {})}
        for name in (
            *("fedavg", "scaffold", "superfed-mm", "fedbuff", "aaggff-d", "fedboost", "ffgb"),
            *("histogram-boosting", "fedfw", "fedevg", "warm-start"),
        )
    },
    "in messages": {"method": "scaffold", "client-store": "message", "checkpoint-every": 0},
    "fedbuff with a clock": {"method": "fedbuff", **TIMES},
    "over-selection": {"method": "fedavg", "rounds.over-select": 0.4, **TIMES},
    "partial work": {
        **{"method": "finetune", "train.local-epochs": 2, "rounds.deadline": 0.8, **TIMES},
        "rounds.late": "partial",
    },
}


def failing_app():
    """Return the app of the runs, in which client 3 fails in round 2."""
    app = load_app()

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if (
            trains(message)
            and message.content.config_records.get("config", {}).get("server-round") == 2
            and context.node_config["partition-id"] == 3
        ):
            raise RuntimeError("out of battery")
        return reply

    return answer


def run(folder, workers, callbacks=(), start=None, **config):
    start = start or ("fork" if forks_train() else "spawn")
    settings = with_defaults({**JOB, **config, "out": str(folder)})
    flat = settings.flat()
    share(flat, settings, build_task(settings))
    if workers == 1:
        grid = InlineGrid(failing_app(), settings.num_clients, flat, numbered=True)
        execute(settings, grid, callbacks)
        return outcome_of(folder)
    with WorkerGrid(
        failing_app, settings.num_clients, flat, numbered=True, workers=workers, method=start
    ) as grid:
        execute(settings, grid, callbacks)
    return outcome_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits(kind, tmp_path):
    expected = run(tmp_path / "1", 1, **KINDS[kind])
    assert (len(expected[0]), run(tmp_path / "3", 3, **KINDS[kind])) == (3, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1)])
def test_a_resumed_run_may_have_other_workers(first, then, tmp_path):
    job = {"method": "scaffold", "num-rounds": 4}
    expected = run(tmp_path / "whole", 1, **job)
    # its checkpoint is that of round 2
    run(tmp_path / "parts", first, callbacks=[lambda now: now.number == 3], **job)
    assert run(tmp_path / "parts", then, **job, resume=True) == expected


def test_workers_are_many_where_a_run_has_much_work(monkeypatch):
    """Decided by steps. On one core, and for a task without a net, there is none."""
    monkeypatch.setattr("fedapps.runs.inline_grid.cores", lambda: 6)
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 1)
    monkeypatch.setattr("fedapps.engines.workers.forks_train", lambda: True)

    def number(given=None, **keys):
        settings = with_defaults({"method": "fedavg", "num-clients": 20, **keys})
        return number_of_workers(settings, build_task(settings), given)

    assert number(**{"num-rounds": 50}) == 6
    assert number(**{"num-rounds": 1, "train.local-epochs": 1}) == 1
    assert (number(**{"num-rounds": 50, "num-clients": 4}), number(method="fedfw")) == (4, 1)
    assert (number(3, method="fedfw"), number(30)) == (3, 20)
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 9)
    assert number(**{"num-rounds": 50}) == 1  # they would load everything anew
    monkeypatch.setattr("fedapps.runs.inline_grid.cores", lambda: 1)
    assert number(**{"num-rounds": 50_000}) == 1
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    assert number_of_workers(None, on_gpu, None) == 1


@pytest.mark.slow
def test_workers_that_are_started_as_new_programs(tmp_path):
    """As on macOS: each loads the app and the data itself."""
    job = {"num-rounds": 2, **KINDS["in messages"]}
    assert run(tmp_path / "2", 2, start="spawn", **job) == run(tmp_path / "1", 1, **job)


SWEPT = JOB | {"method": "scaffold", "num-rounds": 2}


def test_a_run_of_a_sweep_uses_the_cores_that_others_left(tmp_path, monkeypatch):
    """Its numbers are the same. It holds one core, and gives back all others after
    each phase.
    """
    pool.run_one(pool.PlannedRun(SWEPT, tmp_path / "alone"))
    used = []
    run_in = workers.WorkerGrid._run_in

    def counted(self, workers_used, asked):
        used.append((len(workers_used), shared.free.value))
        return run_in(self, workers_used, asked)

    monkeypatch.setattr(workers.WorkerGrid, "_run_in", counted)
    monkeypatch.setattr(workers, "usual_method", lambda: "fork")
    monkeypatch.setattr(inline_grid, "pays", lambda *_: True)
    shared = Cores(4, multiprocessing.Value("i", 3))
    monkeypatch.setattr(pool, "SHARED", [shared])
    pool.run_one(pool.PlannedRun(SWEPT, tmp_path / "together"))
    assert outcome_of(tmp_path / "together") == outcome_of(tmp_path / "alone")
    assert set(used) == {(3, 0)}
    assert shared.free.value == 3
