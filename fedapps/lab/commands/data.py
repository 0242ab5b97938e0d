"""`fedapps data`: prints and draws which samples each client gets, without training."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.lab.client_samples import (
    MAX_CLASSES,
    MAX_CLIENTS,
    ClientSamples,
    client_samples,
    common_share,
    figure,
)
from fedapps.lab.commands.options import command_options
from fedapps.runs.prepare import with_defaults
from fedapps.toml_text import given_by

add_options = command_options(
    (
        "Show which samples each client would get: numbers by client and class, and warnings "
        "about the partition. Trains nothing."
    ),
    {
        "settings": {},
        "--png": {"type": Path, "metavar": "FILE", "help": "also write a picture of the partition"},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Print the partition, draw it with --png, and return the exit status."""
    samples, settings, notes = client_samples(with_defaults(given_by(arguments.settings)))
    print_table(samples, settings)
    for line in notes:
        print(f"note: {line}")
    if arguments.png:
        from fedapps.lab.charts.files import file

        arguments.png.write_bytes(file(figure(samples, settings.data.source), "png"))
        print(f"picture: {arguments.png.resolve()}")
    return 0


def print_table(samples: ClientSamples, settings: Any) -> None:
    """Print one row per client with the classes it trains on. If there are too many
    clients, print the smallest and the largest.
    """
    from rich.console import Console
    from rich.table import Table

    sizes, counts = samples.sizes, samples.trained
    few = len(samples.classes) <= MAX_CLASSES
    table = Table(box=None, pad_edge=False)
    kind = "quarters" if samples.numbers else "classes"
    heads = [
        "client",
        "train",
        "validation",
        "test",
        kind,
        *(samples.classes if few else ["largest class"]),
    ]
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if not place else "right")
    order = list(range(len(samples.names)))
    if len(samples.names) > MAX_CLIENTS:
        by_size = np.argsort(counts.sum(1), kind="stable")
        order = sorted(
            [*by_size[: MAX_CLIENTS // 2].tolist(), *by_size[-MAX_CLIENTS // 2 :].tolist()]
        )
    for place in order:
        most = int(counts[place].argmax())
        by_class = (
            [str(n or "·") for n in counts[place]]
            if few
            else [f"{samples.classes[most]}: {counts[place][most]}"]
        )
        table.add_row(
            samples.names[place],
            *map(str, sizes[place]),
            str(int((counts[place] > 0).sum())),
            *by_class,
        )
    o = settings.data
    by_column = o.partition == "natural" and o.natural_id
    dealt = f"{o.partition} by {o.natural_id}" if by_column else o.partition
    dealt += f", {o.partition_arguments}" if o.partition_arguments else ""
    print(
        f"{o.source}: {len(samples.names)} clients ({dealt}), {len(samples.classes)} "
        f"{kind}{' of the targets' * samples.numbers}, counted in training samples"
    )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if len(samples.names) > MAX_CLIENTS:
        print(
            f"({MAX_CLIENTS} of {len(samples.names)} clients shown: the smallest and the largest)"
        )
    means = ", ".join(
        f"{name} {int(n.sum())}"
        for name, n in zip(("train", "validation", "test"), sizes.T, strict=True)
    )
    total = counts.sum(1)
    if len(counts) > 1 and total.min():
        mean, low, high = (f"{100 * share:.0f} %" for share in common_share(counts))
        print(
            f"{kind}: two clients share {mean} of their mixtures on average (from {low} to {high})"
        )
    print(
        f"samples: {means}; a client trains on {total.min()} to {total.max()}, "
        f"{total.mean():.0f} on average"
    )
