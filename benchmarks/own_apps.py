"""Methods in apps of Flower's kinds: accuracy beside FedAvg, and the lines that change.

    .venv/bin/python benchmarks/own_apps.py [--rounds N]
    .venv/bin/python benchmarks/own_apps.py --rates 0.02 0.03 0.05 0.07 [--seeds 0 1 2]

The apps: ``examples/quickstart`` (torch, message API), the same with a Lightning
Trainer (if Lightning is installed), ``examples/own-project`` (a NumPyClient in NumPy),
and a NumPyClient around scikit-learn's SGDClassifier. All on the digits; accuracy in %,
mean of the last five rounds. With ``--rates``: FedAvg and SCAFFOLD in the torch app at
these learning rates, by seed, after the last round; batches are shuffled anew in every
round, which the example does not do.
"""

import argparse
import difflib
import importlib
import inspect
import logging
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.client import NumPyClient
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import strategies
from clients import MessageStore, terms, to_client_app
from fedapps.engines.inline import InlineGrid

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CLIENTS = 10
METHODS: dict[str, Callable[..., Any]] = {
    "FedAvg": strategies.FedAvg,
    "FedProx": lambda: strategies.FedProx(strategies.FedProxOptions(mu=0.1)),
    "SCAFFOLD": strategies.Scaffold,
    "Ditto": lambda: strategies.Ditto(strategies.DittoOptions(mu=0.1, epochs=0)),
    "AAggFF-S": lambda: strategies.AAggFFS(strategies.FedAvg()),
}
SERVER_LINES = 2  # of every app: the import and the strategy


def lines(old: str, new: str) -> int:
    """Return the lines that are removed or added."""
    parts = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))
    return sum(part[0] in "+-" and not part.startswith(("---", "+++")) for part in parts)


def at_the_end(result: Any, name: str) -> float:
    """Return the mean of a measure over the last five rounds."""
    scores = [float(metrics[name]) for metrics in result.evaluate_metrics_clientapp.values()]
    return float(np.mean(scores[-5:]))


# --- torch, and Lightning -------------------------------------------------------------


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


def lightning_train(
    net: torch.nn.Module, loader: Any, epochs: int, rate: float, device: Any
) -> float:
    """Train as the quickstart does, with Lightning's Trainer."""
    lightning = importlib.import_module("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(net.parameters(), rate, momentum=0.9)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet).fit(Module(), loader)
    return 0.0


def torch_accuracies(method: str, rounds: int, rate: float, **changes: Any) -> list[float]:
    """Return the accuracy of the quickstart with a method after each round.
    ``changes``: of the client's module, by name.
    """
    module: Any = ModuleType("client")
    exec(compile(torch_client(method), "client", "exec"), module.__dict__)
    vars(module).update(changes)
    start = ArrayRecord(module.Net().state_dict())
    grid = InlineGrid(module.app, CLIENTS, {"batch-size": 16, "local-epochs": 2})
    configs = {"train_config": ConfigRecord({"lr": rate})}
    result = METHODS[method]().start(grid, start, rounds, **configs)
    return [float(m["eval_acc"]) for m in result.evaluate_metrics_clientapp.values()]


def torch_accuracy(method: str, rounds: int, train: Callable[..., float] | None = None) -> float:
    """Return the accuracy of the quickstart with a method over its last rounds."""
    torch.manual_seed(0)
    changes = {"train_fn": train} if train else {}
    return float(np.mean(torch_accuracies(method, rounds, 0.03, **changes)[-5:]))


def at_rate(method: str, rounds: int, rate: float, seed: int) -> float:
    """Return the last accuracy of the quickstart with fresh shuffles in every round."""
    load_data = importlib.import_module("quickstart.task").load_data

    def shuffled(*given: Any) -> Any:
        train, test = load_data(*given)
        train.generator.manual_seed(int(torch.randint(2**31, ())))
        return train, test

    torch.manual_seed(seed)
    return torch_accuracies(method, rounds, rate, load_data=shuffled)[-1]


# --- NumPy and scikit-learn -----------------------------------------------------------


def numpy_clients() -> dict[str, type]:
    """Return the client of ``examples/own-project`` by method."""
    own: Any = importlib.import_module("own_project.client_app")
    softmax = own.softmax

    class Softmax(own.SoftmaxClient):  # type: ignore[name-defined, misc]
        def __init__(self, store: MessageStore, *data: Any) -> None:
            super().__init__(*data)
            self.store = store

        def gradient(self, weights: Any) -> Any:
            return self.x.T @ (softmax(self.x @ weights) - np.eye(10)[self.y]) / len(self.y)

        def fit(self, parameters: Any, config: Any) -> Any:
            (weights,) = parameters
            for _ in range(20):
                weights = weights - 0.5 * self.gradient(weights)
            return [weights], len(self.y), {}

    class FedProx(Softmax):
        def fit(self, parameters: Any, config: Any) -> Any:
            (weights,) = parameters
            for _ in range(20):
                (term,) = terms.proximal_term([weights], parameters, config["proximal-mu"])
                weights = weights - 0.5 * (self.gradient(weights) + term)
            return [weights], len(self.y), {"method": "fedprox"}

    class Scaffold(Softmax):
        def fit(self, parameters: Any, config: Any) -> Any:
            start, c = terms.scaffold_received(parameters)
            own = self.store.load("control", config, before=True) or terms.zeros(c)
            (weights,), (term,) = start, terms.scaffold_term(c, own)
            for _ in range(20):
                weights = weights - 0.5 * (self.gradient(weights) + term)
            own, reply = terms.scaffold_finished(start, [weights], c, own, k_eta=20 * 0.5)
            self.store.save("control", own, config)
            return reply, len(self.y), {"method": "scaffold"}

    class Ditto(Softmax):
        def fit(self, parameters: Any, config: Any) -> Any:
            (weights,) = parameters
            (own,) = self.store.load("own", config, before=True) or parameters
            for _ in range(20):
                weights = weights - 0.5 * self.gradient(weights)
                (term,) = terms.proximal_term([own], parameters, config["ditto-mu"])
                own = own - 0.5 * (self.gradient(own) + term)
            self.store.save("own", [own], config)
            return [weights], len(self.y), {"method": "ditto"}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return super().evaluate(self.store.load("own", config, before=False), config)

    class Fair(Softmax):
        def fit(self, parameters: Any, config: Any) -> Any:
            p = softmax(self.x @ parameters[0])
            before = -np.log(p[np.arange(len(p)), self.y]).mean()
            (weights,) = parameters
            for _ in range(20):
                weights = weights - 0.5 * self.gradient(weights)
            return [weights], len(self.y), {"loss-before": before}

    return dict(zip(METHODS, (Softmax, FedProx, Scaffold, Ditto, Fair), strict=True))


class SGDClient(NumPyClient):
    """A client around scikit-learn, as in Flower's quickstart: ``partial_fit`` has no
    place for a term.
    """

    def __init__(self, store: MessageStore, x: Any, y: Any) -> None:
        self.x, self.y, self.test_x, self.test_y = x[::2], y[::2], x[1::2], y[1::2]
        self.model = SGDClassifier(loss="log_loss", random_state=0, alpha=1e-4)
        self.model.partial_fit(self.x, self.y, classes=range(10))

    def use(self, parameters: Any) -> None:
        """Put the server's weights (65, 10) into the model."""
        self.model.coef_, self.model.intercept_ = parameters[0][:-1].T.copy(), parameters[0][-1]

    def fit(self, parameters: Any, config: Any) -> Any:
        """Take five epochs."""
        self.use(parameters)
        for _ in range(5):
            self.model.partial_fit(self.x, self.y)
        return [np.vstack([self.model.coef_.T, self.model.intercept_])], len(self.y), {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Score the server's weights."""
        self.use(parameters)
        return 0.0, len(self.test_y), {"accuracy": self.model.score(self.test_x, self.test_y)}


class FairSGDClient(SGDClient):
    """The same with the loss that AAggFF decides by."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Take five epochs; report the loss of before."""
        self.use(parameters)
        before = log_loss(self.y, self.model.predict_proba(self.x), labels=range(10))
        for _ in range(5):
            self.model.partial_fit(self.x, self.y)
        weights = [np.vstack([self.model.coef_.T, self.model.intercept_])]
        return weights, len(self.y), {"loss-before": before}


def array_accuracy(method: str, kind: type, rows: int, rounds: int) -> float:
    """Return the accuracy of a NumPyClient with a method."""
    digits_of = importlib.import_module("own_project.client_app").digits_of
    stores = [MessageStore(RecordDict()) for _ in range(CLIENTS)]
    app = to_client_app(
        lambda context: kind(stores[context.node_config["partition-id"]], *digits_of(context))
    )
    start = ArrayRecord({"weights": Array(np.zeros((rows, 10)))})
    result = METHODS[method]().start(InlineGrid(app, CLIENTS), start, rounds)
    return at_the_end(result, "accuracy")


def body(kind: type) -> str:
    """Return a class as text, without what its name and documentation change."""
    return re.sub(r"class \w+.*", "class", textwrap.dedent(inspect.getsource(kind)), count=1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    rounds = arguments.rounds
    for name in ("quickstart", "own-project"):
        sys.path.insert(0, str(EXAMPLES / name))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for rate in arguments.rates:
        for method in ("FedAvg", "SCAFFOLD"):
            scores = [100 * at_rate(method, rounds, rate, seed) for seed in arguments.seeds]
            each = ", ".join(f"{score:.1f}" for score in scores)
            print(f"rate {rate}: {method} {np.mean(scores):.1f} ({each})", flush=True)
    if arguments.rates:
        return
    numpy = numpy_clients()
    print("| app | " + " | ".join(METHODS) + " |\n|" + " --- |" * (len(METHODS) + 1))

    def row(app: str, cell: Callable[[str], tuple[float, int] | None]) -> None:
        cells = []
        for method in METHODS:
            found = cell(method)
            cells.append("-" if found is None else f"{100 * found[0]:.1f} ({found[1]})")
        print(f"| {app} | " + " | ".join(cells) + " |", flush=True)

    def cost(old: str, new: str) -> int:
        return lines(old, new) + 2 * SERVER_LINES if old != new else 0

    def of_torch(method: str, train: Any = None) -> tuple[float, int]:
        changed = cost(torch_client("FedAvg"), torch_client(method))
        return torch_accuracy(method, rounds, train), changed

    def of_numpy(method: str) -> tuple[float, int]:
        changed = cost(body(numpy["FedAvg"].fit), body(numpy[method].fit))
        return array_accuracy(method, numpy[method], 64, rounds), changed

    def of_sklearn(method: str) -> tuple[float, int] | None:
        kind = {"FedAvg": SGDClient, "AAggFF-S": FairSGDClient}.get(method)
        if kind is None:
            return None
        changed = cost(body(SGDClient.fit), body(kind.fit))
        return array_accuracy(method, kind, 65, rounds), changed

    row("torch", of_torch)
    try:
        importlib.import_module("lightning.pytorch")
        row("Lightning", lambda method: of_torch(method, lightning_train))
    except ModuleNotFoundError:
        print("| Lightning | not installed |")
    row("NumPy", of_numpy)
    row("scikit-learn", of_sklearn)


if __name__ == "__main__":
    main()
