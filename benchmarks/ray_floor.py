"""What a round through Flower's simulation costs beside the clients' work, without Ray.

    python benchmarks/ray_floor.py [--rounds N] [--work SECONDS ...]

Two nodes; a client's work is a sleep in the threads in which Flower waits for Ray's
workers, so that only the waits of Flower and of this project are left. Three grids:
Flower's own, the same when it looks for replies every 0.01 s, and the one of this
project. Printed is the median time of a phase (messages sent, replies received), less
the work.
"""

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from benchmarks.common import options, show
from fedapps.engines.fast_polling import PollingGrid
from fedapps.strategies.base.flower_private import identify_process

NODES = 2
KINDS = {"Flower": "Flower's grid", "polled": "polled every 0.01 s", "ours": "this project"}


class Backend:
    """Answers after ``seconds``, in the place of Ray."""

    num_workers = NODES

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def build(self, app: Any) -> None:
        """Nothing to start."""

    def terminate(self) -> None:
        """Nothing to end."""

    def process_message(self, message: Message, context: Any) -> tuple[Message, Any]:
        """Return the reply to one message."""
        time.sleep(self.seconds)
        return Message(message.content, reply_to=message), context


@contextmanager
def simulation(backend: Any, stop: threading.Event) -> Iterator[InMemoryGrid]:
    """Run Flower's simulation of two nodes in threads; yield its grid. ``stop`` is set
    at the end.
    """
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    state: Any = factory.state()
    state.run_ids[1], state.task_store[1] = RunRecord(run=run), Task(task_id=1, run_id=1)
    identify_process(1, SUPERLINK_NODE_ID)
    nodes = vce_api._register_nodes(NODES, factory)
    store = SimpleNamespace(
        retrieve_context=lambda run_id: None, update_context=lambda run_id, context: None
    )
    stores = dict.fromkeys(nodes, store)
    runtime = threading.Thread(
        target=vce_api.run_api,
        args=(None, lambda: backend, nodes, factory, stores, stop, VceMetrics()),
    )
    grid = InMemoryGrid(factory)
    grid.set_run(run)
    runtime.start()
    try:
        yield grid
    finally:
        stop.set()
        runtime.join(60)
        assert not runtime.is_alive()


def question(node: int, number: int = 0) -> Message:
    """Return a message for a node."""
    return Message(RecordDict({"config": ConfigRecord({"number": number})}), node, "train")


def phases(kind: str, seconds: float, rounds: int) -> list[float]:
    """Return the seconds of each phase."""
    spent = list[float]()
    with simulation(Backend(seconds), threading.Event()) as plain:
        plain.pull_interval = 0.01 if kind == "polled" else plain.pull_interval
        grid: Grid = PollingGrid(plain) if kind == "ours" else plain
        for _ in range(rounds + 1):
            asked = [question(node) for node in grid.get_node_ids()]
            began = time.monotonic()
            assert len(list(grid.send_and_receive(asked))) == NODES
            spent.append(time.monotonic() - began)
            time.sleep(0.003)  # the server's work between two phases
    return spent[1:]


def rows(works: list[float], rounds: int) -> Iterator[list[str]]:
    """Yield a row per duration of the clients' work."""
    for work in works:
        medians = [statistics.median(phases(kind, work, rounds)) for kind in KINDS]
        yield [f"{1000 * work:.0f}", *(f"{1000 * (one - work):.0f}" for one in medians)]


def main() -> None:
    """Measure and print."""
    given = options(__doc__, {"--rounds": 20, "--work": [0.0, 0.05, 0.12, 0.15, 0.25]})
    columns = ("work, ms", *KINDS.values())
    show("ms of a phase beside the work, median", columns, rows(given.work, given.rounds))


if __name__ == "__main__":
    main()
