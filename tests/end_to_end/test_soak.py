"""A short run of ``benchmarks/soak.py``: it is correct under every kind of fault, and a
wrong record is detected.
"""

import json
import subprocess
import sys

import pytest

from benchmarks.faults import KINDS
from benchmarks.soak import LEFT_OUT, Soak, faulty_copy

pytestmark = pytest.mark.slow

ROUNDS = 2 * len(KINDS)  # every kind once


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
    """Return the sums of the counts, and the difference, after a change of the
    record.
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
    words = ("times", "left out or capped", "false successes", "false failures")
    return [sum(counts[word] for counts in soak.counts.values()) for word in words], soak.difference


def where(kinds):
    """Return the first round with a fault of one of these kinds, and its client."""
    soak = Soak("inline", ROUNDS, 0, None)
    return next((n, soak.fault(n)[1]) for n in range(1, ROUNDS + 1) if soak.fault(n)[0] in kinds)


def test_the_app_that_the_sites_get_has_the_faults(tmp_path):
    app = faulty_copy(tmp_path / "app", {}, {"num-clients": 3})  # as a deployment asks for it
    done = subprocess.run(
        [sys.executable, "-c", "from fedapps.runs.client_app import app; print(type(app))"],
        cwd=app,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fedapps.faults.Faulty" in done.stdout


def test_nothing_is_lost_and_the_model_uses_only_valid_replies(work):
    assert judged(work) == ([ROUNDS, len(LEFT_OUT) + 1, 0, 0], 0.0)


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_a_wrongly_used_reply_is_detected(work, kind):
    number, client = where([kind])

    def used(rows):
        rows[number - 1]["clients"] = sorted([*rows[number - 1]["clients"], client])
        return rows

    (_, left_out, successes, failures), difference = judged(work, used)
    assert (left_out, successes, failures) == (len(LEFT_OUT), 1, 0)
    assert difference > 1e-6


def test_an_uncapped_weight_is_detected(work):
    (_, _, successes, _), difference = judged(
        work, lambda rows: [{**row, "capped": []} for row in rows]
    )
    assert successes == 1
    assert difference > 1e-6


def test_the_rows_of_a_second_writer_are_detected(work):
    soak = Soak("inline", ROUNDS, 0, work)
    path = work / "run" / "rounds.jsonl"
    before = path.read_text()
    lines = before.splitlines(keepends=True)
    try:
        path.write_text("".join([*lines[:4], lines[2], *lines[4:]]))
        soak.judge()
    finally:
        path.write_text(before)
    assert sum(counts["doubled or out of order"] for counts in soak.counts.values()) == 1


def test_a_wrongly_skipped_client_and_a_missing_round_are_detected(work):
    (_, _, successes, failures), difference = judged(
        work, lambda rows: [{**rows[0], "clients": [0, 1, 2, 3]}, *rows[1:]]
    )
    assert (successes, failures) == (0, 1)
    assert difference > 1e-6
    (_, _, successes, _), difference = judged(work, lambda rows: rows[:4] + rows[5:])
    assert successes == 1
    assert difference > 1e-6
