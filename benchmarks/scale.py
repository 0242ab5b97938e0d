"""Seconds to round 1, seconds per round and peak memory by the number of registered
clients, and the server's share of the cost.

    python benchmarks/scale.py [--clients 1000 10000 100000 1000000] [--sampled 100
    1000] [--engines inline inline-workers ray] [--workers 2] [--rounds 5]
    python benchmarks/scale.py --server 1500000 [--sampled 1000]

Logistic regression (ten numbers, two classes) on twenty samples per client, generated
from the client's number. One pass of SGD takes 0.1 ms, so the rest is the cost of the
framework. The method is AAggFF-D around FedAvg, which keeps numbers for every client.
Each line is a fresh process. "To round 1" is from the start of the engine to the end of
the first round; "all scored" is an evaluation of every client, if there are at most
``--score``. Memory is the largest resident set of the server's process, and of a
worker. "Flower alone" is the same client with Flower's own messages and records, made,
answered and read one after the other, without grid, checks, weights or averages: the
lowest cost that a framework on Flower can reach.

``--server``: the server's cost of a round without the clients' messages (CPU time
outside the grid), and the bytes it keeps per client, in the first rounds and once every
client has replied.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.adapter import to_client_app
from fedapps.engines.fast_polling import PollingGrid
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import FIRST_NODE, answer_for_many
from fedapps.engines.node_grid import shared
from fedapps.engines.workers import WorkerGrid
from fedapps.strategies import AAggFFD, ClientGrid, FedAvg, run_rounds
from fedapps.strategies.base.flower_private import number_message
from fedapps.strategies.base.rounds import Round

SAMPLES, FEATURES = 20, 10
MEGA = 1e6


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
        return (
            [w],
            SAMPLES,
            {
                "loss-before": before,
                "memory": peak(),
                "process": os.getpid(),
                "cpu": time.process_time(),
            },
        )

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


def run_and_measure(
    grid: Grid, sampled: int, rounds: int, score: bool, began: float
) -> dict[str, float]:
    """Run the rounds; return seconds and bytes."""
    ends, trained, spent, workers = [], [], [], [0.0]
    cpu = {os.getpid(): 0.0}  # seconds by process

    def note(now: Round) -> None:
        ends.append(time.time())
        trained.append(now.seconds)
        workers[0] = max(
            workers[0], *(float(values["memory"]) for values in now.trained.metrics.values())
        )
        for values in now.trained.metrics.values():
            cpu[values["process"]] = max(cpu.get(values["process"], 0.0), values["cpu"])
        spent.append(sum(cpu.values()) - cpu[os.getpid()] + time.process_time())
        assert not now.failures, now.failures[0]

    start = ArrayRecord({"w": Array(np.zeros(FEATURES, np.float32))})
    client_grid = ClientGrid(grid, seed=0, clients_per_round=sampled)
    fraction = 1.0 if score else 0.0
    strategy = AAggFFD(FedAvg(fraction_evaluate=fraction))
    run_rounds(
        strategy,
        client_grid,
        start,
        rounds + 1,
        train_config=ConfigRecord(),
        evaluate_every=0,
        callbacks=[note],
        log_result=False,
    )
    middle = trained[1:-1]
    out = {
        "first": ends[0] - began,
        "round": sum(middle) / len(middle),
        "server": peak(),
        "worker": workers[0],
    }
    out["cpu"] = (spent[-2] - spent[0]) / len(middle)
    return {**out, "score": trained[-1] - out["round"]} if score else out


@server_app.main()
def main_of_server(grid: Grid, context: Context) -> None:
    """Run as Flower's ServerApp."""
    config = context.run_config
    clients, sampled = int(str(config["clients"])), int(str(config["sampled"]))
    grid = PollingGrid(grid)
    if config["shared"]:
        grid = shared(grid, clients)
    costs = run_and_measure(
        grid,
        sampled,
        int(str(config["rounds"])),
        bool(config["score"]),
        float(str(config["began"])),
    )
    Path(str(config["out"])).write_text(json.dumps(costs), encoding="utf-8")


def by_ray(
    clients: int, sampled: int, rounds: int, score: bool, workers: int, together: bool
) -> dict[str, float]:
    """Run through Flower's Ray simulation."""
    from benchmarks.ray_app import run_app
    from fedapps.engines.flower import Resources

    apps = "from benchmarks import scale\nclient = scale.client_app\nserver = scale.server_app\n"
    each = Resources(clients, ray_cpus=workers)
    nodes = each.with_shared_nodes().nodes if together else clients
    with tempfile.TemporaryDirectory(prefix="fedapps-scale-") as name:
        out = Path(name) / "out.json"
        config = {"clients": clients, "sampled": sampled, "rounds": rounds, "score": score}
        config |= {"out": str(out), "shared": together, "began": time.time()}
        run_app(apps, config, nodes, workers, Path(name) / "log")
        return dict(json.loads(out.read_text(encoding="utf-8")))


def inline(clients: int, sampled: int, rounds: int, score: bool, workers: int) -> dict[str, float]:
    """Run in this process, or its clients in worker processes."""
    began = time.time()
    if workers == 1:
        grid = InlineGrid(client_app, clients, numbered=True)
        return run_and_measure(grid, sampled, rounds, score, began)
    with WorkerGrid(lambda: client_app, clients, numbered=True, workers=workers) as many:
        return run_and_measure(many, sampled, rounds, score, began)


def alone(sampled: int, rounds: int) -> float:
    """Return CPU seconds per round of Flower's messages and of the clients' work,
    without our code.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        new, number, metrics = Logistic(int(str(context.node_config["partition-id"]))).fit(
            arrays, {}
        )
        content = {
            "arrays": ArrayRecord(new),
            "metrics": MetricRecord({"num-examples": number, **metrics}),
        }
        return Message(RecordDict(content), reply_to=message)

    InlineGrid(app, 1)  # messages can only be created with an identity
    sent = {
        "arrays": ArrayRecord([np.zeros(FEATURES, np.float32)]),
        "config": ConfigRecord({"server-round": 1}),
    }
    content, spent = RecordDict(sent), []  # type: ignore[arg-type]
    for _ in range(rounds):
        began = time.process_time()
        for client in range(sampled):
            message = Message(content, FIRST_NODE + client, "train")
            number_message(message)
            reply = app(
                message, Context(1, FIRST_NODE + client, {"partition-id": client}, RecordDict(), {})
            )
            reply.content.array_records["arrays"].to_numpy_ndarrays()
            dict(reply.content.metric_records["metrics"])
        spent.append(time.process_time() - began)
    return min(spent)


# --- the server alone -----------------------------------------------------------------


class Aside(InlineGrid):
    """An inline grid that measures the CPU time of the clients."""

    spent = 0.0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run the clients and record the time."""
        began = time.process_time()
        replies = super().send_and_receive(list(messages), timeout=timeout)
        self.spent += time.process_time() - began
        return replies


def server(clients: int, sampled: int, rounds: int) -> dict[str, float]:
    """Return CPU milliseconds per round without the clients' messages, and bytes kept
    per client.
    """
    before = peak()
    grid, marks = Aside(client_app, clients, numbered=True), [(time.process_time(), 0.0)]
    strategy = AAggFFD(FedAvg(fraction_evaluate=0.0))

    def note(now: Round) -> None:
        marks.append((time.process_time(), grid.spent))
        if now.number == rounds:  # from here on as if every client had replied
            assert strategy.rule is not None
            strategy.rule.scores += 1e-6 * np.random.default_rng(0).normal(size=clients)

    start = ArrayRecord({"w": Array(np.zeros(FEATURES, np.float32))})
    client_grid = ClientGrid(grid, seed=0, clients_per_round=sampled)
    run_rounds(
        strategy,
        client_grid,
        start,
        2 * rounds,
        train_config=ConfigRecord(),
        evaluate_every=0,
        callbacks=[note],
        log_result=False,
    )
    cost = [1e3 * ((b - a) - (d - c)) for (a, c), (b, d) in itertools.pairwise(marks)]
    state = sum(value.nbytes for value in strategy.state_dict().values())
    return {
        "first": cost[0],
        "early": float(np.median(cost[1:rounds])),
        "late": float(np.median(cost[rounds + 1 :])),
        "peak": (peak() - before) / clients,
        "state": state / clients,
    }


# --- tables ---------------------------------------------------------------------------


def fresh(*arguments: str) -> dict[str, float]:
    """Run this file in a fresh process and return what it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one(kind: str, *numbers: str) -> dict[str, float]:
    """Run the measurement of one line."""
    clients, sampled, rounds, score, workers, together = (int(number) for number in numbers)
    if kind == "server":
        return server(clients, sampled, rounds)
    if kind == "alone":
        return {"cpu": alone(sampled, rounds)}
    if kind == "inline":
        return inline(clients, sampled, rounds, bool(score), workers)
    return by_ray(clients, sampled, rounds, bool(score), workers, bool(together))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000], metavar="N"
    )
    parser.add_argument(
        "--sampled",
        type=int,
        nargs="+",
        default=[100, 1_000],
        metavar="N",
        help="clients per round",
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        default=["inline", "ray"],
        choices=["inline", "inline-workers", "ray", "ray-node-per-client"],
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument(
        "--score", type=int, default=10_000, help="evaluate all clients up to this number"
    )
    parser.add_argument(
        "--server",
        type=int,
        default=0,
        metavar="N",
        help="measure only the server, with this many clients",
    )
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        import logging

        logging.getLogger("flwr").setLevel(logging.ERROR)
        print(json.dumps(one(*args.one)))
        return
    console = Console(width=None if sys.stdout.isatty() else 130)
    if args.server:
        table = Table(
            "clients",
            "a round",
            "first round, ms",
            "ms",
            "all heard, ms",
            "peak, bytes a client",
            "saved, bytes a client",
        )
        for sampled in args.sampled:
            costs = fresh("server", str(args.server), str(sampled), str(args.rounds), "0", "0", "0")
            cells = [f"{costs[key]:.1f}" for key in ("first", "early", "late", "peak", "state")]
            table.add_row(f"{args.server:,}", f"{sampled:,}", *cells)
        console.print("CPU time of the server without the clients' messages", table)
        return
    columns = [
        "engine",
        "clients",
        "a round",
        "to round 1, s",
        "a round, s",
        "ms a client",
        "CPU, ms a client",
        "all scored, s",
        "server, MB",
        "worker, MB",
    ]
    table = Table(*columns)
    for sampled in args.sampled:
        cpu = (
            1e3
            * fresh("alone", "0", str(sampled), str(args.rounds), "0", "0", "0")["cpu"]
            / sampled
        )
        table.add_row("Flower alone", "", f"{sampled:,}", "", "", "", f"{cpu:.2f}", "", "", "")
    for engine in args.engines:
        for clients in args.clients:
            for sampled in args.sampled:
                score = clients <= args.score
                workers = 1 if engine == "inline" else args.workers
                rest = (args.rounds, int(score), workers, int(engine == "ray"))
                costs = fresh(engine.partition("-")[0], str(clients), str(sampled), *map(str, rest))
                each = [f"{1e3 * costs[key] / sampled:.2f}" for key in ("round", "cpu")]
                scored = f"{costs['score']:.1f}" if score else ""
                memory = [
                    f"{costs['server'] / MEGA:.0f}",
                    "" if engine == "inline" else f"{costs['worker'] / MEGA:.0f}",
                ]
                begun = [f"{costs['first']:.1f}", f"{costs['round']:.3f}"]
                table.add_row(
                    engine, f"{clients:,}", f"{sampled:,}", *begun, *each, scored, *memory
                )
                console.print(f"{engine} {clients:,} {sampled:,}: {costs}")
    console.print(table)


if __name__ == "__main__":
    main()
