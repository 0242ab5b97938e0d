"""The study of contests on natural federations, on small synthetic ones: who is held
out, that no stage reads their scores, and the tables that are printed.
"""

import sys
from contextlib import nullcontext
from itertools import chain

import numpy as np
import pytest

from benchmarks.contest import in_process
from benchmarks.truths import SIZES
from experiments.natural import contests
from tests.fedapps.lab.contests.sites import write_sites
from tests.helpers import refused, write_file

SITES = [f"site-{k:02d}" for k in range(1, 6)]
GIVEN = {
    "task": "regression",
    "data.source": "data.csv",
    "data.natural-id": "client",
    "data.label": "y",
    "data.part": "part",
    "train.batch-size": 16,
    "train.local-epochs": 1,
}


def test_the_tables_are_read_as_the_experiments_say():
    known = contests.federations()
    assert len(known) == 13
    for name, key, value in (
        ("InstEval", "data.categorical", "dept"),
        ("Contraception", "task", "tabular"),
        ("School", "task", "regression"),
        ("BRCA", "task", "survival"),
        ("BRCA", "data.label", "target"),
        ("Shakespeare", "model.name", "char-lstm"),
    ):
        assert known[name][key] == value
    assert not any("method" in given or "train.learning-rate" in given for given in known.values())


def test_every_client_is_held_out_of_one_of_three_contests():
    names = [f"client {k}" for k in range(12)]
    thirds = [contests.third(names, number) for number in range(3)]
    assert [len(held_out) for held_out in thirds] == [4, 4, 4]
    assert sorted(chain(*thirds)) == sorted(names)
    # at four clients, three are left for the intervals
    assert {len(contests.third(names[:4], number)) for number in range(3)} == {1}


@pytest.mark.slow
def test_scores_of_the_clients_held_out_change_nothing(tmp_path, monkeypatch):
    """Their test targets are read by nobody but the table of signs."""
    monkeypatch.setattr(contests, "Pool", lambda jobs, gpus: nullcontext(in_process))
    monkeypatch.setattr(contests, "METHODS", ())
    monkeypatch.setattr("fedapps.lab.contests.setup.FOLDS", 2)
    given = {**GIVEN, "num-rounds": 8}
    given |= {"data.source": str(tmp_path / "data.csv"), "num-clients": 0, "clients-per-round": 0}
    held_out = contests.third(SITES, 0)
    results = []
    for name, poisoned in (("plain", []), ("poison", held_out)):
        write_sites(tmp_path / "data.csv", SITES, poisoned, 5)
        results.append(contests.contest(given, 0, tmp_path / name, 1))
    plain, poison = results
    assert (plain["held-out"], plain["sizes"]) == (held_out, [sum(SIZES)] * 5)
    for key in ("kind", "method", "leader", "choices", "gains", "delta"):
        assert plain[key] == poison[key], key
    assert plain["unseen"].keys() == plain["gains"].keys()
    assert plain["unseen"] != poison["unseen"]


def test_a_finished_contest_is_not_repeated_and_leaves_its_numbers(tmp_path, monkeypatch, capsys):
    def contest(given, number, folder, jobs):
        write_file(folder / "verdict.html")
        return made_up()

    write_sites(tmp_path / "data.csv", SITES)
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["contests.py", *words])
    monkeypatch.setattr(contests, "federations", lambda: {"Five": GIVEN})
    monkeypatch.setattr(contests, "contest", contest)
    contests.main()
    text = capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"Five-0.html", "Five-0.json"}
    monkeypatch.setattr(contests, "contest", None)
    contests.main()
    assert text.endswith(capsys.readouterr().out)


def test_a_table_that_is_not_there_is_named_and_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["contests.py", "--data", str(tmp_path), "School"])
    refused(lambda: contests.main(), "no contest to print", SystemExit)
    assert f"School is left out: {tmp_path / 'school.csv'} is not there" in capsys.readouterr().err


def made_up():
    """Return what is known of a contest on nine clients, of which three are held
    out.
    """
    return {
        "sizes": [10] * 9,
        "between": 0.25,
        "held-out": ["c6", "c7", "c8"],
        "kind": "use",
        "method": "ditto",
        "leader": "ditto",
        "delta": 1.0,
        "minutes": 2.0,
        "choices": ["ditto", "ditto", "ifca"],
        "gains": {
            "the choice": [5.0, 3.0, 7.0, -1.0, 11.0],
            "fedavg": [-5.0, -7.0, -3.0, -8.0, -2.0],
            "finetune": [4.0, 3.0, 5.0, 1.0, 7.0],
        },
        "unseen": {"the choice": -3.0, "fedavg": -1.0, "finetune": -2.0},
    }


def test_the_table_counts_signs_at_the_clients_held_out():
    one = made_up()
    assert contests.signs(one) == (1, 2)  # the choice's interval holds 0
    one["unseen"]["finetune"] = 0.1
    assert contests.signs(one) == (2, 2)
    row = dict(zip(contests.HEADER, contests.row("Nine", one), strict=True))
    for column, text in {
        "clients (held out)": "9 (3)",
        "between": "25 %",
        "verdict": "**use**, ditto",
        "chosen in folds": "ditto 2, ifca 1",
        "the choice over training alone": "+5.0 [3.0, 7.0]; [-1.0, 11.0]",
        "FedAvg": "-5.0 [-7.0, -3.0]; [-8.0, -2.0]",
        "signs that hold": "2 of 2",
    }.items():
        assert row[column] == text
    said = contests.printed({"Nine": [one, {**one, "kind": "alone"}]})
    assert "2 contests on 1 federations: 1 use, 1 alone, 0 either. Signs" in said
    assert "held out: 4 of 4." in said


def test_the_share_between_clients_is_the_intraclass_correlation(monkeypatch):
    class ClientSamples:
        trained = np.array([[10, 0], [0, 10]])
        sizes = np.array([[10, 0, 2], [10, 0, 2]])

    monkeypatch.setattr(contests, "samples_of", lambda task, total: ClientSamples)
    assert contests.described(None, 2) == ([12, 12], 1.0)
    ClientSamples.trained = np.array([[5, 5], [5, 5]])
    assert contests.described(None, 2)[1] == 0.0
    rng = np.random.default_rng(0)
    chance = np.clip(0.5 + 0.2 * rng.normal(size=400), 0, 1)
    ones = rng.binomial(50, chance)
    ClientSamples.trained = np.stack([50 - ones, ones], 1)
    true = chance.var() / (chance.mean() * (1 - chance.mean()))
    assert contests.described(None, 400)[1] == pytest.approx(true, rel=0.1)
