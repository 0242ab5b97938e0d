"""Features of sweeps for studies: scales, data by name, a folder of sweeps, pruning,
differences by seed, printed numbers, plots.
"""

import json
import math
import re

import pytest

from fedapps.commands.parser import main
from fedapps.lab.results.grid_plots import KINDS
from fedapps.lab.results.seeds import Measured, with_intervals
from fedapps.lab.sweeps.grid import prune
from fedapps.lab.sweeps.page import figures, tables_html
from fedapps.lab.sweeps.plan import read_plan
from fedapps.lab.sweeps.tables import difference_text
from tests.helpers import write_file

LASSO = (
    'task = "lasso"\nmethod = "fedfw"\nnum-clients = 3\nclients-per-round = 0\nnum-rounds = '
    "4\nevaluate-every = 2\n"
)
LOCAL = """
method = "local"
num-clients = 4
clients-per-round = 2
num-rounds = 2
train.local-epochs = 1
"""

pytestmark = pytest.mark.usefixtures("in_process")


# --- scales, data, folders ------------------------------------------------------------


def test_the_record_holds_file_scale_and_settings(tmp_path, capsys):
    (tmp_path / "grid.toml").write_text(
        LASSO + "seed = [0, 1]\n[scale.small]\nnum-rounds = 2\nsweep.minutes = 1.5\n"
    )
    command = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]
    command += ["--scale", "small", "fedfw.offset=3"]
    assert main([*command, "--dry-run"]) == 0
    assert "about 1 min 30 s on two cores" in capsys.readouterr().out
    assert main(command) == 0
    assert "about 1 min 30 s on two cores for 1 sweep\n" in capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert (record["scale"], record["settings"], record["runs"]) == ("small", ["fedfw.offset=3"], 2)
    assert main(command) == 0
    assert "about" not in capsys.readouterr().err  # no run is missing


def test_data_are_found_by_the_last_name_of_their_source(tmp_path):
    (tmp_path / "sets" / "mnist").mkdir(parents=True)
    path = write_file(
        tmp_path / "grid.toml",
        "[axis.of]\nhub = { data.source = 'ylecun/mnist' }\nother = { data.source = 'digits' }\n",
    )
    points = read_plan(path, data=tmp_path / "sets").points
    assert [point.run.config["data.source"] for point in points] == [
        str(tmp_path / "sets" / "mnist"),
        "digits",
    ]


def test_a_folder_stands_for_all_its_sweeps(tmp_path, capsys, error_of):
    paper = tmp_path / "paper"
    paper.mkdir()
    for name, rounds in (("table-1", 4), ("table-2", 2)):
        sweep = f"[sweep]\nminutes = {rounds}\n[scale.one]\nseed = 1\n"
        (paper / f"{name}.toml").write_text(LASSO.replace("= 4", f"= {rounds}") + sweep)
    (paper / "single.toml").write_text(LASSO)  # for `fedapps run`
    command = ["sweep", str(paper), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "about 6 min 00 s on two cores for 2 sweeps" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["table-1", "table-2"]
    (paper / "table-2.toml").write_text(LASSO + "[sweep]\nminutes = 1\n")
    said = error_of(*command, "--scale", "one")  # one file lacks this scale: nothing starts
    assert "table-2.toml: --scale one: the file has full" in said
    said = error_of("sweep", tmp_path / "out")
    assert "has no sweep file: a sweep file has a table [sweep]" in said


# --- what is kept ---------------------------------------------------------------------


def test_a_finished_run_keeps_the_parts_that_the_file_names(tmp_path, capsys):
    text = LOCAL + "checkpoint-every = 1\n[sweep]\nkeep = "
    for keep in (["clients"], [], ["model", "checkpoint"]):
        (tmp_path / "grid.toml").write_text(f"{text}{keep}")
        out = tmp_path / "-".join(["out", *keep])
        command = ["sweep", str(tmp_path / "grid.toml"), "--out", str(out)]
        assert main(command) == 0
        there = {path.stem for path in (out / "cells" / "run").iterdir()}
        assert there & {"clients", "model", "checkpoint"} == {"clients", *keep}  # clients.csv
        assert (out / "cells" / "run" / "clients").exists() == ("clients" in keep)
        assert {"summary", "rounds", "settings"} <= there
        # still a finished run
        assert main([*command, "--dry-run"]) == 0
        assert "1 of them finished" in capsys.readouterr().out


def test_an_unfinished_run_loses_nothing(write_run):
    folder = write_run(summary=False)
    (folder / "checkpoint").mkdir()
    prune(folder, ())
    assert (folder / "checkpoint").exists()


# --- tables ---------------------------------------------------------------------------


def test_differences_by_seed_and_printed_numbers_are_columns(results_of):
    text = """
        method = ["fedavg", "local"]
        seed = [0, 1, 2]
        [sweep]
        measures = ["accuracy-mean"]
        against = "fedavg"
        [sweep.printed.accuracy-mean]
        fedavg = "95.69"
    """
    accuracy = {
        f"{method}_seed-{seed}": by_seed[seed]
        for method, by_seed in {"fedavg": (0.5, 0.6, 0.7), "local": (0.53, 0.62, 0.71)}.items()
        for seed in range(3)
    }
    ((_, header, rows),) = results_of(text, accuracy).tables(str)
    assert header == ["method", "Accuracy, mean, %", "printed", "Accuracy, mean, %, by seed"]
    assert rows[0] == ["fedavg", "60.00 ± 10.00", "95.69", ""]
    # 3, 2 and 1: 2 ± 4.303 / sqrt(3); both rows reach from 50 to 71, but all seeds say
    # which is better
    interval = "sites like these [\N{MINUS SIGN}0.48, +4.48]"
    assert rows[1] == ["local", "62.00 ± 9.00", "", f"+2.00, {interval}, 3 of 3"]
    assert 2 - 4.302653 / math.sqrt(3) == pytest.approx(-0.48, abs=0.005)


def test_printed_numbers_are_text_on_the_page_and_the_best_values_are_bold(results_of):
    text = """
        method = ["fedavg", "local"]
        seed = [0, 1, 2, 3]
        [sweep]
        measures = ["accuracy-mean"]
        [sweep.printed.accuracy-mean]
        fedavg = "<b><script>"
    """
    accuracy = {
        f"{m}_seed-{s}": a + s / 99
        for m, a in {"fedavg": 0.1, "local": 0.9}.items()
        for s in range(4)
    }
    ((_, table),) = tables_html(results_of(text, accuracy))
    assert "<td>&lt;b&gt;&lt;script&gt;</td>" in table
    assert re.search(r"<td><b>9[\d.]+ ± [\d.]+</b></td>", table)


def test_each_row_can_have_its_partner_and_each_column_its_printed_numbers(results_of):
    text = """
        num-clients = [5, 9]
        [axis.setting]
        a = { method = "fedavg" }
        "a, fair" = { method = "afl" }
        [sweep]
        rows = "setting"
        measures = ["accuracy-mean"]
        against = { "a, fair" = "a" }
        [sweep.printed.accuracy-mean]
        a = { "num-clients = 9" = "70" }
    """
    names = {
        "num-clients-5_a": 0.5,
        "num-clients-9_a": 0.75,
        "num-clients-5_a-fair": 0.25,
        "num-clients-9_a-fair": 1.0,
    }
    ((_, header, rows),) = results_of(text, names).tables(str)
    assert header == [
        "setting",
        "num-clients = 5",
        "by seed",
        "num-clients = 9",
        "printed",
        "by seed",
    ]
    assert rows == [
        ["a", "50.00", "", "75.00", "70", ""],
        ["a, fair", "25.00", "\N{MINUS SIGN}25.00", "100.00", "", "+25.00"],
    ]


def test_text_of_differences():
    def text(measure, values, same=True):
        return difference_text(measure, with_intervals(Measured(dict(enumerate(values)), {}, same)))

    # too few seeds
    assert (text("accuracy-mean", []), text("loss-mean", [0.5, 0.5])) == ("", "+0.50")
    low = "\N{MINUS SIGN}0.001"
    assert text("loss-mean", [-0.001] * 3) == f"{low}, these sites [{low}, {low}], 0 of 3"


# --- plots ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plot_draws_what_the_runs_have(kind, results_of, tmp_path, write_run):
    more = {
        "clients": 'measures = "accuracy"',
        "curve": 'measures = "lambda-accuracy"',
        "parameter": 'x = "num-clients"',
    }.get(kind, "")
    text = f"""
        method = ["fedavg", "superfed-mm"]
        num-clients = [5, 9]
        seed = [0, 1]
        [[sweep.plot]]
        kind = "{kind}"
        {more}
    """
    accuracy = {
        f"{m}_num-clients-{n}_seed-{s}": 0.5 + 0.1 * s
        for m in ("fedavg", "superfed-mm")
        for n in (5, 9)
        for s in (0, 1)
    }
    curves = {"lambda": [0.0, 0.5, 1.0], "lambda-accuracy": [0.25, 0.5, 0.75]}
    results = results_of(text, accuracy, curves=curves)
    for run in results.runs:
        (run.path / "weights.csv").write_text(
            "round,client,weight\n1,0,0.5\n1,1,0.5\n2,0,0.25\n2,1,0.75\n"
        )
        for row in run.rounds:
            row |= {"models-up": 1, "models-down": 1, "clock-seconds": 3.0 * row["round"]}
            row |= {"seconds": 0.5, "bytes-up": 100, "bytes-down": 50}
    drawn = figures(results)
    assert list(drawn) == [kind]
    if kind not in ("weights", "bars"):
        lines = {name for panel in drawn[kind].panels for name, _ in panel.legend}
        assert lines == {"fedavg", "superfed-mm"}
    if kind in ("bytes", "seconds"):
        last = drawn[kind].panels[0].legend[0][1][0].points[-1]
        assert last == pytest.approx([4 * {"bytes": 150 / 1e6, "seconds": 0.5}[kind], 0.55])


def test_plots_show_lines_levels_and_differences_as_measured(results_of):
    text = """
        method = ["fedavg", "local"]
        [[sweep.plot]]
        kind = "rounds"
        name = "plain"
        levels = { "nothing" = "ece-mean", "a number" = 0.125 }
        [[sweep.plot]]
        kind = "rounds"
        name = "relative"
        relative = true
        [[sweep.plot]]
        kind = "rounds"
        name = "logarithmic"
        log = "xy"
        slope = -0.5
    """
    drawn = figures(results_of(text, {"fedavg": 0.5, "local": 0.75}))
    panels = {name: drawn[name].panels[0] for name in ("plain", "relative", "logarithmic")}

    def last(name, label):
        (shapes,) = [shapes for found, shapes in panels[name].legend if found == label]
        return tuple(shapes[0].points[-1])

    wanted = {
        ("plain", "local"): (4.0, 0.75),
        ("plain", "nothing"): (math.inf, 0.375),  # the mean of 0.5 and 0.25
        ("plain", "a number"): (math.inf, 0.125),
        ("relative", "local"): (4.0, 0.125),
        ("relative", "fedavg"): (4.0, -0.125),
        ("logarithmic", "local"): pytest.approx((math.log10(4), math.log10(0.75))),
    }
    assert {line: last(*line) for line in wanted} == wanted
    logarithmic = panels["logarithmic"]
    # a fraction, in per cent
    assert [axis.ticks for axis in (logarithmic.x, logarithmic.y)] == [
        ([math.log10(2)], ["2"]),
        ([pytest.approx(math.log10(0.5))], ["50"]),
    ]
    (slope,) = [shapes[0].points for name, shapes in logarithmic.legend if name == "t^-0.5"]
    assert (slope[-1, 1] - slope[0, 1]) / (slope[-1, 0] - slope[0, 0]) == pytest.approx(-0.5)


def test_a_plot_of_nothing_is_left_out(results_of):
    text = '[[sweep.plot]]\nkind = "curve"\nmeasures = "lambda-accuracy"\n'
    assert figures(results_of(text, {"run": 0.5})) == {}
