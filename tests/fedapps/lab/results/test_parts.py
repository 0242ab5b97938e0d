"""The list of plots and tables: every page uses it, a part that does not apply returns
nothing, and plots become files. Groups on the page and in comparisons: counts for few
samples, the skipped clients, and no foreign text taken for markup.
"""

import io
import json
import re

import pytest
from rich.console import Console

from fedapps.commands.parser import main
from fedapps.lab.api import load
from fedapps.lab.charts.files import file
from fedapps.lab.results.compare import compare
from fedapps.lab.results.ending import show_ending
from fedapps.lab.results.group_tables import gaps_section, groups_section
from fedapps.lab.results.parts import (
    COMPARISON,
    PLOTS,
    RUN,
    run_figures,
    run_sections,
)
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run
from tests.helpers import lacking, write_file


@pytest.fixture
def full(write_run):
    """A run that has data for every part of its page."""
    last = {"accuracy-mean": 0.75, "accuracy-worst10": 0.5, "accuracy-best10": 1.0, "f1-mean": 0.5}
    curves = {"lambda": [0.0, 1.0], "lambda-accuracy": [0.5, 0.75]}
    path = write_run("full", rounds=4, last=last, curves=curves)
    (path / "weights.csv").write_text("round,client,weight\n1,0,0.25\n1,1,0.75\n")
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
    assert [plot.title for plot in PLOTS[RUN] if not plot.figures(run)] == []
    assert [plot.title for plot in PLOTS[RUN] if plot.figures(empty)] == []
    assert run_sections(empty) == []


def test_report_and_notebook_show_the_same(full):
    wanted = list(run_figures(read_run(full)))
    report = write_report(full).read_text()
    assert sorted(names(report)) == sorted(wanted)
    assert list(load(full).plot()) == wanted
    (section,) = run_sections(read_run(full))
    assert section.title in headings(report)
    assert section.title in printed(section)


def test_a_comparison_shows_its_parts(full, write_run):
    other = write_run("other", "local", rounds=4, clients=[(0, 0.25), (1, 0.5)])
    comparison = compare([full, other])
    page = comparison.report.read_text()
    assert names(page) == [plot.name for plot in PLOTS[COMPARISON]] == list(comparison.figures())
    assert [section.title for section in comparison.sections] == headings(page)[:2]
    assert list(compare([full], out=comparison.out).figures()) == ["comparison"]


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


# --- files ----------------------------------------------------------------------------


def test_the_plots_of_a_run_become_files(write_run, capsys):
    folder = write_run("a", rounds=4)
    assert main(["figures", str(folder), "--format", "svg"]) == 0
    files = sorted((folder / "figures").iterdir())
    assert {path.name for path in files} >= {"accuracy.svg", "train-loss.svg"}
    assert len(capsys.readouterr().out.split()) == len(files)
    assert all(path.read_bytes().startswith(b"<?xml") for path in files)


def test_texts_of_a_pdf_are_texts_and_the_same_figure_gives_the_same_file(write_run):
    figure = run_figures(read_run(write_run()))["accuracy"]
    pdf, png = file(figure, "pdf"), file(figure, "png")
    assert pdf == file(figure, "pdf")
    assert pdf.startswith(b"%PDF")
    assert png.startswith(b"\x89PNG")
    assert re.search(rb"/FontFile2|/TrueType|/CIDFontType2", pdf)
    assert b"/Type3" not in pdf


def test_a_folder_without_a_run_is_an_error(tmp_path, error_of):
    write_file(tmp_path / "sweep" / "cells" / "a" / "settings.toml")
    for folder, said in (("", "it has no settings.toml\n"), ("sweep", "runs of this sweep are")):
        assert said in error_of("figures", tmp_path / folder)


# --- groups ---------------------------------------------------------------------------


TWO = "group,clients,samples,right,accuracy,selected,tpr,fpr,ece,tp,fp,fn,tn\n"


def with_groups(path, text, left_out=()):
    (path / "groups.csv").write_text(text)
    settings = (path / "settings.toml").read_text().replace("[data]", '[data]\ngroup = "sex"')
    (path / "settings.toml").write_text(settings)
    lines = (path / "rounds.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {
        "left-out": [{"client": client, "reason": "group-sums: x"} for client in left_out]
    }
    (path / "rounds.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    return path


def printed(section):
    console = Console(file=io.StringIO(), width=200)
    console.print(section.terminal())
    return console.file.getvalue()


def test_small_groups_show_counts(write_run):
    # f: 100 samples, 60 of class 1; m: 30 samples, 8 of class 1 and 22 of class 0.
    text = (
        TWO
        + "f,3,100,80,0.8,0.56,0.8,0.2,0.05,48,8,12,32\nm,2,30,27,0.9,0.3,0.75,0.13636,0.11,6,3,2,19\nnone,0,0,0,,,,,,0,0,0,0\n"
    )
    path = with_groups(
        write_run(
            last={"accuracy-mean": 0.8, "group-accuracy-gap": 0.1, "equalised-odds-gap": 0.0625}
        ),
        text,
        ["7"],
    )
    section = groups_section(read_run(path))
    assert [section.header, *section.rows] == [
        ("group", "samples", "clients", "accuracy", "predicted 1", "TPR", "FPR", "ECE"),
        ("f", "100", "3", "80.0 %", "56.0 %", "80.0 %", "20.0 %", "0.050"),
        ("m", "30", "2", "90.0 %", "30.0 %", "6 of 8", "13.6 %", "0.110"),
        ("none", "0", "0", "-", "-", "-", "-", "-"),
    ]
    said = ("by sex", "fewer than 20 samples", "accuracy gap 10.0 %", "equalised odds 6.2 %")
    assert lacking(section.note, *said, "of client 7") == []
    # measured: 10 points; equal groups differ by about 0.8 sqrt(0.823 0.177 (1/100 +
    # 1/30)) = 6 points
    found = re.search(r"part of chance: ([\d.]+) % \(([\d.]+) to ", section.note)
    estimate, low = map(float, found.groups())
    assert low == 0 < estimate < 8
    page = write_report(path).read_text(encoding="utf-8")
    # the last on a card
    assert lacking(page, "<h2>Groups</h2>", "6 of 8", "equalised odds gap") == []


def test_with_more_than_two_classes_rates_have_no_counts(write_run):
    text = TWO + "a,1,19,10,0.5263,,0.5,0.2,0.1,,,,\nb,1,20,10,0.5,,0.5,0.2,0.1,,,,\n"
    section = groups_section(read_run(with_groups(write_run(), text)))
    assert (section.header, *section.rows) == (
        ("group", "samples", "clients", "accuracy", "TPR", "FPR", "ECE"),
        ("a", "19", "1", "10 of 19", "-", "-", "-"),
        ("b", "20", "1", "50.0 %", "50.0 %", "20.0 %", "0.100"),
    )


def test_runs_side_by_side(write_run):
    gaps = {"group-accuracy-gap": 0.1, "equalised-odds-gap": 0.2, "accuracy-mean": 0.5}
    runs = [
        with_groups(
            write_run(f"a{s}", seed=s, last={**gaps, "equalised-odds-gap": 0.2 + 0.1 * s}), TWO
        )
        for s in (0, 1)
    ]
    runs += [
        with_groups(write_run("b", "local", last={**gaps, "equalised-odds-gap": 0.05}), TWO),
        write_run("c", "ditto"),
    ]
    comparison = compare(runs)
    (section,) = [section for section in comparison.sections if section.title == "Groups"]
    assert section.header == ("method", "accuracy gap", "equalised odds")
    assert section.rows == (("fedavg", "10.0 % ±0.0", "25.0 % ±7.1"), ("local", "10.0 %", "5.0 %"))
    assert "by sex" in printed(section)
    assert "25.0 % ±7.1" in comparison.report.read_text(encoding="utf-8")
    assert gaps_section(comparison.rows[-1:]) is None
    assert groups_section(read_run(runs[-1])) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "group\n",
        "<b>,1\n",
        TWO + "<script>,x,y,[bold]z,nan,,,,,,,,\n",
        TWO + "a,1,-5,9,inf,2,,,,1,1\n",
    ],
)
def test_damaged_tables_are_shown_as_far_as_possible(text, write_run):
    path = with_groups(write_run(), text)
    section = groups_section(read_run(path))
    if section is not None:
        assert printed(section)
    assert "<script>" not in write_report(path).read_text(encoding="utf-8")
