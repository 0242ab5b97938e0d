"""The studies of synthetic data: FedEvg, FedCGAN and FedCVAE at equal bytes, on digits and MNIST, and what FedEvg's parts are worth.

    python benchmarks/fedevg_figures.py --study digits|mnist|ablation --out DIR [--data FOLDER] [--scale small|full]
        [--lines WORD ...] [--processes 2]

100 images, ten of each class. The number that counts is the accuracy of a classifier (small-cnn) that was trained on them, to
convergence and with augmentation, on all test images and on average over the clients' own. The baselines run until they have sent as
many bytes as FedEvg, one round at least. Clients are of one size, each with its own mixture of classes, from Dir(alpha).

``--scale small``: two cores and up to three quarters of an hour a study: 6000 images of MNIST, 30 rounds, the small energy net,
baselines with half the channels. ``full``: all images at 32 x 32, 500 rounds, ResNet-10, as the dissertation has it; it wants a GPU.

FOLDER is MNIST as ``datasets.load_dataset`` reads it, with a split "test"; without it the ablation is on the digits. Every run goes
through the inline engine and has its own results folder below DIR; a second start skips finished runs and goes on with others.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # from a checkout that is not installed

import numpy as np
import torch
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

from algorithms.common.seeds import generator
from clients.base.data import Split
from fedapps.assembly import build_strategy, build_task
from fedapps.data.images import read_images
from fedapps.data.options import DataOptions
from fedapps.results.image_grids import grid
from fedapps.results.reader import read_run
from fedapps.settings import read_settings
from fedapps.sweep.pool import PlannedRun, run_missing
from fedapps.tasks.set_evaluator import SetEvaluator

Config = dict[str, Any]
SAMPLES = 100
BASELINES = ("fedcgan", "fedcvae")


@dataclass(frozen=True)
class Line:
    """A line of a table: what it is called, its settings, what the dissertation prints for it."""

    label: str
    config: Config
    printed: str = ""


def shared(study: str, scale: str, data: str, rounds: int) -> Config:
    """Return the settings that all lines of a study have in common."""
    full = scale == "full"
    config: Config = {
        "num-clients": 10,
        "clients-per-round": 0,
        "num-rounds": rounds,
        "evaluate-every": 10 if not full else 50,
        "checkpoint-every": 5 if not full else 50,
        "data.partition": "dirichlet-clients",
        "data.alpha": 1.0,
        "data.validation": 0.0,
        "model.name": "small-cnn",
        "train.learning-rate": 0.001,
        "train.lr-decay": 0.9,
        "train.lr-decay-every": 50,
        "train.local-epochs": 1,
        "train.batch-size": 64,
        "synthetic.samples": SAMPLES,
        "synthetic.every": 5 if not full else 50,
        "synthetic.reference": "clients" if study == "digits" else "test",
    }
    if study == "digits":
        return {**config, "task": "digits"}
    config |= {"task": "classification", "data.source": data}
    if full:
        return {**config, "data.resize": 32, "fedevg.net": "energy-resnet10", "fedcgan.hidden": 64, "fedcvae.hidden": 64}
    return {**config, "data.max-samples": 6000}


def lines_of(study: str, scale: str, data: str, rounds: int) -> list[Line]:
    """Return the lines of a study; the ablation is on MNIST where there are ``data``, else on the digits."""
    on = study if study != "ablation" else "mnist" if data else "digits"
    base = shared(on, scale, data, rounds)
    if study == "ablation":
        few: Config = {"data.alpha": 0.1}
        variants: dict[str, Config] = {
            "as it is": {},
            "lambda = 0": {"fedevg.lambda": 0.0},
            "raw exponentials": {"fedevg.weights": "exponential"},
            "persistent nets": {"fedevg.persistent": True},
            "DDPM-style steps": {"fedevg.schedule": "ddpm", "fedevg.beta-last": 1.0},
        }
        return [
            Line(f"{where}: {label}", {**base, **part, "method": "fedevg", **config})
            for where, part in (("alpha = 1", {}), ("alpha = 0.1", few))
            for label, config in variants.items()
        ]
    # K = 100: a client has so few images that one epoch would be a single step.
    many: Config = {"num-clients": 100, "clients-per-round": 10, **({} if scale == "full" else {"train.local-epochs": 8})}
    cases: dict[str, Config] = {"K = 10, alpha = 1": {}, "K = 10, alpha = 0.01": {"data.alpha": 0.01}}
    if study == "mnist":
        cases["K = 100, C = 0.1, alpha = 1"] = many
    printed = {
        "K = 10, alpha = 1": ("70.94", "60.81", "64.73"),
        "K = 10, alpha = 0.01": ("62.95", "44.18", "66.93"),
        "K = 100, C = 0.1, alpha = 1": ("86.49", "68.06", "63.80"),
    }
    out = []
    for where, part in cases.items():
        config = {**base, **part}
        evg = {**config, "method": "fedevg"}
        numbers = dict(zip(("fedevg", *BASELINES), printed[where] if study == "mnist" else ("",) * 3, strict=True))
        out.append(Line(f"{where}: fedevg", evg, numbers["fedevg"]))
        out.append(Line(f"{where}: fedevg, persistent nets", {**evg, "fedevg.persistent": True}))
        for method in BASELINES:
            same = {**config, "method": method}
            out.append(Line(f"{where}: {method}", {**same, "num-rounds": equal_rounds(evg, same)}, numbers[method]))
    return out


def equal_rounds(evg: Config, other: Config) -> int:
    """Return after how many rounds a baseline has sent as many numbers as FedEvg, to the nearest, one at least."""
    sizes = []
    for config in (evg, other):
        settings = read_settings(config)
        first: Any = build_strategy(settings, build_task(settings))
        sizes.append(sum(array.size for array in first.first_arrays().values()))
    return max(1, round(evg["num-rounds"] * sizes[0] / sizes[1]))


def folder_of(out: Path, label: str) -> Path:
    """Return the results folder of a line."""
    return out / "".join(c if c.isalnum() or c in ".-" else "-" for c in label.replace(" = ", ""))


def real_images(config: Config) -> float:
    """Return the accuracy of the same classifier on as many real training images, mean of three draws: what there is to reach."""
    settings = read_settings(config)
    evaluator = SetEvaluator(build_task(settings))  # type: ignore[arg-type]
    pool: Split = evaluator._of_all("train")
    accuracies = []
    for draw in range(3):
        rng, labels = generator(draw, "real images"), pool.y.numpy()
        rows = np.concatenate([rng.choice(np.flatnonzero(labels == c), SAMPLES // 10, replace=False) for c in range(10)])
        accuracies.append(evaluator(pool.x.numpy()[rows], labels[rows], 0)[1]["test-accuracy"])
    return float(np.mean(accuracies))


def show(lines: list[Line], out: Path) -> None:
    """Print the table, and put the sets of all lines side by side into ``out``/images.png."""
    table = Table(box=box.SIMPLE)
    for heading in ("", "test accuracy", "mean over clients", "worst client", "Fréchet", "rounds", "up, MB", "s", "printed"):
        table.add_column(heading, justify="left" if not heading else "right")
    pictures = []
    for line in lines:
        folder = folder_of(out, line.label)
        if not (folder / "summary.json").exists():
            continue
        run = read_run(folder)
        n = run.numbers
        cells = [100 * n.get(key, float("nan")) for key in ("test-accuracy", "accuracy-mean", "accuracy-worst")]
        numbers = [*(f"{value:.1f}" for value in cells), f"{n.get('frechet', float('nan')):.1f}"]
        table.add_row(
            line.label, *numbers, str(run.rounds_completed), f"{n['bytes-up'] / 1e6:.1f}", f"{n['seconds']:.0f}", line.printed
        )
        if (folder / "synthetic" / "set").exists():
            made = read_images(DataOptions(source=str(folder / "synthetic" / "set")))
            pictures.append(grid(made.pixels.astype(np.float32) / 255, made.labels, line.label))
    Console(width=150).print(table)
    if pictures:
        joined = Image.new(pictures[0].mode, (sum(p.width + 8 for p in pictures), max(p.height for p in pictures)), "white")
        left = 0
        for picture in pictures:
            joined.paste(picture, (left, 0))
            left += picture.width + 8
        joined.save(out / "images.png")
        print(f"pictures, in the order of the table: {out / 'images.png'}")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=("digits", "mnist", "ablation"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--scale", choices=("small", "full"), default="small")
    parser.add_argument("--rounds", type=int, default=0, help="of FedEvg; 0: those of the scale")
    parser.add_argument("--lines", nargs="*", default=[], help="only the lines whose names hold one of these")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    study = arguments.study
    data = str(Path(arguments.data).expanduser().absolute()) if arguments.data else ""
    if study == "mnist" and not data:
        parser.error("--data: name the folder of MNIST")
    rounds = arguments.rounds or (500 if arguments.scale == "full" else 30)
    torch.set_num_threads(1)
    lines = lines_of(study, arguments.scale, data, rounds)
    lines = [line for line in lines if not arguments.lines or any(word in line.label for word in arguments.lines)]
    out = arguments.out / study
    run_missing([PlannedRun(line.config, folder_of(out, line.label)) for line in lines], arguments.processes)
    show(lines, out)
    print(f"the same classifier on {SAMPLES} real images: {100 * real_images(lines[0].config):.1f} %")


if __name__ == "__main__":
    main()
