"""Runs with a clock: they repeat, resume and equal each other under all engines, and
settings that contradict each other are refused.
"""

import pytest

from fedapps.algorithms.common.fleet import Fleet
from fedapps.commands.parser import main
from fedapps.runs.prepare import with_defaults
from tests.helpers import assert_same, outcome_of, rounds_of, rows_of, run_inline, summary_of

JOB = {
    "method": "fedbuff",
    "num-rounds": 12,
    "evaluate-every": 4,
    "checkpoint-every": 3,
    "train.local-epochs": 1,
    "time.dropout": 0.1,
    "time.jitter": 0.5,
}
PARTIAL = {
    **JOB,
    "method": "finetune",
    "evaluate-every": 5,
    "train.local-epochs": 2,
    "rounds.deadline": 0.8,
    "rounds.late": "partial",
}


def same(one, other):
    (rows, files), (twins, wanted) = outcome_of(one), outcome_of(other)
    assert files == wanted
    for row, twin in zip(rows, twins, strict=True):
        if "evaluate" not in twin or "evaluate" not in row:  # a pause is scored
            row, twin = (
                {k: v for k, v in r.items() if not k.startswith("evaluate")} for r in (row, twin)
            )
        assert_same(row, twin)


@pytest.mark.parametrize("weights", ["replies", "clients"])
def test_a_run_that_is_paused_while_clients_train_goes_on_to_the_bit(tmp_path, weights):
    job = {**JOB, "fedbuff.weights": weights}
    run_inline(tmp_path / "whole", **job)
    run_inline(tmp_path / "parts", **job, until=5)
    assert any(row["fate"] == "open" for row in rows_of(tmp_path / "parts" / "time.csv"))
    assert (tmp_path / "parts" / "checkpoint" / "5").is_dir()
    run_inline(tmp_path / "parts", "--resume", **job)
    ages = [row.get("reply-age", 0) for row in rounds_of(tmp_path / "parts")]
    assert max(ages[5:7]) > 0  # replies to models from before the pause
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_with_partial_work_goes_on_to_the_bit_and_nobody_is_late(tmp_path):
    run_inline(tmp_path / "whole", **PARTIAL)
    run_inline(tmp_path / "parts", **PARTIAL, until=5)
    run_inline(tmp_path / "parts", "--resume", **PARTIAL)
    same(tmp_path / "whole", tmp_path / "parts")
    rows = rows_of(tmp_path / "whole" / "time.csv")
    ends = {now["round"]: now["clock-seconds"] for now in rounds_of(tmp_path / "whole")}
    for row in rows:
        assert row["fate"] in ("used", "failed")
        assert float(row["arrived"]) <= float(row["asked"]) + 0.8
        assert float(row["arrived"]) <= ends[int(row["round"])] + 1e-6
    shares = {float(row["share"]) for row in rows if row["fate"] == "used"}
    assert min(shares) < 0.3
    assert max(shares) == 1.0
    assert len(shares) > 10
    assert "partial work" in (tmp_path / "whole" / "run.log").read_text()


@pytest.mark.parametrize(
    "extra", [{}, {"rounds.over-select": 0.4, "rounds.late": "keep", "method": "fedavg"}, PARTIAL]
)
def test_its_own_times_repeat_a_run_in_which_a_site_was_gone(tmp_path, extra, monkeypatch, capsys):
    job = {**JOB, "clients-per-round": 6, **extra}
    with monkeypatch.context() as patch:
        gone = range(3, 9)
        patch.setattr(Fleet, "available", lambda s, client, n, now: client or n not in gone)
        run_inline(tmp_path / "first", **job)
    given = {k: v for k, v in job.items() if not k.startswith("time.")}
    given |= {"time.speed": "file", "time.file": str(tmp_path / "first" / "time.csv")}
    run_inline(tmp_path / "again", **given)
    same(tmp_path / "first", tmp_path / "again")
    with pytest.raises(AssertionError):
        run_inline(tmp_path / "more", **{**given, "num-rounds": 13})
    assert "ended with round 12" in capsys.readouterr().err


def test_a_file_of_times_is_found_from_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"method": "fedavg", "time.speed": "file", "time.file": "times.csv"}
    assert with_defaults(given).time.file == str(tmp_path / "times.csv")


@pytest.mark.parametrize("method", ["superfed-mm", "apfl", "ditto", "fedper", "fedavg"])
def test_personal_methods_run_asynchronously(tmp_path, method):
    given = {**JOB, "fedbuff.base": method} if method != "fedavg" else JOB
    summary = run_inline(tmp_path, **given)
    assert summary["clock-seconds"] == rounds_of(tmp_path)[-1]["clock-seconds"] > 0
    assert {"used", "failed", "open"} <= {row["fate"] for row in rows_of(tmp_path / "time.csv")}


def test_a_synchronous_run_reports_its_simulated_seconds_and_is_the_same_run(tmp_path):
    given = {**JOB, "method": "fedavg", "time.dropout": 0.0}
    timed = run_inline(tmp_path / "timed", **{**given, "time.speed": "half-normal"})
    untimed = {k: v for k, v in given.items() if not k.startswith("time.")}
    plain = run_inline(tmp_path / "plain", **untimed)
    assert timed["clock-seconds"] > 0
    assert "clock-seconds" not in plain
    files, wanted = (outcome_of(tmp_path / name)[1] for name in ("timed", "plain"))
    assert files.keys() - wanted.keys() == {"time.csv"}
    assert files | wanted == files


def test_twice_the_epochs_take_twice_the_time(tmp_path):
    took = [
        run_inline(
            tmp_path / str(epochs),
            **{"num-rounds": 2, "time.speed": "log-normal", "train.local-epochs": epochs},
        )["clock-seconds"]
        for epochs in (1, 2)
    ]
    assert took[1] == pytest.approx(2 * took[0])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["time.spread=1.0"], "has no effect without"),
        (["rounds.late=drop"], ""),
        (["method=fedbuff", "fedbuff.base=scaffold"], "more than an average"),
        (["method=fedbuff", "dp.noise-multiplier=1.0"], "more than the average"),
        (["rounds.deadline=9", "rounds.late=keep", "method=scaffold"], "more than an average"),
        (["rounds.deadline=9", "rounds.late=partial", "method=scaffold"], "all local steps"),
        (["rounds.deadline=9", "rounds.late=partial", "method=ditto"], "a second model"),
        (["rounds.deadline=9", "rounds.late=partial", "method=fedboost"], "options of train"),
        (
            [
                "rounds.deadline=9",
                "rounds.late=partial",
                "method=warm-start",
                "warm-start.first=fedavg",
                "warm-start.then=pfedme",
            ],
            "inner-steps",
        ),
        (["method=fedbuff", "fedbuff.buffer=6"], "5 clients train"),
        (["time.speed=file", "time.file=nowhere.csv"], "nowhere.csv"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path, words, why, capsys):
    code = main(["run", *words, "num-rounds=2", "--engine", "inline", "--out", str(tmp_path / "o")])
    said = capsys.readouterr()
    assert bool(code) == bool(why)
    assert why in said.err + said.out
    assert "Traceback" not in said.err


def test_a_run_whose_clients_are_all_late_fails_and_says_why(tmp_path, capsys):
    words = ["rounds.deadline=0.001", "num-rounds=5", "time.speed=equal"]
    assert main(["run", *words, "--engine", "inline", "--out", str(tmp_path)]) == 1
    assert summary_of(tmp_path)["status"] == "failed"
    assert "5 clients were late: raise rounds.deadline" in capsys.readouterr().err
