"""The report and the plots of one run: right numbers, no foreign markup, and useful for
broken runs as well.
"""

import base64
import hashlib
import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from fedapps.errors import UserError
from fedapps.formats import bytes_text, metric_text, one_line, percent_text, seconds_text
from fedapps.lab.results.parts import run_figures
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run
from tests.helpers import lacking, refused

pytestmark = pytest.mark.slow


def report(path):
    """Return the tags, attributes, text, table rows, cards and their notes of a report,
    in which every tag must be closed in order.
    """
    html = write_report(path).read_text(encoding="utf-8").removeprefix("<!doctype html>")
    html = re.sub(r"(<(script|style)\b[^>]*>).*?(</\2>)", r"\1\3", html, flags=re.S)
    html = html.replace("<details open>", "<details>")
    tree = ElementTree.fromstring(re.sub(r"<(meta|img|source|br)\b([^>]*?)/?>", r"<\1\2/>", html))
    page = SimpleNamespace(text="".join(tree.itertext()), cards={}, notes={})
    page.tags = [element.tag for element in tree.iter()]
    page.attributes = [name for element in tree.iter() for name in element.attrib]
    page.rows = [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]
    for element in tree.iter():
        if element.tag == "dt":
            label = element.text
        elif element.tag == "dd":
            (page.notes if label in page.cards else page.cards)[label] = element.text
    return page


def pictures(html):
    """The plots of a report, parsed."""
    return list(map(ElementTree.fromstring, re.findall(r"<svg.*?</svg>", html, re.DOTALL)))


def test_two_numbers_lead_the_others_follow(write_run):
    last = {"accuracy-mean": 0.75, "accuracy-worst10": 0.5, "gini": 0.1}
    bounds = {"accuracy-mean-low": 0.7, "accuracy-mean-high": 0.8}
    page, mean = report(write_run(last=last, extra=bounds)), "accuracy, mean over clients"
    assert list(page.cards)[:3] == [mean, "worst 10 % of clients", "Gini coefficient"]
    assert page.notes == {mean: "95 % interval: 70.0 % to 80.0 %"}


def test_numbers_are_those_of_the_run(write_run):
    page = report(write_run(method="superfed-mm", seed=3))
    cards = {
        "accuracy, mean over clients": "87.5 %",
        "std over clients": "6.2 %",
        "calibration error (ECE)": "0.125",
        "sent by clients": "4.00 kB",
        "sent to clients": "8.00 kB",
        "time in rounds": "2.0 s",
        "failed replies": "0",
    }
    assert page.cards == page.cards | cards
    texts = ("superfed-mm on digits", "seed 3", "Completed: 4 of 4", "fedapps run settings.toml")
    assert lacking(page.text, *texts) == []
    assert lacking(page.rows, ["data.source", "digits"], ["flwr", "1.41.0"]) == []
    # clients from the lowest accuracy
    start = page.rows.index(["client", "num examples", "accuracy"])
    assert page.rows[start + 1 : start + 4] == [
        ["7", "8", "50.0 %"],
        ["0", "8", "75.0 %"],
        ["1", "8", "100.0 %"],
    ]


def test_foreign_text_stays_text(write_run):
    reason = '<script>alert("x")</script>\x1b[31m<img src=x onerror=y> $\\frac{'
    path = write_run(
        method="<b>m</b>",
        clients=[("<i>&0", 0.5), ("$x\x07y", 0.75)],
        failures=[(2, {"client": '"><svg onload=z>', "reason": reason})],
        settings={"data": {"source": "</title><script>"}},
        curves={"<u>": [0.0, 1.0], "<u>-accuracy": [0.1, 0.2]},
        extra={"<s>k": 1.5},
    )
    page = report(path)
    assert not {"i", "b", "u", "s"} & set(page.tags)
    # the page's script, and the values of each chart
    assert page.tags.count("script") == 1 + page.tags.count("figure")
    assert page.tags.count("svg") == page.tags.count("figure")
    assert not [name for name in page.attributes if name.startswith("on")]
    row = next(row for row in page.rows if row[:2] == ["2", '"><svg onload=z>'])
    assert row[2].startswith('<script>alert("x")</script> [31m<img')
    assert "\x1b" not in page.text
    drawn = pictures((path / "report.html").read_text(encoding="utf-8"))
    texts = {text for picture in drawn for text in picture.itertext()}
    assert {"<i>&0", "$x y", "Accuracy over <u>"} <= texts


def test_self_contained(write_run):
    path = write_run()
    html = write_report(path).read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\(|@import|<link|<img|<iframe", html)
    (script,) = re.findall(r'<script class="page">(.*?)</script>', html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'content="(default-src .*?)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"  # only this script
    drawn = pictures(html)
    assert len(drawn) == len(run_figures(read_run(path)))
    for picture in drawn:
        elements = list(picture.iter())
        assert {element.tag for element in elements} <= {"svg", "g", "path", "text"}
        names = {name for element in elements for name in element.attrib}
        assert not [name for name in names if "href" in name or name.startswith("on")]
        width, height = map(float, picture.attrib["viewBox"].split()[2:])
        assert (width > 400, height > 200) == (True, True)
    assert lacking(html, "prefers-color-scheme: dark", 'name="viewport"') == []


@pytest.mark.parametrize(
    ("more", "state", "text"),
    [
        # the torn line is ignored
        ({"summary": False}, "interrupted", "Interrupted after 3 of 10 rounds; the numbers are those of round 2"),
        ({"extra": {"status": "failed", "error": "no memory"}}, "failed", "Failed after 3 of 10 rounds: no memory"),
        ({}, "failed", "Failed after 3 of 10 rounds."),
        ({"extra": {"status": "running"}}, "running", "Not finished: 3 of 10 rounds"),
        # an early stop
        ({"extra": {"status": "completed"}}, "completed", "Completed: 3 of 10 rounds"),
    ],
)  # fmt: skip
def test_the_report_says_how_the_run_ended(write_run, more, state, text):
    path = write_run(rounds=3, planned=10, **more)
    run, page = read_run(path), report(path)
    assert (run.state, run.rounds_completed, run.unreadable_lines) == (state, 3, 0)
    assert text in page.text
    cards = {"accuracy, mean over clients": "87.5 %", "sent by clients": "3.00 kB"}
    assert page.cards == page.cards | cards | {"time in rounds": "1.5 s"}


def test_a_repeated_round_counts_once_with_its_later_record(write_run):
    path = write_run(summary=False)
    text = (path / "rounds.jsonl").read_text().rpartition("\n")[0]
    again = {
        "round": 4,
        "bytes-up": 5,
        "seconds": 1.0,
        "evaluate": {"accuracy-mean": 0.25},
        "failures": [],
    }
    (path / "rounds.jsonl").write_text(f"{text}\nnot json\n{json.dumps(again)}\n")
    run = read_run(path)
    assert [record["round"] for record in run.rounds] == [1, 2, 3, 4]
    assert (run.numbers["bytes-up"], run.numbers["accuracy-mean"]) == (3005, 0.25)
    assert "1 unreadable line" in report(path).text


def test_other_tasks_and_methods_show_their_measures(write_run):
    path = write_run(last={"psnr-mean": 21.5, "coverage": 0.5}, clients=[])
    (path / "clients.csv").write_text("client,psnr\nsite a,20\nsite b,\n")
    page = report(path)
    assert page.cards == page.cards | {"psnr, mean": "21.500", "coverage": "0.500"}
    assert lacking(page.rows, ["site a", "20"], ["site b", ""]) == []
    assert list(run_figures(read_run(path))) == ["train-loss", "measures"]


@pytest.mark.parametrize("content", ["", "[1, 2", "[]", "null", '{"round": "three"}', "\x00\xff"])
def test_damaged_files_never_stop_a_report(write_run, content):
    path = write_run(summary=False)
    for name in ("settings.toml", "rounds.jsonl", "clients.csv", "curves.json", "summary.json"):
        (path / name).write_text(content, encoding="latin-1")
    assert "unknown method" in report(path).text


def test_not_finite_numbers_are_shown_as_such(write_run):
    last = {"accuracy-mean": float("nan"), "loss-mean": float("inf")}
    page = report(write_run(last=last, clients=[(0, float("nan")), (1, 1.0)]))
    assert page.cards["accuracy, mean over clients"] == "nan"


def test_no_run_folder(tmp_path):
    refused(lambda: write_report(tmp_path), "holds no run", UserError)
    refused(lambda: write_report(tmp_path / "none"), "is not a folder", UserError)


def test_plots_and_curves(write_run):
    curves = {
        "lambda": [0, 0.5, 1],
        "lambda-accuracy": [0.5, 0.9, 0.6],
        "lambda-accuracy-std": [0.1, 0.1, 0.1],
        "lambda-loss": [1, 2, 3],
        "lambda-short": [1, 2],
        "lambda-text": ["a", "b", "c"],
    }
    ends = {"accuracy-worst10": 0.7, "accuracy-best10": 1.0, "global-accuracy-mean": 0.8}
    path = write_run(curves=curves, last={"accuracy-mean": 0.9, **ends})
    names = ["accuracy", "train-loss", "clients", "curve-lambda-accuracy", "curve-lambda-loss"]
    assert list(run_figures(read_run(path))) == names


@pytest.mark.parametrize(
    ("text", "given", "wanted"),
    [
        (bytes_text, (0,), "0 B"),
        (bytes_text, (999,), "999 B"),
        (bytes_text, (1000,), "1.00 kB"),
        (bytes_text, (1234567,), "1.23 MB"),
        (bytes_text, (999_999,), "1.00 MB"),
        (bytes_text, (45_600_000_000,), "45.6 GB"),
        (seconds_text, (0.041,), "41 ms"),
        (seconds_text, (0.5,), "0.50 s"),
        (seconds_text, (2.04,), "2.0 s"),
        (seconds_text, (14.4,), "14 s"),
        (seconds_text, (59.6,), "1 min 00 s"),
        (seconds_text, (75,), "1 min 15 s"),
        (seconds_text, (3599.7,), "1 h 00 min"),
        (seconds_text, (4000,), "1 h 07 min"),
        (seconds_text, (float("nan"),), "?"),
        (percent_text, (0.9345,), "93.5 %"),
        (metric_text, ("global-accuracy-mean", 0.5), "50.0 %"),
        (metric_text, ("top5", 1.0), "100.0 %"),
        (metric_text, ("parity-gap", 0.5084), "50.8 %"),
        (metric_text, ("gini", 0.0123), "0.012"),
        (metric_text, ("auroc-gini", 0.0123), "0.012"),
        (metric_text, ("num-examples", 12), "12"),
        (one_line, ("a\n\tb\x1b[2J\u202ec  d",), "a b [2J c d"),
        (one_line, ("x" * 50, 10), "x" * 9 + "…"),
    ],
)
def test_texts_of_numbers_and_lines(text, given, wanted):
    assert text(*given) == wanted
