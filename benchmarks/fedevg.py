"""Cost of a round of FedEvg: seconds of a client, and bytes compared with sending its
net.

    python benchmarks/fedevg.py [--images N] [--samples M] [--resnet10] [--repeats R]

One client with N random images (28 x 28 and 32 x 32, grey and colour), one epoch in
batches of 64. ``--resnet10`` also times the paper's net, which takes seconds per step
on a CPU. Bytes are those of the arrays of one message up; headers and names add under 1
kB.
"""

import argparse
import sys
import time
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from algorithms.synthetic.mixture import mixture_gradient, server_step
from clients import ClientData, FedEvgClient, Split
from fedapps.formats import bytes_text
from fedapps.models.generative_nets import ACGAN, CVAE, build_energy_net
from fedapps.models.image_nets import build_model
from strategies import FedEvg

SHAPES = ((1, 28, 28), (1, 32, 32), (3, 32, 32))
CLASSES = 10
TRAIN = {"batch-size": 64, "learning-rate": 0.001, "local-epochs": 1}


def seconds_of(
    shape: tuple[int, int, int], net: str, images: int, samples: int, repeats: int
) -> tuple[float, float]:
    """Return CPU seconds of a client's round, and of the server's step over ten
    clients' signals: the least of the repeats.
    """
    rng = np.random.default_rng(0)
    split = Split(
        torch.tensor(rng.random((images, *shape), np.float32)),
        torch.tensor(rng.integers(0, CLASSES, images)),
    )
    strategy = FedEvg(shape, CLASSES, lambda x, y, t: ({}, {}), samples=samples)
    client = FedEvgClient(
        lambda seed: build_energy_net(net, shape, CLASSES, seed),
        lambda seed: build_model("small-cnn", shape, CLASSES, seed),
        ClientData(split, split, split),
    )
    first = strategy.first_arrays()
    config = {**TRAIN, **strategy.train_options(1, 1)}
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        began = time.process_time()
        gradients, logs = client.fit(list(first.values()), config)[0]
        times[0].append(time.process_time() - began)
        began = time.process_time()
        step = mixture_gradient([logs] * 10, [gradients] * 10, [1.0] * 10)
        server_step(first["x"], step, rng.standard_normal(first["x"].shape), 1.0, 0.01, 0, 1)
        times[1].append(time.process_time() - began)
    return min(times[0]), min(times[1])


def numbers(module: torch.nn.Module) -> int:
    """Return the number of values that a message with the module holds."""
    return sum(tensor.numel() for tensor in module.state_dict().values())


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--resnet10", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=130)
    nets = ["energy-cnn", *(["energy-resnet10"] if arguments.resnet10 else [])]
    table = Table(
        title=f"CPU seconds of a round, {arguments.images} images a client", box=box.SIMPLE
    )
    for heading in ("images", "net", "a client", "per step of 64", "the server, ten clients"):
        table.add_column(heading, justify="left" if heading in ("images", "net") else "right")
    for shape in SHAPES:
        for net in nets:
            client, server = seconds_of(
                shape, net, arguments.images, arguments.samples, arguments.repeats
            )
            steps = -(-arguments.images // TRAIN["batch-size"])
            table.add_row(
                _name(shape), net, f"{client:.2f}", f"{client / steps:.3f}", f"{server:.4f}"
            )
    console.print(table)
    table = Table(title=f"up, a client and round, M = {arguments.samples}", box=box.SIMPLE)
    headings = (
        "images",
        "FedEvg",
        "energy-cnn",
        "energy-resnet10",
        "/ FedEvg",
        "FedCGAN, 64",
        "/ FedEvg",
        "FedCVAE, 64",
        "/ FedEvg",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "images" else "right")
    for shape in SHAPES:
        evg = 4 * arguments.samples * (int(np.prod(shape)) + 1)
        sizes = [
            4 * numbers(build_energy_net(net, shape, CLASSES, 0))
            for net in ("energy-cnn", "energy-resnet10")
        ]
        others = [4 * numbers(kind(shape, CLASSES, 64)) for kind in (ACGAN, CVAE)]
        row = [_name(shape), bytes_text(evg), bytes_text(sizes[0])]
        for size in (sizes[1], *others):
            row += [bytes_text(size), f"{size / evg:.0f}"]
        table.add_row(*row)
    console.print(table)


def _name(shape: tuple[int, int, int]) -> str:
    return f"{shape[1]} x {shape[2]}, {'grey' if shape[0] == 1 else 'colour'}"


if __name__ == "__main__":
    main()
