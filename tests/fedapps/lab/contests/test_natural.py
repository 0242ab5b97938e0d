"""The study of contests on natural federations, on small synthetic ones: who is held
out, that no stage reads their scores, and the tables that are printed.
"""

import shutil
import sys
from contextlib import nullcontext
from itertools import chain

import numpy as np
import pytest

from experiments.natural import contests
from fedapps.lab.contests.trials import in_process
from fedapps.lab.results.simultaneous import simultaneous
from fedapps.testing.truths import SIZES
from tests.fedapps.lab.contests.sites import write_sites

SITES = [f"site-{k:02d}" for k in range(1, 8)]
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
    """Test samples are read in the final only, so only that is repeated."""
    monkeypatch.setattr(contests, "Pool", lambda jobs, gpus: nullcontext(in_process))
    monkeypatch.setattr(contests, "METHODS", ())
    given, folder = {**GIVEN, "num-rounds": 8}, tmp_path / "contest"
    given |= {"data.source": str(tmp_path / "data.csv"), "num-clients": 0, "clients-per-round": 0}
    held_out = contests.third(SITES, 0)
    results = []
    for poisoned in ([], held_out):
        write_sites(tmp_path / "data.csv", SITES, poisoned, 5)
        for cell in folder.glob("cells/final_*"):
            shutil.rmtree(cell)
        results.append(contests.contest(given, 0, folder, 1))
    plain, poison = results
    assert plain["held-out"] == held_out
    assert plain["sizes"] == [sum(SIZES)] * 7
    assert contests.verdict_of(plain) == contests.verdict_of(poison)
    seen, unseen = ([contests.gains(one, held) for one in results] for held in (False, True))
    assert seen[0].keys() >= {"fedavg", "finetune"}
    for method, table in seen[0].items():
        assert table.shape == (5, 5)
        np.testing.assert_array_equal(table, seen[1][method])
        assert unseen[0][method].shape == (5, 2)
        assert not np.allclose(unseen[0][method], unseen[1][method])
    # one model for all is right here, also at sites that were not asked; the interval
    # of so few sites may reach delta, depending on the last bits of the race
    assert contests.verdict_of(plain).kind in ("federate", "cannot tell")
    assert contests.signs(plain)[0] == contests.signs(plain)[1] >= 2
    assert contests.signs(poison)[1] == contests.signs(plain)[1]


def test_a_finished_contest_is_not_repeated_and_leaves_its_numbers(tmp_path, monkeypatch, capsys):
    def contest(given, number, folder, jobs):
        folder.mkdir(parents=True)
        (folder / "verdict.html").touch()
        return made_up()

    write_sites(tmp_path / "data.csv", SITES)
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["contests.py", *words])
    monkeypatch.setattr(contests, "federations", lambda: {"Seven": GIVEN})
    monkeypatch.setattr(contests, "contest", contest)
    contests.main()
    text = capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"Seven-0.html", "Seven-0.json"}
    monkeypatch.setattr(contests, "contest", None)
    contests.main()
    assert text.endswith(capsys.readouterr().out)


def test_a_table_that_is_not_there_is_named_and_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["contests.py", "--data", str(tmp_path), "School"])
    with pytest.raises(SystemExit, match="no contest to print"):
        contests.main()
    assert f"School is left out: {tmp_path / 'school.csv'} is not there" in capsys.readouterr().err


def made_up(measure="accuracy"):
    """Return a contest on nine clients, of which three are held out, with scores by
    method.
    """
    rng = np.random.default_rng(0)
    clients = [f"c{k}" for k in range(9)]
    mean = {"local": 0.5, "fedavg": 0.4, "finetune": 0.6, "ditto": 0.7}
    score = {
        m: {s: {c: value + 0.001 * rng.normal() for c in clients} for s in range(5)}
        for m, value in mean.items()
    }
    for own in score["ditto"].values():
        own["c0"] -= 0.3  # loses here
        own["c7"] -= 0.9  # held out
    return {
        "sizes": [10] * 9,
        "between": 0.25,
        "held-out": ["c6", "c7", "c8"],
        "leader": "ditto",
        "measure": measure,
        "delta": 0.01,
        "minutes": 2.0,
        "race": {"ditto at 0.1": 0.1, "fedavg at 0.1": 0.1, "finetune at 0.1": 0.1},
        "dropped": {"scaffold at 0.1": "behind"},
        "left-out": {"ifca": "no"},
        "scores": score,
        "halves": score,
    }


def test_signs_are_read_at_the_clients_held_out():
    one = made_up()
    decided = {m: i for m, i in simultaneous(contests.gains(one)).items() if i.excludes_zero}
    assert set(decided) == {"fedavg", "finetune"}  # ditto loses 10 points at one of six
    assert contests.signs(one) == (2, 2)
    for own in one["scores"]["ditto"].values():
        own["c0"] += 0.3
    assert contests.signs(one) == (2, 3)  # at c7 it loses more than it gains at c6 and c8


def test_the_tables_count_clients_and_contests():
    one = made_up()
    row = dict(zip(contests.HEADER, contests.row("Nine", one), strict=True))
    for column, start in {
        "clients (held out)": "9 (3)",
        "verdict": "**federate**, ditto",
        "leader over training alone": "+15.0 [14.",
        "leader over fine-tuning": "+5.0 [",
        "wins / ties / losses over clients": "fedavg 0 / 0 / 6, finetune 6 / 0 / 0, ditto 5 / 0 / 1",
    }.items():
        assert row[column].startswith(start)
    # 2 % of the error of a mean are delta, so that 0.15 are 30 % of it
    error = contests.row("Nine", made_up("rmse"))
    assert error[7].startswith("+30.0 [")
    methods = {cells[0]: cells[1:] for cells in contests.by_method([one, one])}
    assert methods == methods | {
        "fedavg": ["0", "0 / 0 / 2", "0", "0"],
        "ditto": ["2", "0 / 2 / 0", "0", "0"],
        "scaffold": ["0", "-", "2", "0"],
        "ifca": ["0", "-", "0", "2"],
    }
    first, second = contests.rows_of("Nine", [one, one])
    assert (first[0], second[0], first[-1]) == ("Nine", "", second[-1])
    said = contests.printed({"Nine": [one, {**one, "leader": "fedavg"}]})
    assert "2 contests on 1 federations: 1 federate, 0 alone, 1 cannot tell." in said
    assert "these the leader gains more than delta in 0, less in 1. Signs" in said


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
