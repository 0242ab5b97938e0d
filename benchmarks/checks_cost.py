"""What the checks of replies and the files against loss cost an honest run: CPU time of
this version, divided by that of an earlier one.

    python benchmarks/checks_cost.py [--before COMMIT] [--runs N] [--jobs NAME ...]
    [--data FOLDER]

The files of ``--before`` (default: the last commit without these checks) are exported
to a temporary folder. Two processes, one per version, run the same job in step: a block
of rounds of one, then the same block of the other, so that both meet the same other
load of the machine. Inline, one torch thread:

- standard: the job of ``round_time.py`` (199,210 parameters, ten of a hundred clients
  per round) on the images of ``--data``, MNIST say; blocks of one round.
- tiny: logistic regression on digits, ten clients, one epoch, blocks of ten rounds.
- private: tiny, with differential privacy.

Start and end of a run do not count, nor does the first block. Prints the median over
blocks of the ratio of CPU times, and of wall times, with a 95 % interval that assumes
nothing about their distribution (order statistics).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "c3796ce0"
TINY = {
    "method": "fedavg",
    "model.name": "logistic",
    "data.partition": "iid",
    "num-clients": 10,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "train.local-epochs": 1,
    "device": "cpu",
}
BLOCKS = 30  # of a run
#: Settings and rounds per block.
JOBS: dict[str, tuple[dict[str, Any], int]] = {
    "standard": ({}, 1),
    "tiny": (TINY, 10),
    "private": ({**TINY, "dp.noise-multiplier": 1.0}, 10),
}


def exported(commit: str, folder: Path) -> Path:
    """Write the files of a commit of this repository to a folder; return it."""
    files = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(files.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def work(name: str, data: str) -> None:
    """Run a job; wait for a line of the input before each block of rounds, and print
    its CPU and wall seconds after it.
    """
    import logging

    import torch

    from benchmarks import round_time
    from fedapps.runs.execution import execute_inline
    from fedapps.settings.settings import read_settings

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    began: list[float] = []
    block = JOBS[name][1]

    def clocks() -> list[float]:
        return [time.process_time(), time.perf_counter()]

    def step(now: Any) -> None:
        if now.number % block or now.number == now.num_rounds:
            return
        end = clocks()
        if began:
            spent = [b - a for a, b in zip(began, end, strict=True)]
            print(json.dumps(spent), flush=True)
        sys.stdin.readline()
        began[:] = clocks()

    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = JOBS[name][0]
        if not given:
            given = round_time.settings_of(Path(data), BLOCKS).flat()
        given = {**given, "num-rounds": block * (BLOCKS + 1) + 1, "out": str(Path(folder, "run"))}
        execute_inline(read_settings(given), [step])


def started(tree: Path, job: str, data: str, stack: ExitStack) -> Any:
    """Start :func:`work` on the modules of a tree."""
    # this file's own, since the earlier version need not have it
    script = "import runpy, sys; runpy.run_path(sys.argv[1])['work'](*sys.argv[2:])"
    return stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-P", "-c", script, __file__, job, data],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def asked(worker: Any) -> list[float]:
    """Let a worker run its next block; return its CPU and wall seconds."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit("a worker ended: its error is above")
    return [float(number) for number in json.loads(answer)]


def measured(job: str, data: str, earlier: Path) -> list[tuple[list[float], list[float]]]:
    """Return CPU and wall seconds of the blocks of one run, of this version and of the
    earlier one.
    """
    pairs = []
    with ExitStack() as stack:
        workers = {tree: started(tree, job, data, stack) for tree in (ROOT, earlier)}
        for number in range(BLOCKS):
            order = (ROOT, earlier) if number % 2 else (earlier, ROOT)
            spent = {tree: asked(workers[tree]) for tree in order}
            pairs.append((spent[ROOT], spent[earlier]))
        for worker in workers.values():
            worker.stdin.close()
    return pairs[1:]


def interval(values: list[float]) -> str:
    """Return the median and its 95 % interval by order statistics."""
    ordered, count = sorted(values), len(values)
    # the largest k such that k or fewer of n values below the median are 2.5 % likely
    below, chance = 0, 2.0**-count
    while chance <= 0.025 and below < count // 2:
        below += 1
        chance += math.comb(count, below) * 2.0**-count
    if not below:
        return f"{statistics.median(ordered):.3f} (too few pairs for an interval)"
    low, high = ordered[below - 1], ordered[count - below]
    return f"{statistics.median(ordered):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help="an earlier version")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--data", default="", metavar="FOLDER", help="images of the standard job")
    chosen = parser.parse_args()
    if not chosen.data:
        chosen.jobs = [job for job in chosen.jobs if job != "standard"]
    print("| job | ms per round before | CPU / before | wall / before |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        earlier = exported(chosen.before, Path(folder))
        for job in chosen.jobs:
            rows = [
                row
                for _ in track(range(chosen.runs), console=Console(stderr=True))
                for row in measured(job, chosen.data, earlier)
            ]
            cpu, wall = ([now[k] / old[k] for now, old in rows] for k in (0, 1))
            took = 1000 * statistics.median(old[0] for _, old in rows) / JOBS[job][1]
            print(f"| {job} | {took:.1f} | {interval(cpu)} | {interval(wall)} |", flush=True)


if __name__ == "__main__":
    main()
