"""The report and the plots of one run: right numbers, no foreign markup, and useful for
broken runs as well.
"""

import base64
import hashlib
import json
import re
import struct
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedapps.errors import UserError
from fedapps.formats import bytes_text, metric_text, one_line, percent_text, seconds_text
from fedapps.lab.results.parts import run_figures, write_plots
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run

pytestmark = pytest.mark.slow

VOID = {"meta", "img", "source", "br"}


class Page(HTMLParser):
    """Collects tags, attributes, table rows and cards, and checks that every tag is
    closed in order.
    """

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.rows, self.cards, self.text = [], [], [], {}, ""
        self.notes = {}
        self._open, self._label = [], ""
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open or "script" in self._open:
            return
        self.text += data
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data
        if self._open and self._open[-1] == "dt":
            self._label = data
        if self._open and self._open[-1] == "dd":
            if self._label in self.cards:
                self.notes[self._label] = data
            else:
                self.cards[self._label] = data


def report(path):
    return Page(write_report(path).read_text(encoding="utf-8"))


def pictures(path):
    """The plots of a report, wide and narrow, parsed."""
    return [
        ElementTree.fromstring(svg)
        for svg in re.findall(r"<svg.*?</svg>", path.read_text(encoding="utf-8"), re.DOTALL)
    ]


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


GAIN = "gain over training alone"


def test_three_numbers_lead_the_others_follow(write_run):
    clients = [(0, 0.75), (1, 1.0), (7, 0.5)]
    alone = [(0, 0.5), (1, 1.0), (7, 0.75)]
    last = {"accuracy-mean": 0.75, "accuracy-worst10": 0.5, "gini": 0.1}
    bounds = {"accuracy-mean-low": 0.7, "accuracy-mean-high": 0.8}
    run = write_run("run", clients=clients, last=last, extra=bounds)
    page = report(run)
    assert list(page.cards)[:3] == ["accuracy, mean over clients", "worst 10 % of clients", GAIN]
    assert page.notes["accuracy, mean over clients"] == "95 % interval: 70.0 % to 80.0 %"
    assert page.cards[GAIN] == "?"
    assert "method=local" in page.notes[GAIN]

    # Another seed, fewer rounds, other data or an unfinished run cannot be the partner.
    write_run("other-seed", "local", 1, clients=alone)
    write_run("shorter", "local", rounds=2, clients=alone)
    write_run("other-data", "local", clients=alone, settings={"data": {"source": "mnist"}})
    write_run("cut", "local", rounds=2, planned=4, clients=alone, summary=False)
    assert report(run).cards[GAIN] == "?"

    local = write_run("training-alone", "local", clients=[(0, 0.25), (1, 1.0), (7, 0.25)])
    page = report(run)
    assert page.cards[GAIN] == "+25.0"
    assert page.notes[GAIN] == "in points; 2 of 3 clients gain (training-alone)"
    assert GAIN not in report(local).cards


def test_numbers_are_those_of_the_run(write_run):
    page = report(write_run(method="superfed-mm", seed=3))
    assert page.cards["accuracy, mean over clients"] == "87.5 %"
    assert page.cards["std over clients"] == "6.2 %"
    assert page.cards["calibration error (ECE)"] == "0.125"
    assert page.cards["sent by clients"] == "4.00 kB"
    assert page.cards["sent to clients"] == "8.00 kB"
    assert page.cards["time in rounds"] == "2.0 s"
    assert page.cards["failed replies"] == "0"
    assert "superfed-mm on digits" in page.text
    assert "seed 3" in page.text
    assert "Completed: 4 of 4 rounds." in page.text
    assert "fedapps run settings.toml" in page.text
    assert ["data.source", "digits"] in page.rows
    assert ["flwr", "1.41.0"] in page.rows


def test_clients_from_lowest_accuracy(write_run):
    rows = report(write_run()).rows
    start = rows.index(["client", "num examples", "accuracy"])
    assert rows[start + 1 : start + 4] == [
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
    assert page.tags.count("svg") == 2 * page.tags.count("figure")
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    row = next(row for row in page.rows if row[0] == "2" and len(row) == 3)
    assert row[1] == '"><svg onload=z>'
    assert row[2].startswith('<script>alert("x")</script> [31m<img')
    assert "\x1b" not in page.text
    texts = {text for picture in pictures(path / "report.html") for text in picture.itertext()}
    assert {"<i>&0", "$x y", "Accuracy over <u>"} <= texts


def test_self_contained(write_run):
    path = write_run()
    html = write_report(path).read_text(encoding="utf-8")
    page = Page(html)
    assert "http:" not in html
    assert "https:" not in html
    assert not {"link", "img", "iframe"} & set(page.tags)
    (script,) = re.findall(r'<script class="page">(.*?)</script>', html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        value for name, value in page.attributes if name == "content" and "default-src" in value
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"  # only this script
    drawn = pictures(path / "report.html")
    assert len(drawn) == 2 * len(run_figures(read_run(path)))
    for picture in drawn:
        assert {element.tag for element in picture.iter()} <= {"svg", "g", "path", "text"}
        assert not [
            name
            for element in picture.iter()
            for name in element.attrib
            if "href" in name or name.startswith("on")
        ]
        width, height = map(float, picture.attrib["viewBox"].split()[2:])
        assert width > 400 or picture.attrib["class"] == "narrow"
        assert height > 200
    assert not re.search(r"url\(|@import", html)
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_interrupted_run_says_so_and_ignores_the_torn_line(write_run):
    path = write_run(rounds=3, planned=10, summary=False)
    run = read_run(path)
    assert (run.state, run.rounds_completed, run.unreadable_lines) == ("interrupted", 3, 0)
    page = report(path)
    assert "Interrupted after 3 of 10 rounds; the numbers are those of round 2" in page.text
    assert page.cards["accuracy, mean over clients"] == "87.5 %"
    assert page.cards["sent by clients"] == "3.00 kB"
    assert page.cards["time in rounds"] == "1.5 s"


def test_failed_run_gives_the_reason(write_run):
    path = write_run(
        rounds=3, planned=10, extra={"status": "failed", "error": "all 5 clients failed in round 4"}
    )
    assert "Failed after 3 of 10 rounds: all 5 clients failed in round 4" in report(path).text


def test_a_summary_with_too_few_rounds_is_a_failure(write_run):
    assert read_run(write_run(rounds=3, planned=10)).state == "failed"


def test_a_killed_run_is_not_reported_as_finished(write_run):
    path = write_run(rounds=3, planned=10, extra={"status": "running"})
    assert "Not finished: 3 of 10 rounds" in report(path).text


def test_early_stop_can_be_a_success(write_run):
    assert (
        read_run(write_run(rounds=3, planned=10, extra={"status": "completed"})).state
        == "completed"
    )


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
    assert run.numbers["bytes-up"] == 3005
    assert run.numbers["accuracy-mean"] == 0.25
    assert run.unreadable_lines == 1
    assert "1 unreadable line" in report(path).text


def test_other_tasks_and_methods_show_their_measures(write_run):
    path = write_run(last={"psnr-mean": 21.5, "coverage": 0.5}, clients=[])
    (path / "clients.csv").write_text("client,psnr\nsite a,20\nsite b,\n")
    page = report(path)
    assert page.cards["psnr, mean"] == "21.500"
    assert page.cards["coverage"] == "0.500"
    assert ["site a", "20"] in page.rows
    assert ["site b", ""] in page.rows
    assert list(run_figures(read_run(path))) == ["train-loss", "bytes", "measures"]
    assert not (path / "plots").exists()


@pytest.mark.parametrize("content", ["", "[1, 2", "[]", "null", '{"round": "three"}', "\x00\xff"])
def test_damaged_files_never_stop_a_report(write_run, content):
    path = write_run(summary=False)
    for name in ("settings.toml", "rounds.jsonl", "clients.csv", "curves.json", "summary.json"):
        (path / name).write_text(content, encoding="latin-1")
    assert "unknown method" in report(path).text


def test_not_finite_numbers_are_shown_as_such(write_run):
    path = write_run(
        last={"accuracy-mean": float("nan"), "loss-mean": float("inf")},
        clients=[(0, float("nan")), (1, 1.0)],
    )
    page = report(path)
    assert page.cards["accuracy, mean over clients"] == "nan"


def test_no_run_folder(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "none")


def test_plots_and_curves(write_run):
    curves = {
        "lambda": [0, 0.5, 1],
        "lambda-accuracy": [0.5, 0.9, 0.6],
        "lambda-accuracy-std": [0.1, 0.1, 0.1],
    }
    curves |= {"lambda-loss": [1, 2, 3], "lambda-short": [1, 2], "lambda-text": ["a", "b", "c"]}
    last = {
        "accuracy-mean": 0.9,
        "accuracy-worst10": 0.7,
        "accuracy-best10": 1.0,
        "global-accuracy-mean": 0.8,
    }
    paths = write_plots(write_run(curves=curves, last=last))
    names = [
        "accuracy",
        "train-loss",
        "clients",
        "curve-lambda-accuracy",
        "curve-lambda-loss",
        "bytes",
    ]
    assert [path.stem for path in paths] == names
    assert all(min(png_size(path.read_bytes())) > 300 for path in paths)


def test_many_clients_and_rounds(write_run):
    path = write_run(clients=[(i, i / 2000) for i in range(2000)], rounds=120)
    page = report(path)
    assert "the first 400 are shown, all are in clients.csv" in page.text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1234567, "1.23 MB"),
        (999_999, "1.00 MB"),
        (45_600_000_000, "45.6 GB"),
    ],
)
def test_bytes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.041, "41 ms"),
        (0.5, "0.50 s"),
        (2.04, "2.0 s"),
        (14.4, "14 s"),
        (59.6, "1 min 00 s"),
        (75, "1 min 15 s"),
        (3599.7, "1 h 00 min"),
        (4000, "1 h 07 min"),
        (float("nan"), "?"),
    ],
)
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text


def test_other_texts():
    assert percent_text(0.9345) == "93.5 %"
    assert metric_text("global-accuracy-mean", 0.5) == "50.0 %"
    assert metric_text("top5", 1.0) == "100.0 %"
    assert metric_text("parity-gap", 0.5084) == "50.8 %"
    assert metric_text("auroc-gini", 0.0123) == metric_text("gini", 0.0123) == "0.012"
    assert metric_text("num-examples", 12) == "12"
    assert one_line("a\n\tb\x1b[2J\u202ec  d") == "a b [2J c d"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
