"""What does not go together: an example of every rule."""

import re

import pytest

from fedapps.errors import UserError
from fedapps.settings.reading import read_settings
from fedapps.settings.rules import COUNTED, GIVEN, refuse
from tests.helpers import refused

PRIVATE = {"dp.noise-multiplier": 1.0}
SITES = {"sites.labels": "a,b", "sites.shape": "1,8,8", "task": "classification"}
#: Settings that each rule refuses, in the order of the tables, and how the line begins.
REFUSED = [
    ({"client-store": "message"}, "client-store = 'message': a resumed run"),
    ({"until": 3, "checkpoint-every": 0}, "until = 3: a paused run"),
    ({"evaluate-train": True, **PRIVATE}, "evaluate-train = true: losses on training samples"),
    ({"evaluate-train": True, "secure.on": True}, "evaluate-train = true: secure sums hide"),
    ({"sites.client": "name", **SITES}, "num-clients = 0: with sites.client = 'name'"),
    (
        {"num-new-clients": 6, "num-clients": 6},
        "num-new-clients = 6, but there are 6 clients",
    ),
    (
        {"clients-per-round": 2, "robust.rule": "trimmed-mean"},
        "clients-per-round = 2, but robust.rule = 'trimmed-mean' with num-malicious = 1 needs 3",
    ),
    ({"method": "fedbuff", "rounds.deadline": 1.0}, "rounds.deadline and rounds.over-select are"),
    ({"rounds.deadline": 1.0, "secure.on": True}, "secure.on = true: a round without its late"),
    ({"method": "fedbuff", "time.speed": "off"}, "time.speed = 'off': method fedbuff depends"),
    ({"keep-best": True, "evaluate-every": 0}, "keep-best = true: evaluate-every = 0 has one"),
    ({"early-stopping": 2, **PRIVATE}, "early-stopping = 2: scores on validation samples are"),
    ({"keep-best": True, "checkpoint-every": 0}, "keep-best = true: what clients store"),
    (
        {"max-update-norm": 2.0, "secure.on": True, **PRIVATE},
        "max-update-norm = 2.0: with secure.on = true, dp.clipping-norm",
    ),
    (
        {"method": "superfed-mm", "form": "printed", "model.start": "zero"},
        "model.start = 'zero': superfed-mm mixes",
    ),
    ({"task": "tabular", "data.synthetic": "x"}, "data.synthetic = 'x': task 'tabular'"),
    (
        {"data.synthetic": "x", "data.synthetic-use": "mix", **SITES},
        "data.synthetic-use = 'mix': the sites do not have",
    ),
    ({"data.group": "sex", **SITES}, "data.group = 'sex': sites with their own"),
    ({"data.group": "sex"}, "data.group = 'sex': task 'digits' is not scored by group"),
    (
        {"data.group-split": "a", "data.partition": "natural"},
        "data.group-split = 'a': is for files",
    ),
    (
        {"num-new-clients": 2, "num-clients": 6, "clients-per-round": 5},
        "clients-per-round = 5, but there are 4 clients that are not new: choose 1..4, or 0 for all",
    ),
    (
        {"num-clients": 4, "clients-per-round": 5},
        "clients-per-round = 5, but there are 4 clients: choose 1..4, or 0 for all",
    ),
    (
        {"method": "aaggff-s", "num-clients": 6, "clients-per-round": 3},
        "clients-per-round = 3, but aaggff-s needs all 6 clients",
    ),
    (
        {"secure.on": True, "num-clients": 6, "clients-per-round": 2},
        "secure.on = true: a secure sum has at least 3 clients, and a round has 2",
    ),
    (
        {"min-replies": 4, "num-clients": 6, "clients-per-round": 3},
        "min-replies = 4, but a round has 3 clients: choose 1..3",
    ),
]


def test_every_rule_has_an_example():
    assert len(REFUSED) == len({*GIVEN, *COUNTED})


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(given, line):
    refused(lambda: refuse(read_settings(given), COUNTED), f"^{re.escape(line)}", UserError)


def test_the_way_out_is_open():
    for given in ({"until": 3}, {"method": "superfed-mm"}, {"num-clients": 6, **SITES}):
        refuse(read_settings({"num-clients": 20, **given}), COUNTED)
