"""Runs of papers that a sweep cannot make, since they need other data or other nodes.

    python benchmarks/papers.py two-nn --data FOLDER [--partition iid shards] [--rates
    0.1 0.2] [--rounds N]
    python benchmarks/papers.py churn [--rounds 50] [--seeds 0 1 2]

two-nn: McMahan et al. 2017, Table 2, the 2NN on MNIST: communication rounds until the
test accuracy reaches 97 %. 784-200-200-10, 100 clients with 600 images each, C = 0.1
(ten clients per round), B = 10, E = 1, plain SGD. "iid": the 60,000 training images
shuffled; "shards": sorted by label, cut into 200 shards of 300, two per client. The
accuracy is that of the global model on the 10,000 test images after every round.
Published: 87 and 664 rounds in the paper, which tunes the rate for each cell; 43 and
439 in FedLab. FOLDER (or a hub name) is MNIST as ``datasets.load_dataset`` reads it,
with its splits train and test.

churn: a fair method whose worst-served client is away for one round, or for half of the
rounds, on digits. Ten clients with Dirichlet shares of the labels (0.3), all of which
take part. The worst client is the one with the largest mean training loss in the last
ten rounds of uniform FedAvg with the same seed. It is away in one round in the middle
("one round"), or in every second one between the eleventh and the last ten ("half").
``forget-after = 0`` forgets a client in its first round away. Prints, in per cent,
mean ± sample standard deviation over seeds: the client's weight in the round in which
it first comes back, and its mean over the last ten rounds; the final test accuracy of
this client, of the worst client, and of all.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.client import NumPyClient
from numpy.typing import NDArray

from benchmarks.common import TWO_NN, options, show, spread
from fedapps.algorithms.common.seeds import generator
from fedapps.clients import FedAvgClient, MessageStore, to_client_app
from fedapps.clients.base.adapter import client_id
from fedapps.clients.base.data import ClientData, Split
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.source import Samples
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import read_settings
from fedapps.strategies import ClientGrid, FedAvg, Round, run_rounds
from fedapps.tasks.classification import Classification
from fedapps.tasks.context import RunContext

# --- the 2NN of McMahan et al. --------------------------------------------------------

MANY, TARGET = 100, 0.97
PRINTED = {"iid": "43 to 87", "shards": "300 to 664"}
ROUNDS = {"iid": 200, "shards": 1500}


class Whole(Classification):
    """MNIST as in the paper: a client trains on all that it holds, and the official
    test images score the global model.
    """

    def __init__(self, context: RunContext, shards: bool) -> None:
        super().__init__(None, context)
        self.shards = shards

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """The samples of each client."""
        rng = generator(self.context.seed, "partition")
        if not self.shards:
            return np.array_split(rng.permutation(len(self.samples.labels)), MANY)
        pieces = np.array_split(np.argsort(self.samples.labels, kind="stable"), MANY * 2)
        order = rng.permutation(MANY * 2).reshape(MANY, 2)
        return [np.concatenate([pieces[piece] for piece in row]) for row in order]

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return one client's samples, all of them to train on."""
        rows = self.parts[client]
        train = pixels_of(self.samples, rows)
        return ClientData(train, train, train)

    @cached_property
    def test(self) -> Split:
        """The test images."""
        samples = read_samples(DataOptions(source=self.context.data.source, split="test"))
        return pixels_of(samples, np.arange(len(samples.labels))).to(self.device)

    def accuracy(self, arrays: ArrayRecord) -> float:
        """Return the global model's accuracy on the test images."""
        model = self.work_model()
        model.load_state_dict(
            {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        )
        with torch.no_grad():
            return float((model(self.test.x).argmax(1) == self.test.y).float().mean())


def pixels_of(samples: Samples, rows: NDArray[np.int64]) -> Split:
    """Return samples as tensors, pixels in [0, 1]."""
    pixels = samples.x[rows].astype(np.float32) / 255
    return Split(torch.from_numpy(pixels), torch.from_numpy(samples.labels[rows]))


def accuracies(source: str, shards: bool, rate: float, seed: int, rounds: int) -> list[float]:
    """Return the test accuracy after every round, until the target is reached or the
    rounds are over.
    """
    own = {"data.source": source, "train.learning-rate": rate, "num-rounds": rounds}
    settings = read_settings({**TWO_NN, **own, "seed": seed, "data.split-seed": "seed"})
    task = Whole(settings.context, shards)

    def client_fn(context: Context) -> NumPyClient:
        client = client_id(context)
        data = task.client_data(client, MANY)
        return FedAvgClient(
            task.model_fn, data, client, model=task.work_model(), objective=task.objective
        )

    curve: list[float] = []

    def look(now: Round) -> bool:
        curve.append(task.accuracy(now.arrays))
        return curve[-1] >= TARGET

    grid = ClientGrid(
        InlineGrid(to_client_app(client_fn), MANY),
        seed=seed,
        clients_per_round=10,
        num_clients=MANY,
    )
    start = ArrayRecord({name: Array(value) for name, value in task.initial_arrays().items()})
    base: dict[str, Any] = {"seed": seed, **settings.train.to_config()}
    run_rounds(
        FedAvg(),
        grid,
        start,
        rounds,
        train_config=ConfigRecord(base),
        evaluate_config=ConfigRecord(base),
        evaluate_every=rounds,
        callbacks=[look],
    )
    return curve


def two_nn_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per partition and rate, of seed 0."""
    for partition, rate in product(given.partition, given.rates):
        began, most = time.monotonic(), given.rounds or ROUNDS[partition]
        curve = accuracies(given.data, partition == "shards", rate, 0, most)
        reached = str(len(curve)) if curve[-1] >= TARGET else f"more than {len(curve)}"
        cells = [partition, f"{rate:g}", reached, PRINTED[partition], f"{100 * curve[-1]:.2f}"]
        yield [*cells, f"{time.monotonic() - began:.0f}"]


# --- a client that comes and goes -----------------------------------------------------

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
#: Settings of a method, and the option with which it forgets clients.
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "FedAvg, uniform": ({"method": "fedavg", "fedavg.weights": "uniform"}, ""),
    "AAggFF-S": ({"method": "aaggff-s"}, "aaggff.forget-after"),
    "AAggFF-D": ({"method": "aaggff-d"}, "aaggff.forget-after"),
    "AFL": ({"method": "afl", "afl.gamma": 0.01}, "afl.forget-after"),
}
Away = Callable[[int], bool]
Log = tuple[list[dict[Any, float]], list[dict[Any, float]], dict[Any, float]]


class Churning(InlineGrid):
    """A grid whose client ``worst`` is not connected in the rounds for which
    ``away(round)`` is true.
    """

    worst, now = -1, 1
    away: Away = staticmethod(lambda number: False)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that are connected."""
        gone = 1000 + self.worst if self.away(self.now) else -1
        return [node for node in super().get_node_ids() if node != gone]


def run(config: dict[str, Any], rounds: int, worst: int, away: Away) -> Log:
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
        number, store = int(str(client_id(context))), MessageStore(context.state)
        return build_client(settings, task, number, CLIENTS, store)

    grid = Churning(to_client_app(client), CLIENTS)
    grid.worst, grid.away = worst, away

    def note(now: Round) -> None:
        weights.append(dict(getattr(strategy, "last_weights", {})))
        losses.append({who: float(said["loss"]) for who, said in now.trained.metrics.items()})
        for who, said in now.evaluated.metrics.items() if now.evaluated else ():
            tested[who] = float(said["accuracy"])
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


def churn_rows(rounds: int, seeds: list[int]) -> Iterator[list[str]]:
    """Yield a row per method, pattern and time to forget."""
    half = rounds // 2
    patterns: dict[str, tuple[int, Away]] = {
        "never": (half, lambda number: False),
        "one round": (half, lambda number: number == half),
        "half": (11, lambda number: 10 < number <= rounds - 10 and number % 2 == 1),
    }
    worst = {}
    for seed in seeds:
        _, losses, _ = run({**METHODS["FedAvg, uniform"][0], "seed": seed}, rounds, -1, bool)
        worst[seed] = max(range(CLIENTS), key=lambda c: sum(row[c] for row in losses[-10:]))
    for (name, (config, key)), pattern in product(METHODS.items(), patterns):
        first, away = patterns[pattern]
        for forget in (0, 100) if key and pattern != "never" else (100,):
            own = {**config, **({key: forget} if key else {})}
            runs = [(run({**own, "seed": s}, rounds, who, away), who) for s, who in worst.items()]
            back = [row[first][who] for (row, _, _), who in runs] if key else []
            last = (
                [np.mean([r[who] for r in row[-10:]]) for (row, _, _), who in runs] if key else []
            )
            tested = [list(test.values()) for (_, _, test), _ in runs]
            own_scores = [test[who] for (_, _, test), who in runs]
            columns = (back, last, own_scores, [*map(min, tested)], [*map(np.mean, tested)])
            cells = [spread(100 * np.array(column)) if column else "" for column in columns]
            yield [name, pattern, str(forget) if key else "", *cells]


def main() -> None:
    """Print a table."""
    given = options(
        __doc__,
        {
            "study": ("two-nn", "churn"),
            "--data": "",
            "--partition": list(PRINTED),
            "--rates": [0.1],
            "--rounds": 0,
            "--seeds": [0, 1, 2],
        },
    )
    torch.set_num_threads(1)
    if given.study == "two-nn":
        columns = ("partition", "rate", "rounds", "printed elsewhere", "last accuracy, %")
        show("Rounds to 97 % test accuracy", (*columns, "seconds"), two_nn_rows(given))
    else:
        columns = ("method", "away", "forget-after", "weight, back", "weight, last ten")
        rows = churn_rows(given.rounds or 50, given.seeds)
        show("A client away", (*columns, "this client", "worst", "all"), rows)


if __name__ == "__main__":
    main()
