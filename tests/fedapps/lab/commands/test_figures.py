"""`fedapps figures`: writes the plots of one or several runs as files for papers."""

import re

import pytest

from fedapps.commands.parser import main


@pytest.mark.parametrize(
    ("form", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")]
)
def test_the_plots_of_a_run_become_files(write_run, capsys, form, magic):
    folder = write_run("a", rounds=4)
    assert main(["figures", str(folder), "--format", form]) == 0
    files = sorted((folder / "figures").iterdir())
    assert {path.name for path in files} >= {f"accuracy.{form}", f"train-loss.{form}"}
    assert capsys.readouterr().out.split()
    assert all(path.read_bytes().startswith(magic) for path in files)


def test_texts_of_a_pdf_are_texts_and_the_same_run_gives_the_same_file(write_run, tmp_path):
    folder = write_run("a", rounds=4)
    for out in ("one", "two"):
        main(["figures", str(folder), "--out", str(tmp_path / out)])
    one, two = ((tmp_path / out / "accuracy.pdf").read_bytes() for out in ("one", "two"))
    assert one == two
    assert re.search(rb"/FontFile2|/TrueType|/CIDFontType2", one)
    assert b"/Type3" not in one


def test_several_runs_are_compared(write_run, tmp_path):
    runs = [write_run(name, rounds=4) for name in ("a", "b")]
    assert main(["figures", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "comparison.pdf").stat().st_size > 1000


def test_a_folder_without_a_run_is_an_error(tmp_path, capsys):
    (tmp_path / "sweep" / "cells" / "a").mkdir(parents=True)
    (tmp_path / "sweep" / "cells" / "a" / "settings.toml").touch()
    assert main(["figures", str(tmp_path)]) == 2
    assert "holds no run: it has no settings.toml\n" in capsys.readouterr().err
    assert main(["figures", str(tmp_path / "sweep")]) == 2
    assert "the runs of this sweep are" in capsys.readouterr().err
