"""Fingerprints of experiments: what is a move, and that a moved default is one."""

import json
import sys

import pytest

from tests.helpers import ROOT, lacking, refused, write_file
from tools import fingerprints
from tools.fingerprints import CLOSE, FILE, cut_runs, differences, fingerprint, moved


def test_every_quoted_sweep_with_bundled_data_or_a_stand_in_has_numbers():
    known = json.loads(FILE.read_text(encoding="utf-8"))
    expected = {
        f"{path.parent.name}/{path.stem} {run}"
        for path in fingerprints.quoted()
        for run in cut_runs(path)
    }
    assert expected == known.keys()
    assert [name.split()[0] for name in known if not known[name]] == ["ffgb-distill/mnist-rates"]
    assert len({name.split()[0] for name in known}) > 45
    table = cut_runs(ROOT / "experiments" / "superfed" / "table-2.3.toml").values()
    assert len({config["method"] for config in table}) == 12  # also those that "small" leaves out


@pytest.mark.parametrize(
    ("new", "differs"),
    [
        ({"loss-mean": 1.0 + CLOSE / 2}, False),
        ({"loss-mean": 1.0 - CLOSE / 2}, False),
        ({"loss-mean": 1.0 + 2 * CLOSE}, True),
        ({"loss-mean": 1.0, "objective": 2.0}, False),  # a number that is not kept
        ({}, True),
    ],
)
def test_a_number_has_moved_if_it_differs_or_goes(new, differs):
    assert bool(differences({"loss-mean": 1.0}, new)) == differs


def test_new_and_old_names_are_no_silence():
    known, found = {"a x": {"loss": 1.0}, "a y": {"loss": 1.0}}, {"loss": 1.0}
    wrong = moved(known, {"a x": found, "b": found})
    assert wrong == {
        "a y": ["no run has this name any more"],
        "b": ["has no numbers to compare with"],
    }


def test_a_run_and_a_sweep_that_fail_are_named_and_the_others_are_compared(
    monkeypatch, tmp_path, capsys
):
    text = 'method = "nobody"\n[axis.a]\nb = {}\n[sweep]\nrows = ["a"]\n'
    bad = write_file(tmp_path / "experiments" / "mine" / "twice.toml", text)
    good = ROOT / "experiments" / "fedfw" / "falling-step.toml"
    broken = write_file(tmp_path / "broken.toml", "a = ")
    first, second, *_ = cut_runs(good)
    known = {f"fedfw/falling-step {name}": {"objective": 2.0} for name in (first, second)}
    runs = {first: {"method": "fedfw", "num-rounds": "many"}, second: cut_runs(good)[second]}
    monkeypatch.setattr(fingerprints, "quoted", lambda: [bad, broken, good])
    monkeypatch.setattr(fingerprints, "FILE", tmp_path / "fingerprints.json")
    monkeypatch.setattr(fingerprints, "cut_runs", lambda path: runs if path == good else read(path))
    read = cut_runs
    fingerprints.FILE.write_text(json.dumps(known))
    monkeypatch.setattr("sys.argv", ["fingerprints"])
    assert fingerprints.main() == 1
    assert not lacking(
        capsys.readouterr().out,
        f"fedfw/falling-step {first}: UserError: num-rounds = 'many'",
        f"mine/twice: {bad}: method = 'nobody'",
        "broken.toml: cannot be read as TOML",
        f"fedfw/falling-step {second}: objective ",
    )
    monkeypatch.setattr("sys.argv", ["fingerprints", "--write"])
    assert fingerprints.main() == 1
    assert json.loads(fingerprints.FILE.read_text()) == known  # numbers are whole or not written


def test_a_run_that_ends_its_process_and_a_broken_file_are_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fingerprints, "fingerprint", lambda config: sys.exit(0))
    refused(lambda: fingerprints._quietly({}), "the run ended with status 0", RuntimeError)
    monkeypatch.setattr(fingerprints, "FILE", tmp_path / "fingerprints.json")
    for text in ("", "[]", '{"a b": {"loss": "small"}}'):
        fingerprints.FILE.write_text(text)
        assert fingerprints._known() == {}
        assert "fingerprints.json cannot be read" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["fingerprints", "nowhere"])
    refused(fingerprints.main, "2", SystemExit)
    assert "no sweep to run has nowhere in its name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sweep", "run", "key", "value"),
    [
        ("fedboost/appendix-d", "", "max-weight", 1.0),  # a bound was its default
        ("aaggff/berka", "AAggFF-S", "aaggff.ridge", "reference"),
        ("superfed/personal-baselines", "", "train.max-gradient-norm", 0.5),
    ],
)
def test_another_default_moves_the_numbers_of_the_tree(sweep, run, key, value):
    name, config = next(
        (name, config)
        for name, config in cut_runs(ROOT / "experiments" / f"{sweep}.toml").items()
        if run in name
    )
    known = json.loads(FILE.read_text(encoding="utf-8"))[f"{sweep} {name}"]
    assert not differences(known, fingerprint(config))
    assert differences(known, fingerprint({**config, key: value}))
