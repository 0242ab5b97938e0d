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

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.engines import workers
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import FIRST_NODE
from fedapps.engines.processes import Cores
from fedapps.engines.shared_memory import Segment, pack, unpack
from fedapps.engines.workers import WorkerGrid
from fedapps.strategies.base.flower_private import ErrorCode
from tests.helpers import printed

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
        assert grid._taken(worker, waiting, 1) == [FIRST_NODE + 5]
        assert grid._taken(worker, waiting, 2) == [FIRST_NODE + 6, FIRST_NODE + 4]
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
