"""Contests from Python and from the command line, with real runs: data in memory, the
verdict object, messages, and a contest whose program is killed.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps.errors import UserError
from tests.helpers import wait_for

ROOT = Path(__file__).resolve().parents[3]
JOB = {"num_rounds": 8, "jobs": 1, "budget": 0, "progress": False, "train": {"local_epochs": 1}}


def plants():
    """Plants with numbers, a category and a state of three."""
    rng = np.random.default_rng(0)
    tables = []
    for plant in range(6):
        x = rng.normal(size=(25, 3))
        y = x[:, 0] - 0.5 * x[:, 1] + 0.3 * rng.normal(size=25) + 0.1 * plant
        table = pd.DataFrame(x, columns=["heat", "load", "age"])
        table["plant"], table["shift"] = f"plant-{plant:02d}", rng.choice(["day", "night"], 25)
        table["state"] = np.array(["broken", "worn", "good"])[np.digitize(y, [-0.5, 1.0])]
        tables.append(table)
    return pd.concat(tables)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A contest on a data frame, and its folder."""
    out = tmp_path_factory.mktemp("contest")
    given = {"data": plants(), "label": "state", "client": "plant"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAPPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return fedapps.contest(**given, **JOB, methods=[], out=out), out


@pytest.mark.slow
def test_a_data_frame_gives_a_verdict_that_can_be_used(whole, tmp_path):
    verdict, out = whole
    assert verdict.kind in ("use", "alone", "either")
    assert str(verdict) == (out / "verdict.txt").read_text().strip()
    assert repr(verdict).startswith(f"<fedapps.Verdict {verdict.kind}")
    assert str(out) in repr(verdict)
    assert str(verdict).split(".")[0] in verdict._repr_html_()
    assert {"local (training alone)", "trivial"} < set(verdict.table["method"])
    assert "<svg" in verdict.plots["gains"]._repr_svg_()
    assert "<img" in verdict._repr_html_()
    run = fedapps.run(**verdict.settings, out=tmp_path / "run", progress=False)
    assert run.summary["status"] == "completed"
    assert run.settings["method"] == verdict.method


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": "10m"}, r"budget = '10m': give seconds"),
        ({"methods": "ditto"}, r"methods = 'ditto': give a list"),
        ({"methods": ["dito"]}, r"did you mean 'ditto'"),
        ({"label": "stat"}, r"^label = 'stat': the DataFrame has the columns heat"),
        ({"client": "plnt"}, r"^client = 'plnt': .* did you mean 'plant'"),
        ({"jobs": -1}, r"^jobs=-1: choose 1"),
        ({"data": {"score_on": "test"}}, r"data\.score-on: a contest chooses it"),
    ],
)
def test_errors_name_the_arguments(tmp_path, given, said):
    data = {"data": plants(), "label": "state", "client": "plant"}
    if "data" in given:
        given = {"data": {"source": data["data"], **given["data"]}}
    with pytest.raises(UserError, match=said):
        fedapps.contest(**{**data, **JOB, **given}, out=tmp_path / "out")


@pytest.mark.slow
def test_a_contest_whose_program_is_killed_goes_on_to_the_same_verdict(whole, tmp_path):
    plants().to_csv(tmp_path / "plants.csv", index=False)
    words = ["data.source=plants.csv", "data.natural-id=plant", "data.label=state", "--jobs", "1"]
    words += ["num-rounds=8", "train.local-epochs=1", "--budget", "9h"]
    command = [sys.executable, "-m", "fedapps", "contest", *words, "--methods", "local", "--out"]
    where = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}}
    out = tmp_path / "parts"
    killed = subprocess.Popen([*command, out], **where, stderr=subprocess.DEVNULL)
    wait_for(lambda _: len(list(out.glob("cells/*/summary.json"))) >= 5, killed, out, 200)
    killed.kill()
    killed.wait()
    again = subprocess.run([*command, out], **where, check=True, capture_output=True, text=True)
    assert "going on after" in again.stderr
    assert str(whole[0]) == (out / "verdict.txt").read_text().strip()
    states = [json.loads((path / "contest.json").read_text()) for path in (whole[1], out)]
    for key in ("scores", "errors", "measure", "delta"):
        assert states[0][key] == states[1][key], key
