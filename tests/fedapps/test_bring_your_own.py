"""`docs/bring-your-own.md` from an empty folder: its files, its commands and its
result, exactly as printed.
"""

import re
import shlex
import sys

import pytest

from fedapps.commands.parser import main
from fedapps.records.reader import read_run
from tests.helpers import ROOT, lacking, printed

PAGE = (ROOT / "docs" / "bring-your-own.md").read_text(encoding="utf-8")


def blocks(kind):
    tutorial = PAGE.partition("## On three SuperNodes")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", tutorial, re.S | re.M)


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*(entry for entry in sys.path if entry), str(tmp_path)])
    for code in blocks("python"):
        (tmp_path / code.split("\n")[0].removeprefix("# ")).write_text(code)
    (tmp_path / "visits.toml").write_text(blocks("toml")[0])
    printed("make_visits.py")
    commands = [
        line for block in blocks("sh") for line in block.splitlines() if line.startswith("fedapps")
    ]
    assert [line.split()[1] for line in commands] == [
        "data",
        "run",
        "run",
        "run",
        "compare",
        "export",
    ]
    for line in commands:
        words = shlex.split(line)[1:]
        assert main([*words, "num-rounds=2"] if words[0] == "run" else words) == 0, line
    said = capsys.readouterr().out
    assert lacking(said, "5 clients (natural by hospital), 3 classes", "Gain over local") == []
    said = printed("use_bern.py")
    assert re.fullmatch(r"tensor\(\[\[0\.\d+, 0\.\d+, 0\.\d+\]\]\)\n", said)
    bern = next(row for row in read_run("results/fedper").clients if row["client"] == "bern")
    assert bern["test-samples"] == 12


def test_its_sites_describe_the_files():
    """The description of the sites' samples that the server gets matches the files of
    the page.
    """
    (line,) = re.findall(r"sites\.labels=(\S+) sites\.shape=(\S+)", PAGE)
    header = re.search(r"writerow\(\[(.*?)\]\)", PAGE)
    assert header is not None
    features = [
        name for name in re.findall(r'"(\w+)"', header[1]) if name not in ("hospital", "outcome")
    ]
    assert line == ("0,1,2", f"1,1,{len(features)}")
