"""Fingerprints of experiments: what is a move, and that a moved default is one."""

import json

import pytest

from tests.helpers import ROOT
from tools import fingerprints
from tools.fingerprints import CLOSE, FILE, cut_runs, differences, fingerprint


def test_every_quoted_sweep_with_bundled_data_or_a_stand_in_has_numbers():
    known = json.loads(FILE.read_text(encoding="utf-8"))
    expected = {
        f"{path.parent.name}/{path.stem} {run}"
        for path in fingerprints.quoted()
        for run in cut_runs(path)
    }
    assert expected == known.keys()
    (private,) = (name for name, numbers in known.items() if not numbers)
    assert private.startswith("fedevg/privacy ")  # its noise has no seed
    assert len({name.split()[0] for name in known}) > 45


@pytest.mark.parametrize(
    ("new", "moved"),
    [
        ({"loss-mean": 1.0 + CLOSE / 2}, False),
        ({"loss-mean": 1.0 - CLOSE / 2}, False),
        ({"loss-mean": 1.0 + 2 * CLOSE}, True),
        ({"loss-mean": 1.0, "objective": 2.0}, False),  # a number that is not kept
        ({}, True),
    ],
)
def test_a_number_has_moved_if_it_differs_or_goes(new, moved):
    assert bool(differences({"loss-mean": 1.0}, new)) == moved


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
