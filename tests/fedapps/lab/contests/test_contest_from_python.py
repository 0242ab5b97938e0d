"""Contests from Python and from the command line, with real runs: data in memory, the
verdict object, messages, and a contest whose program is killed.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
JOB = {"num_rounds": 8, "jobs": 1, "budget": 0, "progress": False, "train": {"local_epochs": 1}}


def plants(kind, count=4):
    """Plants with numbers, a category and a state of three (or a number)."""
    rng = np.random.default_rng(0)
    rows = []
    for plant in range(count):
        x = rng.normal(size=(25, 3))
        y = x[:, 0] - 0.5 * x[:, 1] + 0.3 * rng.normal(size=25) + 0.1 * plant
        names = np.array(["broken", "worn", "good"])[np.digitize(y, [-0.5, 1.0])]
        shift = rng.choice(["day", "night"], 25)
        for i in range(25):
            state = names[i] if kind == "state" else y[i]
            row = (f"plant-{plant:02d}", shift[i], *x[i], state)
            rows.append(
                dict(zip(("plant", "shift", "heat", "load", "age", kind), row, strict=True))
            )
    return pd.DataFrame(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["state", "wear"])
def test_a_data_frame_gives_a_verdict_that_can_be_used(tmp_path, kind):
    out = tmp_path / "out"
    given = {"data": plants(kind), "label": kind, "client": "plant", "num_new_clients": 1, **JOB}
    given |= {"task": "regression"} if kind == "wear" else {"data": plants(kind, 12)}
    verdict = fedapps.contest(**given, methods=[], out=out)
    assert verdict.kind in ("federate", "alone", "cannot tell")
    assert str(verdict) == (out / "verdict.txt").read_text().strip()
    assert repr(verdict).startswith(f"<fedapps.Verdict {verdict.kind}")
    assert str(out) in repr(verdict)
    assert str(verdict).split(".")[0] in verdict._repr_html_()
    assert set(verdict.table["method"]) == {"local", "fedavg", "finetune"}
    new = [name for name in verdict.table if name.startswith("new, ")]
    assert len(new) == 3  # as it is, after one epoch and after five
    assert not (verdict.table[new] == "-").any().any()
    run = fedapps.run(**verdict.settings, out=tmp_path / "run", progress=False)
    assert run.summary["status"] == "completed"
    assert run.settings["method"] == (verdict.method or "local")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": "10m"}, r"budget = '10m': give seconds"),
        ({"methods": "ditto"}, r"methods = 'ditto': give a list"),
        ({"methods": ["dito"]}, r"did you mean 'ditto'"),
        ({"label": "stat"}, r"^label = 'stat': the DataFrame has the columns plant"),
        ({"client": "plnt"}, r"^client = 'plnt': .* did you mean 'plant'"),
        ({"jobs": -1}, r"^jobs=-1: choose 1"),
        ({"data": {"score_on": "test"}}, r"data\.score-on: a contest chooses it"),
    ],
)
def test_errors_name_the_arguments(tmp_path, given, said):
    data = {"data": plants("state"), "label": "state", "client": "plant"}
    if "data" in given:
        given = {"data": {"source": data["data"], **given["data"]}}
    with pytest.raises(UserError, match=said):
        fedapps.contest(**{**data, **JOB, **given}, out=tmp_path / "out")


@pytest.mark.slow
def test_a_contest_whose_program_is_killed_goes_on_to_the_same_verdict(tmp_path):
    plants("state").to_csv(tmp_path / "plants.csv", index=False)
    words = ["data.source=plants.csv", "data.natural-id=plant", "data.label=state"]
    words += ["num-rounds=8", "train.local-epochs=1", "--budget", "1h", "--jobs", "1"]
    command = [sys.executable, "-m", "fedapps", "contest", *words, "--methods", "fedavg", "--out"]
    where = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}}
    subprocess.run([*command, "whole"], **where, check=True, capture_output=True)
    killed = subprocess.Popen([*command, "parts"], **where, stderr=subprocess.DEVNULL)
    cells = tmp_path / "parts" / "cells"
    deadline = time.monotonic() + 200
    while len(list(cells.glob("*/summary.json"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    again = subprocess.run([*command, "parts"], **where, check=True, capture_output=True, text=True)
    assert "going on after" in again.stderr
    texts = [(tmp_path / name / "verdict.txt").read_text() for name in ("whole", "parts")]
    assert texts[0] == texts[1]
    states = [
        json.loads((tmp_path / name / "contest.json").read_text()) for name in ("whole", "parts")
    ]
    for key in ("rates", "tried", "dropped", "race_gains", "finalists", "errors"):
        assert states[0][key] == states[1][key], key
