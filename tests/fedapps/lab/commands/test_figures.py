"""`fedapps figures`: writes the plots of one or several runs as files for papers."""

import re

from fedapps.commands.parser import main
from fedapps.lab.charts.files import file
from fedapps.lab.results.parts import run_figures
from fedapps.records.reader import read_run


def test_the_plots_of_a_run_become_files(write_run, capsys):
    folder = write_run("a", rounds=4)
    assert main(["figures", str(folder), "--format", "svg"]) == 0
    files = sorted((folder / "figures").iterdir())
    assert {path.name for path in files} >= {"accuracy.svg", "train-loss.svg"}
    assert len(capsys.readouterr().out.split()) == len(files)
    assert all(path.read_bytes().startswith(b"<?xml") for path in files)


def test_texts_of_a_pdf_are_texts_and_the_same_figure_gives_the_same_file(write_run):
    figure = run_figures(read_run(write_run()))["accuracy"]
    pdf, png = file(figure, "pdf"), file(figure, "png")
    assert pdf == file(figure, "pdf")
    assert pdf.startswith(b"%PDF")
    assert png.startswith(b"\x89PNG")
    assert re.search(rb"/FontFile2|/TrueType|/CIDFontType2", pdf)
    assert b"/Type3" not in pdf


def test_several_runs_are_compared(write_run, tmp_path):
    runs = [write_run(name, rounds=4) for name in ("a", "b")]
    assert main(["figures", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "comparison.pdf").stat().st_size > 1000


def test_a_folder_without_a_run_is_an_error(tmp_path, capsys):
    (tmp_path / "sweep" / "cells" / "a").mkdir(parents=True)
    (tmp_path / "sweep" / "cells" / "a" / "settings.toml").touch()
    for folder, said in (("", "it has no settings.toml\n"), ("sweep", "runs of this sweep are")):
        assert main(["figures", str(tmp_path / folder)]) == 2
        assert said in capsys.readouterr().err
