"""FFGB as in the experiments of its first version (Shen et al. 2021, section 4 and appendix B), on tables, and what a round costs.

    python benchmarks/ffgb_figures.py --study mnist|residual|steps|tabular|cost --out DIR [--data FOLDER] [--scale small|full]
        [--model NAME] [--seeds S ...] [--processes 2] [--device cpu|cuda]

mnist: FFGB (K = 2) against FedAvg by rounds and by models sent, s = 0.1 and 0.3 of the samples dealt at random and the rest sorted by
    label. FedAvg with the rate that the paper gives and with 0.1; 25 local steps on a fifth of a client's samples each.
residual: FFGB (K = 10, s = 0.1) with and without the residual, for a weak oracle and a stronger one.
steps: FFGB with K = 1, 5, 10, 20 and 40, s = 0.1.
tabular: FFGB with trees on Heart and Berka against FedAvg's logistic regression (the protocol of fair_tables.py), the same trees
    trained on all rows in one place, and those of each client alone. FOLDER holds the folders heart and berka.
cost: 50 rounds on the bundled digits and on a generated table; needs no FOLDER.

FOLDER: images that `datasets.load_dataset` reads, MNIST, say. Weak learner: the MLP 32-32, Adam with rate 0.005 and batches of 64.
small: 12,000 samples, a quarter of an hour at most on two free cores; 56 clients and 300 steps a learner (mnist), or 14 clients and
200. full: all samples, 56 clients and 1000 steps everywhere, for a GPU; `--model tutorial-cnn` with CIFAR-10 is the paper's.

Every run goes through the inline engine and has its own results folder below DIR; a second start skips those that are finished.
Functions are not kept: they have gigabytes. Accuracy is that of the global function on the test samples of all clients, a fifth of each
one's. Models are counted as in the paper: a client of FFGB sends K in a round and receives those of the N - 1 others, one of FedAvg
sends one and receives one.
"""

import argparse
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # from a checkout that is not installed

import matplotlib_drawing as drawing
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file
from torch import nn

from algorithms.boosting.additive_values import advance
from clients import ClientData, FFGBClient, MessageStore, Split, to_client_app
from fedapps.assembly import build_strategy, build_task
from fedapps.engines.inline import InlineGrid
from fedapps.results.reader import RunFolder, read_run
from fedapps.results.writer import read_rounds
from fedapps.settings import read_settings
from fedapps.sweep.pool import PlannedRun, run_missing
from fedapps.tasks.boosting_oracles import load_function, oracle_of, predictor
from fedapps.toml_text import read_toml
from strategies.base.rounds import run_rounds

Config = dict[str, Any]
ACCURACY = "global-accuracy-weighted"
SAMPLES = {"small": 12_000, "full": 60_000}


@dataclass(frozen=True, eq=False)
class Line:
    """One method: its settings at a scale and share; ``style`` and ``colour`` of its curves."""

    label: str
    config: Config
    style: str = "-"
    colour: int = 0


@dataclass(frozen=True)
class Study:
    """Lines for each share s; ``columns``: of the table, heading and what it says of a run."""

    heading: str
    shares: tuple[float, ...]
    lines: Callable[[float], Sequence[Line]]
    columns: dict[str, Callable[[RunFolder], float]]
    panels: tuple[tuple[str, str], ...] = field(default=(("round", "evaluate"), ("models", "evaluate")))


# --- runs on images -----------------------------------------------------------------------------------------------------


def after_round(number: int) -> Callable[[RunFolder], float]:
    """Return what tells the accuracy in per cent after a round."""
    return lambda run: 100 * run.rounds[number - 1]["evaluate"][ACCURACY]


def models(run: RunFolder) -> list[float]:
    """Return how many models a client has sent and received for what it has after each round."""
    return [float(record["train"].get("learners", 2 * record["round"])) for record in run.rounds]


def with_models(budget: int) -> Callable[[RunFolder], float]:
    """Return what tells the accuracy in per cent when a client has sent and received so many models."""

    def tell(run: RunFolder) -> float:
        found = [r["evaluate"][ACCURACY] for r, sent in zip(run.rounds, models(run), strict=True) if sent <= budget]
        return 100 * found[-1] if found else float("nan")

    return tell


def training_loss(number: int) -> Callable[[RunFolder], float]:
    """Return what tells the loss on the training samples before a round."""
    return lambda run: float(run.rounds[number - 1]["train"]["loss"])


def boosted(steps: int, fit_steps: int, rounds: int, **more: Any) -> Config:
    """Return the settings of FFGB with K = ``steps`` and so many steps of Adam a learner."""
    own = {"local-steps": steps, "fit-steps": fit_steps, **more}
    return {"method": "ffgb", "num-rounds": rounds, **{f"ffgb.{key.replace('_', '-')}": value for key, value in own.items()}}


def studies(scale: str) -> dict[str, Study]:
    """Return the studies on images."""
    small = scale == "small"
    rounds = {"mnist": 18, "residual": 15 if small else 30, "steps": 10 if small else 20}
    a_fifth = -(-int(0.8 * SAMPLES[scale] / 56) // 5)
    averaged = {"method": "fedavg", "num-rounds": 500 if small else 1000, "train.local-epochs": 5, "train.batch-size": a_fifth}
    averaged |= {"train.momentum": 0.0, "train.lr-decay": 1.0, "train.weight-decay": 0.0}

    def against_fedavg(share: float) -> Sequence[Line]:
        return [
            Line("FFGB, K = 2", boosted(2, 300 if small else 1000, rounds["mnist"], eta_0=10.0 if share == 0.1 else 20.0)),
            Line("FedAvg, rate 0.0003", {**averaged, "train.learning-rate": 3e-4}, "--", 1),
            Line("FedAvg, rate 0.1", {**averaged, "train.learning-rate": 0.1}, "-", 1),
        ]

    def residual(share: float) -> Sequence[Line]:
        return [
            Line(
                f"{'with' if kept else 'without'} residual, {steps} steps of Adam",
                boosted(10, steps, rounds["residual"], residual=kept),
                "-" if kept else "--",
                place,
            )
            for place, steps in enumerate((50, 200) if small else (100, 1000))
            for kept in (True, False)
        ]

    def steps(share: float) -> Sequence[Line]:
        every = (40, 20, 10, 5, 1)  # the long ones first
        return [Line(f"K = {k}", boosted(k, 200 if small else 1000, rounds["steps"]), "-", i) for i, k in enumerate(every)]

    last = {name: {f"round {number}, %": after_round(number) for number in (1, 5, count)} for name, count in rounds.items()}
    losses = {name: {f"training loss, round {count}": training_loss(count)} for name, count in rounds.items()}
    budgets = {f"{budget} models, %": with_models(budget) for budget in (200, 1000)}
    trained = (("round", "evaluate"), ("round", "train"))
    return {
        "mnist": Study("FFGB and FedAvg, 56 clients", (0.1, 0.3), against_fedavg, last["mnist"] | budgets),
        "residual": Study("FFGB without its residual, K = 10", (0.1,), residual, last["residual"] | losses["residual"], trained),
        "steps": Study("Local steps of FFGB", (0.1,), steps, last["steps"] | losses["steps"], trained),
    }


def run_of(arguments: argparse.Namespace, line: Line, share: float, seed: int) -> PlannedRun:
    """Return a run on images."""
    many = arguments.study == "mnist" or arguments.scale == "full"
    config = {
        **line.config,
        "seed": seed,
        "data.source": str(Path(arguments.data).expanduser().absolute()),
        "data.partition": "sorted-share",
        "data.share": share,
        "data.validation": 0.0,
        "data.max-samples": SAMPLES["small"] if arguments.scale == "small" else 0,
        "model.name": arguments.model,
        "num-clients": 56 if many else 14,
        "clients-per-round": 0,
        "evaluate-every": 1,
        "checkpoint-every": 0,
        "device": arguments.device,
        "timeout": 36_000.0,
    }
    words = [arguments.study, file_name(line.label), f"s{share:g}", arguments.model, f"seed{seed}"]
    return PlannedRun(config, Path(arguments.out) / "runs" / arguments.scale / "-".join(words))


def without_model(run: PlannedRun) -> None:
    """Leave no function behind."""
    (run.folder / "model.safetensors").unlink(missing_ok=True)


def on_images(arguments: argparse.Namespace, study: Study) -> None:
    """Run what is missing, print the table and write the picture."""
    planned = {
        (share, line): [run_of(arguments, line, share, seed) for seed in arguments.seeds or [0]]
        for share in study.shares
        for line in study.lines(share)
    }
    run_missing([run for some in planned.values() for run in some], arguments.processes, after=without_model)
    runs = {key: [read_run(run.folder) for run in some] for key, some in planned.items()}
    table = markdown(study.heading, ["", "s", *study.columns, "models", "MB up and down", "s a round"])
    for (share, line), found in runs.items():
        told = [spread([tell(run) for run in found], 3 if "loss" in name else 1) for name, tell in study.columns.items()]
        sent = [run.numbers["bytes-up"] + run.numbers["bytes-down"] for run in found]
        costs = (models(found[0])[-1], np.mean(sent) / 1e6, np.median([r["seconds"] for r in found[0].rounds]))
        table.add_row(line.label, f"{share:g}", *told, f"{costs[0]:.0f}", f"{costs[1]:,.0f}", f"{costs[2]:.2f}")
    Console(width=240).print(table)
    save(curves(study, runs), Path(arguments.out) / f"ffgb-{arguments.study}-{arguments.scale}.png")


def curves(study: Study, runs: dict[tuple[float, Line], list[RunFolder]]) -> Any:
    """Return one row of panels a share: accuracy (or training loss) against rounds or models."""
    width = len(study.panels)
    figure, axes = drawing.panels(len(study.shares), width, (4.7 * width, 3.2 * len(study.shares)), drawing.LIGHT)
    for (share, line), found in runs.items():
        for column, (axis, part) in enumerate(study.panels):
            panel = axes[width * study.shares.index(share) + column]
            key, scale = (ACCURACY, 100.0) if part == "evaluate" else ("loss", 1.0)
            stack = scale * np.array([[record[part][key] for record in run.rounds] for run in found])
            places = [record["round"] for record in found[0].rounds] if axis == "round" else models(found[0])
            drawing.line_with_range(panel, places, stack, drawing.LIGHT.series[line.colour], line.style, line.label)
            panel.set(xlabel="round" if axis == "round" else "models sent and received by a client")
            panel.set(ylabel="accuracy, %" if part == "evaluate" else "training loss")
            if max(places) > 100:
                logarithmic(panel)
            drawing.title(panel, f"s = {share:g}", drawing.LIGHT, 10)
    drawing.legend(figure, axes[0], drawing.LIGHT)
    return figure


# --- tables -------------------------------------------------------------------------------------------------------------

SILOS: Config = {"task": "tabular", "clients-per-round": 0, "evaluate-every": 1, "checkpoint-every": 0}
#: Clients, and the protocol of FedAvg on each table: rounds, rate, its decay, every so many rounds, weight decay.
TABLES = {"heart": (4, 200, 0.01, 0.999, 2, 0.0), "berka": (7, 100, 1.0, 0.99, 10, 1e-3)}
#: A tree a learner; where all logits are 0 a step of 1 is a quarter of Newton's. No constant was chosen by results.
TREES: Config = {"method": "ffgb", "num-rounds": 50, "ffgb.eta-max": 1.0}
DEPTHS = {"stumps": 1, "trees of depth 3": 3}


def of_table(name: str, data: Path, seed: int) -> dict[str, Config]:
    """Return the settings by line."""
    clients, rounds, rate, decay, every, weight_decay = TABLES[name]
    shared = {**SILOS, "tabular.source": str((data / name).expanduser().absolute()), "num-clients": clients, "seed": seed}
    sgd = {
        "train.learning-rate": rate,
        "train.lr-decay": decay,
        "train.lr-decay-every": every,
        "train.weight-decay": weight_decay,
    }
    sgd |= {"train.momentum": 0.0, "train.local-epochs": 1, "train.batch-size": 20}
    configs = {"FedAvg, logistic regression": {**shared, **sgd, "method": "fedavg", "num-rounds": rounds}}
    for label, depth in DEPTHS.items():
        configs[f"FFGB, {label}"] = {**shared, **TREES, "ffgb.depth": depth}
    return configs


def in_one_place(config: Config, only: int | None = None) -> np.ndarray:
    """Return AUROC (rounds, clients) on each client's test rows of FFGB with one client that holds all training rows, or one's own.

    Everything else is as in the run of ``config``: the rows of the parts, how each client scaled its own, oracle, steps and seed.
    """
    settings = read_settings({**config, "num-clients": 1})
    task: Any = build_task(settings)
    parts = [task.client_data(k, config["num-clients"]) for k in range(config["num-clients"])]
    train, test = (
        Split(torch.cat([getattr(p, which).x for p in some]), torch.cat([getattr(p, which).y for p in some]))
        for which, some in (("train", parts if only is None else [parts[only]]), ("test", parts))
    )
    oracle, data = oracle_of(task, settings.options, "ffgb"), ClientData(train, train, test)

    def client(context: Any) -> FFGBClient:
        return FFGBClient(data, oracle, task.num_outputs, 0, MessageStore(context.state), task.objective)

    strategy: Any = build_strategy(settings, task)
    told = ConfigRecord({"seed": settings.seed})
    run_rounds(strategy, InlineGrid(to_client_app(client, writable=False), 1), ArrayRecord(), settings.num_rounds,
               train_config=told, evaluate_every=0)  # fmt: skip
    values, sizes, out = torch.zeros(len(test), task.num_outputs), [len(part.test) for part in parts], []
    for block in strategy.function.blocks:
        values = advance(values, block, test.x, oracle.predict)
        shares = zip(values.split(sizes), parts, strict=True)
        out.append([task.objective.score(nn.Identity(), Split(v, part.test.y))["auroc"] for v, part in shares])
    return np.array(out)


def on_tables(arguments: argparse.Namespace) -> None:
    """Run what is missing, print both tables and write the picture."""
    seeds, data, out = arguments.seeds or [2, 4, 6], Path(arguments.data), Path(arguments.out)
    figure, axes = drawing.panels(1, len(TABLES), (9.6, 4), drawing.LIGHT)
    for panel, name in zip(axes, TABLES, strict=True):
        planned: dict[str, list[PlannedRun]] = {}
        for seed in seeds:
            for label, config in of_table(name, data, seed).items():
                folder = f"{name}-{file_name(label)}-seed{seed}"
                planned.setdefault(label, []).append(PlannedRun(config, out / "runs" / folder))
        run_missing([run for some in planned.values() for run in some], arguments.processes)
        found = {label: [auroc_of(run.folder) for run in some] for label, some in planned.items()}
        for kind in DEPTHS:
            for where, alone in (("rows in one place", False), ("each client alone", True)):
                found[f"{kind}, {where}"] = [centrally(dict(run.config), alone) for run in planned[f"FFGB, {kind}"]]
        columns = ["", "rounds", "average after 10", "average at the end", "worst client at the end"]
        table = markdown(f"{name}: AUROC in %, seeds {', '.join(map(str, seeds))}", columns)
        looks = {"FFGB": 0, "FedAvg": 1, "one place": 2, "alone": 3}
        for label, of_seeds in found.items():
            stack = 100 * np.array(of_seeds)
            told = [spread(values, 2) for values in (stack[:, 9, 0], stack[:, -1, 0], stack[:, -1, 1])]
            table.add_row(label, str(stack.shape[1]), *told)
            colour = next(drawing.LIGHT.series[place] for word, place in looks.items() if word in label)
            style = "--" if "stumps" in label else "-"
            drawing.line(panel, range(1, stack.shape[1] + 1), stack[:, :, 0].mean(0), colour, style, label, 1.4)
        logarithmic(panel)
        panel.set(xlabel="round", ylabel="AUROC in %, average of the clients")
        drawing.title(panel, name.title(), drawing.LIGHT)
        Console(width=160).print(table)
    drawing.legend(figure, axes[0], drawing.LIGHT)
    save(figure, out / "ffgb-tabular.png")


def auroc_of(folder: Path) -> np.ndarray:
    """Return AUROC (rounds, 2) of a run: the average over test rows and the worst client."""
    return np.array([[row["evaluate"][key] for key in ("auroc-weighted", "auroc-worst")] for row in read_rounds(folder)])


def centrally(config: Config, alone: bool) -> np.ndarray:
    """Return AUROC (rounds, 2), the average over test rows and the worst client, of trees in one place or of each client's own."""
    count = config["num-clients"]
    task: Any = build_task(read_settings(config))
    weights = np.array([len(task.client_data(k, count).test) for k in range(count)])
    found = np.stack([in_one_place(config, k)[:, k] for k in range(count)], 1) if alone else in_one_place(config)
    return np.stack([found @ weights / weights.sum(), found.min(1)], 1)


# --- what a round costs -------------------------------------------------------------------------------------------------

COSTS: dict[str, Config] = {
    "digits, MLP 32-32": {"task": "digits", "model.name": "mlp-32-32", "ffgb.fit-steps": 20},
    "table, trees": {"task": "tabular"},
}


def costs(arguments: argparse.Namespace) -> None:
    """Time 50 rounds of 20 clients, K = 2, and compare with evaluating the whole function."""
    shared = {"method": "ffgb", "num-clients": 20, "clients-per-round": 0, "num-rounds": 50, "ffgb.local-steps": 2}
    shared |= {"evaluate-every": 0, "checkpoint-every": 0, "client-store": "disk", "device": arguments.device}
    columns = ["", "fastest of rounds 2-11, s", "of rounds 40-49, s", "ratio", "learners", "all of them at all points, s"]
    table = markdown("A round of FFGB, 20 clients, K = 2", [*columns, "state, bytes", "points x outputs x 4"])
    for label, config in COSTS.items():
        run = PlannedRun({**shared, **config}, Path(arguments.out) / "runs" / f"cost-{config['task']}")
        run_missing([run], 1)
        seconds = [row["seconds"] for row in read_rounds(run.folder)]
        first, last = min(seconds[1:11]), min(seconds[39:49])  # round 1 has nothing to catch up with, 50 is scored
        settings = read_settings(read_toml(run.folder / "settings.toml"))
        task: Any = build_task(settings)
        parts = [part for k in range(20) for part in (task.client_data(k, 20).train, task.client_data(k, 20).test)]
        function = load_function(run.folder)
        f, start = predictor(task, function, settings.options, "ffgb"), time.perf_counter()
        for part in parts:
            f(part.x)
        whole = time.perf_counter() - start
        kept = [newest_values(folder) for folder in sorted((run.folder / "clients").iterdir())]
        state = sum(array.nbytes for arrays in kept for array in arrays)
        values = 4 * task.num_outputs * sum(map(len, parts))
        numbers = [f"{first:.3f}", f"{last:.3f}", f"{last / first:.2f}", str(len(function)), f"{whole:.2f}", f"{state:,}"]
        table.add_row(label, *numbers, f"{values:,}")
    Console(width=200).print(table)


def newest_values(folder: Path) -> list[np.ndarray]:
    """Return the values that a client keeps on disk, at its training and its test points."""
    newest = max(folder.glob("values.*.safetensors"), key=lambda path: int(path.name.split(".")[1]))
    arrays = load_file(newest)
    return [arrays["1"], arrays["2"]]  # beside them its version, one number


# --- what they share ----------------------------------------------------------------------------------------------------


def file_name(label: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower())


def markdown(heading: str, columns: Sequence[str]) -> Table:
    """Return an empty table."""
    table = Table(title=heading, box=box.MARKDOWN)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def spread(values: Any, digits: int) -> str:
    """Return mean ± sample standard deviation."""
    text = f"{np.mean(values):.{digits}f}"
    return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else text


def logarithmic(panel: Any) -> None:
    """Make the x axis logarithmic, with plain numbers."""
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Any, path: Path) -> None:
    """Write a picture."""
    path.write_bytes(drawing.png(figure))
    print(path, file=sys.stderr)


def main() -> None:
    """Run what is missing, print and draw."""
    names = ("mnist", "residual", "steps", "tabular", "cost")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", choices=names, required=True)
    parser.add_argument("--data", default="", metavar="FOLDER")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--scale", choices=list(SAMPLES), default="small", help="of the studies on images")
    parser.add_argument("--model", default="mlp-32-32", help="the weak learner, and FedAvg's net")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0; tabular: 2 4 6")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.study != "cost" and not arguments.data:
        parser.error(f"--study {arguments.study} needs --data FOLDER")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if arguments.study == "cost":
        costs(arguments)
    elif arguments.study == "tabular":
        on_tables(arguments)
    else:
        on_images(arguments, studies(arguments.scale)[arguments.study])


if __name__ == "__main__":
    main()
