"""Runs of a pool: finished ones are kept, broken ones continue, failed ones are
reported with the others.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from fedapps.runs import execution as run_module
from fedapps.sweeps.pool import PlannedRun, finished, run_all, run_one
from strategies.base.rounds import Round

LASSO: dict[str, Any] = {
    "method": "fedfw",
    "task": "lasso",
    "num-clients": 3,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 2,
}


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_other(tmp_path: Path) -> None:
    good = PlannedRun({**LASSO, "num-rounds": 3}, tmp_path / "good")
    bad = PlannedRun({**LASSO, "num-rounds": 3, "lasso.sparsity": 0}, tmp_path / "bad")
    lines = [str(ended) for ended in run_all([bad, good], 1)]
    assert lines[0].startswith("bad: failed: ")
    assert "sparsity" in lines[0]
    assert lines[1].startswith("good: 3 rounds in")
    assert finished(good.folder)
    assert not finished(bad.folder)


def test_a_broken_run_continues_from_its_checkpoint(
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


def test_without_runs_no_process_is_started() -> None:
    assert list(run_all([], 1)) == []
