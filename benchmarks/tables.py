"""Alternatives for tables, on the same rows: boosting of all rows in one place, and
Flower's federated XGBoost.

    python benchmarks/tables.py generate FOLDER [--rows 100000] [--sites 50]
    python benchmarks/tables.py rivals --data DATA [--only heart berka] [--seeds 2 4 6]

generate: writes a table with unequal sites, missing values (some columns at some sites
altogether), skewed numbers and categories, whose label needs thresholds and
interactions, as FOLDER/train.parquet. The same rows every time.

rivals: AUROC in per cent (of each client's test rows, mean weighted by their number)
and megabytes of all messages, mean and standard deviation over seeds, of scikit-learn's
histogram boosting on all training rows and, if `xgboost` can be imported, of Flower's
``FedXgbBagging`` and ``FedXgbCyclic``, as in experiments/ffgb/tables.toml: DATA has the
folders that it names. XGBoost is no dependency of this project: without it these rows
are skipped, and a line says so.
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
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import HistGradientBoostingClassifier

from fedapps.algorithms.common.measures import auroc
from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.adapter import answer_identity
from fedapps.clients.base.data import ArrayData
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.rounds import run_rounds

try:
    import xgboost
except ImportError:
    xgboost = None

SITES = {"heart": 4, "berka": 7, "fifty-sites": 50}
ROUNDS = {"heart": 30, "berka": 30, "fifty-sites": 20}
Score = Callable[[NDArray[Any]], NDArray[Any]]


def generated(rows: int, sites: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the generated table."""
    rng = generator(0, "table of many sites")
    shares = rng.lognormal(sigma=0.8, size=sites)
    site = np.sort(rng.choice(sites, rows, p=shares / shares.sum()))
    shift = rng.normal(scale=0.4, size=(sites, 12))
    x = rng.normal(size=(rows, 12)) + shift[site]
    kind, stage = rng.integers(0, 5, rows), rng.integers(0, 3, rows)
    logits = (
        1.2 * (x[:, 0] > 0.5) * (x[:, 1] < 0.3)
        + 0.8 * np.abs(x[:, 2])
        - 0.6 * x[:, 3] * (stage == 2)
        + np.where(kind == 3, 1.0, 0.0) * (x[:, 4] > 0)
        + 0.4 * x[:, 5]
        - 0.9 * np.maximum(x[:, 6], 0)
        + 0.3 * np.sin(3 * x[:, 7])
        + rng.normal(scale=0.3, size=sites)[site]
        - 2.2
    )
    label = (logits + rng.logistic(size=rows) > 0).astype(np.int64)
    x[:, 1], x[:, 5] = np.exp(2 * x[:, 1]), np.round(40 + 12 * x[:, 5])
    gone = rng.random((sites, 12)) < 0.05
    x[rng.random(x.shape) < np.where(gone, 1.0, 0.05)[site]] = np.nan
    out: dict[str, NDArray[Any]] = {f"x{i}": x[:, i] for i in range(12)}
    out |= {"kind": np.array(list("abcde"))[kind], "stage": np.array(["I", "II", "III"])[stage]}
    return out | {"label": label, "client": np.array([f"site{k:02d}" for k in range(sites)])[site]}


def parts_of(data: Path, name: str, seed: int) -> list[ArrayData]:
    """Return the clients' rows in the form that histogram boosting uses."""
    config: dict[str, Any] = {
        "method": "histogram-boosting",
        "data.source": str(data / name),
        "num-clients": SITES[name],
    }
    if name == "fifty-sites":
        config["data.categorical"] = "kind,stage"
    task: Any = build_task(read_settings({**config, "seed": seed, "data.split-seed": "seed"}))
    return [task.arrays(client, SITES[name], False) for client in range(SITES[name])]


def mean_auroc(parts: list[ArrayData], score: Score) -> float:
    """Return the mean over clients, weighted by test rows, in per cent."""
    weights = np.array([len(part.test) for part in parts])
    return 100 * float(
        np.average([auroc(score(part.test.x), part.test.y) for part in parts], weights=weights)
    )


def pooled(parts: list[ArrayData], seed: int, rate: float) -> float:
    """Return the AUROC of scikit-learn's histogram boosting of all rows in one place:
    100 trees of depth 3.
    """
    x, y = (np.concatenate([getattr(part.train, name) for part in parts]) for name in ("x", "y"))
    model = HistGradientBoostingClassifier(
        max_iter=100, max_depth=3, learning_rate=rate, early_stopping=False, random_state=seed
    ).fit(x, y)
    return mean_auroc(parts, model.decision_function)


def federated_xgboost(
    parts: list[ArrayData], rounds: int, cyclic: bool, rate: float
) -> tuple[float, float]:
    """Return AUROC and megabytes of Flower's strategy, with clients as in Flower's own
    example: one tree a client and round.
    """
    given = {
        "objective": "binary:logistic",
        "eta": rate,
        "max_depth": 3,
        "tree_method": "hist",
        "nthread": 1,
    }
    moved, app = [0], ClientApp()
    matrices = [xgboost.DMatrix(part.train.x, label=part.train.y) for part in parts]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        matrix = matrices[int(str(context.node_config["partition-id"]))]
        received = next(iter(message.content.array_records.values()))["0"].numpy().tobytes()
        if received:
            model = xgboost.Booster(params=given)
            model.load_model(bytearray(received))
            model.update(matrix, model.num_boosted_rounds())
            model = model if cyclic else model[model.num_boosted_rounds() - 1 :]
        else:
            model = xgboost.train(given, matrix, num_boost_round=1)
        reply = bytes(model.save_raw("json"))
        moved[0] += len(received) + len(reply)
        metrics = MetricRecord({"num-examples": matrix.num_row()})
        arrays = ArrayRecord({"0": Array(np.frombuffer(reply, np.uint8))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.0})}),
            reply_to=message,
        )

    kind: Any = flower.FedXgbCyclic if cyclic else flower.FedXgbBagging
    strategy = kind(fraction_evaluate=0.0)
    grid = ClientGrid(InlineGrid(answer_identity(app), len(parts)))
    start = ArrayRecord({"0": Array(np.zeros(0, np.uint8))})
    result = run_rounds(
        strategy,
        grid,
        start,
        rounds * (len(parts) if cyclic else 1),
        evaluate_every=0,
        log_result=False,
    )
    model = xgboost.Booster(params=given)
    model.load_model(bytearray(result.arrays["0"].numpy().tobytes()))
    return mean_auroc(
        parts, lambda x: np.asarray(model.predict(xgboost.DMatrix(x), output_margin=True))
    ), moved[0] / 1e6


def rivals(data: Path, names: list[str], seeds: list[int]) -> None:
    """Print the table of the rivals."""
    table = Table("", "", "seeds", "AUROC", "MB", box=box.MARKDOWN)
    console = Console(width=110)
    for name in names:
        results: dict[str, list[tuple[float, float]]] = {}
        for seed in seeds:
            parts, clients = parts_of(data, name, seed), SITES[name]
            for rate in (0.1, 0.3):
                results.setdefault(f"rows in one place, rate {rate}", []).append(
                    (pooled(parts, seed, rate), 0.0)
                )
                if xgboost:
                    for cyclic in (False, True):
                        if cyclic and name == "fifty-sites" and seed != seeds[0]:
                            continue  # minutes, for one round's worth of trees
                        own = rate if cyclic else rate / clients  # as Flower's example scales it
                        label = (
                            f"FedXgb{'Cyclic' if cyclic else 'Bagging'}, rate "
                            f"{rate}{'' if cyclic else ' / clients'}"
                        )
                        rounds = 1 if cyclic and name == "fifty-sites" else ROUNDS[name]
                        results.setdefault(label, []).append(
                            federated_xgboost(parts, rounds, cyclic, own)
                        )
        for label, runs in results.items():
            scores, megabytes = np.array(runs).T
            spread = f" ± {scores.std(ddof=1):.1f}" if len(runs) > 1 else ""
            table.add_row(
                name,
                label,
                str(len(runs)),
                f"{scores.mean():.1f}{spread}",
                f"{megabytes.mean():.2f}",
            )
    console.print(table)
    if not xgboost:
        console.print(
            "Flower's federated XGBoost was skipped: no module xgboost here (pip install xgboost)"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["generate", "rivals"])
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="generate: where the table goes"
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument(
        "--data", type=Path, default=Path(), help="rivals: folder of the tables' folders"
    )
    parser.add_argument("--only", nargs="+", default=list(SITES), choices=list(SITES))
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    )
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if given.study == "generate":
        import pandas

        given.folder.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(generated(given.rows, given.sites)).to_parquet(
            given.folder / "train.parquet"
        )
    else:
        rivals(given.data, given.only, given.seeds)


if __name__ == "__main__":
    main()
