"""Seconds of a round, of a local step and of a command.

    python benchmarks/speed.py rounds [--rounds 10] [--ray]
    python benchmarks/speed.py steps [--nets two-nn mlp ...] [--rounds 10]
    python benchmarks/speed.py commands [--rounds 3]

rounds: both engines beside a plain PyTorch loop: ``nn.Module``, ``torch.optim.SGD``,
tensors and a weighted sum, no framework. Random images of MNIST's shape; 100 clients
with 600 training samples each, 784-200-200-10, ten clients per round, one epoch, batch
10: 600 steps per round. With a hundred clients per round, a tenth of the round is
given. Then two jobs of small clients, which train together, beside the same loop on
their samples. One torch thread per process. Quote ratios: the row before these shows
how far the machine's speed has changed.

steps: CPU time of a local step of FedAvg and SuPerFed, eager and compiled, and of the
plain loop; batch 10, momentum 0.9, weight decay, both penalties of SuPerFed.

commands: CPU seconds (user and system) and peak memory of a fresh process, medians.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.common import ROOT, TWO_NN, in_turns, options, show
from fedapps.clients import ClientData, FedAvgClient, Split, SuPerFedClient
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps.compiled import Compiler
from fedapps.engines import flower
from fedapps.models.image_nets import build_model
from fedapps.records.rounds import read_rounds
from fedapps.runs.client_factory import prepare
from fedapps.runs.execution import assembled, execute, inline_grid
from fedapps.settings.reading import read_settings
from fedapps.settings.settings import Settings

CLIENTS, PER_ROUND, TRAINED, BATCH = 100, 10, 600, 10
#: Engine, processes, compiled steps, clients per round, target of wall / plain loop.
RUNS = (
    ("inline", 1, "off", PER_ROUND, 1.15),
    ("inline", 1, "on", PER_ROUND, 0.65),
    ("inline", 2, "off", PER_ROUND, 0.55),
    ("inline", 2, "on", PER_ROUND, 0.35),
    ("inline", 2, "off", CLIENTS, 0.50),
    ("inline", 2, "on", CLIENTS, 0.32),
    ("ray", 2, "off", PER_ROUND, 1.30),
    ("ray", 2, "on", PER_ROUND, 0.55),
    ("ray", 2, "on", CLIENTS, 0.25),
)
#: Jobs of small clients, and target of wall / plain loop.
SMALL: dict[str, tuple[dict[str, Any], float]] = {
    "linear 7-1, 160 clients of 27, five epochs": (
        {
            "task": "regression",
            "model.name": "linear",
            "num-clients": 160,
            "clients-per-round": 0,
            "data.natural-id": "who",
            "train.local-epochs": 5,
        },
        0.35,
    ),
    "64-32-10, 10 of 50 clients (the default job)": (
        {"num-clients": 50, "clients-per-round": 10},
        0.5,
    ),
}
#: Shape of the images of a net.
NETS = {
    "two-nn": (1, 28, 28),
    "mlp": (1, 8, 8),
    "mcmahan-2nn": (1, 28, 28),
    "small-cnn": (1, 28, 28),
    "two-cnn": (3, 28, 28),
}
#: Rounds that do not count: they load data and start workers, Ray's more than one.
WARM_UP, RAY_WARM_UP = 1, 5

# --- rounds ---------------------------------------------------------------------------


def write_images(folder: Path) -> Path:
    """Write a file of 100,000 random images, and return its path.

    A client trains on 60 % of its samples, so 600 training samples take 1000.
    """
    number, rng = CLIENTS * TRAINED * 10 // 6, np.random.default_rng(0)
    x, y = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8), rng.integers(0, 10, number)
    np.savez(folder / "images.npz", x=x, y=y)
    return folder / "images.npz"


def round_rows(rounds: int, ray: bool) -> Iterator[list[str]]:
    """Yield a row per engine, and of the plain loop before and after them."""
    with tempfile.TemporaryDirectory(prefix="fedapps-benchmark-") as name:
        os.environ["FEDAPPS_CACHE"] = str(Path(name) / "cache")  # Ray's workers find the data there
        job = {**TWO_NN, "data.source": str(write_images(Path(name)))}
        plain_job = read_settings({**job, "num-rounds": WARM_UP + rounds, "out": name})
        base = plain_seconds(plain_job)

        def row(label: str, seconds: float, target: object = "") -> list[str]:
            return [label, f"{seconds:.3f}", f"{seconds / base:.2f}", str(target)]

        yield row("plain loop", base)
        for place, (engine, processes, compiled, sampled, target) in enumerate(RUNS):
            if engine == "ray" and not ray:
                continue
            warm = RAY_WARM_UP if engine == "ray" else WARM_UP
            own = {"train.compile": compiled, "clients-per-round": sampled}
            # the last round evaluates
            own |= {"num-rounds": warm + rounds + 1, "out": str(Path(name) / f"run-{place}")}
            settings = read_settings({**job, **own})
            seconds = (ray_seconds if engine == "ray" else inline_seconds)(settings, processes)
            label = f"{engine}, {processes} processes, compile={compiled}, {sampled} clients"
            median = statistics.median(seconds[warm:-1])
            yield row(label, median * PER_ROUND / sampled, target)
        yield row("plain loop, after", plain_seconds(plain_job))
        x = np.random.default_rng(0).normal(size=(160 * 45, 7)).astype(np.float32)
        np.savez(rows := f"{name}/rows.npz", x=x, y=x.sum(1), who=np.arange(len(x)) % 160)
        fixed = {"device": "cpu", "evaluate-every": 0, "checkpoint-every": 0}
        for label, (own, target) in SMALL.items():
            fixed |= {"num-rounds": WARM_UP + 2 * rounds + 1, "out": f"{name}/{label}"}
            source = {"data.source": rows} if "data.natural-id" in own else {}
            settings = read_settings({**fixed, **own, **source})
            base = plain_seconds(settings)
            seconds = inline_seconds(settings, 1)[WARM_UP:-1]
            yield row(f"{label}, 1 process", statistics.median(seconds), target)


def plain_seconds(settings: Settings) -> float:
    """Return the median seconds of a round of FedAvg in plain PyTorch, on the same
    samples.
    """
    task, train = prepare(frozenset(settings.flat().items()))[1], settings.train
    clients, sampled = settings.num_clients, settings.clients_per_round or settings.num_clients
    data = [task.client_data(client, clients).train for client in range(clients)]
    model = task.model_fn(0)
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    walls = []
    for number in range(settings.num_rounds):
        began = time.perf_counter()
        total = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for client in np.random.default_rng(number).choice(clients, sampled, replace=False):
            model.load_state_dict(server)
            optimiser = torch.optim.SGD(model.parameters(), train.learning_rate, train.momentum)
            for _ in range(train.local_epochs):
                train_plainly(model, data[client], optimiser, train.batch_size, task.objective.loss)
            for name, tensor in model.state_dict().items():
                total[name] += tensor / sampled
        server = total
        walls.append(time.perf_counter() - began)
    return statistics.median(walls[WARM_UP:])


def train_plainly(
    model: nn.Module,
    data: Split,
    optimiser: torch.optim.Optimizer,
    batch: int = BATCH,
    loss: Callable[..., torch.Tensor] = functional.cross_entropy,
) -> None:
    """Train for one epoch as a tutorial does, but on tensors instead of through a
    DataLoader.
    """
    for rows in torch.randperm(len(data)).split(batch):
        optimiser.zero_grad()
        loss(model(data.x[rows]), data.y[rows]).backward()
        optimiser.step()


def inline_seconds(settings: Settings, workers: int) -> list[float]:
    """Return the seconds of each round of the inline engine, records written included;
    data are in memory, as in the loop.
    """
    parts = assembled(settings)
    for client in range(settings.num_clients):
        parts.task.client_data(client, settings.num_clients)
    marks = [time.perf_counter()]
    with inline_grid(settings, parts, workers) as grid:
        note = [lambda _: marks.append(time.perf_counter())]
        execute(settings, grid, callbacks=note, parts=parts)
    return [b - a for a, b in itertools.pairwise(marks)]


def ray_seconds(settings: Settings, workers: int) -> list[float]:
    """Return the seconds of each round through Flower's Ray simulation."""
    outcome = flower.run_simulation(
        None,
        settings.flat() | {"out": settings.out},
        flower.Resources(CLIENTS, ray_cpus=workers).with_shared_nodes(),
        flower.Following(Path(f"{settings.out}.log")),
    )
    if outcome.status != "completed":
        raise SystemExit(f"the Ray run {outcome.status}: {outcome.details}")
    return [row["seconds"] for row in read_rounds(Path(settings.out))]


# --- steps ----------------------------------------------------------------------------


def step_rows(nets: Sequence[str], repeats: int, folder: Path) -> Iterator[list[str]]:
    """Yield microseconds of CPU per local step, by net and method."""
    compiler, epochs = Compiler(folder), 5  # as the paper of SuPerFed nearly has: ten
    sgd = {"learning-rate": 0.01, "momentum": 0.9, "weight-decay": 1e-4}
    sgd |= {"local-epochs": epochs, "batch-size": BATCH}
    superfed = {"proximal-mu": 0.01, "superfed-nu": 1.0, "superfed-mixing": "model"}
    methods = {"fedavg": (FedAvgClient, {}), "superfed-mm": (SuPerFedClient, superfed)}
    for net, (method, (kind, own)) in itertools.product(nets, methods.items()):
        draws = torch.Generator().manual_seed(0)
        x, y = torch.rand(240, *NETS[net], generator=draws), torch.arange(240) % 10
        data = ClientData(*[Split(x, y)] * 3)
        first, module = (build_model(net, NETS[net], 10, seed) for seed in (1, 0))
        client = kind(
            lambda seed, net=net: build_model(net, NETS[net], 10, seed), data, model=module
        )
        client.compiler, arrays = compiler, get_arrays(first)
        config: dict[str, Any] = {**sgd, **own, "server-round": 1}

        def plain(model: nn.Module = first, data: ClientData = data) -> None:
            optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
            for _ in range(epochs):
                train_plainly(model, data.train, optimiser)

        def ours(
            compiled: str, client: Any = client, arrays: Any = arrays, config: Any = config
        ) -> None:
            client.fit(arrays, {**config, "compile": compiled})

        works = {"plain": plain, "off": lambda: ours("off"), "on": lambda: ours("on")}
        spent = in_turns(works, repeats)
        step = {name: 1e6 * value / (epochs * 240 / BATCH) for name, value in spent.items()}
        ratios = (step["off"] / step["plain"], step["on"] / step["plain"], step["on"] / step["off"])
        yield [net, method, *(f"{v:.0f}" for v in step.values()), *(f"{r:.2f}" for r in ratios)]


# --- commands -------------------------------------------------------------------------


def command_rows(repeats: int) -> Iterator[list[str]]:
    """Yield CPU seconds and peak memory of commands."""
    with tempfile.TemporaryDirectory() as name:
        place = f"--engine inline --overwrite --out {name}"
        job = "-m fedapps run method=fedavg num-rounds=40 num-clients=20 evaluate-every=1"
        if cost(f"{job} {place}".split())[0]:
            raise SystemExit("the run whose report is measured failed")
        report = f"from fedapps.lab.results.report import write_report; write_report({name!r})"
        programs = {"import torch": ["-c", "import torch"]}
        programs["the report of 40 rounds, 20 clients"] = ["-c", report]
        lines = ("--help", "methods", "settings", "run method=fedavgg")
        for line in (*lines, f"run method=fedavg num-rounds=2 {place}"):
            programs[f"fedapps {line.partition(' --engine')[0]}"] = ["-m", "fedapps", *line.split()]
        for label, words in programs.items():
            _, seconds, peaks = zip(*(cost(words) for _ in range(repeats)), strict=True)
            yield [label, f"{statistics.median(seconds):.2f}", f"{statistics.median(peaks):.0f}"]


#: A process with little memory of its own waits: a child's peak begins with its
#: parent's.
WAIT = """
import json, os, sys
quiet = [(os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_WRONLY, 0) for place in (1, 2)]
words = [sys.executable, *sys.argv[1:]]
child = os.posix_spawn(sys.executable, words, os.environ, file_actions=quiet)
_, status, used = os.wait4(child, 0)
cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss
print(json.dumps([os.waitstatus_to_exitcode(status), cpu, memory]))
"""


def cost(arguments: Sequence[str]) -> tuple[int, float, float]:
    """Return the exit status of a Python process, its CPU seconds, and its peak memory
    in MB, both with its children's.
    """
    command = [sys.executable, "-c", WAIT, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    status, seconds, peak = json.loads(done.stdout)
    # bytes on macOS, kB elsewhere
    return status, seconds, peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Measure and print."""
    given = options(
        __doc__,
        {
            "study": ("rounds", "steps", "commands"),
            "--rounds": 10,
            "--ray": False,
            "--nets": list(NETS),
        },
    )
    torch.set_num_threads(1)
    if given.study == "rounds":
        columns = ("", "s per round (median)", "/ plain loop", "target")
        show("Rounds", columns, round_rows(given.rounds, given.ray))
    elif given.study == "steps":
        columns = ("net", "method", "plain loop, µs", "eager, µs", "compiled, µs")
        columns += ("eager / plain", "compiled / plain", "compiled / eager")
        with tempfile.TemporaryDirectory() as name:
            rows = step_rows(given.nets, given.rounds, Path(name))
            show("CPU time of a local step (median)", columns, rows)
    else:
        show("A fresh process", ("", "CPU, s", "peak memory, MB"), command_rows(given.rounds))


if __name__ == "__main__":
    main()
