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
from collections.abc import Mapping, Sequence
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
#: In the place of nets that take no pictures of 8 x 8 pixels.
NETS = {"conv-120-84": "mlp-32-32"}
BUNDLED = ("", "auto", "digits", "generated", "photos", "ratings")
#: Ends of the names of numbers in a run's summary that are compared. No accuracy: one
#: sample on the border counts more than what is no change.
ENDS = ("loss-mean", "loss-weighted", "objective", "epsilon")
#: Rounds where one costs a millisecond and moves little.
ROUNDS = {"point-mass": 60}
#: Runs per sweep, and one of every further method and task.
RUNS = 8

#: Numbers, or settings, of runs by their names.
Rows = Mapping[str, Mapping[str, Any]]


def quoted(root: Path = ROOT) -> list[Path]:
    """Return the sweeps that have a claim with numbers, and files that are no TOML."""
    return [path for path in sorted(root.glob("experiments/*/*.toml")) if _is_quoted(path)]


def _is_quoted(path: Path) -> bool:
    try:
        table = load_toml(path)
    except UserError:  # named where its runs are read
        return True
    claims = table.get("claim", [])
    return "sweep" in table and any(claim.get("verdict") != NOT_TRIED for claim in claims)


def cut_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of the cut runs of a sweep, by their names; none if its data
    are not bundled.
    """
    scales = ["small", ""] if "small" in load_toml(path).get("scale", {}) else [""]
    runs: dict[str, dict[str, Any]] = {}
    kinds: set[tuple[Any, Any]] = set()
    for scale in scales:
        for point in read_plan(path, scale=scale).points:
            config = _cut(dict(point.run.config))
            kind = config.get("method"), config.get("task")
            more = len(runs) < RUNS and scale == scales[0]
            # the same settings: another run differs in its seed, say
            if config and (kind not in kinds or (more and config not in runs.values())):
                runs.setdefault(point.name, config)
                kinds.add(kind)
    return runs


def _cut(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a shorter run on bundled data; none if there are none in
    the place of its own.
    """
    elsewhere = {key for key in SOURCES if config.get(key, "") not in BUNDLED}
    given = STAND_INS.get(config["task"], {})
    if config["task"] == "classification" and config.get("data.natural-id"):  # a table
        given = {**given, "data.natural-id": "", "data.label": "", "data.partition": "iid"}
    if not elsewhere <= given.keys():
        return {}
    if elsewhere:
        config |= {key: value for key, value in given.items() if key in config}
        config["model.name"] = NETS.get(config["model.name"], config["model.name"])
    rounds = ROUNDS.get(config["task"], MOST["num-rounds"])
    for key, value in {**MOST, "num-rounds": rounds, **FIXED}.items():
        if key in FIXED or not 0 < config.get(key, 0) <= value:  # 0 and -1 are "all"
            with suppress(UserError):  # this task or method does not use it
                read_settings({**config, key: value})
                config[key] = value
    config["clients-per-round"] = min(config["clients-per-round"], config["num-clients"])
    return config


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


def moved(known: Rows, found: Rows) -> dict[str, list[str]]:
    """Return what is wrong with each run: it is new, or gone, or its numbers differ."""
    lines = {}
    for name in sorted({*known, *found}):
        if name not in found:
            lines[name] = ["no run has this name any more"]
        elif name not in known:
            lines[name] = ["has no numbers to compare with"]
        else:
            lines[name] = differences(known[name], found[name])
    return {name: what for name, what in lines.items() if what}


def all_runs(words: Sequence[str]) -> tuple[Rows, dict[str, list[str]]]:
    """Return the settings of the cut runs by their names, and why sweeps are refused;
    print the sweeps without runs.
    """
    runs: dict[str, dict[str, Any]] = {}
    refused: dict[str, list[str]] = {}
    left = []
    for path in quoted():
        name = f"{path.parent.name}/{path.stem}"
        if not is_chosen(name, words):
            continue
        try:
            cut = cut_runs(path)
        except UserError as error:  # as two rows that a default has made one
            refused[name] = [str(error)]
            continue
        left += [] if cut else [name]
        runs |= {f"{name} {run}": config for run, config in cut.items()}
    if left:
        print(f"not run, their data are not bundled: {', '.join(left)}")
    return runs, refused


def is_chosen(name: str, words: Sequence[str]) -> bool:
    """Return whether ``words`` choose a sweep."""
    return not words or any(word in name for word in words)


def main() -> int:
    """Compare or write; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="replace the numbers")
    parser.add_argument("words", nargs="*", help="choose sweeps by a part of their names")
    given = parser.parse_args()
    known = _known()
    runs, failed = all_runs(given.words)
    if not runs and not failed:
        parser.error(f"no sweep to run has {' or '.join(given.words)} in its name")
    found = _all(runs, failed)
    chosen = {
        name: row
        for name, row in known.items()
        if is_chosen(sweep := name.split()[0], given.words) and not {name, sweep} & failed.keys()
    }
    wrong = failed | moved(chosen, found)
    for name, lines in wrong.items():
        print(f"{name}: {'; '.join(lines)}")
    if empty := [name for name in found if known.get(name) == {}]:
        print(f"not compared, other processors have other numbers: {', '.join(empty)}")
    print(f"{len(runs)} runs of {len({name.split()[0] for name in runs})} sweeps")
    if failed:
        print("Some runs failed: mend them first")
    elif wrong and not given.write:
        sweeps = sorted({name.split()[0] for name in wrong})
        print(
            f"Numbers moved in {', '.join(sweeps)}: run these claims again (docs/results), or say "
            "in the commit why they hold; then: make claims ARGS=--write"
        )
    if not given.write or failed:
        return bool(wrong)
    os.environ |= OLDER
    again = _all(runs, failed)
    if failed:
        print(f"failed as an older processor: {', '.join(failed)}")
        return 1
    others = {name: row for name, row in known.items() if name not in chosen}
    rows = others | {name: kept(row, again[name]) for name, row in found.items()}
    FILE.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def _known() -> dict[str, dict[str, float]]:
    """Return the numbers of the file; none if it cannot be read."""
    try:
        rows = json.loads(FILE.read_text(encoding="utf-8"))
        return {name: {key: float(v) for key, v in row.items()} for name, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"{FILE.name} cannot be read, so nothing can be compared: {error}")
        return {}


def _all(runs: Rows, failed: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    """Return the fingerprints of runs; why others failed goes into ``failed``."""
    found = {}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        begun = {name: pool.submit(_quietly, config) for name, config in runs.items()}
        for name, future in begun.items():
            try:
                found[name] = future.result()
            except Exception as error:  # the others are compared all the same
                failed[name] = [f"{type(error).__name__}: {error}"]
    return found


def _quietly(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the fingerprint of a run, without its log."""
    logging.disable(logging.WARNING)
    try:
        return fingerprint(config)
    except SystemExit as error:  # it would end the process of other runs, too
        raise RuntimeError(f"the run ended with status {error.code}") from None


if __name__ == "__main__":
    sys.exit(main())
