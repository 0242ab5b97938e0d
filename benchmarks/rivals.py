"""The same job in fedapps, pfl-research, Flower's own FedAvg and fluke: seconds, CPU,
memory and accuracy; and SuPerFed of fluke beside ours.

    python benchmarks/rivals.py --data FOLDER [--rounds N] [--processes 1 2]
    [--only NAME ...] [--superfed] [--start 0.4 0] [--seeds 0 1 2]

The job: FOLDER is MNIST (see experiments/superfed/mnist-100.toml), 100 clients with 360
training samples each, 784-200-200-10, ten clients a round, one epoch, batch 10, plain
SGD with rate 0.1, ten rounds. All start from the same model and train on the same
samples, one torch thread per process. Which ten clients a round has is drawn by each
framework. The accuracy is that of the final model on the pooled test samples.

Each framework is installed into build/rivals/, with the PyTorch, NumPy and SciPy of
this environment. Seconds are from the start of the process to its end; "a round" is the
median after the first. CPU and memory are those of all processes (memory: the sum of
proportional set sizes, read five times a second). A framework that cannot be installed
is named with the reason.

``--superfed``: twenty clients with two classes each, the same deal, start model, rates
and penalties in both. "own start": fluke with local models that start at random.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from benchmarks.round_time import JOB
from fedapps.engines.processes import marked, program
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import to_toml

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "benchmarks" / "rivals_jobs.py"
#: Packages that the rivals' environments take from this one, if it has them.
SHARED = (
    *("torch", "torchvision", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib", "rich"),
    *("datasets", "typer", "requests", "pyyaml", "pytest", "coverage", "tensorboard"),
)
PACKAGES = {"pfl": "pfl>=0.6,<0.7", "fluke": "fluke-fl>=0.8.1,<0.9"}
OURS = {
    "fedapps, inline": ("--engine=inline",),
    "fedapps, inline, compiled": ("--engine=inline", "train.compile=on"),
    "fedapps, ray": ("--engine=ray",),
}
SUPERFED = JOB | {
    "method": "superfed-mm",
    "num-clients": 20,
    "clients-per-round": 5,
    "num-rounds": 40,
    "data.partition": "pathological",
    "data.classes-per-client": 2,
    "data.max-samples": 6000,
    "train.learning-rate": 0.01,
    "train.momentum": 0.9,
    "train.local-epochs": 2,
    "superfed.mu": 0.01,
    "superfed.nu": 1.0,
}


@dataclass
class Cost:
    """What a command took. cpu: seconds; peak: bytes."""

    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0


def measured(command: Sequence[str | Path], folder: Path) -> Cost:
    """Run a command and return its cost. Raises ``RuntimeError`` with the end of its
    output if it fails.
    """
    mark, log = f"RIVALS_MARK={uuid.uuid4().hex}", folder / "log.txt"
    name, _, value = mark.partition("=")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SPT_NOENV": "1", name: value}
    spent: dict[int, float] = {}
    cost, began = Cost(), time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
        while process.poll() is None:
            memory = 0
            for number in marked(mark):
                try:
                    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                    spent[number] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
                    text = Path(f"/proc/{number}/smaps_rollup").read_text()
                    memory += int(text.partition("\nPss:")[2].split()[0]) * 1024
                except (OSError, IndexError, ValueError):
                    continue  # it has ended
            cost.peak = max(cost.peak, memory)
            time.sleep(0.2)
    cost.seconds, cost.cpu = time.monotonic() - began, sum(spent.values())
    if process.returncode:
        raise RuntimeError(" ".join(log.read_text(errors="replace").split())[-500:])
    return cost


def python_of(name: str) -> Path:
    """Return the Python of a rival's environment, which is made at first use. Raises
    ``RuntimeError`` with the reason if that fails.
    """
    folder = ROOT / "build" / "rivals" / name
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    without = folder.parent / "shared.txt"
    here = {one.metadata["Name"].lower() for one in distributions()}
    lines = [f"{one}; python_version < '3'\n" for one in SHARED if one in here]
    without.write_text("".join(lines), encoding="utf-8")
    uv = program("uv")
    steps = [
        [uv, "venv", "--python", sys.executable, folder],
        [uv, "pip", "install", "--python", python, "--override", without, PACKAGES[name]],
    ]
    for step in steps:
        done = subprocess.run(list(map(str, step)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(" ".join(done.stderr.split())[-300:])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    ours = Path(torch.__file__).resolve().parent.parent
    (folder / "lib" / version / "site-packages" / "zz-shared.pth").write_text(f"{ours}\n")
    (folder / "installed").touch()
    return python


def write_job(settings: dict[str, Any], folder: Path, **more: Any) -> tuple[Path, Any]:
    """Write what the other frameworks need; return the file and the task."""
    used = read_settings(settings)
    task = build_task(used)
    data = [task.client_data(client, used.num_clients) for client in range(used.num_clients)]
    start = list(task.initial_arrays().values())
    numbers: dict[str, Any] = {
        "x": np.concatenate([one.train.x.flatten(1).numpy() for one in data]),
        "y": np.concatenate([one.train.y.numpy() for one in data]),
        "ends": np.cumsum([len(one.train.y) for one in data]),
        "rounds": used.num_rounds,
        "sampled": used.clients_per_round,
        "batch": used.train.batch_size,
        "rate": used.train.learning_rate,
        "seed": used.seed,
        "arrays": len(start),
        **{f"start-{i}": value for i, value in enumerate(start)},
    }
    np.savez(folder / "job.npz", **numbers, **more)
    return folder / "job.npz", data


def scores(arrays: Sequence[np.ndarray], x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the accuracy of a dense net with these arrays."""
    z = x.flatten(1)
    for place in range(0, len(arrays), 2):
        z = torch.relu(z) if place else z
        weight, bias = (torch.from_numpy(np.array(one)) for one in arrays[place : place + 2])
        z = z @ weight.T + bias
    return float((z.argmax(1) == y).float().mean())


def models(path: Path, prefix: str) -> list[np.ndarray]:
    """Return the arrays prefix-0, prefix-1, ... of a file."""
    with np.load(path, allow_pickle=False) as file:
        count = sum(name.startswith(f"{prefix}-") for name in file)
        return [file[f"{prefix}-{i}"] for i in range(count)]


def kept_model(out: Path) -> list[np.ndarray]:
    """Return the arrays of a run's model: each layer's weights, then its biases."""
    found = load_file(out / "model.safetensors")
    names = sorted(found, key=lambda name: (name.rpartition(".")[0], name.endswith("bias")))
    return [found[name] for name in names]


def ours(settings: dict[str, Any], folder: Path, *words: str) -> tuple[Cost, Path]:
    """Run the command of fedapps; return its cost and the results folder."""
    (folder / "job.toml").write_text(to_toml(settings), encoding="utf-8")
    out = folder / "ours"
    command = [sys.executable, "-m", "fedapps", "run", folder / "job.toml", *words, "--overwrite"]
    return measured([*command, "--out", out], folder), out


def speed(arguments: argparse.Namespace, folder: Path) -> Table:
    """Run the job in every framework and return the table."""
    settings = JOB | {"data.source": arguments.data, "num-rounds": arguments.rounds}
    job, data = write_job(settings, folder)
    x, y = (torch.cat([getattr(one.test, name) for one in data]) for name in "xy")
    table = Table(box=box.MARKDOWN)
    for column in ("", "processes", "s", "s a round", "CPU, s", "peak, MB", "accuracy, %"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)

    def row(name: str, count: int, cost: Cost, rounds: Sequence[float], accuracy: float) -> None:
        words = [f"{cost.seconds:.1f}", f"{statistics.median(rounds[1:]):.3f}", f"{cost.cpu:.1f}"]
        table.add_row(name, str(count), *words, f"{cost.peak / 1e6:.0f}", f"{100 * accuracy:.1f}")
        print(name, count, *words, file=sys.stderr, flush=True)

    def by_us(name: str, count: int) -> tuple[Cost, list[float], list[np.ndarray]]:
        cost, out = ours(settings, folder, *OURS[name], f"--workers={count}")
        return cost, [one["seconds"] for one in read_run(out).rounds], kept_model(out)

    def by_them(name: str, count: int) -> tuple[Cost, list[float], list[np.ndarray]]:
        start: list[str | Path] = [sys.executable if name == "flower" else python_of(name)]
        if name == "pfl" and count > 1:
            start += ["-m", "torch.distributed.run", "--nproc_per_node", str(count)]
        cost = measured([*start, JOBS, name, job, folder / "out.npz", str(count)], folder)
        with np.load(folder / "out.npz", allow_pickle=False) as file:
            spent = list(file["seconds"])
        return cost, spent, models(folder / "out.npz", "model")

    for count, name in itertools.product(arguments.processes, [*OURS, "pfl", "fluke", "flower"]):
        if arguments.only and name.split(",")[0] not in arguments.only:
            continue
        if name == "fluke" and count > 1:  # its clients follow each other
            continue
        try:
            cost, spent, arrays = (by_us if name in OURS else by_them)(name, count)
        except RuntimeError as error:  # it cannot be installed, or fails: the others go on
            print(f"{name}, {count} processes: failed: {error}", file=sys.stderr, flush=True)
            continue
        row(name, count, cost, spent, scores(arrays, x, y))
    return table


def superfed(arguments: argparse.Namespace, folder: Path) -> Table:
    """Run SuPerFed here and in fluke; return the clients' mean accuracy by lambda."""
    table = Table(box=box.MARKDOWN)
    for column in ("", "L / T", "seed", "lambda 0", "0.5", "1"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    python = python_of("fluke")
    for share, seed in itertools.product(arguments.start, arguments.seeds):
        settings = SUPERFED | {
            "data.source": arguments.data,
            "seed": seed,
            "data.split-seed": "seed",
            "superfed.start": share,
        }
        _, out = ours(settings, folder, "--engine=inline")
        curve = json.loads((out / "curves.json").read_text(encoding="utf-8"))["lambda-accuracy"]
        rows = {"fedapps": [curve[0], curve[5], curve[10]]}
        for name, random in (("fluke", 0), ("fluke, own start", 1)):
            more = {"momentum": 0.9, "epochs": 2, "mu": 0.01, "nu": 1.0, "own": random}
            job, data = write_job(settings, folder, begin=round(40 * share), **more)
            file = folder / "out.npz"
            measured([python, JOBS, "fluke-superfed", job, file], folder)
            shared = models(file, "model")
            rows[name] = [0.0] * 3
            for number, one in enumerate(data):
                local = models(file, f"local-{number}")
                for place, mix in enumerate((0.0, 0.5, 1.0)):
                    pairs = zip(shared, local, strict=True)
                    mixed = [(1 - mix) * theirs + mix * own for theirs, own in pairs]
                    rows[name][place] += scores(mixed, one.test.x, one.test.y) / len(data)
        for name, values in rows.items():
            words = [f"{100 * value:.1f}" for value in values]
            table.add_row(name, str(share), str(seed), *words)
            print(name, share, seed, *words, file=sys.stderr, flush=True)
    return table


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="FOLDER", help="MNIST")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--only", nargs="+", choices=["fedapps", "pfl", "fluke", "flower"])
    parser.add_argument("--superfed", action="store_true", help="SuPerFed instead of FedAvg")
    parser.add_argument("--start", type=float, nargs="+", default=[0.4, 0.0], metavar="L/T")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp") as name:
        run = superfed if arguments.superfed else speed
        Console(width=120).print(run(arguments, Path(name)))


if __name__ == "__main__":
    main()
