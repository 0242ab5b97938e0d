"""The list of plots and tables: every page uses it, and a part that does not apply
returns nothing.
"""

import io
import json
import re

import pytest
from rich.console import Console

from fedapps.algorithms.common.survival import GROUPS
from fedapps.lab.api import load
from fedapps.lab.results.compare import compare
from fedapps.lab.results.ending import show_ending
from fedapps.lab.results.parts import (
    COMPARISON,
    PLOTS,
    RUN,
    plots,
    run_figures,
    run_sections,
)
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run


@pytest.fixture
def full(write_run):
    """A run that has data for every part of its page."""
    last = {"accuracy-mean": 0.75, "accuracy-worst10": 0.5, "accuracy-best10": 1.0, "f1-mean": 0.5}
    curves = {"lambda": [0.0, 1.0], "lambda-accuracy": [0.5, 0.75]}
    path = write_run("full", rounds=4, last=last, curves=curves)
    (path / "weights.csv").write_text("round,client,weight\n1,0,0.25\n1,1,0.75\n")
    groups = "".join(f"{name},2.5,10,1,0.9\n" for name in GROUPS)
    (path / "risk-groups.csv").write_text(f"group,time,at-risk,events,survival\n{groups}")
    (path / "confusion.csv").write_text("actual,a,b\na,7,3\nb,1,9\n")
    (path / "clients.csv").write_text("client,accuracy,test-samples\n0,0.5,10\n1,1.0,10\n")
    lines = map(json.loads, (path / "rounds.jsonl").read_text().splitlines())
    counted = {"models-up": 2, "models-down": 4, "counts-models": True}
    rows = [json.dumps(row | counted | {"clock-seconds": row["round"]}) for row in lines]
    (path / "rounds.jsonl").write_text("\n".join(rows) + "\n")
    return path


def names(page):
    return re.findall(r'<figure class="chart" data-name="(.*?)"', page)


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_full_run_has_every_plot_of_the_list_and_an_empty_one_has_none(full, tmp_path):
    (tmp_path / "settings.toml").write_text('method = "fedavg"\n')
    run, empty = read_run(full), read_run(tmp_path)
    assert [plot.title for plot in plots(RUN) if not plot.figures(run)] == []
    assert [plot.title for plot in plots(RUN) if plot.figures(empty)] == []
    assert run_sections(empty) == []


def test_report_and_notebook_show_the_same(full):
    wanted = list(run_figures(read_run(full)))
    report = write_report(full).read_text()
    assert sorted(names(report)) == sorted(wanted)
    assert list(load(full).plot()) == wanted
    (section,) = run_sections(read_run(full))
    assert section.title in headings(report)
    out = io.StringIO()
    Console(file=out, width=200).print(section.terminal())
    assert section.title in out.getvalue()


def test_a_comparison_shows_its_parts(full, write_run):
    other = write_run("other", "local", rounds=4, clients=[(0, 0.25), (1, 0.5)])
    comparison = compare([full, other])
    page = comparison.report.read_text()
    assert names(page) == [plot.name for plot in plots(COMPARISON)] == list(comparison.figures())
    assert [section.title for section in comparison.sections] == headings(page)[:2]


def test_every_plot_has_a_description():
    titles = [(page, plot.title) for page, plots in PLOTS.items() for plot in plots]
    assert len(set(titles)) == len(titles)
    assert all(len(title) > 5 for _, title in titles)


@pytest.mark.parametrize(
    ("confusion", "r2", "said"),
    [
        ("a,7,3\nb,1,9\n", None, ""),
        ("a,90,4\nb,6,0\n", None, "right for 90.0 % of all test samples, always answering 'a' for 94.0 %"),
        ("a,90,4\nb,2,4\n", None, ""),  # as good as it
        ("", -0.25, "always answering the mean of all test samples has a smaller error (R² -0.25)"),
        ("", 0.1, ""),
    ],
)  # fmt: skip
def test_a_run_below_the_trivial_predictor_says_so_first(write_run, capsys, confusion, r2, said):
    path = write_run("run", last={"accuracy-mean": 0.9} | ({"r2-pooled": r2} if r2 else {}))
    if confusion:
        (path / "confusion.csv").write_text(f"actual,a,b\n{confusion}")
    show_ending(path, Console(width=200))
    page = write_report(path).read_text()
    for text in (capsys.readouterr().out, page.replace("&#x27;", "'")):
        assert ("Below the trivial predictor" in text) == bool(said)
        assert said in text
    assert not said or page.index("Below") < page.index("<h2>")
