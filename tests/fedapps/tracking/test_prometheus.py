"""The page for Prometheus shows what the run has recorded, during the run, and a port
in use is an error.
"""

import json
import math
import re
import socket
import urllib.error
import urllib.request

import pytest

from fedapps.commands.parser import main
from fedapps.engines.processes import free_port
from fedapps.errors import UserError
from fedapps.runs.progress import Progress
from fedapps.tracking.prometheus import BYTES, Counts, check_port, served

JOB = [
    "run",
    "--engine",
    "inline",
    "num-clients=4",
    "clients-per-round=0",
    "train.local-epochs=1",
    "device=cpu",
    "evaluate-every=2",
]
RUN = {("run", "first"), ("method", "fedavg"), ("task", "digits")}
SAMPLE = re.compile(r'^(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)$')


def scraped(port, path="/metrics"):
    """Return what a scraper reads from the page: the values by name and labels, without
    the run's own labels, and the types of the names.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=")
        lines = page.read().decode().splitlines()
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE ")}
    values = {}
    for line in lines:
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            assert name in kinds
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
            assert set(pairs) >= RUN
            values[name, *(word for label, word in pairs if (label, word) not in RUN)] = float(
                value
            )
    return values, kinds


def test_the_page_is_scraped_during_a_run(tmp_path, monkeypatch, capsys):
    port, folder, seen = free_port(), tmp_path / "first", []
    monkeypatch.setattr(Progress, "poll", lambda *_: seen.append(scraped(port)[0]))
    assert main([*JOB, "num-rounds=3", "--metrics-port", str(port), "--out", str(folder)]) == 0
    assert [values["fedapps_rounds_total",] for values in seen] == [0, 1, 2, 3]
    assert f"metrics: http://127.0.0.1:{port}/metrics" in capsys.readouterr().err
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for done, values in enumerate(seen):
        assert values["fedapps_rounds_planned",] == 3
        assert values["fedapps_replies_total",] == 4 * done
        assert values["fedapps_failures_total",] == 0
        assert values["fedapps_round_seconds_total",] == pytest.approx(
            math.fsum(row["seconds"] for row in rows[:done])
        )
        for (way, phase), key in BYTES.items():
            assert values["fedapps_bytes_total", way, phase] == sum(
                row.get(key, 0) for row in rows[:done]
            )
    assert ("fedapps_measure", "accuracy-mean") not in seen[1]
    assert seen[3]["fedapps_measure", "accuracy-mean"] == rows[2]["evaluate"]["accuracy-mean"]
    with pytest.raises(urllib.error.URLError):  # the page ends with the run
        scraped(port)


def record(number, failures=0, **more):
    row = {
        "round": number,
        "seconds": 0.5,
        "clients": [1, 2],
        "failures": [{}] * failures,
        "bytes-up": 10,
        "bytes-down": 20,
    }
    return json.dumps(row | more) + "\n"


def test_counters_follow_a_file_that_grows_and_is_replaced(tmp_path):
    counts = Counts(tmp_path, {"run": "first", "method": "fedavg", "task": "digits"}, 9)
    with served(counts, 0) as port:
        values, kinds = scraped(port)
        assert values["fedapps_rounds_total",] == 0, "before the first round, too"
        assert kinds["fedapps_bytes_total"] == "counter"
        path = tmp_path / "rounds.jsonl"
        path.write_text(record(1, 2) + record(2)[:20])
        assert scraped(port)[0]["fedapps_rounds_total",] == 1, "a line that is still written waits"
        path.write_text(record(1, 2) + record(2, 1, evaluate={"loss-mean": math.nan}))
        values, _ = scraped(port, "/")
        assert (
            values["fedapps_rounds_total",],
            values["fedapps_failures_total",],
            values["fedapps_bytes_total", "up", "train"],
        ) == (2, 3, 20)
        assert math.isnan(values["fedapps_measure", "loss-mean"])
        path.unlink()
        path.write_text(record(1))
        assert scraped(port)[0]["fedapps_rounds_total",] == 1, "a resumed run writes the file anew"


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wanted = rf"^metrics-port = {port}: cannot listen on 127\.0\.0\.1 \("
        with (
            pytest.raises(UserError, match=wanted) as caught,
            served(Counts(tmp_path, {}, 1), port),
        ):
            pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_is_tried_where_the_page_would_be(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        taken = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"{host} is not configured here")
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^metrics-port = {port}: cannot listen on {host} "):
            check_port(port, host)
    check_port(port, host)
