"""Contests with real runs: what can be one, its samples, measures and rounds; test rows
change no choice; from Python, and with a program that is killed.
"""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedapps
from benchmarks.contest import in_process
from fedapps.clients.base.scores import ROWS
from fedapps.errors import UserError
from fedapps.lab.contests import setup
from fedapps.lab.contests.contest import CHOICE
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.rows import read_rows
from fedapps.lab.contests.setup import base_of, measure_of, run_contest, start
from fedapps.lab.contests.trials import (
    GROWN,
    PORTFOLIO,
    Contestant,
    Trial,
    Trials,
    assembled,
    portfolio,
)
from fedapps.lab.contests.verdict import outcome
from fedapps.lab.sweeps.execution import Way
from fedapps.records.files import write_text
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.fedapps.lab.contests.sites import write_sites
from tests.helpers import ROOT, lacking, refused, run_inline, wait_for
from tests.pretended_device import pretended_cuda

TREES = ("local-boosting", "histogram-boosting")
FOUR_CLIENTS = {"num-clients": 4, "num-rounds": 8, "clients-per-round": 0}
FOUR_CLIENTS |= {"train.local-epochs": 1}

SETTINGS = {
    "task": "regression",
    "data.natural-id": "client",
    "data.label": "y",
    "data.part": "part",
    "num-rounds": 8,
    "num-clients": 0,
    "clients-per-round": 0,
    "train.batch-size": 16,
    "train.local-epochs": 2,
}


def written(folder, poison=False, left_out=()):
    """Write three sites of a known truth; ``poison``: with wrong test targets.
    ``left_out``: a site and a part without rows.
    """
    folder.mkdir()
    sites = [f"site-{k:02d}" for k in (1, 2, 3)]
    write_sites(folder / "data.csv", sites, sites if poison else (), 100, left_out)
    return {**SETTINGS, "data.source": str(folder / "data.csv")}


@pytest.mark.slow
def test_wrong_test_targets_change_no_choice_of_a_real_contest(tmp_path):
    """The data name their test rows, so that folds are seeds."""
    given, out = written(tmp_path / "poison", poison=True), tmp_path / "out"
    plain = start(written(tmp_path / "plain"), tmp_path / "plain" / "out", in_process, methods=())
    one = start(given, out, in_process, methods=())
    for contest in (plain, one):
        assert contest.state.same_rows
        contest.state.folds = 2
        contest.run()
    for mine, others in zip(plain.state.ended, one.state.ended, strict=True):
        for name in ("tried", "choice", "gains", "finalists"):
            assert mine[name] == others[name], name
    assert outcome(one).scores[CHOICE] < -50 < outcome(plain).scores[CHOICE]
    found, text = write_verdict(one)
    assert lacking((out / "verdict.html").read_text(), text.split(".")[0], "site-01") == []
    assert "2 of 2 seeds" in text
    settings = read_settings(read_toml(out / "winner.toml"))
    assert (settings.num_rounds, settings.data.score_on, settings.method) == (
        8,
        "test",
        found.method,
    )
    again = start(given, out, in_process, methods=())
    again.run()  # nothing is left to do
    assert again.state.ended == one.state.ended
    dear = start(given, out, in_process, methods=(), delta=0.5, price=9.0)
    dear.run()
    assert (dear.state.delta, dear.state.price) == (0.5, 9.0)
    assert outcome(dear).kind == "alone"
    cheap = start(given, out, in_process, methods=())
    assert (cheap.state.delta, cheap.state.price) == (one.state.delta, 0.0)
    cheap.state.usual, cheap.state.delta = 0.0, 0.3  # as a contest of before has it
    cheap.save()
    assert start(given, out, in_process, methods=()).state.delta == 0.3
    refused(
        lambda: start({**given, "seed": 1}, out, in_process, methods=("fedavg",)),
        "holds a contest with other settings",
        UserError,
    )


@pytest.mark.parametrize(
    ("given", "methods", "said"),
    [
        ({"method": "fedavg"}, (), "choose"),
        ({"data.score-on": "validation"}, (), "choose"),
        ({"task": "text", "text.score-on": "test"}, (), "choose"),
        ({"data.split-seed": "seed"}, (), "choose"),
        ({"num-clients": 1, "clients-per-round": 0}, (), "one client"),
        ({"data.folds": 3}, (), "a contest chooses it"),
        ({"num-new-clients": 1}, (), "a contest chooses it"),
        ({"data.natural-id": "y", "data.label": "y"}, (), "is the label, too"),
        ({}, ("dito",), "did you mean 'ditto'"),
        # what no contestant uses
        ({"dp.max-epsilon": 3, "num-clients": 3}, ("fedavg",), "dp.max-epsilon = 3"),
        ({"ffgb.local-steps": 3, "num-clients": 3}, ("fedavg",), "ffgb.local-steps = 3"),
    ],
)
def test_what_cannot_be_a_contest_is_refused(tmp_path, given, methods, said):
    refused(lambda: start(given, tmp_path, in_process, methods=methods), said, UserError)


def test_every_method_of_a_contest_has_the_same_samples(tmp_path):
    """Also of tasks and methods without validation samples by default. The race scores
    samples by which no method chooses.
    """
    regression = base_of({"task": "regression", "num-clients": 4})
    for base in (base_of(written(tmp_path / "data")), base_of({}), regression):
        settings, task = assembled(base, "finetune")
        plain = build_task(replace(settings, data=replace(settings.data, score_on="test")))
        assert settings.data.validation == 0.2
        others = [assembled(base, method)[1] for method in ("superfed-mm", "local")]
        for k in range(3):
            parts = [*map(list, task.split(k, settings.num_clients))]
            train, chosen_by, scored = map(set, parts)
            assert scored
            assert not chosen_by & scored
            whole = [*map(set, plain.split(k, settings.num_clients)[:2])]
            assert [train, chosen_by | scored] == whole
            for other in others:
                assert [*map(list, other.split(k, settings.num_clients))] == parts
    trees = ("local", "histogram-boosting")
    assert not portfolio(regression, trees)[1]
    parts = [[*map(list, assembled(regression, m)[1].split(0, 4))] for m in trees]
    assert parts[0] == parts[1]


def test_a_client_without_validation_samples_is_not_chosen_by_and_trains(tmp_path):
    given = written(tmp_path / "data", left_out=("site-02", "validation"))
    one = start(given, tmp_path / "out", in_process, methods=("fedavg",))
    trial = Trial(Contestant("finetune", 0.02), 1, 2)
    one.trials.run([trial])
    assert not one.state.errors
    assert set(one.trials.rows(trial)) == {"site-01", "site-03"}
    (failure,) = one.trials.read(trial).failures  # it trains
    assert failure.client == "site-02"
    assert "no samples to be scored on" in failure.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "measure", "unit"),
    [
        ({"task": "survival"}, "concordance", "points"),
        ({"task": "tabular"}, "auroc", "points"),
        ({"task": "regression"}, "rmse", "of RMSE"),
        ({"data.partition": "iid", "data.max-samples": 400}, "accuracy", "points"),
    ],
)
def test_every_kind_of_task_has_a_measure_and_folds(tmp_path, given, measure, unit):
    one = start({**given, **FOUR_CLIENTS}, tmp_path, in_process, methods=())
    assert (one.state.measure, one.state.same_rows) == (measure, False)
    one.state.folds = one.trials.folds = 2
    one.run()
    found, text = write_verdict(one)
    assert unit in text
    assert len(found.gains[CHOICE].clients) == 4
    assert found.scores[CHOICE] < 0 if measure == "rmse" else 0.1 < found.scores[CHOICE] < 1


@pytest.mark.slow
def test_sequences_have_rows_and_seeds_for_folds(tmp_path):
    one = start({"task": "text", **FOUR_CLIENTS}, tmp_path, in_process, methods=())
    assert (one.state.measure, one.state.same_rows) == ("accuracy", True)
    trial = Trial(Contestant("finetune", 0.5), 0, 1)
    one.trials.run([trial])
    assert [rows.shape[1] for rows in one.trials.rows(trial).values()] == [3] * 4


def test_a_file_of_columns_is_a_table_and_its_label_decides(tmp_path):
    rows = [
        f"{k % 3},{x:.3f},{'yes' if x > 0 else 'no'},{k % 30},{k % 2}"
        for k, x in enumerate(np.random.default_rng(0).normal(size=90))
    ]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows]))
    base = {"data.source": str(tmp_path / "table.csv"), "data.natural-id": "site"}
    for label, task in (
        ("x", "regression"),
        ("word", "tabular"),
        ("many", "regression"),
        ("few", "tabular"),
    ):
        assert base_of({**base, "data.label": label})["task"] == task
    assert base_of({**base, "data.label": "few", "task": "regression"})["task"] == "regression"
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows, "1,5x,no,1,1"]))
    odd = r"'x': 1 of 91 rows hold text where.*first: row 92 .*task = 'tabular'"
    refused(lambda: base_of({**base, "data.label": "x"}), odd, UserError)
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows, ",1.5,no,1,1"]))
    given = base_of({**base, "data.label": "x"})
    refused(
        lambda: start(given, tmp_path / "out", in_process),
        "'site': 1 samples have no value in it",
        UserError,
    )
    plain = {"data.source": "digits", "data.natural-id": "", "data.label": ""}
    assert base_of(plain)["task"] == "classification"


HALVES = [0] * 50 + [1] * 50


@pytest.mark.parametrize(
    ("labels", "clients", "mixed", "measure", "said"),
    [
        (HALVES, 4, True, "auroc", "50 %"),
        ([0] * 94 + [1] * 6, 4, True, "auroc", "94 %"),
        ([0] * 40 + [1] * 30 + [2] * 30, 4, True, "accuracy", "40 %"),
        ([0] * 71 + [1] * 9 + [2] * 20, 4, True, "macro-recall", "71 %"),
        # ranked where at least one client has both classes
        (HALVES, 4, False, "accuracy", "50 %"),
        (HALVES, 3, False, "auroc", "50 %"),
    ],
)
def test_the_measure_suits_the_classes(labels, clients, mixed, measure, said):
    class Task:
        name = "tabular"
        samples = SimpleNamespace(labels=np.array(labels))

        def partition(self, total):
            order = np.random.default_rng(0).permutation(100) if mixed else np.arange(100)
            return np.array_split(order, total)

    name, why, delta = measure_of(Task(), clients)
    assert (name, delta) == (measure, 0.01)
    assert said in why


def test_a_contest_that_was_refused_is_not_in_the_way_of_the_next(tmp_path):
    job = {"num-clients": 3, "num-rounds": 8, "data.max-samples": 200, "train.local-epochs": 1}
    refused(lambda: start(job, tmp_path, in_process, methods=(), budget=0.1), "raise it", UserError)
    said = []
    one = start({**job, "seed": 1}, tmp_path, in_process, methods=(), budget=1e4)
    one.state.done = True
    one.save()
    start({**job, "seed": 1}, tmp_path, in_process, methods=(), budget=1e5, say=said.append)
    assert "it has ended; for another budget choose another --out" in said[-1]


def test_a_net_without_normalisation_is_said_once(tmp_path, caplog):
    one = start({"task": "regression", "num-clients": 3}, tmp_path, in_process, methods=("fedbn",))
    assert "no normalisation layer" in one.state.left_out["fedbn"]
    assert "normalisation" not in caplog.text


@pytest.mark.parametrize("gain", [{"delta": -0.1}, {"price": np.nan}, {"price": np.inf}])
def test_a_gain_that_counts_is_a_number_from_0(tmp_path, gain):
    refused(
        lambda: run_contest({}, tmp_path / "out", way=Way(jobs=1), **gain),
        "give a gain, or 0 for the usual one",
        UserError,
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("device", "dealt"), [("cuda", (4, ["1", "3"])), ("cpu", (9, []))])
def test_a_contest_is_dealt_over_the_gpus(device, dealt, tmp_path, monkeypatch, gpus):
    def start(given, out, execute, *, jobs, **more):
        assert (jobs, execute.processes, execute.gpus) == (dealt[0], *dealt)
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "start", start)
    job, way = {"device": device, "num-rounds": 8}, Way(jobs=9, gpus_per_run=0.5)
    with pretended_cuda(monkeypatch, gpus=2), pytest.raises(KeyboardInterrupt):
        run_contest(job, tmp_path, way=way)


# --- rows and rounds of trials --------------------------------------------------------


def test_trees_have_their_own_rounds_and_bring_trees_alone(tmp_path):
    """A tree takes three rounds, so those of nets would leave it a few trees."""
    base = base_of({"task": "tabular"})
    trials = Trials(base, tmp_path, 24, 5, in_process)
    for method, rounds in (("local", 24), *((name, 152) for name in TREES)):
        config = trials.config(Trial(Contestant(method), 0, 24))
        assert (config["num-rounds"], config["evaluate-every"]) == (rounds, rounds)
    # of 152 rounds some are done: no run of 24
    folder = tmp_path / "cells" / Trial(Contestant("histogram-boosting"), 0, 24).folder
    (folder / "checkpoint" / "95").mkdir(parents=True)
    write_text(folder / "summary.json", '{"status": "interrupted"}')
    assert trials.missing([Trial(Contestant("histogram-boosting"), 0, 24)])
    known, *_ = portfolio(base, ["histogram-boosting"])
    assert known == ["local", "fedavg", "finetune", *TREES]
    assert portfolio(base, ["ditto"])[0] == ["local", "fedavg", "finetune", "ditto"]


@pytest.mark.parametrize("method", [m for m in PORTFOLIO if m != "fedbn"])
def test_every_method_reports_its_test_rows_and_nothing_else_changes(method, tmp_path):
    table = method in GROWN
    job = {"method": method, "num-rounds": 1, "num-clients": 12, "clients-per-round": 4}
    job |= {"task": "tabular"} if table else {"train.local-epochs": 1}
    for name, asked in (("plain", False), ("rows", True)):
        run_inline(tmp_path / name, **job, **{"data.test-rows": asked})
    plain, with_rows = (read_run(tmp_path / name) for name in ("plain", "rows"))
    assert (plain.clients, plain.evaluation) == (with_rows.clients, with_rows.evaluation)
    assert not (tmp_path / "plain" / f"{ROWS}.csv").exists()
    rows = read_rows(tmp_path / "rows" / f"{ROWS}.csv")
    for row in with_rows.clients:
        own = rows[row["client"]]
        assert len(own) == row["test-samples"]
        assert own[:, 1].mean() == pytest.approx(row["accuracy"])
        if table:
            assert ((own[:, 2] > 0) == (own[:, 0] == 1)).mean() == row["accuracy"]


@pytest.mark.parametrize("method", ["fedavg", "histogram-boosting", "local-boosting"])
def test_rows_of_folds_hold_the_labels_of_the_table(method, tmp_path):
    """Also where numbers are learnt as deviations from a mean of the fold."""
    table = np.column_stack([np.arange(60) % 3, np.arange(60) % 7, 100 + np.arange(60) ** 1.5])
    text = [f"{k:.0f},{x:.0f},{y:.6f}" for k, x, y in table]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,y", *text]))
    job = {"task": "regression", "data.source": str(tmp_path / "table.csv"), "data.label": "y"}
    job |= {"data.natural-id": "site", "data.test-rows": True, "data.folds": 2, "num-rounds": 2}
    found = []
    for fold in range(2):
        out = tmp_path / str(fold)
        run_inline(out, **job, method=method, **{"data.fold": fold})
        found += read_rows(out / f"{ROWS}.csv").values()
    rows = np.concatenate(found)
    np.testing.assert_allclose(np.sort(rows[:, 0]), table[:, 2], rtol=1e-5)
    np.testing.assert_allclose((rows[:, 0] - rows[:, 1]) ** 2, rows[:, 2], rtol=1e-3, atol=1e-3)


# --- from Python, and the command -----------------------------------------------------


JOB = {"num_rounds": 8, "jobs": 1, "budget": 0, "progress": False, "train": {"local_epochs": 1}}


def plants():
    """Plants with numbers, a category and a state of three."""
    rng = np.random.default_rng(0)
    tables = []
    for plant in range(4):
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
    assert (run.summary["status"], run.settings["method"]) == ("completed", verdict.method)


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
    refused(
        lambda: fedapps.contest(**{**data, **JOB, **given}, out=tmp_path / "out"), said, UserError
    )


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
