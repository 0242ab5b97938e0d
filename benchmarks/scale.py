"""Seconds to round 1, seconds per round and peak memory by the number of registered
clients.

    python benchmarks/scale.py [--clients 1000 10000 100000 1000000] [--sampled 100
    1000] [--engines inline inline-workers ray] [--workers 2] [--rounds 5]

Logistic regression (ten numbers, two classes) on twenty samples per client, generated
from the client's number. One pass of SGD takes 0.1 ms, so the rest is the cost of the
framework. The method is AAggFF-D around FedAvg, which keeps numbers for every client.
Each line is a fresh process. "To round 1" is from the start of the engine to the end of
the first round. Memory is the largest resident set of the server's process, and of a
worker. "Flower alone" is the same client with Flower's own messages and records, made,
answered and read one after the other, without grid, checks, weights or averages: the
lowest cost that a framework on Flower can reach.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from benchmarks.common import cpu, fresh, options, run_ray, show
from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.adapter import to_client_app
from fedapps.engines.fast_polling import PollingGrid
from fedapps.engines.flower import Resources
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import FIRST_NODE, answer_for_many
from fedapps.engines.node_grid import shared
from fedapps.engines.workers import WorkerGrid
from fedapps.strategies import AAggFFD, ClientGrid, FedAvg, run_rounds
from fedapps.strategies.base.flower_private import number_message
from fedapps.strategies.base.rounds import Round

SAMPLES, FEATURES = 20, 10


class Logistic(NumPyClient):
    """Logistic regression on the client's own samples."""

    def __init__(self, client: int) -> None:
        rng = generator(0, "scale", client)
        self.x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
        self.y = (self.x[:, 0] + 0.3 * rng.normal(size=SAMPLES) > 0).astype(np.float32)

    def loss(self, w: Any) -> float:
        """Return the mean loss at w (FEATURES,)."""
        return float(np.logaddexp(0, (1 - 2 * self.y) * (self.x @ w)).mean())

    def fit(self, parameters: Any, config: Any) -> Any:
        """Make one pass in batches of five."""
        w, before = parameters[0].copy(), self.loss(parameters[0])
        for rows in np.arange(SAMPLES).reshape(-1, 5):
            x, y = self.x[rows], self.y[rows]
            w -= np.float32(0.1) * x.T @ (1 / (1 + np.exp(-(x @ w))) - y) / np.float32(5)
        process = {"memory": peak(), "process": os.getpid(), "cpu": time.process_time()}
        return [w], SAMPLES, {"loss-before": before, **process}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Return the loss."""
        return self.loss(parameters[0]), SAMPLES, {}


def peak() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


client_app = answer_for_many(
    to_client_app(lambda context: Logistic(int(str(context.node_config["partition-id"]))))
)
server_app = ServerApp()


def run_and_measure(grid: Grid, sampled: int, rounds: int, began: float) -> dict[str, float]:
    """Run the rounds; return seconds and bytes."""
    ends, trained, spent, workers = [], [], [], [0.0]
    cpu_of = {os.getpid(): 0.0}  # seconds by process

    def note(now: Round) -> None:
        ends.append(time.time())
        trained.append(now.seconds)
        for values in now.trained.metrics.values():
            workers[0] = max(workers[0], float(values["memory"]))
            cpu_of[values["process"]] = max(cpu_of.get(values["process"], 0.0), values["cpu"])
        spent.append(sum(cpu_of.values()) - cpu_of[os.getpid()] + time.process_time())
        assert not now.failures, now.failures[0]

    run_rounds(
        AAggFFD(FedAvg(fraction_evaluate=0.0)),
        ClientGrid(grid, seed=0, clients_per_round=sampled),
        ArrayRecord({"w": Array(np.zeros(FEATURES, np.float32))}),
        rounds + 1,
        train_config=ConfigRecord(),
        evaluate_every=0,
        callbacks=[note],
        log_result=False,
    )
    return {
        "first": ends[0] - began,
        "round": sum(trained[1:]) / rounds,
        "cpu": (spent[-1] - spent[0]) / rounds,
        "server": peak(),
        "worker": workers[0],
    }


@server_app.main()
def main_of_server(grid: Grid, context: Context) -> None:
    """Run as Flower's ServerApp."""
    clients, sampled, rounds = (int(str(context.run_config[k])) for k in ("n", "sampled", "rounds"))
    grid = shared(PollingGrid(grid), clients)
    costs = run_and_measure(grid, sampled, rounds, float(str(context.run_config["began"])))
    Path(str(context.run_config["out"])).write_text(json.dumps(costs), encoding="utf-8")


def measure(engine: str, clients: int, sampled: int, rounds: int, workers: int) -> dict[str, Any]:
    """Run an engine and return what it costs."""
    began = time.time()
    if engine == "alone":
        return {"cpu": alone(sampled, rounds)}
    if engine == "inline":
        grid = InlineGrid(client_app, clients, numbered=True)
        return run_and_measure(grid, sampled, rounds, began)
    if engine == "inline-workers":
        with WorkerGrid(lambda: client_app, clients, numbered=True, workers=workers) as many:
            return run_and_measure(many, sampled, rounds, began)
    apps = "from benchmarks import scale\nclient = scale.client_app\nserver = scale.server_app\n"
    with tempfile.TemporaryDirectory(prefix="fedapps-scale-") as name:
        out = Path(name) / "out.json"
        config = {"n": clients, "sampled": sampled, "rounds": rounds, "began": began}
        nodes = Resources(clients, ray_cpus=workers).with_shared_nodes().nodes
        run_ray(apps, {**config, "out": str(out)}, nodes, workers, Path(name) / "log")
        return dict(json.loads(out.read_text(encoding="utf-8")))


def alone(sampled: int, rounds: int) -> float:
    """Return CPU seconds per round of Flower's messages and of the clients' work,
    without our code.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        client = Logistic(int(str(context.node_config["partition-id"])))
        new, number, metrics = client.fit(arrays, {})
        records = ArrayRecord(new), MetricRecord({"num-examples": number, **metrics})
        content = dict(zip(("arrays", "metrics"), records, strict=True))
        return Message(RecordDict(content), reply_to=message)

    InlineGrid(app, 1)  # messages can only be created with an identity
    start, config = [np.zeros(FEATURES, np.float32)], ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": ArrayRecord(start), "config": config})

    def one_round() -> None:
        for client in range(sampled):
            node = FIRST_NODE + client
            number_message(message := Message(content, node, "train"))
            reply = app(message, Context(1, node, {"partition-id": client}, RecordDict(), {}))
            reply.content.array_records["arrays"].to_numpy_ndarrays()
            dict(reply.content.metric_records["metrics"])

    return cpu(one_round, rounds)


def rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per engine and size."""
    cases = [("alone", 0, sampled) for sampled in given.sampled]
    sizes = [(n, sampled) for n in given.clients for sampled in given.sampled]
    cases += [(engine, *size) for engine in given.engines for size in sizes]
    for engine, clients, sampled in cases:
        case = json.dumps([engine, clients, sampled, given.rounds, given.workers])
        cost = fresh(__file__, "--one", case)
        cells = [f"{1e3 * cost['cpu'] / sampled:.2f}"]
        if engine == "alone":
            yield ["Flower alone", "", f"{sampled:,}", "", "", *cells, "", ""]
            continue
        cells = [f"{cost['first']:.1f}", f"{cost['round']:.3f}", *cells]
        cells += [f"{cost[where] / 1e6:.0f}" for where in ("server", "worker")]
        yield [engine, f"{clients:,}", f"{sampled:,}", *cells]


def main() -> None:
    """Measure and print."""
    given = options(
        __doc__,
        {
            "--clients": [1_000, 10_000, 100_000, 1_000_000],
            "--sampled": [100, 1_000],
            "--engines": ["inline", "inline-workers", "ray"],
            "--rounds": 5,
            "--workers": 2,
            "--one": "",  # measure this row, in this process
        },
    )
    if given.one:
        print(json.dumps(measure(*json.loads(given.one))))
        return
    columns = ("engine", "clients", "per round", "to round 1, s", "per round, s")
    columns += ("CPU, ms per client", "server, MB", "worker, MB")
    show("Rounds of many clients", columns, rows(given))


if __name__ == "__main__":
    main()
