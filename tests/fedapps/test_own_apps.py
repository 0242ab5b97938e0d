"""`benchmarks/own_apps.py`: the lines on the page are those of the apps."""

import re

import pytest

from benchmarks import own_apps
from tests.helpers import ROOT

own_apps.quiet()


@pytest.mark.parametrize("method", ["FedProx", "SCAFFOLD", "AAggFF-S", "Ditto"])
def test_the_page_counts_the_lines_that_change(method):
    page = (ROOT / "docs" / "strategy-in-your-project.md").read_text(encoding="utf-8")
    table = page.partition("## What the methods bring")[2]
    row = re.findall(rf"^\| {method} \|(.*)\|$", table, re.M)[0]
    counted = [int(cell.rpartition(",")[2]) for cell in row.split("|")[:2]]
    assert counted == [own_apps.changed(own_apps.APPS[name], method) for name in ("torch", "NumPy")]
