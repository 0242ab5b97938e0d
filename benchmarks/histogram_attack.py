"""What the server learns about one site's rows from the messages of histogram boosting,
and what protection costs.

    python benchmarks/histogram_attack.py [--data DATA] [--seeds 2 4 6]

Twenty generated sites have 30 training rows with 6 features each. Per site, mean over
sites and seeds:

    values    of 180: alone in their cell in round 2, so known to the width of the cell
    alone     labels of 30: rows that are alone in a bin of the first root, whose
              gradient is their label
    equal     labels of 30: rows in a bin of the first root whose rows all have one
              label; for someone who knows that feature of the row
    tree      the same, in all bins of the first tree
    solved    labels of 30 that follow from the sums of the first root for someone who
              knows the features of all rows: solutions of the linear equations

AUROC: per cent, mean and standard deviation over seeds, after 25 trees. With ``DATA``,
which has the folders that experiments/ffgb/tables.toml names, also of Heart and Berka.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedapps.algorithms.boosting.bins import starts, widths
from fedapps.algorithms.boosting.forest import FINE, GROW, Forest
from fedapps.algorithms.boosting.histogram_trees import derivatives
from fedapps.algorithms.boosting.sent import HistogramSent
from fedapps.algorithms.common.measures import auroc
from fedapps.algorithms.common.seeds import generator
from fedapps.clients import HistogramBoostingClient, MessageStore
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies import HistogramBoostingOptions

SITES, ROWS, TREES = 20, 30, 25
TABLES = {"heart": 4, "berka": 7}
SETTINGS: dict[str, dict[str, int]] = {
    "default": {},
    "bins=6, cells=6": {"bins": 6, "cells": 6},
    **{f"min-cell={least}": {"min_cell": least} for least in (3, 5, 10)},
}
Found = dict[str, float]


def generated(seed: int) -> list[ArrayData]:
    """Return the rows of the generated sites."""
    rng = generator(seed, "small sites")

    def rows(count: int, shift: NDArray[Any]) -> ArraySplit:
        x = rng.normal(size=(count, 6)) + shift
        x[:, 4] = np.exp(x[:, 4])
        logits = 1.5 * x[:, 0] + 2 * np.abs(x[:, 1]) + x[:, 2] * (x[:, 3] > 0) - 1.5
        logits += 0.5 * np.log(x[:, 4])
        y = (logits + rng.logistic(size=count) > 0).astype(np.int64)
        return ArraySplit(x.astype(np.float32), y)

    shifts = rng.normal(scale=0.3, size=(SITES, 6))
    parts = [(rows(ROWS, shift), rows(100, shift)) for shift in shifts]
    return [ArrayData(train, train, test) for train, test in parts]


def tabular(name: str, data: Path, seed: int) -> list[ArrayData]:
    """Return the rows of the sites of a table."""
    config = {"task": "tabular", "data.source": str(data / name), "num-clients": TABLES[name]}
    task: Any = build_task(read_settings({**config, "seed": seed, "data.split-seed": "seed"}))
    return [task.arrays(site, TABLES[name], False) for site in range(TABLES[name])]


def train(datas: list[ArrayData], o: HistogramBoostingOptions) -> tuple[float, Found]:
    """Return the AUROC, and what the server learns per site."""
    clients = [
        HistogramBoostingClient(data, site, MessageStore(RecordDict()), min_cell=o.min_cell)
        for site, data in enumerate(datas)
    ]
    forest = Forest.new(datas[0].train.x.shape[1], o.depth)
    learnt = Attack(datas, o)
    for now in range(2 + TREES * o.depth):
        config = {**HistogramSent(o.loss, forest.length()).to_config(), "server-round": now + 1}
        arrays = list(forest.to_arrays().values())
        sums = [client.fit(arrays, config)[0][0].astype(np.int64) for client in clients]
        if now < 2 + o.depth:
            learnt.see(forest, sums)
        forest.step(np.sum(sums, axis=0), o.growth, o.loss, o.cells, o.bins)
    scores = [
        (auroc(forest.values(np.asarray(test.x, np.float32)), test.y), len(test))
        for test in (data.test for data in datas)
        if 0 < test.y.sum() < len(test)
    ]
    areas, weights = zip(*scores, strict=True)
    return 100 * float(np.average(areas, weights=weights)), learnt.found


class Attack:
    """Counts what the sums of the first rounds reveal; ``found``: mean per site."""

    def __init__(self, datas: list[ArrayData], o: HistogramBoostingOptions) -> None:
        self.clients = [HistogramBoostingClient(data, min_cell=o.min_cell) for data in datas]
        self.options = o
        self.known = [np.zeros(len(data.train), bool) for data in datas]
        self.found: Found = dict.fromkeys(("values", "alone", "equal", "tree", "solved"), 0.0)

    def see(self, forest: Forest, sums: list[NDArray[np.int64]]) -> None:
        """Use what all sites sent for the next step of ``forest``."""
        for client, sent, known in zip(self.clients, sums, self.known, strict=True):
            if forest.stage == FINE:
                self._add("values", (sent[2:] == 1).sum())
            elif forest.stage >= GROW:
                self._labels(forest, client, sent, known)

    def _labels(
        self,
        forest: Forest,
        client: HistogramBoostingClient,
        sent: NDArray[np.int64],
        known: NDArray[np.bool_],
    ) -> None:
        base = np.full(2, forest.base)
        zero, one = derivatives(self.options.loss, base, np.array([0, 1]))[0]
        gradient, _, rows = sent.reshape(-1, 3, int(widths(forest.edges).sum())).swapaxes(0, 1)
        ones = (gradient - rows * zero) // (one - zero)
        equal = (rows > 0) & ((ones == 0) | (ones == rows))
        leaves = forest.open_leaves()
        place = np.zeros(int(leaves.max()) + 1, np.int64)
        place[leaves] = np.arange(len(leaves))
        at, cells = forest.binned(client.inputs(), client.min_cell)
        inside, where = np.isin(at, leaves), cells + starts(forest.edges)
        leaf = place[np.where(inside, at, leaves[0])][:, None]
        pure = equal[leaf, where].any(1) & inside
        known |= pure
        if forest.stage == GROW:
            self._add("alone", (rows[leaf, where] == 1).any(1).sum())
            self._add("equal", pure.sum())
            equations = np.zeros((rows.shape[1], len(at)))
            equations[where.T, np.arange(len(at))] = 1
            _, size, directions = np.linalg.svd(equations)
            free = directions[int((size > 1e-9).sum()) :]
            self._add("solved", (np.abs(free) < 1e-9).all(0).sum())
        if forest.stage == GROW + self.options.depth - 1:
            self._add("tree", known.sum())

    def _add(self, name: str, count: Any) -> None:
        self.found[name] += float(count) / len(self.clients)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 4, 6])
    asked = parser.parse_args()
    others = list(TABLES) if asked.data else []
    table = Table(box=box.MINIMAL)
    for name in ("", "values", "alone", "equal", "tree", "solved", "AUROC", *others):
        table.add_column(name, justify="right" if name else "left")
    for label, chosen in track(SETTINGS.items(), "settings", console=Console(stderr=True)):
        options = HistogramBoostingOptions(**chosen)
        runs = [train(generated(seed), options) for seed in asked.seeds]
        cells = [f"{np.mean([found[key] for _, found in runs]):.0f}" for key in runs[0][1]]
        scores = [[score for score, _ in runs]]
        scores += [
            [train(tabular(name, asked.data, seed), options)[0] for seed in asked.seeds]
            for name in others
        ]
        cells += [f"{np.mean(row):.1f} ± {np.std(row, ddof=1):.1f}" for row in scores]
        table.add_row(label, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
