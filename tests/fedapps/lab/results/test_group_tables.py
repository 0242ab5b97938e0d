"""Groups on the page and in comparisons: counts for few samples, the skipped clients,
and no foreign text taken for markup.
"""

import io
import json
import re

import pytest
from rich.console import Console

from fedapps.lab.results.compare import compare
from fedapps.lab.results.group_tables import gaps_section, groups_section
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run
from tests.helpers import lacking

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


def printed(section, width=80):
    console = Console(file=io.StringIO(), width=width)
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
    page = write_report(path).read_text(encoding="utf-8")
    assert "<script>" not in page
