"""Runs of a pool: finished ones are left alone, broken ones go on, failed ones are
reported beside the others.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from fedapps.errors import RunFailed
from fedapps.runs import execution as run_module
from fedapps.sweeps.pool import PlannedRun, finished, run_all, run_missing, run_one
from strategies.base.rounds import Round

LASSO: dict[str, Any] = {
    "method": "fedfw",
    "task": "lasso",
    "num-clients": 3,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 2,
}


def leave_note(run: PlannedRun) -> None:
    (run.folder / "note.txt").write_text("seen")


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = PlannedRun({**LASSO, "num-rounds": 3}, tmp_path / "good")
    bad = PlannedRun({**LASSO, "num-rounds": 3, "lasso.sparsity": 0}, tmp_path / "bad")
    with pytest.raises(RunFailed, match="1 of 2 runs failed"):
        run_missing([bad, good], processes=1, after=leave_note)
    said = capfd.readouterr().err
    assert "bad: failed: " in said
    assert "sparsity" in said
    assert "good: 3 rounds in" in said
    assert finished(good.folder, rounds=3)
    assert not finished(good.folder, rounds=4)
    assert (good.folder / "note.txt").read_text() == "seen"


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    run = PlannedRun({**LASSO, "num-rounds": 2}, tmp_path / "run")
    run_one(run)
    before = (run.folder / "summary.json").stat().st_mtime_ns
    run_missing([run], rounds=2)
    assert (run.folder / "summary.json").stat().st_mtime_ns == before


def test_a_broken_run_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = (
        PlannedRun({**LASSO, "num-rounds": 6}, tmp_path / name) for name in ("whole", "broken")
    )
    run_one(whole)

    class Dies(run_module.Recorder):
        def __call__(self, now: Round) -> None:
            super().__call__(now)
            if now.number == 5:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "Recorder", Dies)
        with pytest.raises(KeyboardInterrupt):
            run_one(broken)
    assert not finished(broken.folder)
    assert run_one(broken)["rounds-completed"] == 6
    ends = [
        json.loads((run.folder / "rounds.jsonl").read_text().splitlines()[-1])
        for run in (whole, broken)
    ]
    assert ends[0]["train"] == ends[1]["train"]
    assert (whole.folder / "model.safetensors").read_bytes() == (
        broken.folder / "model.safetensors"
    ).read_bytes()


def test_no_runs_need_no_processes() -> None:
    assert list(run_all([])) == []
