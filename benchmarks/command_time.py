"""Cost of single commands: CPU seconds (user and system) and peak memory of a fresh
process.

    python benchmarks/command_time.py [--repeats N]

Measures help, lists, rejected commands, a run of two rounds, and the report of a run of
40 rounds with 20 clients that is made beforehand. Importing Python and torch alone is
shown for comparison. Values are medians; rows of commands that this version does not
have are empty. Every process uses the interpreter that runs this file; its own memory,
about 20 MB, is the smallest value that can be measured.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
# whose report is made
LONG_RUN = ("method=fedavg", "num-rounds=40", "num-clients=20", "evaluate-every=1")


def commands(folder: Path) -> dict[str, list[str]]:
    """Return Python's arguments by the name of the row; runs write below ``folder``,
    which holds the long run.
    """
    lines = (
        "--help",
        "methods",
        "settings",
        "run method=fedavgg",
        "run method=fedavg fedprox.muu=1",
        "run num-rounds=0",
        "run method=fedavg num-rounds=2 --engine inline",
    )
    out = ["--out", str(folder / "short"), "--overwrite"]
    programs = {
        "python -c pass": ["-c", "pass"],
        'python -c "import torch"': ["-c", "import torch"],
    }
    programs |= {
        f"fedapps {line}": ["-m", "fedapps", *line.split(), *(out if "inline" in line else [])]
        for line in lines
    }
    module = "fedapps.lab.results.report"
    report = f"from {module} import write_report; write_report({str(folder / 'long')!r})"
    return programs | {"the report of 40 rounds, 20 clients": ["-c", report]}


def cost(arguments: Sequence[str]) -> tuple[int, float, float]:
    """Return a process's exit status, its CPU seconds, and its peak memory in MB, both
    with its children's.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1e6 if sys.platform == "darwin" else 1e3  # of ru_maxrss: bytes there, kB elsewhere
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def row(name: str, arguments: Sequence[str], repeats: int) -> list[str]:
    """Return a row of the table; it is empty if the command fails, unless the row
    measures a rejected command.
    """
    costs = [cost(arguments) for _ in range(repeats)]
    is_refusal = name.startswith("fedapps run") and "inline" not in name
    if any((status != 0) != is_refusal for status, _, _ in costs):
        return [name, "-", "-"]
    return [
        name,
        f"{statistics.median(cpu for _, cpu, _ in costs):.2f}",
        f"{statistics.median(peak for *_, peak in costs):.0f}",
    ]


def main() -> None:
    """Measure every command and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        metavar="N",
        help="processes of each command (%(default)s)",
    )
    repeats = parser.parse_args().repeats
    console = Console()
    with tempfile.TemporaryDirectory() as name, console.status("measuring ..."):
        folder = Path(name)
        if cost(
            ["-m", "fedapps", "run", *LONG_RUN, "--engine", "inline", "--out", str(folder / "long")]
        )[0]:
            raise SystemExit("the run whose report is measured failed")
        table = Table(title=f"a fresh process, median of {repeats}", title_justify="left", box=None)
        table.add_column("", no_wrap=True)
        table.add_column("CPU, s", justify="right")
        table.add_column("peak, MB", justify="right")
        for label, arguments in commands(folder).items():
            table.add_row(*row(label, arguments, repeats))
    console.print(table)


if __name__ == "__main__":
    main()
