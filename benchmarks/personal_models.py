"""Two figures of the SuPerFed paper, drawn from the models that a sweep saved.

    fedapps sweep experiments/superfed/figure-2.5.toml --scale small --out
    results/lambda python benchmarks/personal_models.py lambda results/lambda fedapps
    sweep experiments/superfed/figure-2.4.toml --scale small --out results/landscape
    python benchmarks/personal_models.py landscape results/landscape

lambda: every client's test accuracy and ECE at (1 - lambda) w + lambda v, w the global
model and v the client's own, for APFL and SuPerFed. landscape: mean loss over the test
samples of all clients at theta + a d_1 + b d_2, theta the global model and d_1, d_2
random, filter-normalised, for FedAvg and SuPerFed. Both write a PNG and the numbers
(JSON) into the folder and print a table.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib_drawing as drawing
import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from fedapps.algorithms.common.modules import set_arrays
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.personal.landscape import filter_normalised, on_plane
from fedapps.clients import APFLClient
from fedapps.clients.base.store import DiskStore
from fedapps.clients.base.training import trainable
from fedapps.clients.superfed import LAMBDAS
from fedapps.lab.charts.theme import THEME
from fedapps.runs.assembly import build_client, build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml

NAMES = {
    "apfl": "APFL",
    "fedavg": "FedAvg",
    "superfed-mm": "SuPerFed-MM",
    "superfed-lm": "SuPerFed-LM",
}
#: Half a side of the landscape's square, in lengths of a filter, and points along it.
REACH, POINTS = 1.0, 21


class Done:
    """A finished run: its task, its global model and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = read_settings(read_toml(folder / "settings.toml"))
        self.task: Any = build_task(self.settings)
        self.names = list(self.task.work_model().state_dict())
        model = load_file(folder / "model.safetensors")
        self.arrays = {name: model[name] for name in self.names}

    def along_lambda(self) -> dict[str, list[list[float]]]:
        """Return accuracy and ECE of every client at every lambda (clients x 11)."""
        clients = [self._curves(k) for k in range(self.settings.num_clients)]
        return {key: [curves[key] for curves in clients] for key in ("accuracy", "ece")}

    def _curves(self, k: int) -> dict[str, list[float]]:
        s, arrays = self.settings, list(self.arrays.values())
        config = {
            "seed": s.seed,
            "server-round": s.num_rounds,
            "first-round": s.num_rounds + 1,
            "apfl-alpha": 0.25,
        }
        store = DiskStore(self.folder / "clients" / f"client-{k}", "figure")
        client: Any = build_client(s, self.task, k, s.num_clients, store)
        if not isinstance(client, APFLClient):
            metrics = client.evaluate(arrays, config)[2]
            return {key: metrics[f"lambda-{key}"] for key in ("accuracy", "ece")}
        set_arrays(client.model, arrays)
        mixed = [p.detach() for p in trainable(client.model).values()]
        federated, (own, _) = [t.clone() for t in mixed], client.own(config, before=False)
        scores = []
        for value in LAMBDAS:
            for out, w, v in zip(mixed, federated, own, strict=True):
                torch.lerp(w, v, value, out=out)
            scores.append(client.score(client.data.test))
        return {key: [score[key] for score in scores] for key in ("accuracy", "ece")}

    def landscape(self, places: Sequence[float]) -> np.ndarray:
        """Return the loss at every point of the square (b x a), over the test samples
        of all clients together.
        """
        number = self.settings.num_clients
        tests = [self.task.client_data(k, number).test for k in range(number)]
        whole = type(tests[0])(torch.cat([t.x for t in tests]), torch.cat([t.y for t in tests]))
        first, second = (
            filter_normalised(self.arrays, generator(0, "landscape", server_round=i))
            for i in (1, 2)
        )
        model = self.task.work_model()

        def loss(a: float, b: float) -> float:
            set_arrays(model, list(on_plane(self.arrays, first, second, a, b).values()))
            return float(self.task.objective.score(model, whole)["loss"])

        return np.array([[loss(a, b) for a in places] for b in places])


def lambda_study(done: dict[str, Done]) -> tuple[Any, Table, dict[str, Any]]:
    """Return the figure, the table and the numbers of Figure 2.5."""
    curves = {label: run.along_lambda() for label, run in done.items()}
    figure, axes = drawing.panels(2, len(curves), (4.2 * len(curves), 6.4))
    for column, (label, values) in enumerate(curves.items()):
        for row, (key, word) in enumerate((("accuracy", "accuracy"), ("ece", "ECE"))):
            panel, stack = axes[row * len(curves) + column], np.array(values[key])
            mean, std = stack.mean(0), stack.std(0)
            colour = THEME.series[column].light
            panel.fill_between(
                LAMBDAS,
                np.maximum(mean - std, 0),
                np.minimum(mean + std, 1),
                color=colour,
                alpha=0.16,
                lw=0,
            )
            drawing.line(panel, LAMBDAS, mean, colour)
            drawing.title(panel, f"{label}: {word}")
            panel.set_xlabel("λ")
        axes[column].set_ylim(0, 1.02)
    top = max(panel.get_ylim()[1] for panel in axes[len(curves) :])
    for panel in axes[len(curves) :]:
        panel.set_ylim(0, top)
    table = Table(
        "",
        *map(str, LAMBDAS),
        title="Accuracy (%) along lambda, mean over clients",
        box=box.MARKDOWN,
    )
    for label, values in curves.items():
        table.add_row(
            label, *(f"{100 * value:.1f}" for value in np.mean(values["accuracy"], axis=0))
        )
    return figure, table, curves


def landscape_study(done: dict[str, Done]) -> tuple[Any, Table, dict[str, Any]]:
    """Return the figure, the table and the numbers of Figure 2.4."""
    places = np.linspace(-REACH, REACH, POINTS)
    losses = {label: run.landscape(places.tolist()) for label, run in done.items()}
    lowest = min(float(loss.min()) for loss in losses.values())
    levels = np.geomspace(max(lowest, 1e-3), 20 * max(lowest, 0.05), 16)
    figure, axes = drawing.panels(1, len(losses), (4.4 * len(losses), 4.2))
    table = Table(
        "",
        "at the model",
        "lowest",
        *(f"part of the square below {x:g} + the lowest" for x in (0.1, 0.5, 1.0)),
        title="Loss around the global model",
        box=box.MARKDOWN,
    )
    for panel, (label, loss) in zip(axes, losses.items(), strict=True):
        drawn = panel.contour(places, places, loss, levels=levels, cmap="viridis", linewidths=1.1)
        panel.clabel(drawn, fontsize=7, fmt="%.2g")
        panel.plot(0, 0, "+", color=THEME.ink.light, ms=8)
        panel.set_aspect("equal")
        drawing.title(panel, label)
        parts = [f"{(loss < loss.min() + x).mean():.2f}" for x in (0.1, 0.5, 1.0)]
        table.add_row(label, f"{loss[POINTS // 2, POINTS // 2]:.3f}", f"{loss.min():.3f}", *parts)
    return figure, table, {label: loss.tolist() for label, loss in losses.items()}


def main() -> int:
    """Draw a study of the runs of a finished sweep, print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["lambda", "landscape"])
    parser.add_argument(
        "sweep",
        type=Path,
        metavar="RESULTS",
        help="results folder of figure-2.5.toml or figure-2.4.toml",
    )
    a = parser.parse_args()
    runs = [Done(path.parent) for path in sorted(a.sweep.glob("cells/*/model.safetensors"))]
    done = {NAMES[run.settings.method]: run for run in runs}
    if not done:
        print(f"{a.sweep} holds no runs with saved models", file=sys.stderr)
        return 2
    figure, table, numbers = (lambda_study if a.study == "lambda" else landscape_study)(done)
    (a.sweep / f"{a.study}.png").write_bytes(drawing.png(figure))
    (a.sweep / f"{a.study}.json").write_text(json.dumps(numbers), encoding="utf-8")
    Console(width=200).print(table)
    print(a.sweep / f"{a.study}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
