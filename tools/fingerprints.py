"""Fingerprints of the experiments: `make claims` runs every quoted sweep, cut to six
rounds, few clients and samples, and compares losses, and how far the model moved, with
``experiments/fingerprints.json``. If a default moves, it names the sweeps whose
published numbers may have moved, too.

    python -m tools.fingerprints [--write] [WORD ...]

A WORD chooses the sweeps whose name holds it. Pictures are replaced by the bundled
ones. Sweeps on text and tables from elsewhere are listed, and not run.
"""

import argparse
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedapps.errors import UserError
from fedapps.lab.sweeps.plan import read_plan
from fedapps.runs.execution import assembled, execute_inline, first_arrays
from fedapps.settings.reading import read_settings
from fedapps.toml_text import load_toml
from tools.claims import NOT_TRIED

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "experiments" / "fingerprints.json"
#: Relative difference that is no change: other processors round otherwise. Some nets on
#: generated samples amplify that, and keep only numbers that ``OLDER`` does not move.
CLOSE = 1e-3
#: Has a processor compute as an older one does.
OLDER = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
#: What a setting is at most in the cut runs, and what it is.
MOST = {"num-clients": 12, "num-rounds": 6, "data.max-samples": 600, "train.local-epochs": 1}
FIXED = {"seed": 0, "evaluate-every": 0, "checkpoint-every": 0, "train.compile": "off"}
#: Settings of a task in the place of those for data that are not bundled.
STAND_INS: dict[str, dict[str, Any]] = {
    "classification": {
        "data.source": "digits",
        "data.test": "",
        "data.resize": 0,
        "public.source": "photos",
        "public.resize": 0,
        "synthetic.reference": "clients",
    },
    "tabular": {"data.source": "generated"},
}
SOURCES = ("data.source", "public.source")
BUNDLED = ("", "auto", "digits", "generated", "photos", "ratings")
#: Ends of the names of numbers in a run's summary that are compared. No accuracy: one
#: sample on the border counts more than what is no change.
ENDS = ("loss-mean", "loss-weighted", "objective")
#: Rounds where one costs a millisecond and moves little.
ROUNDS = {"point-mass": 60}
#: Runs per sweep: the first ones with different methods and tasks.
RUNS = 8


def quoted(root: Path = ROOT) -> list[Path]:
    """Return the sweeps that have a claim with numbers."""
    return [
        path
        for path in sorted(root.glob("experiments/*/*.toml"))
        if "sweep" in (table := load_toml(path))
        and any(claim["verdict"] != NOT_TRIED for claim in table.get("claim", []))
    ]


def cut_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of the cut runs of a sweep, by their names; none if its data
    are not bundled.
    """
    scale = "small" if "small" in load_toml(path).get("scale", {}) else ""
    runs: dict[str, dict[str, Any]] = {}
    met: set[tuple[Any, Any]] = set()
    for point in read_plan(path, scale=scale).points:
        config = dict(point.run.config)
        kind = config["method"], config["task"]
        elsewhere = {key for key in SOURCES if config.get(key, "") not in BUNDLED}
        given = STAND_INS.get(config["task"], {})
        if kind in met or not elsewhere <= given.keys():
            continue
        met.add(kind)
        if elsewhere:
            config |= {key: value for key, value in given.items() if key in config}
        rounds = ROUNDS.get(config["task"], MOST["num-rounds"])
        for key, value in {**MOST, "num-rounds": rounds, **FIXED}.items():
            if key in FIXED or not 0 < config.get(key, 0) <= value:  # 0 and -1 are "all"
                with suppress(UserError):  # this task or method does not use it
                    read_settings({**config, key: value})
                    config[key] = value
        config["clients-per-round"] = min(config["clients-per-round"], config["num-clients"])
        runs[point.name] = config
    return dict(list(runs.items())[:RUNS])


def fingerprint(config: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers of a run: mean losses, and how far its model moved."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = read_settings({**config, "out": str(run)})
        parts = assembled(settings)
        start = first_arrays(parts.task, parts.strategy)
        summary = execute_inline(settings, parts=parts)
        found = {name: value for name, value in summary.items() if name.endswith(ENDS)}
        if (model := run / "model.safetensors").exists():
            found["model-moved"] = math.hypot(
                *(_distance(end, start.get(name)) for name, end in load_file(model).items())
            )
    return {
        name: float(f"{value:.6g}")
        for name, value in found.items()
        if isinstance(value, float) and math.isfinite(value)
    }


def _distance(end: NDArray[Any], start: Array | None) -> float:
    """Return how far an array is from the start, or from zero if it grew."""
    first = 0 if start is None or tuple(start.shape) != end.shape else start.numpy()
    return float(np.linalg.norm((end.astype(np.float64) - first).ravel()))


def kept(row: Mapping[str, float], again: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a run that are the same on another processor."""
    return {
        name: value
        for name, value in row.items()
        if math.isclose(value, again.get(name, math.inf), rel_tol=CLOSE / 10, abs_tol=1e-7)
    }


def differences(old: Mapping[str, float], new: Mapping[str, float]) -> list[str]:
    """Return a line per number of ``old`` that differs in ``new``."""
    return [
        f"{name} {new.get(name)}, was {value}"
        for name, value in sorted(old.items())
        if not math.isclose(value, new.get(name, math.inf), rel_tol=CLOSE, abs_tol=1e-6)
    ]


def all_runs(words: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, settings) of the cut runs; print the sweeps without."""
    left = []
    for path in quoted():
        name = f"{path.parent.name}/{path.stem}"
        if words and not any(word in name for word in words):
            continue
        runs = cut_runs(path)
        left += [] if runs else [name]
        yield from ((f"{name} {run}", config) for run, config in runs.items())
    if left:
        print(f"not run, their data are not bundled: {', '.join(left)}")


def main() -> int:
    """Compare or write; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="replace the numbers")
    parser.add_argument("words", nargs="*", help="choose sweeps by a part of their names")
    given = parser.parse_args()
    try:
        runs = dict(all_runs(given.words))
    except UserError as error:  # as two rows of a sweep that a default has made one
        print(error)
        return 1
    found = _all(runs)
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    moved = {name: differences(known.get(name, {}), row) for name, row in found.items()}
    for name, lines in moved.items():
        if lines:
            print(f"{name}: {'; '.join(lines)}")
    sweeps = sorted({name.split()[0] for name, lines in moved.items() if lines})
    print(f"{len(found)} runs of {len({name.split()[0] for name in found})} sweeps")
    if sweeps:
        print(
            f"Numbers moved in {', '.join(sweeps)}: run these claims again (docs/results), or say "
            "in the commit why they hold; then: make claims ARGS=--write"
        )
    if given.write:
        os.environ |= OLDER
        again = _all(runs)
        new = {name: kept(row, again[name]) for name, row in found.items()}
        known = {**known, **new} if given.words else new
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return bool(sweeps) and not given.write


def _all(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return dict(zip(runs, pool.map(_quietly, runs.values()), strict=True))


def _quietly(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the fingerprint of a run, without its log; {} if it is refused with other
    data than its own.
    """
    logging.disable(logging.WARNING)
    with suppress(UserError):
        return fingerprint(config)
    return {}


if __name__ == "__main__":
    sys.exit(main())
