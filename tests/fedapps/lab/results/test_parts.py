"""The list of plots and tables: every page uses it, a part that does not apply returns
nothing, and plots become files. Groups on the page and in comparisons: counts for few
samples, the skipped clients, and no foreign text taken for markup.
"""

import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from fedapps.commands.parser import main
from fedapps.lab.api import load
from fedapps.lab.charts.canvas import Area, Line, Text
from fedapps.lab.charts.drawing import svg
from fedapps.lab.charts.files import file
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results import fair_plots
from fedapps.lab.results.compare import compare
from fedapps.lab.results.grid_plots import X_LABELS, line_of
from fedapps.lab.results.parts import (
    COMPARISON,
    PLOTS,
    RUN,
    run_figures,
    run_sections,
)
from fedapps.lab.results.report import show_ending, write_report
from fedapps.lab.results.run_plots import comparison_figure
from fedapps.lab.results.run_tables import gaps_section, groups_section
from fedapps.records import writer
from fedapps.records.reader import read_run
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.named_grid import Exchange
from fedapps.strategies.base.rounds import Round
from tests.helpers import assert_arrays, lacking, rounds_of, summary_of, write_file


@pytest.fixture
def full(write_run):
    """A run that has data for every part of its page."""
    last = {"accuracy-mean": 0.75, "accuracy-worst10": 0.5, "accuracy-best10": 1.0, "f1-mean": 0.5}
    curves = {"lambda": [0.0, 1.0], "lambda-accuracy": [0.5, 0.75]}
    path = write_run("full", rounds=4, last=last, curves=curves)
    (path / "weights.csv").write_text("round,client,weight\n1,0,0.25\n1,1,0.75\n")
    (path / "confusion.csv").write_text("actual,a,b\na,7,3\nb,1,9\n")
    (path / "clients.csv").write_text("client,accuracy,test-samples\n0,0.5,10\n1,1.0,10\n")
    lines = map(json.loads, (path / "rounds.jsonl").read_text().splitlines())
    counted = {"models-up": 2, "models-down": 4, "counts-models": True}
    rows = [json.dumps(row | counted | {"clock-seconds": row["round"]}) for row in lines]
    (path / "rounds.jsonl").write_text("\n".join(rows) + "\n")
    return path


def names(page):
    return re.findall(r'<figure class="chart" data-name="(.*?)"', page)


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_full_run_has_every_plot_of_the_list_and_an_empty_one_has_none(full, tmp_path):
    (tmp_path / "settings.toml").write_text('method = "fedavg"\n')
    run, empty = read_run(full), read_run(tmp_path)
    assert [plot.title for plot in PLOTS[RUN] if not plot.figures(run)] == []
    assert [plot.title for plot in PLOTS[RUN] if plot.figures(empty)] == []
    assert run_sections(empty) == []


def test_report_and_notebook_show_the_same(full):
    wanted = list(run_figures(read_run(full)))
    report = write_report(full).read_text()
    assert sorted(names(report)) == sorted(wanted)
    assert list(load(full).plot()) == wanted
    (section,) = run_sections(read_run(full))
    assert section.title in headings(report)
    assert section.title in printed(section)


def test_a_comparison_shows_its_parts(full, write_run):
    other = write_run("other", "local", rounds=4, clients=[(0, 0.25), (1, 0.5)])
    comparison = compare([full, other])
    page = comparison.report.read_text()
    assert names(page) == [plot.name for plot in PLOTS[COMPARISON]] == list(comparison.figures())
    assert [section.title for section in comparison.sections] == headings(page)[:2]
    assert list(compare([full], out=comparison.out).figures()) == ["comparison"]


@pytest.mark.parametrize(
    ("confusion", "r2", "said"),
    [
        ("a,7,3\nb,1,9\n", None, ""),
        ("a,90,4\nb,6,0\n", None, "right for 90.0 % of all test samples, always answering 'a' for 94.0 %"),
        ("a,90,4\nb,2,4\n", None, ""),  # as good as it
        ("", -0.25, "always answering the mean of all test samples has a smaller error (R² -0.25)"),
        ("", 0.1, ""),
    ],
)  # fmt: skip
def test_a_run_below_the_trivial_predictor_says_so_first(write_run, capsys, confusion, r2, said):
    path = write_run("run", last={"accuracy-mean": 0.9} | ({"r2-pooled": r2} if r2 else {}))
    if confusion:
        (path / "confusion.csv").write_text(f"actual,a,b\n{confusion}")
    show_ending(path, Console(width=200))
    page = write_report(path).read_text()
    for text in (capsys.readouterr().out, page.replace("&#x27;", "'")):
        assert ("Below the trivial predictor" in text) == bool(said)
        assert said in text
    assert not said or page.index("Below") < page.index("<h2>")


# --- files ----------------------------------------------------------------------------


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


def test_a_folder_without_a_run_is_an_error(tmp_path, error_of):
    write_file(tmp_path / "sweep" / "cells" / "a" / "settings.toml")
    for folder, said in (("", "it has no settings.toml\n"), ("sweep", "runs of this sweep are")):
        assert said in error_of("figures", tmp_path / folder)


# --- groups ---------------------------------------------------------------------------


TWO = "group,clients,samples,right,accuracy,selected,tpr,fpr,ece,tp,fp,fn,tn\n"


def with_groups(path, text, left_out=()):
    (path / "groups.csv").write_text(text)
    settings = (path / "settings.toml").read_text().replace("[data]", '[data]\ngroup = "sex"')
    (path / "settings.toml").write_text(settings)
    lines = (path / "rounds.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {
        "left-out": [{"client": client, "reason": "group-sums: x"} for client in left_out]
    }
    (path / "rounds.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    return path


def printed(section):
    console = Console(file=io.StringIO(), width=200)
    console.print(section.terminal())
    return console.file.getvalue()


def test_small_groups_show_counts(write_run):
    # f: 100 samples, 60 of class 1; m: 30 samples, 8 of class 1 and 22 of class 0.
    text = (
        TWO
        + "f,3,100,80,0.8,0.56,0.8,0.2,0.05,48,8,12,32\nm,2,30,27,0.9,0.3,0.75,0.13636,0.11,6,3,2,19\nnone,0,0,0,,,,,,0,0,0,0\n"
    )
    path = with_groups(
        write_run(
            last={"accuracy-mean": 0.8, "group-accuracy-gap": 0.1, "equalised-odds-gap": 0.0625}
        ),
        text,
        ["7"],
    )
    section = groups_section(read_run(path))
    assert [section.header, *section.rows] == [
        ("group", "samples", "clients", "accuracy", "predicted 1", "TPR", "FPR", "ECE"),
        ("f", "100", "3", "80.0 %", "56.0 %", "80.0 %", "20.0 %", "0.050"),
        ("m", "30", "2", "90.0 %", "30.0 %", "6 of 8", "13.6 %", "0.110"),
        ("none", "0", "0", "-", "-", "-", "-", "-"),
    ]
    said = ("by sex", "fewer than 20 samples", "accuracy gap 10.0 %", "equalised odds 6.2 %")
    assert lacking(section.note, *said, "of client 7") == []
    # measured: 10 points; equal groups differ by about 0.8 sqrt(0.823 0.177 (1/100 +
    # 1/30)) = 6 points
    found = re.search(r"part of chance: ([\d.]+) % \(([\d.]+) to ", section.note)
    estimate, low = map(float, found.groups())
    assert low == 0 < estimate < 8
    page = write_report(path).read_text(encoding="utf-8")
    # the last on a card
    assert lacking(page, "<h2>Groups</h2>", "6 of 8", "equalised odds gap") == []


def test_with_more_than_two_classes_rates_have_no_counts(write_run):
    text = TWO + "a,1,19,10,0.5263,,0.5,0.2,0.1,,,,\nb,1,20,10,0.5,,0.5,0.2,0.1,,,,\n"
    section = groups_section(read_run(with_groups(write_run(), text)))
    assert (section.header, *section.rows) == (
        ("group", "samples", "clients", "accuracy", "TPR", "FPR", "ECE"),
        ("a", "19", "1", "10 of 19", "-", "-", "-"),
        ("b", "20", "1", "50.0 %", "50.0 %", "20.0 %", "0.100"),
    )


def test_runs_side_by_side(write_run):
    gaps = {"group-accuracy-gap": 0.1, "equalised-odds-gap": 0.2, "accuracy-mean": 0.5}
    runs = [
        with_groups(
            write_run(f"a{s}", seed=s, last={**gaps, "equalised-odds-gap": 0.2 + 0.1 * s}), TWO
        )
        for s in (0, 1)
    ]
    runs += [
        with_groups(write_run("b", "local", last={**gaps, "equalised-odds-gap": 0.05}), TWO),
        write_run("c", "ditto"),
    ]
    comparison = compare(runs)
    (section,) = [section for section in comparison.sections if section.title == "Groups"]
    assert (section.header, section.rows) == (
        ("method", "accuracy gap", "equalised odds"),
        (("fedavg", "10.0 % ±0.0", "25.0 % ±7.1"), ("local", "10.0 %", "5.0 %")),
    )
    assert "by sex" in printed(section)
    assert "25.0 % ±7.1" in comparison.report.read_text(encoding="utf-8")
    assert (gaps_section(comparison.rows[-1:]), groups_section(read_run(runs[-1]))) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "group\n",
        "<b>,1\n",
        TWO + "<script>,x,y,[bold]z,nan,,,,,,,,\n",
        TWO + "a,1,-5,9,inf,2,,,,1,1\n",
    ],
)
def test_damaged_tables_are_shown_as_far_as_possible(text, write_run):
    path = with_groups(write_run(), text)
    section = groups_section(read_run(path))
    if section is not None:
        assert printed(section)
    assert "<script>" not in write_report(path).read_text(encoding="utf-8")


# --- weights, bars and models sent ----------------------------------------------------


def decides(weights):
    """Return a strategy that has decided weights."""
    return SimpleNamespace(last_weights=weights)


def record(folder, strategy, rounds, done=0, answered=("a", "b"), num_rounds=12):
    settings = read_settings({"method": "fedavg", "num-rounds": num_rounds}).flat()
    recorder = writer.Recorder(folder, settings, "digits", strategy, done)
    for number in rounds:
        recorder(Round(number, num_rounds, None, Exchange("train", list(answered)), None))


def weights_of(folder):
    with (folder / "weights.csv").open(newline="") as file:
        return list(csv.reader(file))


def drawn(figure):
    """The texts of a figure, after drawing it, which raises if a shape cannot
    be drawn.
    """
    assert file(figure, "png")
    assert svg(figure)
    return [shape.text for shape in figure.shapes() if isinstance(shape, Text)]


def with_weights(path, rows):
    with (path / "weights.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("round", "client", "weight"), *rows])
    return path


# --- weights.csv ----------------------------------------------------------------------


def test_weights_are_written_by_client(tmp_path):
    record(tmp_path, decides({"a": 0.25, "b,": 0.75}), [1, 2])
    assert weights_of(tmp_path)[0] == ["round", "client", "weight"]
    assert read_run(tmp_path).weights == [
        (r, c, w) for r in (1, 2) for c, w in (("a", 0.25), ("b,", 0.75))
    ]


@pytest.mark.parametrize(
    ("strategy", "answered"), [(object(), ("a",)), (decides({}), ("a",)), (decides({"a": 1.0}), ())]
)
def test_no_weights_no_file(tmp_path, strategy, answered):
    """Methods without weights write no file, and rounds without replies write no rows,
    since the weights are then those of an earlier round.
    """
    record(tmp_path, strategy, [1], answered=answered)
    assert not (tmp_path / "weights.csv").exists()
    assert read_run(tmp_path).weights == []
    assert "weights" not in run_figures(read_run(tmp_path))


def test_a_resume_drops_weights_of_rounds_after_the_checkpoint(tmp_path):
    record(tmp_path, decides({0: 0.5, 1: 0.5}), range(1, 8))
    with (tmp_path / "weights.csv").open("a") as file:
        file.write("8,0")  # the run was killed while writing
    record(tmp_path, decides({0: 0.25, 1: 0.75}), [5], done=4)
    assert "".join(row[0] for row in weights_of(tmp_path)[1:]) == "1122334455"
    assert weights_of(tmp_path)[-1] == ["5", "1", "0.75"]
    record(tmp_path, decides({}), [])  # from the beginning
    assert not (tmp_path / "weights.csv").exists()


def test_size_is_bounded_and_the_same_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WEIGHTS", 100)
    weights = dict.fromkeys(range(10), 0.1)
    record(tmp_path / "whole", decides(weights), range(1, 96), num_rounds=95)
    record(tmp_path / "two", decides(weights), range(1, 40), num_rounds=95)
    record(tmp_path / "two", decides(weights), range(34, 96), done=33, num_rounds=95)
    assert {row[0] for row in weights_of(tmp_path / "whole")[1:]} == {
        str(number) for number in range(1, 96, 10)
    }
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "two")


# --- the heat map ---------------------------------------------------------------------


def test_heat_map_table_by_hand():
    weights = [(1, "2", 0.5), (1, "10", 0.5), (3, "2", 1.0), (4, "site", 0.25), (4, "10", 0.75)]
    rounds, clients, table = fair_plots.weights_table(weights)
    assert (rounds, clients) == ([1, 3, 4], ["2", "10", "site"])
    nan = np.nan
    np.testing.assert_array_equal(table, [[0.5, 1.0, nan], [0.5, nan, 0.75], [nan, nan, 0.25]])


OFTEN = [(r, k, 0.2) for r in range(1, 51) for k in (*range(r, r + 4), 900)]
OFTEN += [(51, k, 0.01) for k in range(100, 200)]


@pytest.mark.parametrize(
    ("rows", "label", "shown", "left_out"),
    [
        (OFTEN, "the 40 of 154 clients that were sampled most often", {"900", "4"}, "100"),
        (
            [(r, k, (k + 1) / 1275) for r in (1, 2) for k in range(50)],
            "the 40 of 50 clients with the largest weights",
            {"10"},
            "9",
        ),
    ],
)
def test_of_many_clients_some_are_shown_and_the_label_says_which(
    write_run, rows, label, shown, left_out
):
    texts = drawn(fair_plots.weights_figure(read_run(with_weights(write_run(), rows)), THEME))
    assert lacking(texts, label, *shown, left_out) == [left_out]


def test_many_rounds_are_averaged_over_those_with_the_client():
    table = np.full((1, 480), np.nan)
    table[0, 0], table[0, 2:4] = 0.5, (0.25, 0.75)
    edges, means = fair_plots._fewer_columns(range(1, 481), table)
    assert_arrays((edges, means[0]), (np.arange(0.5, 481, 2), [0.5, 0.5] + [np.nan] * 238))


def test_damaged_weights_are_ignored(write_run):
    path = write_run()
    (path / "weights.csv").write_text(
        "round,client,weight\n1,a,nan\n1,b\nx,c,0.5\n2,a,zz\n\n1,<b>$,1\n"
    )
    run = read_run(path)
    assert run.weights == [(1, "<b>$", 1.0)]
    drawn(fair_plots.weights_figure(run, THEME))


# --- clients' bars and columns of a comparison ----------------------------------------


def bars(figure, panel):
    shapes = [shape for shape in figure.panels[panel].shapes if isinstance(shape, Area)]
    return [ring[:, 1].max() for shape in shapes for ring in shape.rings]


def test_bars_are_sorted_and_are_means_over_seeds(write_run):
    a0, a1, b = (
        read_run(write_run(name, name[0], seed, clients=list(enumerate(values))))
        for name, values, seed in (
            ("a0", (0.5, 0.9, 0.1), 0),
            ("a1", (0.3, 0.2, 0.8), 1),
            ("b", (0.6, 0.4, 0.5), 0),
        )
    )
    figure = fair_plots.client_bars({"a": [a0, a1], "b": [b]}, THEME)
    np.testing.assert_allclose(bars(figure, 0), [0.15, 0.4, 0.85])
    np.testing.assert_allclose(bars(figure, 1)[:3], [0.4, 0.5, 0.6])
    # the one run of b names its clients
    wanted = ("mean 46.7 · worst 15.0 · gap 70.0", "a, for comparison", "0", "1", "2")
    assert lacking(drawn(figure), *wanted) == []


def test_scores_of_the_global_model_have_room_above_the_bars(write_run):
    path = write_run()
    (path / "clients.csv").write_text("client,accuracy,global-accuracy\n0,0.5,0.9\n1,0.25,0.1\n")
    figure = fair_plots.own_bars(read_run(path), THEME)
    assert "global model" in drawn(figure)
    assert figure.panels[0].limits()[1] == (0, 1.02)


def test_bars_of_many_clients_methods_and_unlike_runs(write_run):
    runs = [
        read_run(write_run(f"r{i}", seed=i, clients=[(k, k / (100 + i)) for k in range(60 + i)]))
        for i in range(10)
    ]
    groups = {"$m0": runs[:2], **{f"$m{i}": runs[i : i + 1] for i in range(2, 10)}}
    assert lacking(drawn(fair_plots.client_bars(groups, THEME)), "$m8", "$m9") == [
        "$m9"
    ]  # eight at most


def test_clients_are_compared_by_auroc_where_all_have_it(write_run):
    path, other = write_run("a", last={"auroc-mean": 0.4, "accuracy-mean": 0.9}), write_run("b")
    (path / "clients.csv").write_text("client,auroc,accuracy\n0,0.5,0.9\n1,0.25,1\n")
    one, two = read_run(path), read_run(other)
    assert [fair_plots.fair_measure(runs) for runs in ([one], [one, two])] == ["auroc", "accuracy"]
    assert "auroc" in run_figures(one)


# --- models sent ----------------------------------------------------------------------

JOB = ["run", "--engine", "inline", "--nodes", "6", "clients-per-round=3", "num-rounds=4"]
JOB += ["evaluate-every=2", "task=tabular"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method, own in (("ffgb", ["ffgb.local-steps=2"]), ("fedavg", [])):
        assert main([*JOB, f"method={method}", *own, "--out", str(folder / method)]) == 0
    return folder


def test_rounds_and_summary_count_models(runs):
    for method, up in (("fedavg", 3), ("ffgb", 6)):
        rounds, summary = rounds_of(runs / method), summary_of(runs / method)
        assert [row["models-up"] for row in rounds] == [up] * 4
        for key in ("models-up", "models-down"):
            assert summary[key] == sum(row[key] for row in rounds)
    assert [row["models-down"] for row in rounds_of(runs / "fedavg")] == [3] * 4


def test_bytes_follow_models(runs):
    fewest, *_, most = sorted(rounds_of(runs / "ffgb")[1:], key=lambda row: row["models-down"])
    more_bytes, more_models = (most[k] - fewest[k] for k in ("bytes-down", "models-down"))
    # features, thresholds, leaves, coefficient; sizes of rounds
    assert more_bytes / more_models == pytest.approx(7 * 4 + 7 * 4 + 8 * 4 + 8, abs=8)


def test_accuracy_over_models(runs):
    run, rows = read_run(runs / "ffgb"), rounds_of(runs / "ffgb")
    assert run.counts_models
    sent = np.cumsum([row["models-up"] + row["models-down"] for row in rows]) / 6
    x, (y,) = line_of("models", "accuracy-mean", [run])
    assert x == pytest.approx([sent[1], sent[3]])
    assert y.tolist() == [rows[n]["evaluate"]["accuracy-mean"] for n in (1, 3)]
    assert run_figures(run)["models"].panels[0].x.label == X_LABELS["models"]
    assert "models" not in run_figures(read_run(runs / "fedavg"))


def test_a_comparison_has_both_views_and_a_row_its_colour_in_all(runs):
    both = {method: [read_run(runs / method)] for method in ("ffgb", "fedavg")}
    axes = comparison_figure(both, THEME).panels
    weights_of = [[shape for shape in panel.shapes if isinstance(shape, Line)] for panel in axes]
    assert [len(line) for line in weights_of] == [2, 2, 2]
    assert axes[2].x.label == X_LABELS["models"]
    # FedAvg: half of the clients take part, one model each way
    assert weights_of[2][1].points[:, 0].tolist() == [2, 4]
    (plain,) = both["fedavg"]  # the first row has no clients' values, and no line of them
    panels = comparison_figure({"other": [replace(plain, clients=[])], "fedavg": [plain]}, THEME)
    drawn = [
        {shape.series: shape.colour for shape in panel.shapes if isinstance(shape, Line)}
        for panel in panels.panels
    ]
    assert [len(weights_of) for weights_of in drawn] == [2, 1]  # fedavg's models are its rounds
    assert drawn[0]["fedavg"] == drawn[1]["fedavg"] != drawn[0]["other"]
