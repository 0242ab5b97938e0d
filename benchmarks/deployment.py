"""Time of a round on three SuperNodes of this machine with TLS: polling and messages,
process starts, training.

    python benchmarks/deployment.py [--rounds N] [--methods fedavg superfed-mm]

Measures the whole round, the simultaneous start of the three client processes up to the
first line of the app, and the local steps in one process. The rest of the round is
Flower: polling for messages and moving them. The first round includes the app's
installation and does not count. Prints two Markdown tables.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SITES = 3
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fedapps.deployment.local import Deployment  # noqa: E402

JOB = [
    "num-clients=3",
    "clients-per-round=0",
    "evaluate-every=0",
    "train.local-epochs=1",
    "checkpoint-every=0",
]
# Same order as in a ClientApp process: Flower's program and its imports, then the app.
START = (
    "import flwr.supernode.cli.flwr_clientapp, flwr.supernode.runtime.run_clientapp; "
    "import fedapps.runs.client_app, fedapps.runs.client_factory"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "superfed-mm"])
    arguments = parser.parse_args()
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    print(
        "| method | s a round | start of the client processes | local steps | polling and messages "
        "|"
    )
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        sites = {f"site-{i}": {"partition-id": i, "num-partitions": SITES} for i in range(SITES)}
        with Deployment.create(Path(folder) / "deployment", sites) as deployment:
            deployment.start()
            for method in arguments.methods:
                whole = run(
                    method,
                    arguments.rounds,
                    Path(folder),
                    environment,
                    "deployment",
                    deployment.folder,
                )
                steps = run(
                    method, arguments.rounds, Path(folder), environment, "inline", deployment.folder
                )
                start = median(parallel_start(environment) for _ in range(3))
                rest = max(whole - start - steps, 0.0)
                print(
                    f"| {method} | {whole:.1f} | {start:.1f} | {steps:.2f} | {rest:.1f} |",
                    flush=True,
                )
    print("\n| importing | CPU seconds |\n| --- | --- |")
    before = 0.0
    for name, code in {
        "PyTorch": "import torch",
        "Flower": f"import torch; {START.split(';')[0]}",
        "the app": f"import torch; {START}",
    }.items():
        spent = median(cpu_seconds(code, environment) for _ in range(5))
        print(f"| {name} | {spent - before:.2f} |")
        before = spent


def run(
    method: str,
    rounds: int,
    folder: Path,
    environment: dict[str, str],
    engine: str,
    deployment: Path,
) -> float:
    """Return the median seconds of a round after the first, in which nothing is
    evaluated.
    """
    out = folder / f"{method}-{engine}"
    command = [
        sys.executable,
        "-m",
        "fedapps",
        "run",
        f"method={method}",
        f"num-rounds={rounds + 1}",
        *JOB,
        "--engine",
        engine,
    ]
    subprocess.run(
        [*command, "--deployment", deployment, "--out", out],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return median(row["seconds"] for row in rows[1:-1])  # the last one is evaluated


def parallel_start(environment: dict[str, str]) -> float:
    """Return the seconds that as many client processes as there are sites need to
    start, all at once.
    """
    begin = time.perf_counter()
    for process in [
        subprocess.Popen([sys.executable, "-c", START], env=environment) for _ in range(SITES)
    ]:
        process.wait()
    return time.perf_counter() - begin


def cpu_seconds(code: str, environment: dict[str, str]) -> float:
    """Return the CPU seconds, user and system, that a Python process spends on some
    code.
    """
    before = os.times()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


if __name__ == "__main__":
    main()
