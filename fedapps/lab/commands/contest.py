"""`fedapps contest`: which method suits these data? Folds, and a page with the
verdict.

The results folder holds ``cells/`` (one results folder per run), ``contest.json`` (what
has been decided), ``verdict.html``, ``verdict.txt`` and ``winner.toml``. Running the
same command again goes on where it stopped.
"""

import argparse
import re
import sys
from pathlib import Path

from fedapps.errors import INTERRUPTED
from fedapps.lab.commands.options import command_options
from fedapps.toml_text import given_by


def duration(text: str) -> float:
    """Return the seconds of a text such as 90s, 10m or 2h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text}: write for example 90s, 10m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


add_options = command_options(
    ("Compare methods on your data, each at its best rate, and say whether to federate and how."),
    {
        "settings": {"help": "settings of all runs: the data, the net, num-rounds"},
        "--budget": {
            "type": duration,
            "default": 1800.0,
            "metavar": "TIME",
            "help": "how long it may take, such as 90s, 10m or 2h (default: 30m)",
        },
        "--methods": {
            "default": "",
            "metavar": "LIST",
            "help": (
                "methods beside local, fedavg and finetune, separated by commas (default: "
                "all of the "
                "portfolio)"
            ),
        },
        "--delta": {
            "type": float,
            "default": 0.0,
            "metavar": "GAIN",
            "help": (
                "the gain that counts, 0.01 for a point (default: a point; for numbers 2 %% of "
                "the error of a mean)"
            ),
        },
        "--price": {
            "type": float,
            "default": 0.0,
            "metavar": "GAIN",
            "help": "what federation costs you, as a gain (default: 0)",
        },
        "--jobs": {},
        "--gpus-per-run": {},
        "--out": {"help": "results folder (default: results/contest)"},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Run the contest and return the exit status."""
    from rich.console import Console

    from fedapps.lab.contests.page import sections
    from fedapps.lab.contests.setup import run_contest
    from fedapps.lab.sweeps.execution import Way

    try:
        contest, result, text = run_contest(
            given_by(arguments.settings),
            arguments.out or Path("results", "contest"),
            budget=arguments.budget,
            methods=tuple(filter(None, arguments.methods.replace(" ", "").split(","))) or None,
            delta=arguments.delta,
            price=arguments.price,
            way=Way(jobs=arguments.jobs, gpus_per_run=arguments.gpus_per_run),
            say=lambda line: print(line, file=sys.stderr),
        )
    except KeyboardInterrupt:
        print("interrupted; repeat the command to go on", file=sys.stderr)
        return INTERRUPTED
    console = Console(width=None if sys.stdout.isatty() else 160)
    for section in sections(contest, result):
        console.print(section.terminal())
    print(f"\n{text}\n")
    out = contest.trials.out
    print(f"verdict: {out / 'verdict.html'}\nsettings: {out / 'winner.toml'}")
    return 0
