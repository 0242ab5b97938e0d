"""What attackers achieve against the mean, bounds and robust rules: a table of methods
and attacks with the accuracy of the model.

    python benchmarks/attacks.py [--partition iid] [--seeds 3] [--rounds 15]
    [--attackers 2] [--attacks none ...]

Digits, ten clients that all take part, an MLP, one local epoch per round. Attackers
answer evaluations truthfully, and training messages with

    sign flip        x - (y - x), the negative of their honest update y - x
    scaled           x + 50 (y - x)
    label flip       what they learn from labels 9 - label
    inflated weight  a model of fives, and num-examples = 1e15

The accuracy is that of the last model, mean over all clients' test samples, in per
cent: mean over seeds (which also partition the data) with the sample standard
deviation. If a run has no model for its last round, its last evaluation counts.
"""

import argparse
import logging
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from rich.console import Console
from rich.progress import track

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clients.base.adapter import to_client_app
from clients.base.data import ClientData, Split
from clients.base.store import MessageStore
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.execution import execute
from fedapps.settings.settings import Settings, read_settings

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, weights to 10 medians, updates to 2": {
        "max-update-norm": 2.0,
        "on-large-update": "clip",
        "max-weight": 10.0,
    },
    "fedavg, weights to 1.5 medians, updates to 2": {
        "max-update-norm": 2.0,
        "on-large-update": "clip",
        "max-weight": 1.5,
    },
    "median": {"robust.rule": "median"},
    "trimmed mean": {"robust.rule": "trimmed-mean"},
    "multi-krum": {"robust.rule": "multi-krum"},
    "geometric median": {"robust.rule": "geometric-median"},
}
ATTACKS = ("none", "sign flip", "scaled", "label flip", "inflated weight")
JOB = {
    "num-clients": 10,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "train.local-epochs": 1,
    "train.learning-rate": 0.05,
}


class Attacker(NumPyClient):  # type: ignore[misc]
    """A client whose training replies are poisoned."""

    def __init__(self, honest: NumPyClient, attack: str) -> None:
        self.honest, self.attack = honest, attack

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train, then change the reply."""
        sent = [np.array(array) for array in parameters]
        if self.attack == "label flip":
            data = self.honest.data
            flipped = Split(data.train.x, int(data.train.y.max()) - data.train.y)
            self.honest.data = ClientData(flipped, data.validation, data.test)
        arrays, num_examples, metrics = self.honest.fit(parameters, config)
        factor = {"sign flip": -1.0, "scaled": 50.0}.get(self.attack, 1.0)
        arrays = [
            np.asarray(x + factor * (y - x), y.dtype) for x, y in zip(sent, arrays, strict=True)
        ]
        if self.attack == "inflated weight":
            return [np.full_like(array, 5.0) for array in arrays], 10**15, metrics
        return arrays, num_examples, metrics

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Answer truthfully."""
        return self.honest.evaluate(parameters, config)


def accuracy(given: dict[str, Any], attack: str, attackers: int) -> float:
    """Return the accuracy of one run's last model."""
    settings: Settings = read_settings(given)
    task: Any = build_task(settings)

    def client_fn(context: Context) -> NumPyClient:
        client = int(str(context.node_config["partition-id"]))
        honest = build_client(
            settings, task, client, settings.num_clients, MessageStore(context.state)
        )
        return Attacker(honest, attack) if attack != "none" and client < attackers else honest

    return 100 * float(
        execute(settings, InlineGrid(to_client_app(client_fn), settings.num_clients))[
            "accuracy-mean"
        ]
    )


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--partition", default="iid", help="data.partition: iid, dirichlet, pathological"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument(
        "--attackers", type=int, default=2, help="of ten clients; robust.num-malicious is the same"
    )
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    jobs = [
        (method, attack, seed)
        for method in METHODS
        for attack in chosen.attacks
        for seed in range(chosen.seeds)
    ]
    accuracies: dict[tuple[str, str], list[float]] = {}
    for method, attack, seed in track(jobs, console=Console(stderr=True)):
        given = {
            **JOB,
            **METHODS[method],
            "seed": seed,
            "data.split-seed": "seed",
            "num-rounds": chosen.rounds,
            "data.partition": chosen.partition,
        }
        given |= {"robust.num-malicious": chosen.attackers} if "robust.rule" in given else {}
        with tempfile.TemporaryDirectory() as folder:
            accuracies.setdefault((method, attack), []).append(
                accuracy({**given, "out": folder}, attack, chosen.attackers)
            )
    print(f"| method | {' | '.join(chosen.attacks)} |\n| --- |{' --- |' * len(chosen.attacks)}")
    for method in METHODS:
        cells = [_cell(accuracies[method, attack]) for attack in chosen.attacks]
        print(f"| {method} | {' | '.join(cells)} |")


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
