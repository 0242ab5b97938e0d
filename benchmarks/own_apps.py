"""Methods in apps of the kinds of Flower's quickstarts: accuracy beside FedAvg, and the
lines that change.

    .venv/bin/python benchmarks/own_apps.py [--apps torch ...] [--methods FedProx ...]

The apps: ``examples/quickstart`` (torch, message API), and clients in NumPy, which are
below: ``Softmax`` is the app before a change. Six clients hold the digits; each class
mix is drawn from Dir(0.3). A seed decides deal, first model and batches. Every method
gets the rate of four, FedProx also the mu of three, that is best on the seeds 100 and
101. The table is of other seeds: accuracy in % after the last round, difference to
FedAvg with the same seeds and its 95 % interval (t over seeds), the rate, the lines.
Alone and fine-tuned: each client trains by itself from the first model all rounds, and
from FedAvg's last model one round. Ditto, alone and fine-tuned are scored at the
clients.
"""

import difflib
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

from benchmarks.common import ROOT, options, show
from fedapps import strategies
from fedapps.algorithms.common.partitioners import dirichlet_clients
from fedapps.clients import MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.lab.results.seeds import t_interval

EXAMPLES = ROOT / "examples"
CLIENTS, ALPHA = 6, 0.3
VALIDATION = (100, 101)
METHODS: dict[str, Callable[..., Any]] = {
    "FedAvg": strategies.FedAvg,
    "FedProx": lambda mu=0.1, **more: strategies.FedProx(strategies.FedProxOptions(mu=mu), **more),
    "SCAFFOLD": strategies.Scaffold,
    "Ditto": lambda **more: strategies.Ditto(strategies.DittoOptions(mu=0.1, epochs=0), **more),
    "AAggFF-S": lambda **more: strategies.AAggFFS(strategies.FedAvg(**more)),
}
MU = (0.001, 0.01, 0.1)  # of FedProx
ALONE, FINE_TUNED = "alone", "FedAvg, fine-tuned"
SERVER_LINES = 2  # of every app: the import and the strategy


class Score(NamedTuple):
    """Accuracy on the test samples of all clients, and of the worst client."""

    mean: float
    worst: float


class App(NamedTuple):
    """An app: its rates; for method and seed the ClientApp and the first model; its
    client's code by method.
    """

    rates: tuple[float, ...]
    build: Callable[[str, int], tuple[ClientApp, ArrayRecord]]
    code: Callable[[str], str]


@cache
def dealt(seed: int) -> list[tuple[Any, ...]]:
    """Return x (n, 64) and y of each client's training and test digits."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(rows) for rows in dirichlet_clients(y, CLIENTS, ALPHA, rng)]
    cuts = [(rows[: len(rows) * 4 // 5], rows[len(rows) * 4 // 5 :]) for rows in parts]
    return [
        (x[train] / 16, y[train], x[test] / 16, y[test])  # pixels are 0 to 16
        for train, test in cuts
    ]


# --- torch ----------------------------------------------------------------------------


def torch_client(method: str) -> str:
    """Return the client of the quickstart with a method."""
    folder = EXAMPLES / "quickstart" / "quickstart"
    text = {
        name: (folder / f"client_{name}.py").read_text(encoding="utf-8")
        for name in ("app", "scaffold", "superfed")
    }
    if method == "AAggFF-S":
        call = "    train_loss = train_fn("
        before = "    loss_before, _ = test_fn(model, trainloader, device)\n"
        metric = '        "train_loss": train_loss,\n'
        changed = text["app"].replace(call, before + call)
        return changed.replace(metric, metric + '        "loss-before": loss_before,\n')
    if method == "Ditto":
        return text["superfed"].replace("SuPerFedLoop", "DittoLoop")
    names = {"FedProx": "FedProxLoop", "SCAFFOLD": "ScaffoldLoop"}
    return (
        text["scaffold"].replace("ScaffoldLoop", names[method]) if method in names else text["app"]
    )


def torch_app() -> App:
    """Return the quickstart."""

    def build(method: str, seed: int) -> tuple[ClientApp, ArrayRecord]:
        module: Any = ModuleType("client")
        exec(compile(torch_client(method), "client", "exec"), module.__dict__)

        def load_data(partition: int, _: int, batch_size: int) -> list[Any]:
            x, y, test_x, test_y = map(torch.from_numpy, dealt(seed)[partition])
            return [
                torch.utils.data.DataLoader(
                    torch.utils.data.TensorDataset(x.float().reshape(-1, 1, 8, 8), y),
                    batch_size=batch_size,
                    shuffle=shuffle,
                )
                for x, y, shuffle in ((x, y, True), (test_x, test_y, False))
            ]

        module.load_data = load_data
        torch.manual_seed(seed)
        return module.app, ArrayRecord(module.Net().state_dict())

    return App((0.02, 0.05, 0.1, 0.2), build, torch_client)


# --- clients in NumPy -----------------------------------------------------------------


class Softmax(NumPyClient):
    """Softmax regression, 20 steps a round; ``store`` keeps what is a client's own."""

    def __init__(self, store: MessageStore, *data: Any) -> None:
        self.store = store
        self.x, self.y, self.test_x, self.test_y = data

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the server's weights."""
        p = probabilities(self.test_x @ parameters[0])
        return 0.0, len(p), {"eval_acc": np.mean(p.argmax(1) == self.test_y)}

    def gradient(self, weights: Any) -> Any:
        """Return the gradient of the mean loss."""
        return self.x.T @ (probabilities(self.x @ weights) - np.eye(10)[self.y]) / len(self.y)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
        return [weights], len(self.y), {}


class ProximalSoftmax(Softmax):
    """FedProx."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        for _ in range(20):
            term = config["proximal-mu"] * (weights - parameters[0])
            weights = weights - config["lr"] * (self.gradient(weights) + term)
        return [weights], len(self.y), {"method": "fedprox"}


class ScaffoldSoftmax(Softmax):
    """SCAFFOLD."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        weights, c = parameters
        (own,) = self.store.load("control", config, before=True) or [0 * c]
        for _ in range(20):
            weights = weights - config["lr"] * (self.gradient(weights) + c - own)
        direction = (parameters[0] - weights) / (20 * config["lr"])
        self.store.save("control", [own - c + direction], config)
        return [weights, direction], len(self.y), {"method": "scaffold"}


class DittoSoftmax(Softmax):
    """Ditto."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights, and the personal ones."""
        (weights,) = parameters
        (own,) = self.store.load("own", config, before=True) or parameters
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
            term = config["ditto-mu"] * (own - parameters[0])
            own = own - config["lr"] * (self.gradient(own) + term)
        self.store.save("own", [own], config)
        return [weights], len(self.y), {"method": "ditto"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the personal weights."""
        return super().evaluate(self.store.load("own", config, before=False), config)


class FairSoftmax(Softmax):
    """AAggFF."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train from the server's weights."""
        (weights,) = parameters
        p = probabilities(self.x @ weights)
        before = -np.log(p[np.arange(len(p)), self.y]).mean()
        for _ in range(20):
            weights = weights - config["lr"] * self.gradient(weights)
        return [weights], len(self.y), {"loss-before": before}


def probabilities(scores: Any) -> Any:
    """Return the probabilities of each row of scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


SOFTMAX: dict[str, type[Softmax]] = {
    "FedAvg": Softmax,
    "FedProx": ProximalSoftmax,
    "SCAFFOLD": ScaffoldSoftmax,
    "Ditto": DittoSoftmax,
    "AAggFF-S": FairSoftmax,
}


def array_app() -> App:
    """Return the app in NumPy."""

    def build(method: str, seed: int) -> tuple[ClientApp, ArrayRecord]:
        def client_fn(context: Context) -> NumPyClient:
            number = int(context.node_config["partition-id"])
            return SOFTMAX[method](MessageStore(context.state), *dealt(seed)[number])

        return to_client_app(client_fn), ArrayRecord({"weights": Array(np.zeros((64, 10)))})

    def code(method: str) -> str:
        methods = [vars(SOFTMAX[method]).get(name) for name in ("fit", "evaluate")]
        return "".join(textwrap.dedent(inspect.getsource(f)) for f in methods if f)

    return App((1, 2, 4, 8), build, code)


# --- runs and tables ------------------------------------------------------------------


def score_of(replies: list[RecordDict], _: str = "") -> MetricRecord:
    """Return the score of all clients' replies, as Flower aggregates metrics."""
    (metrics,) = zip(*(reply.metric_records.values() for reply in replies), strict=True)
    right = [float(m["eval_acc"]) for m in metrics]
    number = [float(m["num-examples"]) for m in metrics]
    return MetricRecord({"mean": float(np.average(right, weights=number)), "worst": min(right)})


def asked(
    grid: InlineGrid, kind: str, models: dict[int, ArrayRecord], config: ConfigRecord
) -> dict[int, RecordDict]:
    """Return the replies of clients to messages with these models, by node."""
    sent = [
        Message(RecordDict({"arrays": model, "config": config}), node, kind)
        for node, model in models.items()
    ]
    return {
        reply.metadata.src_node_id: reply.content
        for reply in grid.send_and_receive(sent)
        if not reply.has_error()
    }


def run(
    app: App, method: str, rate: float, rounds: int, seed: int, **options: float
) -> dict[str, Score]:
    """Return the score of a method after its last round; with FedAvg's, the fine-tuned
    one's. A run in which clients diverge scores 0. ``options``: mu.
    """
    client_app, start = app.build("FedAvg" if method == ALONE else method, seed)
    grid = InlineGrid(client_app, CLIENTS, {"batch-size": 32, "local-epochs": 2})
    config = ConfigRecord({"lr": rate})
    if method != ALONE:
        strategy = METHODS[method](**options, evaluate_metrics_aggr_fn=score_of)
        try:
            result = strategy.start(grid, start, rounds, train_config=config, evaluate_every=rounds)
        except RuntimeError:
            return {method: Score(0, 0)}
        found = result.evaluate_metrics_clientapp[rounds]
        scores = {method: Score(float(found["mean"]), float(found["worst"]))}
        if method != "FedAvg":
            return scores
        start = result.arrays
    models = dict.fromkeys(grid.get_node_ids(), start)
    for number in range(1, (rounds if method == ALONE else 1) + 1):
        config["server-round"] = number
        replies = asked(grid, MessageType.TRAIN, models, config)
        models = {node: reply.array_records["arrays"] for node, reply in replies.items()}
    own = score_of(list(asked(grid, MessageType.EVALUATE, models, config).values()))
    last = Score(float(own["mean"]), float(own["worst"]))
    return {ALONE: last} if method == ALONE else {**scores, FINE_TUNED: last}


def lines(old: str, new: str) -> int:
    """Return the lines that are removed or added."""
    parts = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))
    return sum(part[0] in "+-" and not part.startswith(("---", "+++")) for part in parts)


def changed(app: App, method: str) -> int:
    """Return the lines of client and server that a method changes; 0: it is none."""
    if method not in METHODS:
        return 0
    own = lines(app.code("FedAvg"), app.code(method))
    return own + 2 * SERVER_LINES if own else 0


def interval(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the mean difference in percentage points with its 95 % interval."""
    one = t_interval((100 * (np.array(values) - np.array(others))).tolist())
    return f"{one.mean:+.1f} ({one.low:+.1f} to {one.high:+.1f})"


class Choice(NamedTuple):
    """What is tuned: the rate, and mu where a method has one."""

    rate: float
    options: dict[str, float]

    def text(self, rates: Sequence[float]) -> str:
        """Return the choice, and whether its rate is at an end of ``rates``."""
        mu = "".join(f", mu {value:g}" for value in self.options.values())
        return f"{self.rate:g}" + " (edge)" * (self.rate in (rates[0], rates[-1])) + mu


@cache
def best(name: str, method: str, rounds: int) -> Choice:
    """Return the choice with which a method is best on the validation seeds."""
    app = APPS[name]
    options = [{"mu": mu} for mu in MU] if method == "FedProx" else [{}]
    tried = [Choice(rate, some) for rate in app.rates for some in options]

    def score(choice: Choice) -> float:
        runs = [run(app, method, choice.rate, rounds, s, **choice.options) for s in VALIDATION]
        return float(np.mean([scores[method].mean for scores in runs]))

    return max(tried, key=score)


def report(
    name: str, rounds: int, seeds: Sequence[int], methods: Sequence[str]
) -> Iterator[list[str]]:
    """Yield the rows of an app: FedAvg, then these methods."""
    app, table = APPS[name], dict[str, list[Score]]()
    for method in dict.fromkeys(("FedAvg", *methods)):
        choice, known = best(name, method, rounds), len(table)
        for seed in seeds:
            scores = run(app, method, choice.rate, rounds, seed, **choice.options)
            for row, score in scores.items():
                table.setdefault(row, []).append(score)
        for row in list(table)[known:]:
            own, plain = table[row], table["FedAvg"]
            mean, worst = (f"{100 * np.mean([score[i] for score in own]):.1f}" for i in (0, 1))
            gain = "-" if own is plain else interval([s.mean for s in own], [s.mean for s in plain])
            rate = choice.text(app.rates)
            yield [name, row, mean, gain, worst, rate, str(changed(app, row) or "-")]


APPS = {"torch": torch_app(), "NumPy": array_app()}


def quiet() -> None:
    """Make the examples importable; silence Flower."""
    for name in ("quickstart", "own-project"):
        sys.path.insert(0, str(EXAMPLES / name))
    for handler in logging.getLogger("flwr").handlers:
        handler.setLevel(logging.CRITICAL)
    torch.set_num_threads(1)


def main() -> None:
    """Print the table."""
    known = {"--apps": list(APPS), "--rounds": 10, "--methods": [*METHODS, ALONE]}
    given = options(__doc__, {**known, "--seeds": [0, 1, 2, 3, 4]})
    quiet()
    columns = ("app", "method", "accuracy", "to FedAvg", "worst client", "rate", "lines")
    apps = (report(name, given.rounds, given.seeds, given.methods) for name in given.apps)
    show("Methods in apps", columns, chain.from_iterable(apps))


if __name__ == "__main__":
    main()
