"""Loss of a fair method when its worst-served client is away for one round, or for half
of the rounds, on digits.

    python benchmarks/fair_churn.py [--rounds 50] [--seeds 3]

Ten clients with Dirichlet shares of the labels (0.3), all of which take part. The worst
client is the one with the largest mean training loss in the last ten rounds of uniform
FedAvg with the same seed. It is away in one round in the middle ("one round"), or in
every second one between the eleventh and the last ten ("half"). ``forget-after = 0``
forgets a client in its first round away. Prints, in per cent, mean ± sample standard
deviation over seeds: the client's weight in the round in which it first comes back, and
its mean over the last ten rounds; the final test accuracy of this client, of the worst
client, and of all. "by seed" is this client's accuracy minus that of the same method
with the same seed and forget-after = 0.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from rich.console import Console
from rich.table import Table

from fedapps.clients import MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import ClientGrid, Round, run_rounds

CLIENTS = 10
JOB: dict[str, Any] = {
    "task": "digits",
    "num-clients": CLIENTS,
    "clients-per-round": 0,
    "data.partition": "dirichlet",
    "data.alpha": 0.3,
    "data.split-seed": "seed",
    "train.local-epochs": 1,
    "train.batch-size": 32,
    "train.learning-rate": 0.1,
    "train.momentum": 0.0,
}
Log = tuple[list[dict[Any, float]], list[dict[Any, float]], dict[Any, float]]
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, uniform": {"method": "fedavg", "fedavg.weights": "uniform"},
    "AAggFF-S": {"method": "aaggff-s"},
    "AAggFF-D": {"method": "aaggff-d"},
    "AFL": {"method": "afl", "afl.gamma": 0.01},
}
KEEPS = {
    "FedAvg, uniform": "",
    "AAggFF-S": "aaggff.forget-after",
    "AAggFF-D": "aaggff.forget-after",
    "AFL": "afl.forget-after",
}


class Churning(InlineGrid):
    """A grid whose client ``worst`` is not connected in the rounds for which
    ``away(round)`` is true.
    """

    worst, now = -1, 1
    away: Callable[[int], bool] = staticmethod(lambda number: False)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that are connected."""
        return [
            node
            for node in super().get_node_ids()
            if node - 1000 != self.worst or not self.away(self.now)
        ]


def run(config: dict[str, Any], rounds: int, worst: int, away: Callable[[int], bool]) -> Log:
    """Return every round's weights and mean training losses by client, and the test
    accuracies of the last evaluation.
    """
    settings = with_defaults({**JOB, **config, "num-rounds": rounds})
    task = build_task(settings)
    strategy: Any = build_strategy(settings, task)
    weights: list[dict[Any, float]] = []
    losses: list[dict[Any, float]] = []
    tested: dict[Any, float] = {}

    def client(context: Context) -> Any:
        return build_client(
            settings,
            task,
            int(context.node_config["partition-id"]),
            CLIENTS,
            MessageStore(context.state),
        )

    grid = Churning(to_client_app(client), CLIENTS)
    grid.worst, grid.away = worst, away

    def note(now: Round) -> None:
        weights.append(dict(getattr(strategy, "last_weights", {})))
        losses.append(
            {client: float(values["loss"]) for client, values in now.trained.metrics.items()}
        )
        if now.evaluated:
            tested.update(
                {
                    client: float(values["accuracy"])
                    for client, values in now.evaluated.metrics.items()
                }
            )
        grid.now = now.number + 1

    values = {"seed": settings.seed, **settings.train.to_config()}
    run_rounds(
        strategy,
        ClientGrid(grid, seed=settings.seed, num_clients=CLIENTS - 1),
        ArrayRecord({name: Array(value) for name, value in task.initial_arrays().items()}),
        rounds,
        train_config=ConfigRecord(values),
        evaluate_config=ConfigRecord(values),
        evaluate_every=0,
        callbacks=[note],
    )
    return weights, losses, tested


def spread(values: list[float]) -> str:
    """Return mean ± sample standard deviation, in per cent."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description="Fair weights of a client that comes and goes.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rounds, half = args.rounds, args.rounds // 2
    patterns: dict[str, tuple[int, Callable[[int], bool]]] = {
        "never": (half, lambda number: False),
        "one round": (half, lambda number: number == half),
        "half": (11, lambda number: 10 < number <= rounds - 10 and number % 2 == 1),
    }
    worst = []
    for seed in range(args.seeds):
        _, losses, _ = run(
            {"method": "fedavg", "fedavg.weights": "uniform", "seed": seed},
            rounds,
            -1,
            patterns["never"][1],
        )
        worst.append(
            max(range(CLIENTS), key=lambda client: sum(row[client] for row in losses[-10:]))
        )
    table = Table(
        "method",
        "away",
        "forget-after",
        "weight, back",
        "weight, last ten",
        "this client",
        "by seed",
        "worst",
        "all",
    )
    for name, config in METHODS.items():
        for pattern, (first, away) in patterns.items():
            kept: dict[int, list[float]] = {}
            key = KEEPS[name]
            for forget in (0, 100) if key and pattern != "never" else (100,):
                own = {**config, **({key: forget} if key else {})}
                runs = [
                    (*run({**own, "seed": seed}, rounds, who, away), who)
                    for seed, who in enumerate(worst)
                ]
                kept[forget] = [tested[who] for _, _, tested, who in runs]
                weights = ["", ""]
                if key:
                    weights = [
                        spread([row[first][who] for row, _, _, who in runs]),
                        spread(
                            [
                                float(np.mean([last[who] for last in row[-10:]]))
                                for row, _, _, who in runs
                            ]
                        ),
                    ]
                by_seed = (
                    spread(list(np.subtract(kept[100], kept[0]))) if {0, 100} <= kept.keys() else ""
                )
                table.add_row(
                    name,
                    pattern,
                    str(forget) if key else "",
                    *weights,
                    spread(kept[forget]),
                    by_seed,
                    spread([min(tested.values()) for _, _, tested, _ in runs]),
                    spread([float(np.mean(list(tested.values()))) for _, _, tested, _ in runs]),
                )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
