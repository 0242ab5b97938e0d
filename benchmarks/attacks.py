"""What attackers achieve against the mean, bounds and robust rules: a table of methods
and attacks with the accuracy of the model.

    python benchmarks/attacks.py [--partition iid] [--seeds 3] [--rounds 15]
    [--attackers 2] [--attacks none ...]
    python benchmarks/attacks.py --lies [--results build/lies.jsonl] [--before [COMMIT]]

The second prints what each lie of ``lies.py`` costs: one liar among ten clients, scores
in per cent (for FedBoost, AFLBoost and Frank-Wolfe the loss or objective). ``--before``
adds a column of the same lies in an earlier version, by default the last one without
the bounds.

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
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from rich.console import Console
from rich.progress import track

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lies import DIGITS, JOB, LIES, Liar, Lie, both, claimed, filled, honest, moved
from fedapps.clients.base.adapter import to_client_app
from fedapps.clients.base.store import MessageStore
from fedapps.data.options import DataOptions
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.execution import execute
from fedapps.settings.reading import chosen, read_settings
from fedapps.settings.settings import Settings
from fedapps.strategies.base.rounds import TooFewReplies
from fedapps.tasks.registry import TASKS

Rows = dict[str, float | None]

#: The last version without the bounds.
BEFORE = "c3796ce0"

MEANS: dict[str, dict[str, Any]] = {
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
ATTACKS = {
    "none": None,
    "sign flip": Lie("", "fedavg", moved(-1.0)),
    "scaled": Lie("", "fedavg", moved(50.0)),
    "label flip": Lie("", "fedavg", honest, flips=True),
    "inflated weight": Lie("", "fedavg", both(filled(5.0), claimed)),
}
#: The column of runs without a liar.
HONEST = "no liar"
COLUMNS: dict[str, dict[str, Any]] = {"defaults": {}, "hardened": {"hardened": True}}


def summary(given: dict[str, Any], lie: Lie | None, liars: int = 1) -> dict[str, Any]:
    """Return the summary of one run whose first clients lie."""
    with tempfile.TemporaryDirectory() as folder:
        settings: Settings = read_settings({**given, "out": folder})
        task: Any = build_task(settings)

        def client_fn(context: Context) -> NumPyClient:
            client = int(str(context.node_config["partition-id"]))
            honest_one = build_client(
                settings, task, client, settings.num_clients, MessageStore(context.state)
            )
            return Liar(honest_one, lie) if lie and client < liars else honest_one

        return execute(settings, InlineGrid(to_client_app(client_fn), settings.num_clients))


def settings_of(lie: Lie) -> dict[str, Any]:
    """Return the settings of a lie's run: the defaults of method and task, and its
    own.
    """
    own = {"method": lie.method, **JOB, **lie.settings}
    if not hasattr(DataOptions, "split_seed"):  # an earlier version: the split follows the seed
        own.pop("data.split-seed", None)
    kind = TASKS[chosen({**METHODS[lie.method].defaults, **own})[1]]
    given = {**METHODS[lie.method].defaults, **kind.defaults, **own}
    if kind.data is not None and "partition" not in kind.data:
        given.pop("data.partition", None)
    return given


def told_before(commit: str, seeds: int, results: Path) -> Path:
    """Tell the lies in the version ``commit``; return the file of the results."""
    file = results.with_name(f"{results.stem}-{commit}.jsonl").absolute()
    with tempfile.TemporaryDirectory() as folder:
        tree, root = Path(folder), Path(__file__).resolve().parent.parent
        files = subprocess.run(
            ["git", "-C", str(root), "archive", commit], capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(files.stdout)) as archive:
            archive.extractall(tree, filter="data")
        for name in ("attacks.py", "lies.py"):
            shutil.copy(Path(__file__).with_name(name), tree / "benchmarks")
        script = [str(tree / "benchmarks" / "attacks.py"), "--lies", "--columns", "defaults"]
        subprocess.run(
            [sys.executable, *script, "--seeds", str(seeds), "--results", str(file)],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return file


def tell_lies(seeds: int, results: Path, before: str, told: Sequence[str]) -> None:
    """Print a row per lie; runs whose results are in the file are not repeated."""
    results.parent.mkdir(parents=True, exist_ok=True)
    old = read_rows(told_before(before, seeds, results)) if before else {}
    rows = read_rows(results)
    jobs = [(lie, column, seed) for lie in LIES for column in told for seed in range(seeds)]
    for lie, column, seed in track(jobs, console=Console(stderr=True)):
        key = key_of(lie, column, seed)
        if json.dumps(key) in rows:
            continue
        given = {**settings_of(lie), **COLUMNS.get(column, {}), "seed": seed}
        try:
            run = summary(given, None if column == HONEST else lie)
            score: float | None = float(run[lie.score]) * lie.factor
        except (TooFewReplies, UserError):
            score = None
        rows[json.dumps(key)] = score
        with results.open("a") as file:
            file.write(json.dumps([*key, score]) + "\n")
    columns = ["method: lie", HONEST, *(["before"] if before else []), *COLUMNS]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for lie in LIES:
        cells = [
            score_of(rows, lie, HONEST, seeds),
            *([score_of(old, lie, "defaults", seeds)] if before else []),
            *(score_of(rows, lie, column, seeds) for column in COLUMNS),
        ]
        print(f"| {lie.method}: {lie.name} | {' | '.join(cells)} |")


def key_of(lie: Lie, column: str, seed: int) -> list[Any]:
    """Return what identifies a run; one without a liar is shared by several lies."""
    what = json.dumps(lie.settings) if column == HONEST else lie.name
    return [lie.method, what, column, seed]


def score_of(rows: Rows, lie: Lie, column: str, seeds: int) -> str:
    """Return the mean score over seeds, with its sample deviation."""
    values = [rows.get(json.dumps(key_of(lie, column, seed))) for seed in range(seeds)]
    known = [value for value in values if value is not None]
    return _cell(known) if len(known) == len(values) else "fails"


def read_rows(file: Path) -> Rows:
    """Return the scores in a file of results by the rest of their rows."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return {json.dumps(row[:-1]): row[-1] for row in map(json.loads, lines)}


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
    parser.add_argument("--lies", action="store_true", help="the table of one liar among ten")
    parser.add_argument("--results", type=Path, default=Path("build/lies.jsonl"))
    parser.add_argument(
        "--before", nargs="?", const=BEFORE, default="", metavar="COMMIT", help="a column more"
    )
    parser.add_argument("--columns", nargs="+", default=[HONEST, *COLUMNS], help="runs to make")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    if options.lies:
        tell_lies(options.seeds, options.results, options.before, options.columns)
        return
    jobs = [
        (method, attack, seed)
        for method in MEANS
        for attack in options.attacks
        for seed in range(options.seeds)
    ]
    accuracies: dict[tuple[str, str], list[float]] = {}
    for method, attack, seed in track(jobs, console=Console(stderr=True)):
        given = {
            **JOB,
            **DIGITS,
            **MEANS[method],
            "seed": seed,
            "num-rounds": options.rounds,
            "data.partition": options.partition,
        }
        given |= {"robust.num-malicious": options.attackers} if "robust.rule" in given else {}
        score = summary(given, ATTACKS[attack], options.attackers)["accuracy-mean"]
        accuracies.setdefault((method, attack), []).append(100 * float(score))
    print(f"| method | {' | '.join(options.attacks)} |\n| --- |{' --- |' * len(options.attacks)}")
    for method in MEANS:
        cells = [_cell(accuracies[method, attack]) for attack in options.attacks]
        print(f"| {method} | {' | '.join(cells)} |")


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
