"""A run that pauses after a round and is lengthened later is the uninterrupted run."""

import pytest
from safetensors.numpy import load_file

from fedapps.commands.parser import main
from fedapps.records.reader import read_run
from tests.helpers import assert_same, rounds_of, run_inline, summary_of

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
    rows = [rounds_of(folder) for folder in (whole, parts)]
    assert rows[1][2]["evaluate"]
    for key in rows[1][2].keys() - rows[0][2].keys():
        del rows[1][2][key]
    assert_same(*(dict(enumerate(own)) for own in rows))
    for name, array in load_file(whole / "model.safetensors").items():
        assert array.tobytes() == load_file(parts / "model.safetensors")[name].tobytes()
    assert read_run(whole).clients == read_run(parts).clients


def test_a_pause_needs_checkpoints(capsys):
    assert main(["run", "until=3", "checkpoint-every=0", "--engine", "inline"]) == 2
    assert "set checkpoint-every above 0" in capsys.readouterr().err
