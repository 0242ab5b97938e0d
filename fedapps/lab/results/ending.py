"""What is shown of a run at its end: on the terminal of `fedapps run`, and in the log
of `flwr run`, which is all that the user of somebody else's SuperLink sees.
"""

from pathlib import Path

from rich.console import Console

from fedapps.lab.results.class_tables import trivial_sentence
from fedapps.lab.results.compare import compared
from fedapps.lab.results.parts import run_sections
from fedapps.lab.results.report import scored_sentence
from fedapps.records.reader import read_run


def show_ending(folder: Path, console: Console) -> None:
    """Print the table of a run and its small tables."""
    console.print(compared([folder]).table)
    run = read_run(folder)
    if sentence := scored_sentence(run).strip():
        console.print(sentence)
    if below := trivial_sentence(run):
        console.print(below)
    for section in run_sections(run):
        console.print(section.terminal())
