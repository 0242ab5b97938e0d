"""Logs as JSON lines: the lines of runs, sweeps and sites can be parsed, with run,
round and client.
"""

import json
import logging

import pytest

from fedapps import json_log
from fedapps.commands.parser import main

JOB = [
    "run",
    "--engine",
    "inline",
    "num-clients=4",
    "clients-per-round=0",
    "train.local-epochs=1",
    "device=cpu",
    "--log-format",
    "json",
]


@pytest.fixture(autouse=True)
def as_before():
    yield
    json_log.choose("text")


def read(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_prints_and_logs_json_lines_only(tmp_path, capsys):
    assert main([*JOB, "num-rounds=3", "evaluate-every=2", "--out", str(tmp_path / "first")]) == 0
    printed = read(capsys.readouterr().out)
    rows = read((tmp_path / "first" / "rounds.jsonl").read_text())
    rounds = [line for line in printed if line.get("event") == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    for line, row in zip(rounds, rows, strict=True):
        assert (line["run"], line["replies"], line["failures"], line["seconds"]) == (
            "first",
            4,
            0,
            row["seconds"],
        )
        assert (line["train"], line.get("evaluate")) == (row["train"], row.get("evaluate"))
    assert (printed[-1]["event"], printed[-1]["status"], printed[-1]["run"]) == (
        "end",
        "completed",
        "first",
    )
    log = read((tmp_path / "first" / "run.log").read_text())
    assert {line["run"] for line in log} == {"first"}
    assert {line["level"] for line in log} <= {"INFO", "WARNING"}
    assert [line["round"] for line in log if line["message"].startswith("[ROUND")] == [1, 2, 3]
    assert all("time" in line and line["time"].endswith("Z") for line in [*printed, *log])


def test_skipped_replies_are_logged_with_client_and_round(tmp_path, capsys):
    job = [*JOB, "num-rounds=2", "max-failed-rounds=2", "max-update-norm=1e-9"]
    assert main([*job, "--out", str(tmp_path / "run")]) == 1
    out, err = capsys.readouterr()
    failures = [line for line in read(out) if line.get("event") == "failure"]
    assert {(line["round"], line["client"], line["level"]) for line in failures} == {
        (number, client, "WARNING") for number in (1, 2) for client in range(4)
    }
    lines = [
        line
        for line in read((tmp_path / "run" / "run.log").read_text())
        if " left out: " in line["message"]
    ]
    assert [(line["round"], line["client"]) for line in lines] == [
        (number, str(client)) for number in (1, 2) for client in range(4)
    ]
    (end,) = read(err)
    assert (end["level"], end["event"]) == ("ERROR", "error")
    assert end["message"].startswith("the run failed: ")


def test_a_mistake_is_a_json_line(capsys):
    assert main([*JOB, "num-rounds=none"]) == 2
    (line,) = read(capsys.readouterr().err)
    assert line["message"].startswith("num-rounds = 'none'")


def test_lines_of_a_log():
    convert = json_log.Converter(run="r", site="rome").convert
    first, second, third, fourth = (
        json.loads(convert(text))
        for text in (
            "\x1b[92mINFO \x1b[0m:      Run finished",
            "INFO :      [ROUND 3/10]",
            "2026-01-02 03:04:05,678 WARNING client site-1:7 left out: NaN",
            "Traceback (most recent call last):",
        )
    )
    assert {key: value for key, value in first.items() if key != "time"} == {
        "level": "INFO", "message": "Run finished", "run": "r", "site": "rome",
    }  # fmt: skip
    assert second["round"] == 3
    assert (third["level"], third["round"], third["client"], third["message"]) == (
        "WARNING", 3, "site-1:7", "client site-1:7 left out: NaN",
    )  # fmt: skip
    assert (fourth["level"], fourth["message"]) == ("INFO", "Traceback (most recent call last):")


def test_a_line_keeps_its_time_and_following_lines_without_one_inherit_it():
    texts = [
        "INFO :      Starting",
        "2026-01-02T03:04:05.678Z INFO [uvicorn.access] GET 200",
        "INFO :      later",
        "2026-99-99T9Z INFO odd",
    ]
    stream, file = json_log.Converter(), json_log.Converter(recorded=True)
    first, access, later, odd = (json.loads(stream.convert(text)) for text in texts)
    assert (access["time"], access["level"], access["message"]) == (
        "2026-01-02T03:04:05.678Z",
        "INFO",
        "[uvicorn.access] GET 200",
    )
    assert later["time"] >= first["time"] > access["time"]  # of arrival
    assert odd["message"] == "odd"
    assert [json.loads(file.convert(text))["time"] for text in texts][1:] == [
        "2026-01-02T03:04:05.678Z"
    ] * 3


def test_warnings_of_modules_are_json_lines():
    record = logging.LogRecord(
        "fedapps.data", logging.WARNING, "", 0, "%d samples are left", (3,), None
    )
    json_log.choose("json")
    line = json.loads(logging.lastResort.format(record))
    assert (line["level"], line["message"]) == ("WARNING", "3 samples are left")
    json_log.choose("text")
    assert logging.lastResort.format(record) == "3 samples are left"


@pytest.mark.slow
def test_a_sweep_logs_each_run(tmp_path, capfd):
    (tmp_path / "grid.toml").write_text(
        "num-rounds = 1\nnum-clients = 4\nclients-per-round = 2\ntrain.local-epochs = 1\ndevice = "
        '"cpu"\nseed = [0, 1]\n'
    )
    out = tmp_path / "out"
    assert (
        main(
            [
                "sweep",
                str(tmp_path / "grid.toml"),
                "--jobs",
                "1",
                "--log-format",
                "json",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    printed = read(capfd.readouterr().out)
    ended = [line for line in printed if line.get("event") == "end"]
    assert sorted(line["run"] for line in ended) == sorted(
        path.name for path in (out / "cells").iterdir()
    )
    assert {line["sweep"] for line in ended} == {"out"}
    assert printed[-1]["event"] == "sweep"


@pytest.mark.parametrize("wanted", ["", "1"])
def test_flowers_log_has_no_colours_under_no_color(wanted, monkeypatch):
    handler = logging.StreamHandler()  # other tests replace Flower's, which has this attribute
    handler.colored = True
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [handler])
    monkeypatch.setenv("NO_COLOR", wanted)
    assert main(["methods"]) == 0
    assert handler.colored == (not wanted)
