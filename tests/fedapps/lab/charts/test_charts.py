"""Charts in a page: their values are those of the run, few points draw the same line as
many, and a browser shows both.
"""

import json
import re

import numpy as np
import pytest

from fedapps.lab.charts.axes import Panel, extremes
from fedapps.lab.charts.charts import chart
from fedapps.lab.charts.drawing import (
    label_values,
    legend,
    line_with_range,
    one_panel,
)
from fedapps.lab.charts.html import palette
from fedapps.lab.charts.theme import MOST, THEME
from fedapps.lab.results.report import write_report
from tests.browser import Browser, needs_browser
from tests.helpers import lacking


def chart_values(page):
    """The values of each chart of a page, by its name."""
    matches = re.findall(
        r'<figure class="chart" data-name="([^"]*)".*?<script '
        r'type="application/json">(.*?)</script>',
        page,
        re.DOTALL,
    )
    return {name: json.loads(data) for name, data in matches}


def drawn(label="a</script><b>"):
    figure, axes = one_panel("Heading")
    line_with_range(
        axes,
        [1, 2, 4],
        np.array([[0.5, 0.25, np.nan], [0.75, 0.25, 1.0]]),
        THEME.series[0],
        "-",
        label,
    )
    label_values(axes, "accuracy", "")
    legend(figure, axes)
    return figure


def test_a_chart_has_mean_and_range_in_units_of_its_axes():
    page = chart("x", "what", drawn())
    (data,) = chart_values(page).values()
    (panel,) = data["panels"]
    band, line = panel["rows"]
    assert [panel["xs"][row["x"]] for row in (band, line)] == [[1, 2], [1, 2]]
    assert (band["l"], band["h"], line["y"]) == ([0.5, 0.25], [0.75, 0.25], [0.625, 0.25])
    assert [(row["s"], row["n"]) for row in (band, line)] == [(0, "a</script><b>")] * 2
    assert page.count("</script>") == 1  # names of clients cannot end the script element
    assert (panel["y"]["percent"], panel["y"]["unit"]) == (True, " %")


def test_the_frame_of_a_chart_contains_its_data():
    """The point at the lower left end of the axes is in the corner of the frame."""
    figure, axes = one_panel("")
    axes.line([0, 10], [0, 2], THEME.series[0])
    axes.x.low, axes.x.high, axes.y.low, axes.y.high = 0.0, 10.0, 0.0, 2.0
    page = chart("x", "", figure)
    ((left, top, width, height),) = chart_values(page)["x"]["frames"]
    (path,) = re.findall(r'stroke-width="2" [^>]*d="M([-\d. ]+)"', page)
    ends = [left, top + height, left + width, top]
    assert list(map(float, path.split())) == pytest.approx(ends, abs=0.06)


def test_both_schemes_have_a_colour_for_every_name_in_the_page():
    page = chart("x", "", drawn())
    style = palette([page])
    used = set(re.findall(r"var\((--p-[0-9a-f-]+)\)", page))
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    assert (
        used == set(re.findall(r"(--p-[\w-]+):", light)) == set(re.findall(r"(--p-[\w-]+):", dark))
    )
    first = THEME.series[0]
    for scheme, code in ((light, first.light), (dark, first.dark)):
        assert f"--p-{first.light[1:]}-{first.dark[1:]}:{code};" in scheme


def test_a_long_line_keeps_its_ends_and_every_peak():
    values = np.sin(np.arange(50_000) / 7)
    values[[12_345, 40_001]] = 9, -9
    values[20_000:21_000] = np.nan
    kept = extremes(values)
    assert len(kept) <= MOST + 2
    assert {0, 12_345, 40_001, 49_999} <= set(kept.tolist())
    assert np.isnan(values[kept]).any()  # the gap is kept
    assert (np.diff(kept) > 0).all()
    assert extremes(values[:MOST]).tolist() == list(range(MOST))
    panel = Panel()
    panel.line(np.arange(50_000), values, THEME.ink)
    (reading,) = panel.readings
    assert np.array_equal(reading.y, values[reading.x.astype(int)])


def test_a_report_of_a_thousand_noisy_clients_names_what_is_omitted(write_run):
    rng = np.random.default_rng(0)
    ends = ("mean", "worst10", "best10", "std")
    last = {f"{name}-{e}": 1.0 for name in ("accuracy", "loss", "ece", "mce", "f1") for e in ends}
    path = write_run(method="aaggff-d", rounds=2000, last=last)
    noisy = [
        row
        | {"evaluate": {key: rng.random() for key in last}}
        | {"train": {"loss": rng.random()}, "bytes-up": rng.random()}
        for row in map(json.loads, (path / "rounds.jsonl").read_text().splitlines())
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in noisy))
    columns = "client,accuracy,loss,ece,mce,f1,lambda,margin,norm,test-samples"
    table = [f"{k},{','.join(map(str, row))}" for k, row in enumerate(rng.random((1000, 9)))]
    (path / "clients.csv").write_text("\n".join([columns, *table]))
    weights = [f"{r},{c},{w}" for r in range(1, 2001, 20) for c, w in enumerate(rng.random(60))]
    (path / "weights.csv").write_text("\n".join(["round,client,weight", *weights]))
    text = write_report(path).read_text()
    assert len(text.encode()) <= 1_000_000
    note = f"A line shows about {MOST} points (a small plot {MOST // 3}) of the 2000 rounds and"
    assert not lacking(
        text, f"{note} 1000 clients", "the first 400 are shown, all are in clients.csv"
    )
    assert "A line shows about" not in write_report(write_run("small", rounds=100)).read_text()


# --- in a browser ---------------------------------------------------------------------

AT = """(() => {{ const svg = document.querySelector('figure[data-name={name}] svg'), box = svg.getBoundingClientRect();
    svg.scrollIntoView({{block: 'center'}}); const now = svg.getBoundingClientRect();
    const data = JSON.parse(document.querySelector('figure[data-name={name}] script').textContent);
    const [l, t, w, h] = data.frames[0], a = data.panels[0].x, scale = now.width / svg.viewBox.baseVal.width;
    return [now.left + scale * (l + w * ({x} - a.lo) / (a.hi - a.lo)), now.top + scale * (t + h / 2)]; }})()"""
TIP = "[...document.querySelectorAll('.tip')].filter(t => !t.hidden).map(t => t.innerText).join()"


@pytest.fixture
def report(write_run):
    last = {
        "accuracy-mean": 0.876,
        "accuracy-worst10": 0.5,
        "accuracy-best10": 1.0,
        "ece-mean": 0.125,
    }
    path = write_run(rounds=8, last=last, clients=[("<i>north", 0.75), ("south", 0.5)])
    (path / "weights.csv").write_text(
        "round,client,weight\n1,north,0.25\n1,south,0.75\n2,south,1\n"
    )
    return write_report(path)


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (360, True)])
def test_values_at_the_pointer(report, width, dark):
    with Browser(width, 900, dark) as browser:
        browser.open(report)
        assert browser.ask("document.documentElement.scrollWidth") <= width
        heading = "document.querySelector('figure[data-name=accuracy] text[font-weight]')"
        ink = "rgb(232, 234, 237)" if dark else "rgb(27, 32, 38)"
        assert browser.ask(f"getComputedStyle({heading}).fill") == ink
        x, y = browser.ask(AT.format(name="accuracy", x=6))
        browser.point(x + 2, y)
        wanted = ("round 6", "65.7 %", "37.5\N{EN DASH}75 %")  # 0.876 * 6 / 8
        assert lacking(browser.ask(TIP), *wanted) == []
        browser.point(*browser.ask(AT.format(name="clients", x=1)))
        assert lacking(browser.ask(TIP), "client <i>north", "75 %") == []
        browser.point(*browser.ask(AT.format(name="weights", x=1)))
        assert re.search(r"round 1\s+client (north 0\.25|south 0\.75)", browser.ask(TIP))
        browser.point(2, 2)
        assert browser.ask(TIP) == ""
        assert browser.complaints == []
        assert [address for address in browser.asked if not address.startswith("file:")] == []


@needs_browser
def test_keys_and_series_that_are_switched_off(report):
    chart = "document.querySelector('figure[data-name=accuracy]')"
    key = f"{chart}.querySelector('svg [data-k=\"1\"]')"
    line = f"getComputedStyle({chart}.querySelector('svg path[data-s=\"1\"]')).display"
    with Browser() as browser:
        browser.open(report)
        browser.ask(f"{chart}.focus()")
        for pressed, wanted in (
            ("ArrowRight", "round 2"),
            ("ArrowRight", "round 4"),
            ("End", "round 8"),
            ("ArrowLeft", "round 6"),
        ):
            browser.press(pressed)
            assert browser.ask(TIP).startswith(wanted)
        browser.press("Escape")
        assert browser.ask(TIP) == ""
        assert browser.ask(f"{key}.textContent") == "mean over clients"
        browser.ask(f"{key}.focus()")
        browser.press("Enter")
        assert browser.ask(f"[{line}, {key}.getAttribute('aria-pressed')]") == ["none", "false"]
        browser.ask(f"{chart}.focus()")
        browser.press("Home")
        assert lacking(browser.ask(TIP), "mean over clients", "worst 10 %") == ["mean over clients"]
        x, y, width, height = browser.ask(
            f"(r => [r.x, r.y, r.width, r.height])({key}.getBoundingClientRect())"
        )
        browser.point(x + width / 2, y + height / 2, "click")
        assert browser.ask(f"[{line}, {key}.getAttribute('aria-pressed')]") == ["inline", "true"]
        assert browser.complaints == []
