"""Cost of a run through Ray apart from its rounds: start, end and CPU seconds of each
process.

    python benchmarks/ray_start.py [KEY=VALUE ...]

Runs ``fedapps run method=fedavg num-rounds=2 --engine ray`` (small digits; you can add
settings) and reads ``/proc`` ten times per second for the processes that carry the mark
of its SuperLink (Linux only). It reports CPU seconds, because wall time depends on the
number of cores: on few cores, imports of many processes wait for each other.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

TICKS = os.sysconf("SC_CLK_TCK")
MARK = b"FLWR_HOME="


@dataclass
class Process:
    """Seconds after the start at which it was first and last seen, and the CPU seconds
    that it had taken then.
    """

    born: float
    name: str
    died: float = 0.0
    cpu: float = 0.0


def name_of(words: list[str]) -> str:
    """Return a short name of a command line."""
    names = [Path(word).name for word in words if word and not word.startswith("-")]
    return " ".join(name for name in names[:3] if not name.startswith("python")) or words[0]


def look(process: str) -> tuple[str, float]:
    """Return the name and the CPU seconds of a process. Raises ``OSError`` if it has
    ended.
    """
    text = Path(f"/proc/{process}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return name_of(words), (int(fields[11]) + int(fields[12])) / TICKS


def watch(command: list[str]) -> tuple[dict[str, Process], float]:
    """Run a command; return the processes that it started, by their number, and the
    seconds it took.
    """
    before = set(os.listdir("/proc"))
    began, seen = time.monotonic(), dict[str, Process]()
    environment = {name: value for name, value in os.environ.items() if name != "FLWR_HOME"}
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    while running.poll() is None:
        now = time.monotonic() - began
        for process in set(filter(str.isdigit, os.listdir("/proc"))) - before:
            try:
                marked = MARK in Path(f"/proc/{process}/environ").read_bytes()
                if marked or process == str(running.pid):
                    name, cpu = look(process)
                    process_seen = seen.setdefault(process, Process(now, name))
                    process_seen.name, process_seen.died, process_seen.cpu = name, now, cpu
            except OSError:
                continue
        time.sleep(0.1)
    if running.returncode:
        raise SystemExit(f"the run failed: {' '.join(command)}")
    return seen, time.monotonic() - began


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="ray-start-") as folder:
        program = str(Path(sys.executable).with_name("fedapps"))
        run = [
            program,
            "run",
            "method=fedavg",
            "num-rounds=2",
            *sys.argv[1:],
            f"out={folder}/run",
            "--engine",
            "ray",
        ]
        seen, seconds = watch(run)
    table = Table("process", "from, s", "to, s", "CPU, s")
    for process in sorted(seen.values(), key=lambda process: process.born):
        if process.cpu >= 0.05:
            table.add_row(
                process.name, f"{process.born:.1f}", f"{process.died:.1f}", f"{process.cpu:.2f}"
            )
    Console().print(table)
    print(
        f"{seconds:.1f} s on {os.cpu_count()} cores, "
        f"{sum(process.cpu for process in seen.values()):.1f} s of CPU"
    )


if __name__ == "__main__":
    main()
