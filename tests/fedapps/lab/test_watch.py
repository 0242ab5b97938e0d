"""A report that is drawn again while its run goes on, and reloads itself."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedapps.commands.parser import main
from fedapps.lab.watch import QUIET, Watch
from tests.browser import Browser, needs_browser


def running(write_run, name="run", rounds=4, planned=10):
    return write_run(
        name,
        rounds=rounds,
        planned=planned,
        extra={"status": "running", "rounds-completed": rounds},
    )


def add_round(path, number, accuracy):
    row = {"round": number, "evaluate": {"accuracy-mean": accuracy}, "seconds": 0.5}
    with (path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def end(path, status):
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(
        json.dumps(summary | {"status": status, "error": "no memory"})
    )


def reloads(path):
    return "location.reload()" in path.read_text()


def test_the_report_follows_the_run_until_it_ends(write_run):
    path, now = running(write_run), time.time()
    page, watch = path / "report.html", Watch(path)
    watch.draw(now)
    assert "About 3.0 s left." in page.read_text()
    assert reloads(page)
    before = page.stat().st_mtime_ns
    watch.draw(now + QUIET / 2)  # nothing is new
    assert page.stat().st_mtime_ns == before
    watch.draw(now + 2 * QUIET)
    assert "may have been stopped" in page.read_text()
    add_round(path, 5, 0.99)
    watch.draw(now)
    assert '"y":[0.4375,0.875,0.99]' in page.read_text()
    end(path, "failed")
    watch.draw(now)
    assert "no memory" in page.read_text()
    assert not reloads(page)
    page.unlink()
    watch.draw(now + 2 * QUIET)  # an ended run is left alone
    watch.close()
    assert not page.exists()


def test_only_the_unfinished_runs_of_a_sweep_are_drawn(write_run):
    done, one = write_run("sweep/cells/a"), running(write_run, "sweep/cells/b")
    watch = Watch(done.parent.parent)
    watch.draw(time.time())
    assert reloads(one / "report.html")
    assert not (done / "report.html").exists()
    watch.close()  # stopped before the run has ended
    assert not reloads(one / "report.html")
    assert "Not finished: 4 of 10 rounds" in (one / "report.html").read_text()


def test_the_command_ends_with_its_input_and_waits_for_a_run_to_begin(write_run, tmp_path):
    words = [sys.executable, "-m", "fedapps", "watch", str(tmp_path / "run")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [*words, "--until-end-of-input"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    ) as process:
        page = tmp_path / "run" / "report.html"
        assert process.stderr.readline().decode() == f"watch:   {page.as_uri()}\n"
        running(write_run)
        deadline = time.monotonic() + 60
        while not page.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert reloads(page)
    assert process.returncode == 0
    assert not reloads(page)


def test_a_folder_without_a_run_is_a_one_line_error(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    wanted = r"fedapps: .* holds neither a run nor a sweep.*\n"
    assert re.fullmatch(wanted, capsys.readouterr().err)


@needs_browser
@pytest.mark.parametrize("width", [1100, 360])
def test_in_a_browser_the_page_moves_when_a_round_ends(write_run, width):
    path = running(write_run, planned=6)
    watch = Watch(path)
    watch.draw(time.time())
    opened = "[...document.querySelectorAll('details[open] summary')].map(s => s.innerText)"
    with Browser(width) as browser:
        browser.open(path / "report.html")
        browser.ask("[...document.querySelectorAll('details')].at(-1).open = true")
        wanted = browser.ask(opened)
        add_round(path, 6, 0.99)
        end(path, "failed")
        watch.draw(time.time())
        browser.wait("document.querySelector('.state.failed')")
        browser.wait(
            f"JSON.stringify({opened}) === {json.dumps(json.dumps(wanted, separators=(',', ':')))}"
        )
        browser.ask("document.querySelector('figure[data-name=accuracy]').focus()")
        browser.press("End")
        tip = browser.ask("document.querySelector('.tip:not([hidden])').innerText")
        assert re.search(r"round 6\s+.*99 %", tip)
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert browser.complaints == []
