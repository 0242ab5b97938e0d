"""The studies of Hamer, Mohri, Suresh 2020 (FedBoost), section 5 and appendix D: runs, table and one picture each.

    python benchmarks/fedboost_figures.py --figure 3|4|1000|shakespeare|all-roles|afl|afl-roles|nets|nets-mnist --out DIR
        [--seeds 5] [--rounds N] [--processes 2] [--data FOLDER]

A run is of one setting and seed, through the inline engine, with its own results folder below DIR. A second start skips the runs that
are finished, and what two figures share runs once; a longer run serves a shorter figure, since neither a draw nor the output depends
on its length. Loss: the full ensemble's, at the method's output (the running average of alpha) unless
"last", over all clients' test data, weighted by samples. ± is the standard deviation over seeds, in the picture the band is from the
lowest to the highest. FOLDER is what `datasets.load_dataset` reads: Shakespeare with the splits train and test and the columns
character_id and text, or MNIST.
"""

import argparse
import csv
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


@dataclass(frozen=True)
class Line:
    """One setting of a figure: the settings that differ from the figure's, whether a seed makes a difference, its look."""

    label: str
    config: Config
    random: bool = True
    colour: int = 0
    style: str = "-"


@dataclass(frozen=True)
class FigureSpec:
    """What a figure runs and shows: ``rounds`` by default, ``every`` so many ``metric``; ``kind``: curves, budgets, domains."""

    heading: str
    rounds: int
    every: int
    config: Config
    lines: tuple[Line, ...]
    metric: str = "loss-weighted"
    kind: str = "curves"
    references: tuple[str, ...] = ("uniform", "best-single", "optimum")


def sampling(budget: int) -> tuple[Line, Line]:
    """Return uniform and weighted sampling with this budget."""
    uniform, weighted = ({"fedboost.sampling": name, "fedboost.budget": budget} for name in ("uniform", "weighted"))
    return Line(f"uniform, C = {budget}", uniform, colour=1), Line(f"weighted, C = {budget}", weighted, colour=0)


def everything(size: int) -> Line:
    """Return C = q."""
    return Line("all, C = q", {"fedboost.sampling": "none", "fedboost.budget": size}, False, 6, "--")


def synthetic(size: int) -> Config:
    """Return the paper's synthetic study."""
    return {"method": "fedboost", "task": "point-mass", "num-clients": size, "point-mass.size": size, "fedboost.step": 0.001}


def figures(data: str) -> dict[str, FigureSpec]:
    """Return the figures by name."""
    unbiased = Line(
        "weighted, C = 32, unbiased gradient",
        {"fedboost.sampling": "weighted", "fedboost.budget": 32, "fedboost.gradient": "unbiased"},
        colour=2,
    )
    budgets = tuple(line for c in (2, 8, 32, 64) for line in sampling(c))
    unigram: Config = {"task": "unigram", "num-clients": 715, "unigram.source": data}
    shakespeare: Config = {"method": "fedboost", **unigram, "clients-per-round": 100, "fedboost.step": 0.01}
    nets: Config = {"task": "ensemble-classification", "num-clients": 10}
    boost, agnostic = {"method": "fedboost", "fedboost.step": 0.01}, {"method": "aflboost", "aflboost.step": 0.01}
    few: Config = {"task": "point-mass", "num-clients": 10, "point-mass.size": 100}
    roles, classes = {**unigram, "num-clients": 100}, {**nets, "data.classes-per-client": 1}
    squared: Config = {"fedboost.sampling": "weighted", "fedboost.budget": 5, "ensemble.loss": "squared"}
    ways: tuple[Line, ...] = (
        *sampling(5),
        Line("all, C = q", {"fedboost.sampling": "none", "fedboost.budget": 10}, colour=6, style="--"),
        Line("squared, unbiased, weighted, C = 5", squared | {"fedboost.gradient": "unbiased"}, colour=2),
        Line("squared, weighted, C = 5", squared, colour=3),
        Line("FedAvg of one such net", {"method": "fedavg", "task": "classification", "train.local-epochs": 1}, colour=4),
    )
    mnist: Config = {"data.source": data, "data.max-samples": 10000, "model.name": "mcmahan-2nn"}
    own = ("uniform",)  # the others are of the test texts alone; here a role without one is scored on its training text
    return {
        "3": FigureSpec("Synthetic, p = q = 100", 1000, 50, synthetic(100), (everything(100), *sampling(32), unbiased)),
        "4": FigureSpec("Synthetic, loss against C", 300, 50, synthetic(100), (everything(100), *budgets), kind="budgets"),
        "1000": FigureSpec(
            "Synthetic, p = q = 1000", 100, 5, synthetic(1000) | {"fedboost.step": 0.01}, (everything(1000), *sampling(320))
        ),
        "shakespeare": FigureSpec("Shakespeare, 715 roles", 100, 20, shakespeare, (everything(715), *sampling(357)), references=own),
        "all-roles": FigureSpec(
            "Shakespeare, all 715 clients a round", 500, 100, {**shakespeare, "clients-per-round": 0}, sampling(357)[1:], references=own
        ),
        "afl": FigureSpec(
            "Loss of each domain, best to worst", 200, 200, {}, (
                Line("point masses, FedBoost", few | boost, colour=0),
                Line("point masses, AFLBoost", few | agnostic | {"aflboost.lambda-step": 0.05}, colour=1),
                Line("digits, FedBoost", classes | boost | {"fedboost.step": 0.1, "fedboost.budget": 5}, colour=0, style="--"),
                Line("digits, AFLBoost", classes | agnostic | {"aflboost.step": 0.1, "aflboost.budget": 5}, colour=1, style="--"),
            ), kind="domains", references=(),
        ),
        "afl-roles": FigureSpec(
            "Loss of each of 100 roles, best to worst", 200, 200, roles, (
                Line("FedBoost", boost | {"fedboost.step": 0.1}),
                Line("AFLBoost", agnostic | {"aflboost.step": 0.1}, colour=1),
            ), kind="domains", references=(),
        ),
        "nets": FigureSpec(
            "Digits: ten nets that know three labels each", 200, 10, {**nets, "method": "fedboost", "fedboost.step": 0.1}, ways,
            metric="accuracy-mean", references=("uniform", "best-single"),
        ),
        "nets-mnist": FigureSpec(
            "MNIST: ten nets that know three labels each", 100, 10, {**nets, **mnist, "method": "fedboost", "fedboost.step": 0.1}, ways,
            metric="accuracy-mean", references=("uniform", "best-single"),
        ),
    }  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


def folder_of(config: Config, seed: int, out: Path) -> Path:
    """Return the results folder of a run: named by what is run, not by how long."""
    words = [
        f"{k.rpartition('.')[2]}-{v}"
        for k, v in sorted(config.items())
        if k not in ("unigram.source", "data.source", "method", "task", "checkpoint-every")
    ]
    return out / "-".join([config["task"], config["method"], *words, f"seed-{seed}"])


def write_extras(run: PlannedRun) -> None:
    """Write beside a run's records what the pictures need besides."""
    folder = run.folder
    settings = read_settings({**run.config, "out": str(folder)})
    task: Any = build_task(settings)
    known = settings.seed and settings.task != "ensemble-classification"  # only the nets depend on the seed
    extra: dict[str, Any] = {}
    if hasattr(task, "references") and not known:
        extra |= task.references(settings.num_clients)
    model = load_file(folder / "model.safetensors")
    last = task.library().mixture(model["alpha-last"]) if "alpha-last" in model else None
    if hasattr(task, "optimum"):
        extra |= {
            "optimum-loss": task.optimum(),
            "most": float(model["alpha-last"][0]),
            "ten": float(model["alpha-last"][:10].sum()),
        }
    if last is not None:
        clients = [task.client_data(k, settings.num_clients) for k in range(settings.num_clients)]
        table = {name: array[None] for name, array in last.items()}
        losses = [client.score(table, np.ones(1))["loss"] for client in clients]
        extra["last-loss"] = float(np.average(losses, weights=[client.num_test for client in clients]))
    (folder / "extra.json").write_text(json.dumps(extra))


def curve(folder: Path, metric: str, rounds: int) -> tuple[list[int], list[float]]:
    """Return rounds and values of a metric up to a round."""
    rows = [row for row in read_rounds(folder) if "evaluate" in row and row["round"] <= rounds]
    return [row["round"] for row in rows], [row["evaluate"][metric] for row in rows]


def domains(folder: Path, measure: str = "loss") -> np.ndarray:
    """Return a measure of each client at the last evaluation, sorted."""
    with (folder / "clients.csv").open() as file:
        return np.sort([float(row[measure]) for row in csv.DictReader(file)])


def extras(folder: Path) -> dict[str, float]:
    """Return references and the loss at the last alpha."""
    found: dict[str, float] = json.loads((folder / "extra.json").read_text())
    return found


def table_of(spec: FigureSpec, runs: dict[str, list[Path]], rounds: int) -> Table:
    """Return mean ± standard deviation of every line, and the references."""
    table = Table(title=f"{spec.heading}, {rounds} rounds")
    what = spec.metric if spec.kind != "domains" else "mean domain's loss"
    other = "worst domain's loss" if spec.kind == "domains" else "last" if spec.metric == "loss-weighted" else "loss-weighted"
    masses = spec.config.get("task") == "point-mass" and spec.kind == "curves"
    for column in (
        "",
        "seeds",
        what,
        other,
        "MB a round",
        "s",
        *(["weight of outcome 1", "of 1 to 10"] if masses else []),
        *(["worst in training"] if spec.kind == "domains" else []),
    ):
        table.add_column(column)
    for label, folders in runs.items():
        summaries = [json.loads((f / "summary.json").read_text()) for f in folders]
        if spec.kind == "domains":
            values, others = [domains(f).mean() for f in folders], [domains(f).max() for f in folders]
        else:
            values = [curve(f, spec.metric, rounds)[1][-1] for f in folders]
            full = all(s["rounds-completed"] == rounds for s in summaries)
            others = [extras(f)["last-loss"] for f in folders if full and "last-loss" in extras(f)]
            if spec.metric != "loss-weighted":
                others = [curve(f, "loss-weighted", rounds)[1][-1] for f in folders]
        size = np.mean([(s["bytes-up"] + s["bytes-down"]) / s["rounds-completed"] for s in summaries]) / 1e6
        numbers = f"{size:.3g}", f"{np.mean([s['seconds'] for s in summaries]):.0f}"
        weights = [f"{np.mean([extras(f)[key] for f in folders]):.3f}" for key in ("most", "ten")] if masses else []
        if spec.kind == "domains":
            weights = [spread([domains(f, "train-loss").max() for f in folders])]
        table.add_row(label, str(len(folders)), spread(values), spread(others), *numbers, *weights)
    for name, value in references(spec, runs).items():
        table.add_row(name, "", f"{value:.4f}")
    return table


def references(spec: FigureSpec, runs: dict[str, list[Path]]) -> dict[str, float]:
    """Return what the figure compares with; the uniform ensemble is the one of the evaluations."""
    key = "accuracy" if spec.metric.startswith("accuracy") else "loss"
    known = [extras(folder) for folders in runs.values() for folder in folders]
    names = {name: [extra[f"{name}-{key}"] for extra in known if f"{name}-{key}" in extra] for name in spec.references}
    if spec.kind == "curves":
        boosted = [f for label, folders in runs.items() for f in folders if not label.startswith("FedAvg")]
        names["uniform"] = [curve(f, f"uniform-{spec.metric}", 10**9)[1][0] for f in boosted]
    return {name: float(np.mean(values)) for name, values in names.items() if values}


def spread(values: Any) -> str:
    """Return mean ± standard deviation."""
    return "-" if not len(values) else f"{np.mean(values):.4f}" + (f" ± {np.std(values):.4f}" if len(values) > 1 else "")


def draw(spec: FigureSpec, runs: dict[str, list[Path]], rounds: int, path: Path) -> None:
    """Write the picture."""
    figure, axes = drawing.one_panel(spec.heading, drawing.LIGHT)
    colours, known = drawing.LIGHT.series, references(spec, runs)
    budgets: dict[str, list[tuple[int, list[float]]]] = {}
    for line in spec.lines:
        folders = runs[line.label]
        look = (colours[line.colour], line.style, line.label)
        if spec.kind == "domains":
            stack = np.array([domains(f) for f in folders])
            drawing.line_with_range(axes, np.linspace(0, 1, stack.shape[1]), stack, *look)
        elif spec.kind == "budgets":
            final = [curve(f, spec.metric, rounds)[1][-1] for f in folders]
            budgets.setdefault(line.config["fedboost.sampling"], []).append((line.config["fedboost.budget"], final))
        else:
            xs = curve(folders[0], spec.metric, rounds)[0]
            stack = np.array([curve(f, spec.metric, rounds)[1] for f in folders])
            stack = np.column_stack([np.full(len(stack), known["uniform"]), stack])
            drawing.line_with_range(axes, [0, *xs], stack, *look)
    for colour, name in ((1, "uniform"), (0, "weighted")):
        if points := budgets.get(name):
            drawing.line_with_range(axes, [c for c, _ in points], np.array([v for _, v in points]).T, colours[colour], "-", name)
    if "none" in budgets:
        axes.axhline(budgets["none"][0][1][0], color=colours[6], ls="--", lw=1.5, label="all, C = q")
        axes.set_xscale("log", base=2)
    for (name, value), style in zip(known.items(), (":", "-.", (0, (5, 1))), strict=False):
        if name != "best-single" or "accuracy" in spec.metric:  # a single point mass has an enormous loss
            label = {"uniform": "uniform ensemble", "best-single": "best single predictor"}.get(name, name)
            axes.axhline(value, color=drawing.LIGHT.muted, ls=style, lw=1.2, label=label)
    if spec.kind == "curves":
        drawing.label_rounds(axes)
    else:
        axes.set_xlabel("C" if spec.kind == "budgets" else "share of the domains")
    drawing.label_values(axes, spec.metric if "accuracy" in spec.metric else "loss", "")
    drawing.legend(figure, axes, drawing.LIGHT)
    path.write_bytes(drawing.png(figure))


def main() -> None:
    """Run what is missing, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", required=True, choices=list(figures("")))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default="", metavar="FOLDER", help="Shakespeare or MNIST; default: small generated texts")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="default: the figure's")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    spec = figures(arguments.data)[arguments.figure]
    rounds = arguments.rounds or spec.rounds
    runs: dict[str, list[Path]] = {}
    planned: list[PlannedRun] = []
    for seed in range(arguments.seeds):
        for line in spec.lines:
            if seed and not line.random and not spec.config.get("clients-per-round"):
                continue
            config = {"clients-per-round": 0, "checkpoint-every": 0, **spec.config, **line.config}
            folder = folder_of(config, seed, arguments.out)
            runs.setdefault(line.label, []).append(folder)
            planned.append(
                PlannedRun({**config, "seed": seed, "num-rounds": rounds, "evaluate-every": min(spec.every, rounds)}, folder)
            )
    run_missing(planned, arguments.processes, rounds, after=write_extras)
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table_of(spec, runs, rounds))
    for name, value in extras(next(iter(runs.values()))[0]).items():
        if spec.config.get("task") == "unigram" and name.endswith(("uniform-loss", "best-single-loss", "optimum-loss")):
            console.print(f"all {'training' if name.startswith('train-') else 'test'} texts as one: {name} {value:.4f}")
    draw(spec, runs, rounds, arguments.out / f"fedboost-{arguments.figure}.png")


if __name__ == "__main__":
    main()
