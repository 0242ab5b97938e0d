"""What the programs of this folder share: options, tables, clocks, apps in Flower's Ray
simulation.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The 2NN of McMahan et al. 2017 on MNIST: settings but for data and length of a run.
TWO_NN: dict[str, Any] = {
    "method": "fedavg",
    "num-clients": 100,
    "clients-per-round": 10,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "device": "cpu",
    "data.partition": "iid",
    "model.name": "mcmahan-2nn",
    "train.learning-rate": 0.1,
    "train.lr-decay": 1.0,
    "train.momentum": 0.0,
    "train.weight-decay": 0.0,
    "train.local-epochs": 1,
    "train.batch-size": 10,
}


def options(doc: str | None, defaults: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of the command line; Flower's log is silent from here on.

    The default decides what an option takes: ``False`` a flag, a list values of the
    type of its first one (words: of those in the list), else one value. A name without
    dashes is an argument, with the words of a tuple to choose from.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        rest: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            rest = {"action": "store_true"}
        elif isinstance(default, tuple):
            rest = {"choices": default}
        elif isinstance(default, list):
            kind = type(default[0])
            words = default if kind is str else None
            rest = {"nargs": "+", "type": kind, "default": default, "choices": words}
        parser.add_argument(name, **rest)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return parser.parse_args()


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown, each row as soon as it is there."""
    print(f"\n{title}\n")
    for row in chain([columns, ["---"] * len(columns)], rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean ± the sample standard deviation."""
    more = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{more}"


def cpu(work: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of ``work``, the least of ``times``."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


def in_turns(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of each of ``works``, the first time not counted.
    They run in turns, so that a busy moment affects all.
    """
    spent = [{name: cpu(work) for name, work in works.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(one[name] for one in spent[1:]) for name in works}


def fresh(program: str, *arguments: object) -> dict[str, Any]:
    """Run a program of this folder in a process of its own; return the JSON of its last
    line.
    """
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


PROJECT = """[project]
name = "benchmark"
version = "0.1.0"
description = "x"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
[tool.flwr.app.components]
serverapp = "benchmarkapp.apps:server"
clientapp = "benchmarkapp.apps:client"
[tool.flwr.app.config]
"""


def run_ray(apps: str, config: dict[str, Any], nodes: int, workers: int, log: Path) -> None:
    """Run the apps ``server`` and ``client``, which the code ``apps`` assigns, in
    Flower's Ray simulation. Raise ``SystemExit`` with the end of the log if the run
    does not complete.
    """
    from fedapps.engines import flower
    from fedapps.toml_text import to_toml

    with tempfile.TemporaryDirectory(prefix="fedapps-benchmark-") as name:
        app = Path(name) / "benchmarkapp"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "apps.py").write_text(apps, encoding="utf-8")
        (Path(name) / "pyproject.toml").write_text(PROJECT + to_toml(config), encoding="utf-8")
        os.environ["PYTHONPATH"] = str(ROOT)
        outcome = flower.run_simulation(
            Path(name),
            config,
            flower.Resources(nodes, ray_cpus=workers),
            flower.Following(log),
        )
    if outcome.status != "completed":
        raise SystemExit(
            f"the Ray run {outcome.status}: {outcome.details}\n{log.read_text()[-3000:]}"
        )
