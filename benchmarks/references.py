"""References without federation: trees on all rows in one place or on each client's
rows, linear models on all rows, and a classifier on real images.

    python benchmarks/references.py trees RESULTS
    python benchmarks/references.py linear RESULTS
    python benchmarks/references.py images [--data FOLDER]

trees: for every run of FFGB in the results folder of experiments/ffgb/trees.toml the
same boosting with all training rows as one client, and for each client by itself; AUROC
in per cent after ten steps and at the end, mean and worst client, mean over seeds.

linear: for every run of FedAvg in the results folder of experiments/natural-tables.toml
ridge or logistic regression on the training rows of all clients, scaled together, its
penalty chosen by five-fold cross-validation on these rows; R² of all test rows, or
accuracy in per cent, mean over seeds.

images: the accuracy of the classifier of experiments/fedevg/*.toml trained on a hundred
real training images, ten of each class, mean of three draws; FOLDER: MNIST as
``datasets.load_dataset`` reads it, 6,000 of its images; without it the digits.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import KFold
from torch import nn

from fedapps.algorithms.boosting.additive_values import advance
from fedapps.algorithms.common.seeds import generator
from fedapps.clients import ClientData, FFGBClient, MessageStore, Split, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.rounds import run_rounds
from fedapps.tasks.boosting_oracles import oracle_of
from fedapps.tasks.set_evaluator import SetEvaluator
from fedapps.toml_text import read_toml

Config = dict[str, Any]
SAMPLES = 100


def in_one_place(config: Config, only: int | None = None) -> np.ndarray:
    """Return AUROC (rounds, clients) on each client's test rows, of FFGB with a single
    client that holds all training rows, or those of client ``only``.

    Everything else is as in the run of ``config``: the rows of the parts, how each
    client scaled its own, oracle, steps and seed.
    """
    settings = read_settings({**config, "num-clients": 1})
    task: Any = build_task(settings)
    parts = [task.client_data(k, config["num-clients"]) for k in range(config["num-clients"])]
    train, test = (
        Split(
            torch.cat([getattr(p, which).x for p in some]),
            torch.cat([getattr(p, which).y for p in some]),
        )
        for which, some in (("train", parts if only is None else [parts[only]]), ("test", parts))
    )
    oracle, data = oracle_of(task, settings.options, "ffgb"), ClientData(train, train, test)

    def client(context: Any) -> FFGBClient:
        return FFGBClient(
            data, oracle, task.num_outputs, 0, MessageStore(context.state), task.objective
        )

    strategy: Any = build_strategy(settings, task)
    train_config = ConfigRecord({"seed": settings.seed})
    run_rounds(
        strategy,
        InlineGrid(to_client_app(client, writable=False), 1),
        ArrayRecord(),
        settings.num_rounds,
        train_config=train_config,
        evaluate_every=0,
    )
    values, sizes, out = (
        torch.zeros(len(test), task.num_outputs),
        [len(part.test) for part in parts],
        [],
    )
    for block in strategy.function.blocks:
        values = advance(values, block, test.x, oracle.predict)
        shares = zip(values.split(sizes), parts, strict=True)
        out.append(
            [
                task.objective.score(nn.Identity(), Split(v, part.test.y))["auroc"]
                for v, part in shares
            ]
        )
    return np.array(out)


def centrally(config: Config, alone: bool) -> np.ndarray:
    """Return AUROC (rounds, 2), the average over test rows and the worst client, of
    trees in one place or of each client's own.
    """
    count = config["num-clients"]
    task: Any = build_task(read_settings(config))
    weights = np.array([len(task.client_data(k, count).test) for k in range(count)])
    scores = (
        np.stack([in_one_place(config, k)[:, k] for k in range(count)], 1)
        if alone
        else in_one_place(config)
    )
    return np.stack([scores @ weights / weights.sum(), scores.min(1)], 1)


def trees(folder: Path) -> None:
    """Print the table of all runs of FFGB in a sweep's folder."""
    results: dict[tuple[str, str], list[np.ndarray]] = {}
    for path in sorted(folder.glob("cells/*/settings.toml")):
        config = {
            key: value for key, value in read_toml(path).items() if not key.startswith("versions")
        }
        if config["method"] == "ffgb":
            for where, alone in (("rows in one place", False), ("each client alone", True)):
                key = Path(config["data.source"]).name, f"depth {config['ffgb.depth']}, {where}"
                results.setdefault(key, []).append(
                    centrally({**config, "out": "", "resume": False}, alone)
                )
    table = Table(
        "", "", "seeds", "after 10", "at the end", "worst client at the end", box=box.MARKDOWN
    )
    for (name, label), runs in results.items():
        stack = 100 * np.array(runs)
        cells = [
            f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
            if len(values) > 1
            else f"{values[0]:.2f}"
            for values in (stack[:, 9, 0], stack[:, -1, 0], stack[:, -1, 1])
        ]
        table.add_row(name, label, str(len(stack)), *cells)
    Console(width=120).print(table)


def linear(folder: Path) -> None:
    """Print the scores of linear models on all rows for every run of FedAvg."""
    results: dict[str, list[float]] = {}
    folds = KFold(5, shuffle=True, random_state=0)  # rows are in the order of the clients
    for path in sorted(folder.glob("cells/*/settings.toml")):
        config = {
            key: value for key, value in read_toml(path).items() if not key.startswith("versions")
        }
        if config["method"] == "fedavg":
            settings = read_settings({**config, "data.standardise": "sums", "resume": False})
            task: Any = build_task(settings)
            parts = [task.client_data(k, settings.num_clients) for k in range(settings.num_clients)]
            x, y, test_x, test_y = (
                torch.cat([getattr(getattr(part, which), name) for part in parts]).numpy()
                for which in ("train", "test")
                for name in "xy"
            )
            fit: Any = (
                RidgeCV(np.logspace(-2, 5, 29), cv=folds)
                if settings.task == "regression"
                else LogisticRegressionCV(Cs=10, cv=folds, max_iter=2000)
            )
            fit.fit(x.reshape(len(x), -1), y.ravel())
            score = float(fit.score(test_x.reshape(len(test_x), -1), test_y.ravel()))
            results.setdefault(Path(config["data.source"]).stem, []).append(score)
    table = Table("", "seeds", "R² or accuracy", box=box.MARKDOWN)
    for name, scores in results.items():
        table.add_row(name, str(len(scores)), f"{np.mean(scores):.3f}")
    Console(width=120).print(table)


def real_images(config: Config) -> float:
    """Return the accuracy of the same classifier on as many real training images, mean
    of three draws: what there is to reach.
    """
    settings = read_settings(config)
    task: Any = build_task(settings)
    evaluator = SetEvaluator(task)
    pool: Split = evaluator._of_all("train")
    accuracies = []
    for draw in range(3):
        rng, labels = generator(draw, "real images"), pool.y.numpy()
        rows = np.concatenate(
            [
                rng.choice(np.flatnonzero(labels == c), SAMPLES // 10, replace=False)
                for c in range(10)
            ]
        )
        accuracies.append(evaluator(pool.x.numpy()[rows], labels[rows], 0)[1]["test-accuracy"])
    return float(np.mean(accuracies))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["trees", "linear", "images"])
    parser.add_argument(
        "sweep",
        nargs="?",
        type=Path,
        metavar="RESULTS",
        help="trees, linear: results folder of the sweep",
    )
    parser.add_argument("--data", default="", metavar="FOLDER", help="images: MNIST")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.study == "trees":
        trees(arguments.sweep)
        return
    if arguments.study == "linear":
        linear(arguments.sweep)
        return
    shared: Config = {
        "method": "fedevg",
        "num-clients": 10,
        "clients-per-round": 0,
        "data.partition": "dirichlet-clients",
        "data.alpha": 1.0,
        "data.validation": 0.0,
        "model.name": "small-cnn",
        "synthetic.samples": SAMPLES,
    }
    mnist = {
        "task": "classification",
        "data.source": arguments.data,
        "data.max-samples": 6000,
        "synthetic.reference": "test",
    }
    digits = {"task": "digits", "synthetic.reference": "clients"}
    print(f"{100 * real_images({**shared, **(mnist if arguments.data else digits)}):.1f} %")


if __name__ == "__main__":
    main()
