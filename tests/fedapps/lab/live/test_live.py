"""The page that follows a run: who may load it, its content for runs in every state,
and its updates in a browser.
"""

import http.client
import json
import math
import re
import threading
import time

import pytest

from fedapps.commands.parser import main
from fedapps.lab.charts.chart_script import fingerprint
from fedapps.lab.live import page as live
from fedapps.lab.live import sweep as live_sweep
from fedapps.lab.live.files import is_quiet, runs_of, seconds_left, stamp_of
from fedapps.lab.live.page import Known, Pages, admitted, is_due, news
from fedapps.lab.live.sweep import LINES, Sweep
from fedapps.records.reader import read_run
from tests.browser import Browser, needs_browser

TOKEN = "t" * 43


@pytest.mark.parametrize(
    ("path", "host", "rest"),
    [
        (f"/{TOKEN}/", "127.0.0.1:80", ""),
        (f"/{TOKEN}/news?after=1", "localhost:80", "news"),
        # requested, but there is no such page: see below
        (f"/{TOKEN}/../../etc/passwd", "127.0.0.1:80", "../../etc/passwd"),
        ("/", "127.0.0.1:80", None),
        ("/news", "127.0.0.1:80", None),
        (f"/{TOKEN[:-1]}/", "127.0.0.1:80", None),
        (f"/{TOKEN}x/", "127.0.0.1:80", None),
        ("/\u00fc/", "127.0.0.1:80", None),
        (f"/{TOKEN}/", "evil.example:80", None),
        (f"/{TOKEN}/", "127.0.0.1:81", None),
        (f"/{TOKEN}/", "127.0.0.1", None),
        (f"/{TOKEN}/", None, None),
    ],
)
def test_requests_need_the_token_and_this_machines_name(path, host, rest):
    assert admitted(path, host, TOKEN, 80) == rest


@pytest.fixture
def served():
    """`served(folder)` returns the pages of a folder."""
    opened = []

    def serve(folder):
        pages = Pages(folder)
        threading.Thread(target=pages.serve_forever, args=(0.05,), daemon=True).start()
        opened.append(pages)
        return pages

    yield serve
    for pages in opened:
        pages.shutdown()
        pages.server_close()


def ask(pages, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", pages.server_port, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_the_page_is_served_and_no_file_changes(write_run, served):
    path = write_run()
    before = sorted((one.name, one.stat().st_mtime_ns) for one in path.iterdir())
    pages = served(path)
    assert ask(pages, f"/{pages.token}/")[0] == 200
    for rest in ("summary.json", "../run/summary.json", "%2e%2e/", "cells/x/", "news/news"):
        assert ask(pages, f"/{pages.token}/{rest}")[0] == 404
    assert ask(pages, "/wrong/")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(pages, f"/{pages.token}/", method)[0] == 501
    assert sorted((one.name, one.stat().st_mtime_ns) for one in path.iterdir()) == before


def test_large_pages_are_updated_less_often():
    known = Known({}, "a", made=100.0, cost=0.3)  # 3 % of a core: every ten seconds
    assert not is_due(known, "b", 109.0)
    assert is_due(known, "b", 111.0)
    assert not is_due(known, "a", 111.0)
    assert is_due(known, "b", 101.0, hurry=True)  # the end of the run
    assert is_due(known, "a", 161.0)  # a run without news


def test_news_of_a_growing_folder(write_run, served, monkeypatch):
    monkeypatch.setattr(live, "SHARE", math.inf)
    path = write_run(rounds=4, planned=10, extra={"status": "running", "rounds-completed": 4})
    pages = served(path)
    first = json.loads(ask(pages, f"/{pages.token}/news")[1])
    assert "4 of 10 rounds" in first["body"]
    assert "About 3.0 s left." in first["body"]
    assert json.loads(ask(pages, f"/{pages.token}/news?after={first['stamp']}")[1]) == {
        "stamp": first["stamp"]
    }
    with (path / "rounds.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {
                    "round": 5,
                    "train": {"loss": 0.1},
                    "evaluate": {"accuracy-mean": 0.99},
                    "seconds": 0.5,
                }
            )
            + "\n"
        )
    second = json.loads(ask(pages, f"/{pages.token}/news?after={first['stamp']}")[1])
    assert second["stamp"] != first["stamp"]
    assert '"y":[0.4375,0.875,0.99]' in second["body"]


@pytest.mark.parametrize("state", ["running", "completed", "failed", "interrupted"])
def test_the_page_of_a_run_in_each_state(write_run, state):
    run = write_run(
        rounds=3,
        planned=10,
        extra={"status": state, "error": "no memory" if state == "failed" else ""},
    )
    page = news(run, time.time())
    assert f'<div class="state {state}">' in page["body"]
    assert page["title"].startswith(f"{state}: ")
    assert ("About" in page["body"]) == (state == "running")


def test_a_run_without_news_may_have_been_stopped(write_run):
    path = write_run(rounds=3, planned=10, extra={"status": "running"})
    run, now = read_run(path), time.time()
    assert seconds_left(run) == 3.5
    assert not is_quiet(run, now + 30)
    assert is_quiet(run, now + 120)
    assert "may have been stopped" in news(path, now + 120)["body"]


def test_a_sweep_lists_its_runs_and_one_that_failed_is_seen(write_run, served, tmp_path):
    write_run("sweep/cells/a")
    write_run("sweep/cells/b", rounds=3, planned=10, extra={"status": "failed", "error": "x"})
    folder = tmp_path / "sweep"
    assert set(runs_of(folder)) == {"a", "b"}
    body = news(folder, time.time())["body"]
    assert '<div class="state failed">1 failed, 1 completed</div>' in body
    pages = served(folder)
    assert "Failed after" in ask(pages, f"/{pages.token}/b/")[1]
    assert ask(pages, f"/{pages.token}/c/")[0] == 404
    before = stamp_of(folder)
    (folder / "cells/a/summary.json").write_text("{}")
    assert stamp_of(folder) != before


def sweep_of(write_run, tmp_path, **states):
    """Return the folder of a sweep with the given number of runs in each state.
    Unfinished runs have done 6 of 10 rounds.
    """
    number = 0
    for state, count in states.items():
        for _ in range(count):
            number += 1
            rounds = 10 if state == "completed" else 6
            write_run(
                f"sweep/cells/run-{number:02}",
                rounds=rounds,
                planned=10,
                extra={"status": state, "rounds-completed": rounds},
            )
    return tmp_path / "sweep"


def test_a_sweep_shows_the_curve_of_each_run(write_run, tmp_path):
    folder = sweep_of(write_run, tmp_path, completed=2, running=1)
    (folder / "sweep.json").write_text(json.dumps({"runs": 5}))
    body = news(folder, time.time())["body"]
    assert '<div class="state running">1 running, 2 completed, 2 waiting</div>' in body
    figures = re.findall(
        r'<figure class="chart" data-name="(.*?)".*?<script type="application/json">(.*?)</script>',
        body,
    )
    assert [name for name, _ in figures] == ["sweep-accuracy-mean", "sweep-training loss"]
    for _, data in figures:
        rows = json.loads(data)["panels"][0]["rows"]
        assert [row["n"] for row in rows] == ["run-01", "run-02", "run-03"]
        assert len(rows[0]["y"]) > len(rows[2]["y"])  # the unfinished run has fewer rounds
    rows = re.findall(r'<tr><td><a href="(.*?)/">', body)
    assert rows == ["run-03", "run-01", "run-02"]  # unfinished runs come first


def test_unfinished_runs_of_a_large_sweep_have_distinct_and_constant_colours(write_run, tmp_path):
    folder = sweep_of(write_run, tmp_path, completed=LINES, running=3)
    sweep = Sweep(folder)

    def colours():
        data = re.search(
            r'<script type="application/json">(.*?)</script>', "".join(sweep.body(time.time()))
        )[1]
        return {row["n"]: row["c"] for row in json.loads(data)["panels"][0]["rows"]}

    first = colours()
    going = [f"run-{LINES + place:02}" for place in (1, 2, 3)]
    assert list(first) == [f"the {LINES} finished: lowest to highest", *going]
    summary = folder / "cells" / going[0] / "summary.json"
    summary.write_text(
        json.dumps(
            json.loads(summary.read_text()) | {"status": "completed", "rounds-completed": 10}
        )
    )
    second = colours()
    assert list(second) == [f"the {LINES + 1} finished: lowest to highest", *going[1:]]
    assert all(second[name] == first[name] for name in going[1:])


def test_a_run_of_a_sweep_is_read_again_only_when_it_has_changed(write_run, tmp_path, monkeypatch):
    folder, read = sweep_of(write_run, tmp_path, completed=2, running=1), []
    monkeypatch.setattr(
        live_sweep, "read_run", lambda path: read.append(path.name) or read_run(path)
    )
    sweep = Sweep(folder)
    sweep.body(time.time())
    with (folder / "cells" / "run-03" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 7, "train": {"loss": 0.1}}) + "\n")
    sweep.body(time.time())
    assert read == ["run-01", "run-02", "run-03", "run-03"]


def test_a_folder_without_a_run_is_a_one_line_error(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "holds neither a run nor a sweep" in error


@needs_browser
def test_the_page_moves_when_a_round_ends(write_run, served):
    path = write_run(rounds=4, planned=6, extra={"status": "running", "rounds-completed": 4})
    pages = served(path)
    with Browser() as browser:
        browser.open(pages.address)
        browser.wait("document.querySelectorAll('figure.chart .tip').length > 2")
        browser.ask(
            "document.querySelector('figure[data-name=accuracy] svg.wide [data-k]')?.focus()"
        )
        with (path / "rounds.jsonl").open("a") as file:
            file.write(
                json.dumps(
                    {"round": 6, "train": {"loss": 0.1}, "evaluate": {"accuracy-mean": 0.99}}
                )
                + "\n"
            )
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(
            json.dumps(summary | {"status": "failed", "error": "no memory", "rounds-completed": 6})
        )
        browser.wait("document.querySelector('.state.failed')")
        browser.ask("document.querySelector('figure[data-name=accuracy]').focus()")
        browser.press("End")
        tip = browser.ask(
            "[...document.querySelectorAll('.tip')].filter(t => !t.hidden).map(t => "
            "t.innerText).join()"
        )
        assert "round 6" in tip
        assert "99 %" in tip
        assert browser.ask("document.title").startswith("failed: ")
        assert browser.complaints == []


@needs_browser
def test_a_sweeps_curves_move_and_fit_a_phone(write_run, served, tmp_path):
    folder = sweep_of(write_run, tmp_path, completed=1, running=2)
    pages = served(folder)
    with Browser(width=360, height=700) as browser:
        browser.open(pages.address)
        browser.wait("document.querySelectorAll('figure.chart .tip').length === 2")
        assert browser.ask("document.documentElement.scrollWidth") <= 360
        with (folder / "cells" / "run-02" / "rounds.jsonl").open("a") as file:
            file.write(
                json.dumps(
                    {"round": 8, "train": {"loss": 0.1}, "evaluate": {"accuracy-mean": 0.25}}
                )
                + "\n"
            )
        browser.wait("document.querySelector('figure.chart script').textContent.includes('0.25')")
        browser.ask("document.querySelector('figure.chart').focus()")
        for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight"):
            browser.press(key)
        tip = browser.ask(
            "[...document.querySelectorAll('.tip')].filter(t => !t.hidden).map(t => "
            "t.innerText).join()"
        )
        assert "round 8" in tip
        assert "run-02 25 %" in tip
        assert browser.complaints == []


def test_the_policy_names_both_scripts(write_run, served):
    pages = served(write_run())
    page = ask(pages, f"/{pages.token}/")[1]
    assert fingerprint(live._LIVE) in page
    assert "connect-src 'self'" in page
