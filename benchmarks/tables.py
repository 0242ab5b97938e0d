"""Generated data sets, and alternatives for tables on the same rows.

    python benchmarks/tables.py generate FOLDER
    python benchmarks/tables.py windows FOLDER
    python benchmarks/tables.py rivals DATA [--only heart berka] [--seeds 2 4 6]

generate: writes a table of 100,000 rows and 50 unequal sites, with missing values (some
columns at some sites altogether), skewed numbers and categories, whose label needs
thresholds and interactions, as FOLDER/train.parquet. The same rows every time.

windows: writes a set with the shape of UCI HAR: windows of 128 steps of nine sensors,
six activities numbered from 1. Each person has its own offset and gain on every sensor,
its own tempo and mixture of activities, and between half and one and a half times the
mean number of windows. FOLDER/people: 30 people; FOLDER/official: 21 to train on, 9
others to test.

rivals: AUROC in per cent (of each client's test rows, mean weighted by their number)
and megabytes of all messages, mean and standard deviation over seeds, of scikit-learn's
histogram boosting on all training rows and, if `xgboost` can be imported, of Flower's
``FedXgbBagging`` and ``FedXgbCyclic``, as in experiments/ffgb/tables.toml: DATA has the
folders that it names. XGBoost is no dependency of this project: without it these rows
are skipped, and a line says so.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow.parquet as pq
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks.common import options, show, spread
from fedapps.algorithms.common.measures import auroc
from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.adapter import answer_identity
from fedapps.clients.base.data import ArrayData
from fedapps.data.local_files import arrow_table
from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import with_defaults
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.rounds import run_rounds

try:
    import xgboost
except ImportError:
    xgboost = None

SITES = {"heart": 4, "berka": 7, "fifty-sites": 50}
ROUNDS = {"heart": 30, "berka": 30, "fifty-sites": 20}
Arrays = dict[str, NDArray[Any]]
Score = Callable[[NDArray[Any]], NDArray[Any]]


# --- generated sets -------------------------------------------------------------------


def generated(rows: int = 100_000, sites: int = 50) -> Arrays:
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
    out: Arrays = {f"x{i}": x[:, i] for i in range(12)}
    out |= {"kind": np.array(list("abcde"))[kind], "stage": np.array(["I", "II", "III"])[stage]}
    return out | {"label": label, "client": np.array([f"site{k:02d}" for k in range(sites)])[site]}


SENSORS, STEPS, ACTIVITIES, HERTZ = 9, 128, 6, 50
TRAINED = [person for person in range(1, 31) if person % 10 not in (2, 4, 9)]


def windows(people: Iterable[int], total: int, split: str = "train", steps: int = STEPS) -> Arrays:
    """Return ``window`` (total, 9, steps), ``activity`` in 1..6 and ``subject``,
    shuffled; the same people in every split.
    """
    common = generator(0, "activities")
    tempo, size = (
        common.uniform(0.5, 4, (ACTIVITIES, SENSORS)),
        common.uniform(0.1, 1, (ACTIVITIES, SENSORS)),
    )
    level, people = common.normal(0, 0.5, (ACTIVITIES, SENSORS)), list(people)
    share = np.array([generator(0, "share", person).uniform(0.5, 1.5) for person in people])
    ends = np.round(np.cumsum(share) / share.sum() * total).astype(int)
    parts = []
    for person, count in zip(people, np.diff(ends, prepend=0), strict=True):
        own = generator(0, "person", person)
        offset, gain, pace = (
            own.normal(0, 0.4, SENSORS),
            own.uniform(0.7, 1.3, SENSORS),
            own.uniform(0.8, 1.25),
        )
        mixture, draw = (
            own.dirichlet(np.full(ACTIVITIES, 8.0)),
            generator(0, f"windows of {split}", person),
        )
        activity = draw.choice(ACTIVITIES, count, p=mixture)
        time_ = np.arange(steps) / HERTZ
        phase = draw.uniform(0, 2 * np.pi, (count, SENSORS, 1))
        waves = np.sin(2 * np.pi * pace * tempo[activity][:, :, None] * time_ + phase)
        x = (level[activity] + offset)[:, :, None] + (gain * size[activity])[:, :, None] * waves
        x += draw.normal(0, 0.5, x.shape)
        parts.append((x.astype(np.float32), activity + 1, np.full(count, person)))
    x, activity, subject = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = generator(0, f"order of {split}").permutation(total)
    return {"window": x[order], "activity": activity[order], "subject": subject[order]}


def write(folder: Path, arrays: Arrays, split: str = "train") -> None:
    """Write a split as parquet with lists of fixed size."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow_table(arrays, ""), folder / f"{split}.parquet")


def write_windows(folder: Path) -> None:
    """Write both ways of cutting the set."""
    others = [person for person in range(1, 31) if person not in TRAINED]
    write(folder / "people", windows(range(1, 31), 10_299))
    write(folder / "official", windows(TRAINED, 7352))
    write(folder / "official", windows(others, 2947, "test"), "test")


# --- rivals ---------------------------------------------------------------------------


def parts_of(data: Path, name: str, seed: int) -> list[ArrayData]:
    """Return the clients' rows in the form that histogram boosting uses."""
    config: dict[str, Any] = {
        "method": "histogram-boosting",
        "data.source": str(data / name),
        "num-clients": SITES[name],
    }
    if name == "fifty-sites":
        config["data.categorical"] = "kind,stage"
    settings = with_defaults({**config, "seed": seed, "data.split-seed": "seed"})
    task: Any = build_task(settings)
    return [task.arrays(client, SITES[name], False) for client in range(SITES[name])]


def mean_auroc(parts: list[ArrayData], score: Score) -> float:
    """Return the mean over clients whose test rows have both classes, weighted by test
    rows, in per cent.
    """
    tests = [part.test for part in parts if len(set(part.test.y)) > 1]
    scores = [auroc(score(test.x), test.y) for test in tests]
    return 100 * float(np.average(scores, weights=[len(test) for test in tests]))


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


def rival_rows(data: Path, names: Sequence[str], seeds: Sequence[int]) -> Iterator[list[str]]:
    """Yield a row per rival and table."""
    for name in names:
        results: dict[str, list[tuple[float, float]]] = {}
        for seed in seeds:
            parts, clients = parts_of(data, name, seed), SITES[name]
            for rate in (0.1, 0.3):
                label = f"rows in one place, rate {rate}"
                results.setdefault(label, []).append((pooled(parts, seed, rate), 0.0))
                # FedXgbCyclic takes minutes for one tree of each: one seed
                many = name == "fifty-sites"
                kinds = [False] if many and seed != seeds[0] else [False, True]
                for cyclic in kinds if xgboost else ():
                    own = rate if cyclic else rate / clients  # as Flower's example scales it
                    kind = (
                        f"FedXgbCyclic, rate {rate}"
                        if cyclic
                        else f"FedXgbBagging, rate {rate} / clients"
                    )
                    rounds = 1 if cyclic and many else ROUNDS[name]
                    found = federated_xgboost(parts, rounds, cyclic, own)
                    results.setdefault(kind, []).append(found)
        for label, runs in results.items():
            scores, megabytes = np.array(runs).T
            yield [name, label, str(len(runs)), spread(scores), f"{megabytes.mean():.2f}"]
    if not xgboost:
        print("\nFlower's federated XGBoost was skipped: no module xgboost (pip install xgboost)")


def main() -> None:
    """Write a set, or print the table."""
    given = options(
        __doc__,
        {
            "study": ("generate", "windows", "rivals"),
            "folder": "",
            "--only": list(SITES),
            "--seeds": list(range(2, 21, 2)),
        },
    )
    folder = Path(given.folder)
    if given.study == "generate":
        write(folder, generated())
    elif given.study == "windows":
        write_windows(folder)
    else:
        columns = ("table", "", "seeds", "AUROC", "MB")
        show("The same rows", columns, rival_rows(folder, given.only, given.seeds))


if __name__ == "__main__":
    main()
