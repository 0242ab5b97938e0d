"""Models sent: counted by the method or one per message, summed, and drawn against
accuracy if a round is not one model each way.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedapps.commands.parser import main
from fedapps.lab.charts.canvas import Line
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results.grid_plots import X_LABELS, line_of
from fedapps.lab.results.parts import run_figures
from fedapps.lab.results.run_plots import comparison_figure
from fedapps.records.reader import read_run
from tests.helpers import rounds_of, summary_of

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
    # A client that is asked in round t + 1 for the first time since round s gets 6
    # learners of each round between.
    last, wanted = dict.fromkeys(range(6), 0), []
    for row in rounds_of(runs / "ffgb"):
        wanted.append(sum(6 * (row["round"] - 1 - last[client]) for client in row["clients"]))
        last |= dict.fromkeys(row["clients"], row["round"] - 1)
    assert [row["models-down"] for row in rounds_of(runs / "ffgb")] == wanted


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


def test_a_comparison_has_both_views(runs):
    both = {method: [read_run(runs / method)] for method in ("ffgb", "fedavg")}
    axes = comparison_figure(both, THEME).panels
    lines = [[shape for shape in panel.shapes if isinstance(shape, Line)] for panel in axes]
    assert [len(line) for line in lines] == [2, 2, 2]
    assert axes[2].x.label == X_LABELS["models"]
    # FedAvg: half of the clients take part, one model each way
    assert lines[2][1].points[:, 0].tolist() == [2, 4]
    assert len(comparison_figure({"fedavg": both["fedavg"]}, THEME).panels) == 2


def test_a_row_has_its_colour_in_every_panel_also_where_another_has_no_line(runs):
    """The first row has no clients' values."""
    plain = read_run(runs / "fedavg")
    without = replace(plain, clients=[])
    panels = comparison_figure({"other": [without], "fedavg": [plain]}, THEME).panels
    drawn = [
        {shape.series: shape.colour for shape in panel.shapes if isinstance(shape, Line)}
        for panel in panels
    ]
    assert [len(lines) for lines in drawn] == [2, 1]
    assert drawn[0]["fedavg"] == drawn[1]["fedavg"] != drawn[0]["other"]
