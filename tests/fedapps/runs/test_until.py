"""A run that pauses after a round and is lengthened later is the uninterrupted run."""

import pytest

from fedapps.commands.parser import main
from tests.helpers import outcome_of, run_inline, summary_of

SETTINGS = {"num-clients": 4, "num-rounds": 6, "clients-per-round": 2, "evaluate-every": 2}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold", "ifca", "superfed-mm"])
def test_a_paused_and_lengthened_run_equals_a_whole_one(tmp_path, method, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_inline(whole, f"method={method}", **SETTINGS, seed=3)
    # round 3 is scored for the pause only; schedules go by num-rounds in each part
    run_inline(parts, f"method={method}", "--until", "3", **SETTINGS, seed=3)
    assert "paused after round 3" in capsys.readouterr().out
    assert (summary_of(parts)["status"], summary_of(parts)["rounds-completed"]) == (
        "interrupted",
        3,
    )
    for words in (["--until", "3"], ["--until", "4"], []):
        words = ["run", "--resume", "--out", str(parts), "--engine", "inline", *words]
        assert main(words) == 0
    assert summary_of(parts)["status"] == "completed"
    (rows, files), wanted = outcome_of(parts), outcome_of(whole)
    assert rows[2]["evaluate"]
    rows[2] = {key: value for key, value in rows[2].items() if key in wanted[0][2]}
    assert (rows, files) == wanted
