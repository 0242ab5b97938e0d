"""A short run of ``benchmarks/soak.py``: it is correct under every kind of fault, and a
wrong record is detected.
"""

import json

import pytest

from benchmarks.faults import KINDS
from benchmarks.soak import LEFT_OUT, Soak, faulty_copy
from tests.helpers import printed

pytestmark = pytest.mark.slow

ROUNDS = 2 * len(KINDS)  # every kind once
RIGHT = len(LEFT_OUT) + 1  # replies that are left out, or whose weight is capped


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = tmp_path_factory.mktemp("soak")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        soak = Soak("inline", ROUNDS, 0, work)
        soak.inline()
    assert soak.ended == "completed"
    return work


def judged(work, change=lambda rows: rows):
    """Return the sums of the counts, and whether the model is another, after a change
    of the record.
    """
    path = work / "run" / "rounds.jsonl"
    before = path.read_text()
    try:
        rows = change([json.loads(line) for line in before.splitlines()])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        soak = Soak("inline", ROUNDS, 0, work, ended="completed")
        soak.judge()
    finally:
        path.write_text(before)
    words = ("left out or capped", "false successes", "false failures", "doubled or out of order")
    sums = [sum(counts[word] for counts in soak.counts.values()) for word in words]
    return *sums, soak.difference > 1e-6


def test_the_app_that_the_sites_get_has_the_faults(tmp_path):
    app = faulty_copy(tmp_path / "app", {}, {"num-clients": 3})  # as a deployment asks for it
    code = "from fedapps.runs.client_app import app; print(type(app))"
    assert "fedapps.faults.Faulty" in printed("-c", code, cwd=app)


def test_nothing_is_lost_and_the_model_uses_only_valid_replies(work):
    assert judged(work) == (RIGHT, 0, 0, 0, False)


def test_a_wrongly_used_reply_of_every_kind_is_detected(work):
    faults = Soak("inline", ROUNDS, 0, None)

    def used(rows):
        for number, row in enumerate(rows, 1):
            if faults.fault(number)[0] in LEFT_OUT:
                row["clients"] = sorted([*row["clients"], faults.fault(number)[1]])
        return rows

    assert judged(work, used) == (1, len(LEFT_OUT), 0, 0, True)


WRONG = {
    "an uncapped weight": (
        lambda rows: [{**row, "capped": []} for row in rows],
        (RIGHT - 1, 1, 0, 0, True),
    ),
    "the row of a second writer": (
        lambda rows: [*rows[:4], rows[2], *rows[4:]],
        (RIGHT, 1, 0, 1, True),
    ),
    "a wrongly skipped client": (
        lambda rows: [{**rows[0], "clients": [0, 1, 2, 3]}, *rows[1:]],
        (RIGHT, 0, 1, 0, True),
    ),
    "a missing round": (lambda rows: rows[:4] + rows[5:], (RIGHT, 1, 0, 0, True)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_record_is_detected(work, name):
    change, counts = WRONG[name]
    assert judged(work, change) == counts
