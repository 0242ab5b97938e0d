"""What is around a command: terminals, homes, folders for caches."""

import logging
import os
import subprocess
import sys

import pytest

from fedapps import surroundings
from fedapps.commands.parser import main
from fedapps.errors import UserError
from tests.helpers import ROOT, fedapps, printed, refused

# with a sign that latin-1 lacks
SAY = "print('fedapps \N{LEFT DOUBLE QUOTATION MARK}A\N{RIGHT DOUBLE QUOTATION MARK}')"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_signs_that_a_terminal_lacks_are_replaced(encoding):
    program = f"from fedapps.surroundings import settle; settle(); {SAY}"
    assert printed("-c", program, PYTHONIOENCODING=encoding) == "fedapps ?A?\n"


def test_closed_streams_and_readers_that_leave_are_no_crash():
    shell = f"{sys.executable} -m fedapps settings"
    closed = subprocess.run(["sh", "-c", f"{shell} >&-"], cwd=ROOT, stderr=-1)
    assert (closed.returncode, closed.stderr) == (0, b"")
    assert subprocess.run(["sh", "-c", f"{shell} | true"], cwd=ROOT, stderr=-1).stderr == b""


@pytest.fixture
def around(monkeypatch, tmp_path):
    """The function that sets variables and returns (what is usable, what is said)."""
    for name in ("FEDAPPS_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(surroundings.tempfile, "gettempdir", lambda: str(tmp_path))

    def set_variables(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(os, "access", lambda path, _: not str(path).startswith("/proc"))
        surroundings.settle_caches()
        return tmp_path / f"fedapps-{os.getuid()}"

    return set_variables


def test_caches_are_in_the_temporary_folder_where_a_home_cannot_be_written_to(
    around, tmp_path, capsys
):
    around(HOME=tmp_path)
    assert capsys.readouterr().err == ""
    for variables, home in (
        ({"HOME": "/nowhere/at/all"}, None),
        ({"HOME": "/proc"}, "/proc"),
        ({"HOME": tmp_path, "XDG_CACHE_HOME": "relative"}, tmp_path),
        ({"HOME": tmp_path, "XDG_CACHE_HOME": "/proc/caches"}, tmp_path),
    ):
        os.environ.pop("XDG_CACHE_HOME", None)
        place = around(**variables)
        assert {name: os.environ[name] for name in ("XDG_CACHE_HOME", "HOME")} == {
            "XDG_CACHE_HOME": str(place / ".cache"),
            "HOME": str(home or place),
        }
        assert "set FEDAPPS_CACHE and HF_HOME" in capsys.readouterr().err


def test_no_folder_at_all_is_one_line(around, tmp_path):
    (tmp_path / f"fedapps-{os.getuid()}").symlink_to(tmp_path)
    refused(
        lambda: around(HOME="/nowhere"),
        "is another user's: set FEDAPPS_CACHE and HF_HOME",
        UserError,
    )


def test_a_path_of_a_user_who_is_not_there_is_one_line():
    done = fedapps("run", "num-rounds=1", "--out", "~nobody-here/out")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "fedapps: ~nobody-here/out: there is no such user, or no home: write the whole path",
    )


@pytest.mark.parametrize("wanted", ["", "1"])
def test_flowers_log_has_no_colours_under_no_color(wanted, monkeypatch):
    handler = logging.StreamHandler()  # other tests replace Flower's, which has this attribute
    handler.colored = True
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [handler])
    monkeypatch.setenv("NO_COLOR", wanted)
    assert main(["methods"]) == 0
    assert handler.colored == (not wanted)
