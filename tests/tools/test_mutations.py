"""The command that breaks central lines: its file fits the repository, and it tells
what is caught from what survives.
"""

import pytest

from tests.helpers import ROOT, refused
from tools.mutations import Mutation, read, tracked, verdict


def test_every_line_is_there_once_and_every_test_is_there():
    for mutation in read(ROOT / "tools" / "mutations.toml", tracked(ROOT)):
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert mutation.applied(text) != text
        for test in mutation.tests:
            path, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [("a * b", "caught"), ("b + a", "SURVIVED"), ("a +", "NO TEST RAN")],
)
def test_a_copy_is_broken_tried_and_mended(broken, expected, tmp_path):
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    )
    mutation = Mutation("sums.py", "a + b", broken, "", ["test_sums.py::test_add"])
    assert verdict(mutation, tmp_path).startswith(expected)
    assert (tmp_path / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_a_line_that_is_not_there_once_and_a_path_of_two_files_are_told(tmp_path):
    refused(
        lambda: Mutation("a.py", "x", "y", "", []).applied("x x"),
        r"a\.py holds 'x' 2 times: must be once",
    )
    path = tmp_path / "mutations.toml"
    path.write_text(
        "[[mutation]]\nfile = 'a.py'\nline = 'x'\nbroken = 'y'\nbreaks = ''\ntests = []\n"
    )
    for names, number in ((["one/a.py", "two/a.py"], 2), (["one/ba.py"], 0)):
        refused(lambda: read(path, names), rf"'a\.py' is the end of {number} paths")
