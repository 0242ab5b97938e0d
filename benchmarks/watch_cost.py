"""Cost of watching a run: CPU seconds of the same run alone and with its page open.

    python benchmarks/watch_cost.py [key=value ...]

The page is polled every two seconds, as a browser does. CPU seconds are those of all
processes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

SETTINGS = (
    "method=fedavg",
    "num-rounds=400",
    "num-clients=20",
    "evaluate-every=5",
    "checkpoint-every=0",
)


def cpu_of_run(settings: list[str], watched: bool) -> tuple[float, float, int]:
    """Return the CPU seconds and seconds of a run, and how often its page changed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "fedapps",
            "run",
            "--engine",
            "inline",
            "--out",
            f"{folder}/run",
            *settings,
        ]
        before, start, changes = sum(os.times()[2:4]), time.monotonic(), 0
        log = Path(folder, "log")
        with (
            log.open("w") as file,
            subprocess.Popen([*command, *["--watch"] * watched], stdout=file, stderr=file) as run,
        ):
            stamp = ""
            while run.poll() is None:
                time.sleep(2 if watched else 0.5)
                address = re.search(r"http://\S+", log.read_text())
                if not address:
                    continue
                try:
                    with urllib.request.urlopen(
                        f"{address[0]}news?after={stamp}", timeout=20
                    ) as answer:
                        news = json.load(answer)["stamp"]
                except (urllib.error.URLError, ConnectionError):
                    continue  # not there yet, or no longer
                changes, stamp = changes + (news != stamp), news
        if run.returncode:
            raise SystemExit(log.read_text())
        return sum(os.times()[2:4]) - before, time.monotonic() - start, changes


def main() -> None:
    """Print both, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the run")
    settings = [*SETTINGS, *parser.parse_args().settings]
    alone, seconds, _ = cpu_of_run(settings, watched=False)
    with_page, longer, changes = cpu_of_run(settings, watched=True)
    print(f"alone:   {alone:.1f} CPU s in {seconds:.0f} s")
    print(f"watched: {with_page:.1f} CPU s in {longer:.0f} s, the page changed {changes} times")
    print(
        f"more:    {with_page - alone:.1f} CPU s, {100 * (with_page - alone) / longer:.1f} % of a "
        "core while it ran"
    )


if __name__ == "__main__":
    main()
