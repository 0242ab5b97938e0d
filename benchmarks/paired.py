"""Differences by seed between the settings of a finished sweep: what a mean over seeds hides if seeds differ more than settings.

    python benchmarks/paired.py SWEEP_FOLDER --against "FedAvg, uniform" [--measures accuracy-worst10 accuracy-mean]

For sweeps over ``seed`` and one other axis. Printed, times 100: the mean difference to the setting named by ``--against`` with the same
seed ± its sample standard deviation, and in how many seeds it is positive.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table


def values_of(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Return the summaries by setting and seed."""
    out: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for path in sorted(folder.glob("cells/seed-*_*/summary.json")):
        found = re.fullmatch(r"seed-(\d+)_(.+)", path.parent.name)
        if found:
            out[found[2]][int(found[1])] = json.loads(path.read_text())
    return out


def main() -> None:
    """Read the runs and print the table."""
    parser = argparse.ArgumentParser(description="Paired differences of a sweep's settings.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", required=True)
    parser.add_argument("--measures", nargs="+", default=["accuracy-worst10", "accuracy-mean", "loss-worst10"])
    args = parser.parse_args()
    runs = values_of(args.folder)
    name = re.sub(r"[^\w.]+", "-", args.against)
    if name not in runs:
        parser.error(f"--against {args.against!r}: the sweep has {', '.join(runs)}")
    table = Table("setting", "seeds", *args.measures)
    for setting, by_seed in runs.items():
        seeds = sorted(by_seed.keys() & runs[name].keys())
        row = []
        for measure in args.measures:
            found = 100 * np.array([by_seed[seed][measure] - runs[name][seed][measure] for seed in seeds])
            row.append(f"{found.mean():+.2f} ± {found.std(ddof=1):.2f} ({np.count_nonzero(found > 0)} of {len(seeds)})")
        table.add_row(setting, str(len(seeds)), *row)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
