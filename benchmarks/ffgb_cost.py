"""Cost of a round of FFGB as the function grows: 50 rounds of 20 clients, on the
bundled digits and on a generated table.

    python benchmarks/ffgb_cost.py --out DIR [--device cpu|cuda]

Prints the seconds of the fastest of the first and of the last rounds, the seconds of
evaluating the whole function anew, and the bytes that clients keep. Every run has its
own results folder below DIR; a second start skips finished runs.
"""

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from fedapps.errors import RunFailed
from fedapps.lab.sweeps.pool import PlannedRun, finished, run_all
from fedapps.records.writer import read_rounds
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.tasks.boosting_oracles import load_function, predictor
from fedapps.toml_text import read_toml

Config = dict[str, Any]

COSTS: dict[str, Config] = {
    "digits, MLP 32-32": {"task": "digits", "model.name": "mlp-32-32", "ffgb.fit-steps": 20},
    "table, trees": {"task": "tabular"},
}


def costs(arguments: argparse.Namespace) -> None:
    """Time 50 rounds of 20 clients, K = 2, and compare with evaluating the whole
    function.
    """
    shared = {
        "method": "ffgb",
        "num-clients": 20,
        "clients-per-round": 0,
        "num-rounds": 50,
        "ffgb.local-steps": 2,
    }
    shared |= {
        "evaluate-every": 0,
        "checkpoint-every": 0,
        "client-store": "disk",
        "device": arguments.device,
    }
    columns = [
        "",
        "fastest of rounds 2-11, s",
        "of rounds 40-49, s",
        "ratio",
        "learners",
        "all of them at all points, s",
    ]
    table = Table(
        *columns,
        "state, bytes",
        "points x outputs x 4",
        title="A round of FFGB, 20 clients, K = 2",
        box=box.MARKDOWN,
    )
    for label, config in COSTS.items():
        run = PlannedRun(
            {**shared, **config}, Path(arguments.out) / "runs" / f"cost-{config['task']}"
        )
        for ended in run_all([] if finished(run.folder) else [run], 1):
            if ended.error:
                raise RunFailed(str(ended))
        seconds = [row["seconds"] for row in read_rounds(run.folder)]
        # round 1 has nothing to catch up with, 50 is scored
        first, last = min(seconds[1:11]), min(seconds[39:49])
        settings = read_settings(read_toml(run.folder / "settings.toml"))
        task: Any = build_task(settings)
        parts = [
            part
            for k in range(20)
            for part in (task.client_data(k, 20).train, task.client_data(k, 20).test)
        ]
        function = load_function(run.folder)
        f, start = predictor(task, function, settings.options, "ffgb"), time.perf_counter()
        for part in parts:
            f(part.x)
        whole = time.perf_counter() - start
        kept = [newest_values(folder) for folder in sorted((run.folder / "clients").iterdir())]
        state = sum(array.nbytes for arrays in kept for array in arrays)
        values = 4 * task.num_outputs * sum(map(len, parts))
        numbers = [
            f"{first:.3f}",
            f"{last:.3f}",
            f"{last / first:.2f}",
            str(len(function)),
            f"{whole:.2f}",
            f"{state:,}",
        ]
        table.add_row(label, *numbers, f"{values:,}")
    Console(width=200).print(table)


def newest_values(folder: Path) -> list[np.ndarray]:
    """Return the values that a client keeps on disk, at its training and its test
    points.
    """
    newest = max(folder.glob("values.*.safetensors"), key=lambda path: int(path.name.split(".")[1]))
    arrays = load_file(newest)
    return [arrays["1"], arrays["2"]]  # beside them its version, one number


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--device", default="auto")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    costs(parser.parse_args())


if __name__ == "__main__":
    main()
