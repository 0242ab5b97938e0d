"""The experiments of Dadras, Prakhya, Yurtsever 2022 (FedFW), section 5: runs, table and pictures.

    python benchmarks/fedfw_figures.py --problem lasso|logistic|completion|completion-large|qap --out DIR
        [--rounds N] [--processes 2] [--data FOLDER]

Each method's run goes through the inline engine and has its own results folder below DIR; a second start skips those that are
finished. What is early on a logarithmic axis comes from a short run of its own. Rounds: those of the paper. Methods: FedFW, FedFW+,
local Frank-Wolfe steps averaged ("naive"), and FedAvg with projection where the domain has one (full singular value decompositions for
`completion`: --without projected-fedavg). FOLDER: a table of ratings that `datasets.load_dataset` reads, for `completion`; without it
pixels of the bundled digits. `completion-large`: a generated matrix of MovieLens-100k's size, for time and memory.

Pictures: residual (or objective) and gap against rounds, seconds and bytes on logarithmic axes, with the slope that Theorem 1 or 2
proves; what grows in x_bar: non-zeros or rank; for `lasso` the recovered x beside the true one.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # from a checkout that is not installed

import matplotlib_drawing as drawing
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from fedapps.assembly import build_task
from fedapps.results.writer import read_rounds
from fedapps.settings import read_settings
from fedapps.sweep.pool import PlannedRun, run_missing

Config = dict[str, Any]
METHODS = {"fedfw": "FedFW", "fedfw-plus": "FedFW+", "naive-fw": "naive", "projected-fedavg": "FedAvg, projected"}
AXES = {"rounds": "round", "seconds": "seconds", "bytes": "bytes, all clients"}


@dataclass(frozen=True)
class Study:
    """One experiment: settings, rounds, its main measure and what is shown beside it; ``slope``: of the proved rate."""

    heading: str
    rounds: int
    clients: int
    config: Config
    measure: str
    label: str
    table: tuple[str, ...]
    extra: str = ""
    projects: bool = True
    slope: float = -0.5


def studies(data: str) -> dict[str, Study]:
    """Return the experiments by name."""
    large: Config = {f"matrix-completion.{key}": value for key, value in
                     {"rows": 943, "columns": 1682, "observations": 100_000, "rank": 10}.items()}  # fmt: skip
    large["fedfw.lambda-0"] = 1e-3
    real: Config = {"matrix-completion.source": data, "matrix-completion.radius": 7000.0, "fedfw.lambda-0": 1e-5}
    paper: Config = {"task": "matrix-completion", "matrix-completion.center": "none", "matrix-completion.clip": False}
    digits: Config = {"matrix-completion.source": "digits", "fedfw.lambda-0": 1e-3}
    return {
        "lasso": Study(
            "LASSO, 200 x 400, 20 non-zeros", 100_000, 10, {"task": "lasso"}, "objective", "F(x̄) - F*",
            ("gap", "consensus", "non-zeros", "support-found", "solution-distance"), "non-zeros",
        ),
        "logistic": Study(
            "Sparse logistic regression, digits", 100_000, 10, {"task": "sparse-logistic"}, "objective", "F(x̄)",
            ("gap", "consensus", "non-zeros", "accuracy-mean", "test-loss-mean"), "non-zeros",
        ),
        "completion": Study(
            "Matrix completion, MovieLens-100k" if data else "Matrix completion, pixels of digits, 1797 x 64", 2000, 40,
            {**paper, **(real if data else digits)}, "test-rmse", "test RMSE",
            ("objective", "gap", "consensus", "rmse", "rank"), "rank",
        ),
        "completion-large": Study(
            "Matrix completion, generated, 943 x 1682", 2000, 40, {**paper, **large}, "test-rmse", "test RMSE",
            ("objective", "gap", "consensus", "rmse", "rank"), "rank",
        ),
        "qap": Study(
            "QAP relaxation, chr12a", 100_000, 72, {"task": "qap"}, "relaxed-cost", "trace(A X Bᵀ Xᵀ)",
            ("gap", "consensus", "rounded-cost"), "rounded-cost", projects=False, slope=-1 / 3,
        ),
    }  # fmt: skip


def early(folder: Path) -> Path:
    """Return the folder of the short run beside a long one."""
    return folder.with_name(f"{folder.name}-early")


def curves(folder: Path) -> tuple[dict[str, list[float]], list[dict[str, float]]]:
    """Return rounds, seconds and training bytes at the evaluations, and these; the early ones from the short run."""
    rows = read_rounds(folder)
    seconds = np.cumsum([row["seconds"] for row in rows])
    sent = np.cumsum([row["bytes-up"] + row["bytes-down"] for row in rows])
    found = {row["round"]: row["evaluate"] for row in [*read_rounds(early(folder)), *rows] if "evaluate" in row}
    at = sorted(found)
    axes = {"rounds": at, "seconds": [seconds[t - 1] for t in at], "bytes": [sent[t - 1] for t in at]}
    return axes, [found[t] for t in at]


def table_of(study: Study, folders: dict[str, Path], rounds: int) -> Table:
    """Return the last evaluation of every method, and what the run cost."""
    table = Table(title=f"{study.heading}, {study.clients} clients, {rounds} rounds")
    for column in ("", study.measure, *study.table, "up B a message", "down B", "s", "ms a message"):
        table.add_column(column)
    for method, folder in folders.items():
        summary = json.loads((folder / "summary.json").read_text())
        messages = rounds * study.clients
        costs = (summary["bytes-up"] / messages, summary["bytes-down"] / messages, summary["seconds"])
        shown = [summary.get(name) for name in (study.measure, *study.table)]
        numbers = ["-" if value is None else f"{value:.4g}" for value in shown]
        table.add_row(METHODS[method], *numbers, *(f"{cost:.4g}" for cost in costs), f"{1e3 * costs[2] / messages:.3f}")
    return table


def draw(study: Study, folders: dict[str, Path], path: Path) -> None:
    """Write the picture: measure and gap against rounds, seconds and bytes, and the study's extra."""
    figure, axes = drawing.panels(3, 3, (12.5, 9.6), drawing.LIGHT)
    for index, (method, folder) in enumerate(folders.items()):
        places, rows = curves(folder)
        colour, look = drawing.LIGHT.series[index], METHODS[method]
        for column, axis in enumerate(AXES):
            for row, measure in enumerate((study.measure, "gap")):
                drawing.line(
                    axes[3 * row + column], places[axis], [entry[measure] for entry in rows], colour, label=look, width=1.6
                )
        drawing.line(axes[6], places["rounds"], [entry[study.extra] for entry in rows], colour, width=1.6)
        if METHODS[method].startswith("FedFW"):  # other clients have no points of their own
            drawing.line(axes[7], places["rounds"], [entry["consensus"] for entry in rows], colour, width=1.6)
    for column, (axis, name) in enumerate(AXES.items()):
        for row, label in enumerate((study.label, "Frank-Wolfe gap")):
            panel = axes[3 * row + column]
            panel.set(xscale="log", yscale="log", xlabel=name, ylabel=label)
            if axis == "rounds":
                slope(panel, study.slope)
    for panel, label in ((axes[6], study.extra), (axes[7], "distance from consensus")):
        panel.set(xscale="log", xlabel="round", ylabel=label)
    axes[7].set(yscale="log")
    if study.config["task"] == "lasso":
        support(axes[8], folders)
    else:
        axes[8].set_visible(False)
    drawing.title(axes[0], study.heading, drawing.LIGHT)
    drawing.legend(figure, axes[0], drawing.LIGHT)
    path.write_bytes(drawing.png(figure))


def slope(panel: Any, exponent: float) -> None:
    """Draw the proved rate through the middle of the panel."""
    (left, right), (low, high) = panel.get_xlim(), panel.get_ylim()
    x = np.geomspace(left, right, 20)
    y = np.sqrt(low * high) * (x / np.sqrt(left * right)) ** exponent
    panel.plot(x, y, color=drawing.LIGHT.muted, ls=":", lw=1.4)
    panel.annotate(
        f"t^{exponent:.2g}", (x[12], y[12]), color=drawing.LIGHT.muted, fontsize=9, xytext=(4, 6), textcoords="offset points"
    )
    panel.set(xlim=(left, right), ylim=(low, high))


def support(panel: Any, folders: dict[str, Path]) -> None:
    """Draw the recovered entries beside the true ones."""
    for index, (method, folder) in enumerate(folders.items()):
        settings = read_settings({"method": method, "task": "lasso", "out": str(folder)})
        task: Any = build_task(settings)
        order = np.argsort(-np.abs(task.solution), kind="stable")[: 2 * settings.problem.sparsity]
        found = load_file(folder / "model.safetensors")["x"]
        panel.plot(found[order], ls="", marker="o", ms=3, color=drawing.LIGHT.series[index], alpha=0.8)
    panel.step(np.arange(len(order)), task.solution[order], where="mid", color=drawing.LIGHT.ink, lw=1.2, label="true")
    panel.set(xlabel="entries, the support first", ylabel="x̄ (dots) and x* (line)")


def main() -> None:
    """Run what is missing, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problem", required=True, choices=list(studies("")))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="default: the paper's")
    parser.add_argument("--evaluations", type=int, default=40, help="about so many, evenly spaced (default 40)")
    parser.add_argument("--without", nargs="*", default=[], choices=list(METHODS), help="methods to leave out")
    parser.add_argument("--data", default="", metavar="FOLDER", help="completion: a table of ratings")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    study = studies(arguments.data)[arguments.problem]
    rounds = arguments.rounds or study.rounds
    folders: dict[str, Path] = {}
    planned: list[PlannedRun] = []
    for method in METHODS:
        if method in arguments.without or (method == "projected-fedavg" and not study.projects):
            continue
        folders[method] = folder = arguments.out / f"{arguments.problem}-{method}-{rounds}"
        every = max(1, rounds // arguments.evaluations)
        for where, length in ((early(folder), every), (folder, rounds)):
            config = {
                **study.config,
                "method": method,
                "num-clients": study.clients,
                "clients-per-round": 0,
                "num-rounds": length,
                "evaluate-every": max(1, length // arguments.evaluations),
                "checkpoint-every": 0,  # client states on disk would cost more than the steps
            }
            if length > 1:
                planned.append(PlannedRun(config, where))
    run_missing(planned, arguments.processes)
    Console(width=None if sys.stdout.isatty() else 150).print(table_of(study, folders, rounds))
    draw(study, folders, arguments.out / f"fedfw-{arguments.problem}.png")


if __name__ == "__main__":
    main()
