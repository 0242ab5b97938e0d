"""FFGB-distill and what it is compared with (Shen et al. 2022, section 6): runs, table and picture.

    python benchmarks/distill_figures.py --study models-to-target|warm-start --data FOLDER --public FOLDER --out DIR
        [--scale small|full] [--target 0.85] [--seeds 1] [--processes 2] [--device cpu|cuda]

`models-to-target` (Table 2): FFGB-distill, FedAvg-distill, FedDyn and FedAvg until a test accuracy is reached, for s = 0.1, 0.2, 0.3 of
the samples dealt at random and the rest sorted by label, 100 clients, all of them in every round. `warm-start` (Figure 1): FedAvg and
FedDyn with and without one round of FFGB-distill before. Models are counted as in the paper, one for each client and round; each goes
up and down once. Accuracy is that of the global model on the test samples of all clients.

FOLDER: sets of images that `datasets.load_dataset` reads, MNIST and letters, say, or CIFAR-10 and CIFAR-100; no label of the public
one is read. small: 12,000 samples, a net of 26,506 weights, half an hour at most on two cores. full: all samples, the paper's nets
and its grid of learning rates, for a GPU.

Every run goes through the inline engine and has its own results folder below DIR; a second start skips those that are finished.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # from a checkout that is not installed

import matplotlib_drawing as drawing
import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich import box
from rich.console import Console
from rich.table import Table

from fedapps.results.writer import read_rounds
from fedapps.sweep.pool import PlannedRun, run_missing

Config = dict[str, Any]
SHARES = (0.1, 0.2, 0.3)
ACCURACY = "global-accuracy-weighted"
CLIENTS = 100


@dataclass(frozen=True)
class Line:
    """One method: its settings, rounds at each scale, learning rates of its clients where they have one."""

    label: str
    config: Config
    rounds: dict[str, int]
    rates: dict[str, tuple[float, ...]]
    style: str = "-"


GRID = {"small": (0.1,), "full": (0.01, 0.05, 0.1)}
NONE = {"small": (0.0,), "full": (0.0,)}
LONG, SHORT = {"small": 60, "full": 100}, {"small": 12, "full": 20}
SGD: Config = {
    "train.local-epochs": 10,
    "train.batch-size": 64,
    "train.momentum": 0.0,
    "train.lr-decay": 1.0,
    "train.weight-decay": 0.0,
}
FEDAVG = Line("FedAvg", {**SGD, "method": "fedavg"}, LONG, GRID)
FEDDYN = Line("FedDyn", {**SGD, "method": "feddyn"}, LONG, GRID)
BOOSTED = Line("FFGB-distill", {"method": "ffgb-distill"}, SHORT, NONE)
STUDIES: dict[str, tuple[Line, ...]] = {
    "models-to-target": (
        BOOSTED,
        Line("FedAvg-distill", {**SGD, "method": "fedavg-distill", "train.local-epochs": 100}, {"small": 12, "full": 100}, GRID),
        FEDDYN,
        FEDAVG,
    ),
    "warm-start": (
        FEDAVG,
        Line("FedAvg after FFGB-distill", {**SGD, "method": "warm-start", "warm-start.then": "fedavg"}, LONG, GRID, "--"),
        FEDDYN,
        Line("FedDyn after FFGB-distill", {**SGD, "method": "warm-start", "warm-start.then": "feddyn"}, LONG, GRID, "--"),
    ),
}


def common(arguments: argparse.Namespace) -> Config:
    """Return the settings that all runs share."""
    small = arguments.scale == "small"
    return {
        "data.source": str(Path(arguments.data).expanduser().absolute()),
        "public.source": str(Path(arguments.public).expanduser().absolute()),
        "data.partition": "sorted-share",
        "data.validation": 0.0,
        "data.max-samples": 12_000 if small else 0,
        "public.samples": 4000 if small else 0,
        "model.name": "mlp-32-32" if small else arguments.model,
        "num-clients": CLIENTS,
        "clients-per-round": 0,
        "evaluate-every": 1,
        "checkpoint-every": 10,
        "device": arguments.device,
        "timeout": 36000.0,
    }


def name_of(line: Line) -> str:
    """Return a name for folders."""
    return line.label.lower().replace(" ", "-")


def folder_of(arguments: argparse.Namespace, line: Line, share: float, rate: float, seed: int) -> Path:
    """Return the results folder of a run; the same in both studies."""
    return Path(arguments.out) / "runs" / arguments.scale / f"{name_of(line)}-s{share:g}-rate{rate:g}-seed{seed}"


def runs_of(arguments: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs of a study, long ones first."""
    base, runs = common(arguments), []
    for line in STUDIES[arguments.study]:
        for share in SHARES:
            for rate in line.rates[arguments.scale]:
                for seed in range(arguments.seeds):
                    config = {
                        **base,
                        **line.config,
                        "data.share": share,
                        "seed": seed,
                        "num-rounds": line.rounds[arguments.scale],
                    }
                    config |= {"train.learning-rate": rate} if rate else {}
                    runs.append(PlannedRun(config, folder_of(arguments, line, share, rate, seed)))
    return runs


def curves(arguments: argparse.Namespace, line: Line, share: float) -> np.ndarray:
    """Return accuracy (seeds, rounds) at the learning rate that reaches the target first (then: that ends highest)."""

    def order(found: np.ndarray) -> tuple[float, float]:
        return models_to(found.mean(0), arguments.target), -float(found[:, -1].mean())

    found = []
    for rate in line.rates[arguments.scale]:
        folders = [folder_of(arguments, line, share, rate, seed) for seed in range(arguments.seeds)]
        found.append(np.array([[row["evaluate"][ACCURACY] for row in read_rounds(folder)] for folder in folders]))
    return min(found, key=order)


def models_to(accuracy: np.ndarray, target: float) -> float:
    """Return after how many models the target is reached; infinity if never."""
    reached = np.flatnonzero(accuracy >= target)
    return float(reached[0] + 1) if len(reached) else np.inf


def table_of(arguments: argparse.Namespace) -> Table:
    """Return what each method reached."""
    columns = ["method", *(f"s = {share:g}: models to {arguments.target:.0%}, after 1, best" for share in SHARES)]
    table = Table(*columns, title=f"{arguments.study}, {arguments.scale}, {arguments.seeds} seed(s)", box=box.MARKDOWN)
    for line in STUDIES[arguments.study]:
        row = []
        for share in SHARES:
            accuracy = curves(arguments, line, share).mean(0)
            needed = models_to(accuracy, arguments.target)
            shown = f"{needed:.0f}" if np.isfinite(needed) else f"> {len(accuracy)}"
            row.append(f"{shown}, {accuracy[0]:.1%}, {accuracy.max():.1%}")
        table.add_row(line.label, *row)
    return table


def draw(arguments: argparse.Namespace) -> bytes:
    """Return accuracy against models, one panel a share."""
    figure, panels = drawing.panels(1, len(SHARES), (11.5, 3.8), drawing.LIGHT)
    lines = STUDIES[arguments.study]
    for panel, share in zip(panels, SHARES, strict=True):
        for place, line in enumerate(lines):
            found = curves(arguments, line, share)
            models = np.arange(1, found.shape[1] + 1)
            colour = drawing.LIGHT.series[place // 2 if arguments.study == "warm-start" else place]
            panel.plot(models, 100 * found.mean(0), line.style, color=colour, lw=1.8, label=line.label)
            if len(found) > 1:
                panel.fill_between(models, 100 * found.min(0), 100 * found.max(0), color=colour, alpha=0.15, lw=0)
        panel.axhline(100 * arguments.target, color=drawing.LIGHT.muted, lw=0.8, ls=":")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("models sent by each client")
        panel.set_title(f"s = {share:g}", color=drawing.LIGHT.ink, fontsize=11)
    panels[0].set_ylabel("accuracy, %")
    panels[-1].legend(frameon=False, fontsize=9, labelcolor=drawing.LIGHT.ink)
    return drawing.png(figure)


def main() -> None:
    """Run what is missing, then print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--study", choices=STUDIES, required=True)
    parser.add_argument("--data", required=True, help="the clients' images")
    parser.add_argument("--public", required=True, help="the server's unlabelled images")
    parser.add_argument("--out", required=True)
    parser.add_argument("--scale", choices=["small", "full"], default="small")
    parser.add_argument("--model", default="conv-120-84", help="of the full scale; conv-384-192 for CIFAR")
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    run_missing(runs_of(arguments), arguments.processes)
    Console(width=160).print(table_of(arguments))
    picture = Path(arguments.out) / f"{arguments.study}-{arguments.scale}.png"
    picture.write_bytes(draw(arguments))
    print(picture)


if __name__ == "__main__":
    main()
