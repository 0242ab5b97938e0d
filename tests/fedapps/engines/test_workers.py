"""Worker processes of the inline engine: the same replies and states as in this
process, whatever fails, and no process left behind.
"""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.engines import workers
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import FIRST_NODE
from fedapps.engines.processes import Cores
from fedapps.engines.shared_memory import Segment, pack, unpack
from fedapps.engines.workers import WorkerGrid, forks_train
from fedapps.lab.sweeps import pool
from fedapps.runs import execution
from fedapps.runs.assembly import build_task
from fedapps.runs.client_factory import share
from fedapps.runs.execution import execute, load_app, number_of_workers
from fedapps.runs.prepare import with_defaults
from fedapps.strategies.base.flower_private import ErrorCode
from fedapps.strategies.base.messages import trains
from tests.helpers import outcome_of, printed
from tests.small_jobs import SMALL

CLIENTS = 7


def make_app():
    """Return an app whose clients add up what they were sent, in arrays and in a list
    of rounds; client 2 fails in round 2 and client 4 dies in round 3.
    """
    app = ClientApp()

    @app.train()
    def train(message, context):
        client, now = context.node_config["partition-id"], message.content["config"]["round"]
        if client == 4 and now == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        sent = message.content["arrays"]["w"].numpy()
        total = context.state.get("total")
        own = sent * (client + 1) + (total["w"].numpy() if total else 0)
        context.state["total"] = ArrayRecord({"w": Array(own)})
        rounds = [*context.state.get("rounds", {"past": []})["past"], now]
        context.state["rounds"] = ConfigRecord({"past": rounds})
        if client == 2 and now == 2:
            raise ValueError("no data today")
        logging.getLogger("flwr").info("client %s in round %d", client, now)
        metrics = MetricRecord({"num-examples": client + 1, "process": os.getpid()})
        return Message(
            RecordDict({"arrays": ArrayRecord({"w": Array(own)}), "metrics": metrics}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message, context):
        context.state["visits"] = ConfigRecord({"n": 1})
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    return app


def messages(now, kind="train", clients=range(CLIENTS)):
    """Return messages with one shared record of arrays."""
    arrays = ArrayRecord({"w": Array(np.arange(5.0) * now), "": Array(np.zeros((0, 3)))})
    config = ConfigRecord({"round": now})
    return [
        Message(RecordDict({"arrays": arrays, "config": config}), FIRST_NODE + client, kind)
        for client in clients
    ]


def contents(grid, asked):
    """Return content, without the process, or error of each reply, in order."""
    replies = grid.send_and_receive(asked)
    assert [reply.metadata.src_node_id for reply in replies] == [
        message.metadata.dst_node_id for message in asked
    ]
    out = []
    for reply in replies:
        if reply.has_content():
            reply.content["metrics"].pop("process", None)
        out.append((reply.content, None) if reply.has_content() else (None, reply.error.reason))
    return out


def grid_of(number=3):
    return WorkerGrid(make_app, CLIENTS, workers=number, method="fork")


def states(grid):
    return {node: grid.contexts.now(node).state for node in grid.contexts}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_replies_and_states_are_those_of_one_process(number):
    """In a round with a failing client too: its error reads the same, and its state
    stays as it was. A phase that leaves the arrays of a state alone loses none. Several
    messages to one client follow each other.
    """
    inline = InlineGrid(make_app(), CLIENTS)
    with grid_of(number) as grid:
        for now in (1, 2):
            for kind in ("train", "evaluate"):
                expected = contents(inline, messages(now, kind))
                found = contents(grid, messages(now, kind))
                assert (found, states(grid)) == (expected, states(inline))
        several = [*messages(1), *messages(4), *messages(5, clients=[3])]
        expected = contents(inline, several)
        assert (contents(grid, several), states(grid)) == (expected, states(inline))
        assert 'raise ValueError("no data today")' in contents(grid, messages(2))[2][1]


def test_all_workers_run_clients_and_log_here(caplog):
    with grid_of() as grid, caplog.at_level(logging.INFO, "flwr"):
        found = {
            reply.content["metrics"]["process"]
            for now in range(10, 20)
            for reply in grid.send_and_receive(messages(now))
        }
    assert len(found - {os.getpid()}) == len(found) == 3
    assert caplog.messages.count("client 6 in round 12") == 1


def test_a_dead_worker_costs_its_clients_one_round():
    """The clients that it was working on get an error that says so; the next round is
    like any other, from the states of the round before.
    """
    with grid_of(2) as grid:
        contents(grid, messages(1))
        before = {worker.process.pid for worker in grid.pool}
        killed = grid.send_and_receive(messages(3))
        lost = [reply for reply in killed if reply.has_error()]
        assert FIRST_NODE + 4 in {reply.metadata.src_node_id for reply in lost}
        assert len(lost) < CLIENTS
        for reply in lost:
            assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
            assert "was killed by SIGKILL" in reply.error.reason
        assert len({worker.process.pid for worker in grid.pool} & before) == 1
        found = contents(grid, messages(4))
        inline = InlineGrid(make_app(), CLIENTS)
        contents(inline, messages(1))
        done = [m for m, reply in zip(messages(3), killed, strict=True) if reply.has_content()]
        contents(inline, done)
        assert found == contents(inline, messages(4))


def test_a_worker_killed_between_two_rounds_costs_nothing_and_all_end_with_the_context():
    with grid_of(2) as grid:
        contents(grid, messages(1))
        os.kill(grid.pool[0].process.pid, signal.SIGKILL)
        grid.pool[0].process.join()
        assert all(reply.has_content() for reply in grid.send_and_receive(messages(4)))
        processes = [worker.process for worker in grid.pool]
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)


def test_the_longest_clients_start_first():
    with grid_of(2) as grid:
        contents(grid, messages(1))
        waiting = sorted(grid.contexts, key=lambda node: -grid._samples[node])
        worker = grid.pool[0]
        grid._home = {FIRST_NODE + 5: worker}
        assert [grid._taken(worker, waiting, count) for count in (1, 2)] == [
            [FIRST_NODE + 5],
            [FIRST_NODE + 6, FIRST_NODE + 4],
        ]
        assert waiting == [FIRST_NODE + n for n in (3, 2, 1, 0)]


def test_cores_are_borrowed_for_a_phase():
    """With none to spare, clients run in this process."""
    cores = Cores(2, multiprocessing.Value("i", 0))
    with WorkerGrid(make_app, CLIENTS, workers=8, method="fork", cores=cores) as grid:
        for free in (0, 1, -1):
            cores.free.value = free
            replies = grid.send_and_receive(messages(1))
            processes = {reply.content["metrics"]["process"] for reply in replies}
            assert (os.getpid() in processes, len(processes)) == (free < 1, max(1, free + 1))
            assert cores.free.value == free


def test_shared_memory_grows_and_arrays_are_no_part_of_the_pickle():
    segment, other = Segment(), Segment()
    other.close()
    other._open(os.dup(segment.file))
    for array in (np.arange(3), np.full(300_000, 7.125), np.zeros((0, 2))):
        record = ArrayRecord({"a": Array(array)})
        packed = pack([record, record], segment)
        assert array.size == 0 or array.tobytes() not in packed[0]
        first, second = unpack(packed, other)
        assert first is second
        assert first == record
    segment.close()
    other.close()


PARENT = """
import os, sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from fedapps.engines.workers import WorkerGrid

def make_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        os.write(1, f"{os.getpid()}\\n".encode())  # whole lines, from two processes
        if sys.argv[1] == "spin":
            while True:
                pass
        time.sleep(60)

    return app

if __name__ == "__main__":
    grid = WorkerGrid(make_app, 4, workers=2, method="fork")
    content = RecordDict({"config": ConfigRecord()})
    with grid:
        grid.send_and_receive([Message(content, node, "train") for node in range(1000, 1004)])
"""


@pytest.mark.parametrize(
    ("how", "number"), [("sleep", signal.SIGINT), ("spin", signal.SIGINT), ("spin", signal.SIGKILL)]
)
def test_no_worker_outlives_its_parent(how, number):
    """Ctrl-C reaches all processes of the terminal, `kill` only the parent; the workers
    are in the middle of a client.
    """
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        os.killpg(parent.pid, number) if how == "sleep" else parent.send_signal(number)
        assert parent.wait(60) != 0
    deadline = time.monotonic() + 60
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_processes_with_other_threads_do_not_fork(monkeypatch):
    monkeypatch.setattr(workers.threading, "active_count", lambda: 2)
    assert workers.usual_method() == "spawn"
    monkeypatch.setattr(workers.threading, "active_count", lambda: 1)
    assert workers.usual_method() == ("fork" if workers.forks_train() else "spawn")
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    assert workers.usual_method() == "spawn"


@pytest.mark.slow
def test_where_pytorch_has_threads_of_its_own_for_gradients_workers_are_not_forked():
    """Here because of gradients within gradients, as with a GPU or after compiling."""
    program = """
import torch
from fedapps.engines.workers import usual_method

class Nested(torch.autograd.Function):
    @staticmethod
    def forward(context, x, depth):
        context.depth = depth
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.depth:
            with torch.enable_grad():
                x = torch.ones(1, requires_grad=True)
                Nested.apply(x, context.depth - 1).backward()
        return gradient, None

for depth in (1, 70):
    Nested.apply(torch.ones(1, requires_grad=True), depth).backward()
    print(usual_method())
"""
    assert printed("-c", program).split() == ["fork", "spawn"]


# --- each kind of method --------------------------------------------------------------


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


def run_job(folder, workers, callbacks=(), start=None, **config):
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
    expected = run_job(tmp_path / "1", 1, **KINDS[kind])
    assert (len(expected[0]), run_job(tmp_path / "3", 3, **KINDS[kind])) == (3, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1)])
def test_a_resumed_run_may_have_other_workers(first, then, tmp_path):
    job = {"method": "scaffold", "num-rounds": 4}
    expected = run_job(tmp_path / "whole", 1, **job)
    # its checkpoint is that of round 2
    run_job(tmp_path / "parts", first, callbacks=[lambda now: now.number == 3], **job)
    assert run_job(tmp_path / "parts", then, **job, resume=True) == expected


def test_workers_are_many_where_a_run_has_much_work(monkeypatch):
    """Decided by steps. On one core, and for a task without a net, there is none."""
    monkeypatch.setattr("fedapps.runs.execution.cores", lambda: 6)
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 1)
    monkeypatch.setattr("fedapps.engines.workers.forks_train", lambda: True)

    def number(given=None, **keys):
        settings = with_defaults({"method": "fedavg", "num-clients": 20, **keys})
        return number_of_workers(settings, build_task(settings), given)

    jobs = [
        {"num-rounds": 50},
        {"num-rounds": 1, "train.local-epochs": 1},
        {"num-rounds": 50, "num-clients": 4},
        {"method": "fedfw"},
        {"given": 3, "method": "fedfw"},
        {"given": 30},
    ]
    assert [number(**job) for job in jobs] == [6, 1, 4, 1, 3, 20]
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 9)
    assert number(**{"num-rounds": 50}) == 1  # they would load everything anew
    monkeypatch.setattr("fedapps.runs.execution.cores", lambda: 1)
    assert number(**{"num-rounds": 50_000}) == 1
    assert number_of_workers(None, SimpleNamespace(device=torch.device("cuda")), None) == 1


@pytest.mark.slow
def test_workers_that_are_started_as_new_programs(tmp_path):
    """As on macOS: each loads the app and the data itself."""
    job = {"num-rounds": 2, **KINDS["in messages"]}
    assert run_job(tmp_path / "2", 2, start="spawn", **job) == run_job(tmp_path / "1", 1, **job)


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
    monkeypatch.setattr(execution, "pays", lambda *_: True)
    shared = Cores(4, multiprocessing.Value("i", 3))
    monkeypatch.setattr(pool, "SHARED", [shared])
    pool.run_one(pool.PlannedRun(SWEPT, tmp_path / "together"))
    assert outcome_of(tmp_path / "together") == outcome_of(tmp_path / "alone")
    assert (set(used), shared.free.value) == ({(3, 0)}, 3)
