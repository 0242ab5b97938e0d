"""The laboratory: reports, comparisons, charts, sweeps, contests, and Python's tables
of them. The runner never imports it.
"""

from pathlib import Path


def write_report(folder: Path) -> None:
    """Write the report of the run in a folder. Charts are imported when it is called: a
    run starts sooner, and without Pillow.
    """
    from fedapps.lab.results import report

    report.write_report(folder)
