"""The same job in fedapps, pfl-research and Flower's own FedAvg: seconds, CPU, memory
and accuracy.

    python benchmarks/rivals.py --data FOLDER [--rounds N] [--processes 1 2]
    [--only NAME ...]

The job: FOLDER is MNIST (see experiments/superfed/mnist-100.toml), 100 clients with 360
training samples each, 784-200-200-10, ten clients a round, one epoch, batch 10, plain
SGD with rate 0.1, ten rounds. All start from the same model and train on the same
samples, one torch thread per process. Which ten clients a round has is drawn by each
framework. The accuracy is that of the final model on the pooled test samples.

pfl-research is installed into build/rivals/, with the PyTorch, NumPy and SciPy of this
environment. Seconds are from the start of the process to its end; "a
round" is the median after the first. CPU and memory are those of all processes (memory:
the sum of proportional set sizes, read five times a second). A framework that cannot be
installed is named with the reason.
"""

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from safetensors.numpy import load_file

from benchmarks.common import ROOT, TWO_NN, options, show
from fedapps.engines.processes import marked, program
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import to_toml

JOBS = ROOT / "benchmarks" / "rivals_jobs.py"
#: Packages that the rivals' environments take from this one, if it has them.
SHARED = (
    *("torch", "torchvision", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib", "rich"),
    *("datasets", "typer", "requests", "pyyaml", "pytest", "coverage", "tensorboard"),
)
PACKAGES = {"pfl": "pfl>=0.6,<0.7"}
OURS = {
    "fedapps, inline": ("--engine=inline",),
    "fedapps, inline, compiled": ("--engine=inline", "train.compile=on"),
    "fedapps, ray": ("--engine=ray",),
}


@dataclass
class Cost:
    """What a command took. cpu: seconds; peak: bytes."""

    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0


#: Cost, seconds of each round, and the final model.
Run = tuple[Cost, list[float], list[np.ndarray]]


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


def write_job(settings: dict[str, Any], folder: Path) -> tuple[Path, Any]:
    """Write what the other frameworks need; return the file and the data."""
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
    np.savez(folder / "job.npz", **numbers)
    return folder / "job.npz", data


def scores(arrays: Sequence[np.ndarray], x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the accuracy of a dense net with these arrays."""
    z = x.flatten(1)
    for place in range(0, len(arrays), 2):
        z = torch.relu(z) if place else z
        weight, bias = (torch.from_numpy(np.array(one)) for one in arrays[place : place + 2])
        z = z @ weight.T + bias
    return float((z.argmax(1) == y).float().mean())


def measured_rows(given: Any, folder: Path) -> Iterator[list[str]]:
    """Yield a row per framework and number of processes."""
    settings = TWO_NN | {"data.source": given.data, "num-rounds": given.rounds}
    job, data = write_job(settings, folder)
    x, y = (torch.cat([getattr(one.test, name) for one in data]) for name in "xy")
    for count, name in itertools.product(given.processes, [*OURS, "pfl", "flower"]):
        if name.split(",")[0] not in given.only:
            continue
        try:
            run = (
                by_us(name, count, settings, folder) if name in OURS else by_them(name, count, job)
            )
        except RuntimeError as error:  # it cannot be installed, or fails: the others go on
            yield [name, str(count), f"failed: {error}", *[""] * 4]
            continue
        cost, spent, arrays = run
        words = [f"{cost.seconds:.1f}", f"{statistics.median(spent[1:]):.3f}", f"{cost.cpu:.1f}"]
        accuracy = f"{100 * scores(arrays, x, y):.1f}"
        yield [name, str(count), *words, f"{cost.peak / 1e6:.0f}", accuracy]


def by_us(name: str, count: int, settings: dict[str, Any], folder: Path) -> Run:
    """Run the command of fedapps."""
    (folder / "job.toml").write_text(to_toml(settings), encoding="utf-8")
    out, engine = folder / "ours", [*OURS[name], f"--workers={count}", "--overwrite", "--out"]
    command = [sys.executable, "-m", "fedapps", "run", folder / "job.toml", *engine, out]
    cost, found = measured(command, folder), load_file(out / "model.safetensors")
    layers = sorted({name.rpartition(".")[0] for name in found})
    arrays = [found[f"{layer}.{kind}"] for layer in layers for kind in ("weight", "bias")]
    return cost, [one["seconds"] for one in read_run(out).rounds], arrays


def by_them(name: str, count: int, job: Path) -> Run:
    """Run a job of ``rivals_jobs.py``."""
    start: list[str | Path] = [sys.executable if name == "flower" else python_of(name)]
    if name == "pfl" and count > 1:
        start += ["-m", "torch.distributed.run", "--nproc_per_node", str(count)]
    out = job.with_name("out.npz")
    cost = measured([*start, JOBS, name, job, out, str(count)], job.parent)
    with np.load(out, allow_pickle=False) as file:
        arrays = [file[f"model-{i}"] for i in range(len(file.files) - 1)]
        return cost, list(file["seconds"]), arrays


def main() -> None:
    """Run and print."""
    given = options(
        __doc__,
        {
            "--data": "",
            "--rounds": 10,
            "--processes": [1, 2],
            "--only": ["fedapps", "pfl", "flower"],
        },
    )
    torch.set_num_threads(1)
    columns = ("", "processes", "s", "s a round", "CPU, s", "peak, MB", "accuracy, %")
    with tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp") as name:
        show("One job", columns, measured_rows(given, Path(name)))


if __name__ == "__main__":
    main()
