"""Cost of a round apart from its SGD steps: the engines compared with a plain PyTorch
loop, and SuPerFed's step compared with FedAvg's.

    python benchmarks/round_time.py [--data FOLDER] [--rounds N] [--ray] [--workers N]
    [--no-steps] [--nets]

Workload: MNIST, 100 clients with 600 training samples each, the 2NN of McMahan et al.
2017 (784-200-200-10, 199,210 parameters), ten clients per round, one epoch, batch 10,
plain SGD with rate 0.1: 600 steps per round. The plain loop uses no framework: only
`nn.Module`, `torch.optim.SGD`, tensors and a weighted sum. With a hundred clients per
round, a tenth of the round is given.
Every process runs with one torch thread. `scale.py --workers` times cheap clients.

`--data` is a folder with MNIST (see experiments/superfed/mnist-100.toml). Without it,
random images of the same shapes are used; the arithmetic is the same. Quote ratios: the
plain loop runs before and after the engines in the same process. CPU time is printed
next to wall time, because other programs do not affect it.
"""

import argparse
import itertools
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.regression import fit_network
from fedapps.algorithms.common.steps import Eager, Runner
from fedapps.clients import ClientData, FedAvgClient, Split, SuPerFedClient
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps.compiled import Compiler
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.engines import flower
from fedapps.models.image_nets import build_model
from fedapps.records.writer import read_rounds
from fedapps.runs.client_factory import prepare
from fedapps.runs.compilation import compiler
from fedapps.runs.execution import assembled, execute
from fedapps.runs.inline_grid import inline_grid
from fedapps.settings.reading import read_settings
from fedapps.settings.settings import Settings

CLIENTS, PER_ROUND, TRAINED, BATCH = 100, 10, 600, 10
STEPS = PER_ROUND * TRAINED // BATCH  # of a round
SHAPE, CLASSES = (1, 28, 28), 10
#: The settings of the workload but for its data and length.
JOB: dict[str, str | int | float] = {
    "method": "fedavg",
    "num-clients": CLIENTS,
    "clients-per-round": PER_ROUND,
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
    "train.batch-size": BATCH,
}
WARM_UP = 1  # rounds that do not count: they load data and start workers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="MNIST; default: random images of the same shapes",
    )
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="measured rounds of each kind (10)"
    )
    parser.add_argument("--ray", action="store_true", help="Flower's Ray simulation as well")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        metavar="N",
        help="worker processes of both engines (2)",
    )
    parser.add_argument(
        "--no-steps",
        dest="steps",
        action="store_false",
        help="leave out the comparison of single steps",
    )
    parser.add_argument(
        "--nets",
        action="store_true",
        help="eager and compiled steps of other nets as well (minutes of compilation)",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("flwr", "fedapps.data.cache"):
        logging.getLogger(name).setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else 100)
    with tempfile.TemporaryDirectory(prefix="fedapps-benchmark-") as name:
        os.environ["FEDAPPS_CACHE"] = str(Path(name) / "cache")  # Ray's workers find the data there
        settings = settings_of(prepare_data(arguments.data, Path(name)), arguments.rounds)
        what = arguments.data or "random images instead of MNIST"
        console.print(
            f"{what}; {CLIENTS} clients, {PER_ROUND} a round, {STEPS} steps a round, "
            f"{os.cpu_count()} CPUs, 1 torch thread"
        )
        console.print(rounds_table(settings, Path(name), arguments.ray, arguments.workers))
        console.print(
            f"compiling took {', '.join(f'{s:.0f} s' for s in compiler().built)}: once, then from "
            "the cache folder"
        )
        if arguments.steps:
            console.print(steps_table(arguments.rounds, Compiler(Path(name) / "steps")))
        if arguments.nets:
            console.print(nets_table(arguments.rounds, Compiler(Path(name) / "nets")))
            console.print(fits_table(arguments.rounds, Compiler(Path(name) / "fits")))


# --- rounds ---------------------------------------------------------------------------


def prepare_data(source: Path | None, folder: Path) -> Path:
    """Write a file of 100,000 images, and return its path.

    A client trains on 60 % of its samples, so 600 training samples take 1000: MNIST's
    images are gone through more than once.
    """
    number = CLIENTS * TRAINED * 10 // 6
    if source is None:
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (number, *SHAPE), dtype=np.uint8)
        labels = rng.integers(0, CLASSES, number)
    else:
        images = read_samples(DataOptions(source=str(source)))
        rows = np.arange(number) % len(images.labels)
        pixels, labels = images.x[rows], images.labels[rows]
    np.savez(folder / "images.npz", x=pixels.squeeze(), y=labels)
    return folder / "images.npz"


def settings_of(source: Path, rounds: int) -> Settings:
    """Return the settings of the workload; one more round than is measured, because the
    last one also evaluates.
    """
    return read_settings(
        {
            **JOB,
            "num-rounds": WARM_UP + rounds + 1,
            "out": str(source.parent / "inline"),
            "data.source": str(source),
        }
    )


def rounds_table(settings: Settings, folder: Path, ray: bool, workers: int) -> Table:
    """Return seconds per round of the plain loop, of the engines, and of the plain loop
    once more.
    """
    rounds = settings.num_rounds - WARM_UP - 1
    before = plain_rounds(settings, rounds)
    compiled_settings = compiled(settings)
    inline = {
        "inline": (inline_rounds(settings), "1.15"),
        "inline, compiled": (inline_rounds(compiled_settings), "0.65"),
        f"inline, {workers} workers": (inline_rounds(settings, workers), "0.55"),
        "the same, compiled": (inline_rounds(compiled_settings, workers), "0.35"),
        f"{CLIENTS} clients a round": (inline_rounds(everyone(settings), workers), "0.50"),
        "the same, compiled ": (inline_rounds(everyone(compiled_settings), workers), "0.32"),
    }
    after = plain_rounds(settings, rounds)
    wall, cpu = (statistics.median(a + b) for a, b in zip(before, after, strict=True))
    table = Table(title="seconds per round (median)", title_justify="left", box=None)
    for column in ("", "wall", "CPU", "wall / loop", "CPU / loop", "target"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, walls: list[float], cpus: list[float], target: str = "") -> None:
        w, c = statistics.median(walls), statistics.median(cpus) if cpus else float("nan")
        cells = [f"{w:.3f}", f"{c:.3f}", f"{w / wall:.2f}", f"{c / cpu:.2f}"]
        table.add_row(name, *(cell if cell != "nan" else "" for cell in cells), target)

    row("plain PyTorch loop, before", *before)
    for name, ((walls, cpus), target) in inline.items():
        row(name, walls, cpus, target)
    row("plain PyTorch loop, after", *after)
    if ray:
        row(
            f"ray, {workers} one-CPU workers",
            ray_rounds(settings, folder / "ray", workers),
            [],
            "1.30",
        )
        row(
            "the same, compiled",
            ray_rounds(compiled_settings, folder / "ray-compiled", workers),
            [],
            "0.55",
        )
        each = [
            seconds * PER_ROUND / CLIENTS
            for seconds in ray_rounds(everyone(compiled_settings), folder / "ray-everyone", workers)
        ]
        row(f"the same, {CLIENTS} a round, a tenth of it", each, [], "0.25")
        row("plain PyTorch loop, at the end", *plain_rounds(settings, rounds))
    return table


def compiled(settings: Settings) -> Settings:
    """Return the settings of the same run with compiled steps."""
    return replace(
        settings, train=replace(settings.train, compile="on"), out=settings.out + "-compiled"
    )


def everyone(settings: Settings) -> Settings:
    """Return the settings of the same run with all clients in each round."""
    return replace(settings, clients_per_round=CLIENTS, out=settings.out + "-everyone")


def plain_rounds(settings: Settings, rounds: int) -> tuple[list[float], list[float]]:
    """Return wall and CPU seconds of each round of FedAvg in plain PyTorch, on the same
    samples.
    """
    task = prepare(frozenset(settings.flat().items()))[1]
    data = [task.client_data(client, CLIENTS).train for client in range(CLIENTS)]
    model = task.model_fn(0)
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    walls, cpus = [], []
    for number in range(WARM_UP + rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        total = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for client in np.random.default_rng(number).choice(CLIENTS, PER_ROUND, replace=False):
            model.load_state_dict(server)
            train_plainly(model, data[client], torch.optim.SGD(model.parameters(), lr=0.1))
            for name, tensor in model.state_dict().items():
                total[name] += tensor / PER_ROUND
        server = total
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls[WARM_UP:], cpus[WARM_UP:]


def train_plainly(model: nn.Module, data: Split, optimiser: torch.optim.Optimizer) -> None:
    """Train for one epoch as a tutorial does, but on tensors instead of through a
    DataLoader.
    """
    order = torch.randperm(len(data))
    for rows in order.split(BATCH):
        optimiser.zero_grad()
        functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
        optimiser.step()


def inline_rounds(settings: Settings, workers: int = 1) -> tuple[list[float], list[float]]:
    """Return wall and CPU seconds of each round of `--engine inline`, or of ten of its
    clients, records written included; data are in memory, as in the loop. CPU seconds
    are those of all processes.
    """
    parts = assembled(settings)
    for client in range(CLIENTS):
        parts.task.client_data(client, CLIENTS)
    marks: list[tuple[float, float]] = []
    with inline_grid(settings, parts, workers) as grid:

        def mark(_: object) -> None:
            others = [worker.process.pid for worker in getattr(grid, "pool", ())]
            cpu = sum(map(cpu_seconds, others), time.process_time())
            marks.append((time.perf_counter(), cpu))

        execute(settings, grid, callbacks=[mark], parts=parts)
    shutil.rmtree(settings.out)
    walls, cpus = (
        [(b - a) * PER_ROUND / settings.clients_per_round for a, b in itertools.pairwise(times)]
        for times in zip(*marks, strict=True)
    )
    return walls[WARM_UP - 1 : -1], cpus[WARM_UP - 1 : -1]


def cpu_seconds(process: int) -> float:
    """Return the CPU time of another process so far (Linux; elsewhere 0)."""
    return time.clock_gettime(~process << 3 | 2) if sys.platform == "linux" else 0.0


def ray_rounds(settings: Settings, folder: Path, workers: int) -> list[float]:
    """Return seconds of each round of `--engine ray`; its workers load their data in
    more rounds than one.
    """
    config = {**settings.flat(), "out": str(folder), "num-rounds": settings.num_rounds + 4}
    outcome = flower.run_simulation(
        None,
        config,
        flower.Resources(CLIENTS, ray_cpus=workers).with_shared_nodes(),
        flower.Following(folder / "run.log"),
    )
    if outcome.status != "completed":
        raise SystemExit(f"the Ray run {outcome.status}: {outcome.details}")
    return [row["seconds"] for row in read_rounds(folder)][WARM_UP + 4 : -1]


# --- steps ----------------------------------------------------------------------------


def steps_table(repeats: int, steps: Compiler) -> Table:
    """Return microseconds of CPU per step of FedAvg and SuPerFed on TwoNN, with the
    paper's options.
    """
    # so that what a client does once a round weighs as little as in the paper, which
    # has ten
    epochs = 5
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(TRAINED, *SHAPE, generator=generator),
        torch.randint(0, CLASSES, (TRAINED,), generator=generator),
    )
    data = ClientData(*[Split(x, y)] * 3)
    sgd = {
        "learning-rate": 0.01,
        "momentum": 0.9,
        "weight-decay": 1e-4,
        "local-epochs": epochs,
        "batch-size": BATCH,
    }
    superfed = {"proximal-mu": 0.01, "superfed-nu": 1.0, "server-round": 1}

    def model_fn(seed: int) -> nn.Module:
        return build_model("two-nn", SHAPE, CLASSES, seed)

    arrays = get_arrays(model_fn(1))

    def plain() -> None:
        model = model_fn(1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        for _ in range(epochs):
            train_plainly(model, data.train, optimiser)

    module = model_fn(0)

    def ours(kind: type[FedAvgClient], **config: str | float) -> Callable[[], object]:
        return lambda: kind(model_fn, data, model=module).fit(arrays, {**sgd, **config})

    def compiled_(kind: type[FedAvgClient], **config: str | float) -> Callable[[], object]:
        client = kind(model_fn, data, model=module)
        client.compiler = steps
        return lambda: client.fit(arrays, {**sgd, **config, "compile": "on"})

    cases = {
        "plain PyTorch, FedAvg": plain,
        "fedavg": ours(FedAvgClient),
        "superfed-mm": ours(SuPerFedClient, **superfed, **{"superfed-mixing": "model"}),
        "superfed-lm": ours(SuPerFedClient, **superfed, **{"superfed-mixing": "layer"}),
        "fedavg, compiled": compiled_(FedAvgClient),
        "superfed-mm, compiled": compiled_(
            SuPerFedClient, **superfed, **{"superfed-mixing": "model"}
        ),
        "superfed-lm, compiled": compiled_(
            SuPerFedClient, **superfed, **{"superfed-mixing": "layer"}
        ),
    }
    spent: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(WARM_UP + repeats):  # in turns, so that a busy moment affects all of them
        for name, run in cases.items():
            begin = time.process_time()
            run()
            if number >= WARM_UP:
                spent[name].append(
                    (time.process_time() - begin) / (epochs * TRAINED // BATCH) * 1e6
                )
    median = {name: statistics.median(values) for name, values in spent.items()}
    title = (
        "microseconds of CPU per local step (median): TwoNN, batch 10, momentum 0.9, weight "
        "decay 1e-4, mu 0.01, nu 1"
    )
    table = Table(title=title, title_justify="left", box=None)
    for column in ("", "step", "/ fedavg", "/ plain FedAvg", "target"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in median.items():
        own = "fedavg, compiled" if name.endswith("compiled") else "fedavg"
        ratios = [f"{value / median[base]:.2f}" for base in (own, "plain PyTorch, FedAvg")]
        table.add_row(name, f"{value:.0f}", *ratios, "1.35" if name.startswith("superfed") else "")
    return table


# --- nets -----------------------------------------------------------------------------

NETS = {
    "mlp": (1, 8, 8),
    "mcmahan-2nn": SHAPE,
    "two-cnn": (3, 28, 28),
    "small-cnn": SHAPE,
    "resnet9": (3, 32, 32),
}


def nets_table(repeats: int, steps: Compiler) -> Table:
    """Return milliseconds of CPU per step of FedAvg's client, eager and compiled, by
    net; batch 10, momentum 0.9.
    """
    table = Table(
        title="milliseconds of CPU per local step of FedAvg (median), batch 10, momentum 0.9",
        title_justify="left",
        box=None,
    )
    for column in ("", "eager", "compiled", "compiled / eager", "compilation, s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, shape in NETS.items():
        number = 48 if name == "resnet9" else 240
        draws = torch.Generator().manual_seed(0)
        part = Split(
            torch.rand(number, *shape, generator=draws),
            torch.randint(0, CLASSES, (number,), generator=draws),
        )
        model = build_model(name, shape, CLASSES, 0)
        data = ClientData(part, part, part)
        client = FedAvgClient(lambda seed, model=model: model, data, model=model)
        client.compiler, before, arrays = (
            steps,
            len(steps.built),
            get_arrays(build_model(name, shape, CLASSES, 1)),
        )
        config = {"learning-rate": 0.01, "momentum": 0.9, "local-epochs": 1, "batch-size": BATCH}
        spent: dict[str, list[float]] = {"off": [], "on": []}
        for repeat in range(WARM_UP + repeats):
            for choice, times in spent.items():
                begin = time.process_time()
                client.fit(arrays, {**config, "compile": choice})
                times += (
                    [(time.process_time() - begin) / (number / BATCH) * 1e3]
                    if repeat >= WARM_UP
                    else []
                )
        eager, fast = (statistics.median(times) for times in spent.values())
        table.add_row(
            name,
            f"{eager:.2f}",
            f"{fast:.2f}",
            f"{fast / eager:.2f}",
            f"{sum(steps.built[before:]):.0f}",
        )
    return table


# --- fits with Adam -------------------------------------------------------------------

EPOCHS = 50
#: (net, shape of an image, samples, batch size)
FITS = [("mlp", (1, 8, 8), 54, 64), ("mlp", (1, 8, 8), 300, 32), ("mcmahan-2nn", SHAPE, 600, 64)]


def fits_table(repeats: int, steps: Compiler) -> Table:
    """Return milliseconds of CPU per step of Adam as a client of FFGB takes them, eager
    and compiled.
    """
    table = Table(
        title="milliseconds of CPU per step of Adam, as FFGB's clients fit (median)",
        title_justify="left",
        box=None,
    )
    for column in (
        "",
        "samples",
        "batch",
        "eager",
        "compiled",
        "compiled / eager",
        "compilation, s",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for name, shape, number, batch in FITS:
        draws = torch.Generator().manual_seed(0)
        x, targets = (
            torch.rand(number, *shape, generator=draws),
            torch.randn(number, CLASSES, generator=draws),
        )
        model, before = build_model(name, shape, CLASSES, 0), len(steps.built)
        options = FitOptions(epochs=EPOCHS, batch_size=batch)
        spent: list[tuple[Runner, list[float]]] = [(Eager, []), (steps, [])]
        for repeat in range(WARM_UP + repeats):
            for runner, times in spent:
                begin = time.process_time()
                fit_network(model, x, targets, options, np.random.default_rng(0), runner)
                taken = EPOCHS * -(-number // batch)
                times += [(time.process_time() - begin) / taken * 1e3] if repeat >= WARM_UP else []
        eager, fast = (statistics.median(times) for _, times in spent)
        cells = (
            f"{eager:.2f}",
            f"{fast:.2f}",
            f"{fast / eager:.2f}",
            f"{sum(steps.built[before:]):.0f}",
        )
        table.add_row(name, str(number), str(batch), *cells)
    return table


if __name__ == "__main__":
    main()
