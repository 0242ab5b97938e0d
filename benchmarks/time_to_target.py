"""Time to a target under simulated time, and what fast clients gain over slow ones: of
the results folders of experiments/time/*.toml.

    python benchmarks/time_to_target.py RESULTS [RESULTS ...]

For every row but ``synchronous``: simulated seconds to the target, their ratio to those
of the synchronous run of the same seed (geometric mean, 95 % t interval of its
logarithm over seeds, values by seed), trainings that were asked for until then, and for
the quarters of the clients that are slowest and fastest, a client's seconds being those
of its synchronous trainings: the share of the used replies, and the change of the score
against the synchronous run, both at the end of the runs.
"""

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.lab.results.run_measures import read_measure, value_of
from fedapps.lab.results.seeds import t_interval
from fedapps.lab.sweeps.texts import markdown_table
from fedapps.records.reader import RunFolder, is_number, read_json, read_run
from fedapps.records.time_log import read_times, seconds_by_client

BASE = "synchronous"
HEADER = [
    "row",
    "seconds",
    "ratio",
    "by seed",
    "trainings",
    "slow, fast: % of replies",
    "slow: change",
    "fast: change",
    "slow - fast",
]


def quarters(run: RunFolder) -> tuple[set[str], set[str]]:
    """Return the slowest and the fastest quarter of the clients that trained."""
    seconds = seconds_by_client(read_times(run.path))
    order = sorted(seconds, key=lambda client: fmean(seconds[client]))
    size = len(order) // 4
    return set(order[-size:]), set(order[:size])


def scores(run: RunFolder) -> tuple[str, dict[str, float]]:
    """Return the column of clients.csv that is the score, and its values by client."""
    column = next(name for name in ("accuracy", "rmse") if run.column(name))
    rows = run.clients
    return column, {str(r["client"]): r[column] for r in rows if is_number(r.get(column))}


def signed(values: Sequence[float]) -> str:
    """Return a mean with its 95 % t interval."""
    one = t_interval(values)
    return f"{one.mean:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


def line(
    name: str, runs: Mapping[int, RunFolder], base: Mapping[int, RunFolder], to: str
) -> list[str]:
    """Return a row of the table."""
    seconds = {seed: value_of(run, read_measure(to)) or math.inf for seed, run in runs.items()}
    asked, shares, changes = [], [], []
    for seed, run in runs.items():
        log = read_times(run.path)
        asked.append(sum(float(row["asked"]) < seconds[seed] for row in log))
        used = [row["client"] for row in log if row["fate"] == "used"]
        groups = quarters(base[seed])
        shares.append([100 * fmean(c in group for c in used) for group in groups])
        column, ours = scores(run)
        theirs = scores(base[seed])[1]
        scale = -1 if lower_is_better(column) else 100
        changes.append([scale * fmean(ours[c] - theirs[c] for c in group) for group in groups])
    logs = [math.log(seconds[s] / value_of(base[s], read_measure(to))) for s in runs]
    ratio, values = "never", " ".join(f"{math.exp(x):.2f}" for x in logs)
    if all(map(math.isfinite, logs)):
        one = t_interval(logs)
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*map(math.exp, (one.mean, one.low, one.high)))
    slow, fast = zip(*changes, strict=True)
    gaps = [a - b for a, b in changes]
    return [
        name,
        " ".join(f"{value:.1f}" for value in seconds.values()),
        *((ratio, values) if name != BASE else ("1", "")),
        f"{fmean(asked):.0f}",
        ", ".join(f"{fmean(share):.0f}" for share in zip(*shares, strict=True)),
        *(signed(values) if name != BASE else "" for values in (slow, fast, gaps)),
    ]


def main() -> None:
    """Print a table per results folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    for folder in parser.parse_args().results:
        with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
            to = next(name for name in next(csv.reader(file)) if name.startswith("seconds-to"))
        rows: dict[str, dict[int, RunFolder]] = {}
        for name in read_json(folder / "sweep.json")["axes"]["method"]:
            found = map(read_run, sorted((folder / "cells").glob(f"*{name}*")))
            rows[name] = {run.settings["seed"]: run for run in found}
        lines = [line(name, runs, rows[BASE], to) for name, runs in rows.items()]
        print(f"{folder}: {to}\n\n{markdown_table(HEADER, lines)}\n")


if __name__ == "__main__":
    main()
