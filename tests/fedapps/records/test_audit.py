"""The audit log only grows, stays in its folder and keeps what others write short."""

import json
import os
import stat

import pytest

from fedapps.records.audit import FILE, LONGEST, AuditLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / FILE


def test_lines_are_appended_for_this_user_only(path):
    for name in ("first", "second"):  # as by two programs
        AuditLog(path, run=7)(name, reason="x" * 10**6, client=None, key="")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.pop("event") for row in rows] == ["first", "second"]
    assert all(row.pop("time").endswith("+00:00") for row in rows)
    assert rows == [{"run": 7, "reason": "x" * LONGEST}] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_or_a_pipe_in_its_place_gets_nothing_and_the_run_goes_on(path, caplog):
    caplog.set_level("WARNING", "flwr")  # whatever a run in this process has set
    elsewhere = path.with_name("elsewhere")
    for make, reason in (
        (lambda: path.symlink_to(elsewhere), "Too many levels of symbolic links"),
        (lambda: os.mkfifo(path), "No such device or address"),
    ):
        make()
        AuditLog(path)("run")
        assert f"an event is not recorded: {reason}" in caplog.text
        path.unlink()
    assert not elsewhere.exists()
