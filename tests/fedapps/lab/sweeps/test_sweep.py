"""Sweeps: the runs of a file, error messages, tables, and a second start."""

import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from io import StringIO
from itertools import chain
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedapps.algorithms.common.privacy import gaussian_epsilon
from fedapps.commands.parser import main
from fedapps.lab.sweeps import execution as sweep_module
from fedapps.lab.sweeps.execution import SweepProgress
from fedapps.lab.sweeps.page import write_page
from fedapps.lab.sweeps.plan import read_plan
from fedapps.lab.sweeps.pool import DIED, Ended, PlannedRun, Pool, finished, run_all, run_one
from fedapps.lab.sweeps.tables import Results, best_of
from fedapps.records.lock import WRITER, FolderLock
from fedapps.records.rounds import status_of
from fedapps.strategies import FedAvg, PrivacyOptions, Private
from tests.helpers import (
    ROOT,
    dying_after,
    eventually,
    lacking,
    outcome_of,
    summary_of,
    wait_for,
    write_file,
)
from tests.pretended_device import pretended_cuda

EXPERIMENTS = Path(__file__).resolve().parents[4] / "experiments"
LASSO = """
task = "lasso"
method = "fedfw"
num-clients = 3
clients-per-round = 0
num-rounds = 4
evaluate-every = 2
checkpoint-every = 2
"""


def names(plan):
    return [point.name for point in plan.points]


# --- points and runs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keys", "settings"),
    [
        # a list is an axis for the methods that have the setting
        (
            """
            method = ["fedavg", "superfed-mm"]
            seed = [0, 1]
            [superfed]
            nu = [0.5, 2]
            mu = 0.25
            """,
            "method seed superfed.nu superfed.mu",
            {
                "fedavg_seed-0": ("fedavg", 0, None, None),
                "fedavg_seed-1": ("fedavg", 1, None, None),
                "superfed-mm_seed-0_nu-0.5": ("superfed-mm", 0, 0.5, 0.25),
                "superfed-mm_seed-0_nu-2": ("superfed-mm", 0, 2.0, 0.25),
                "superfed-mm_seed-1_nu-0.5": ("superfed-mm", 1, 0.5, 0.25),
                "superfed-mm_seed-1_nu-2": ("superfed-mm", 1, 2.0, 0.25),
            },
        ),
        # aaggff-s has mu if it wraps FedProx, but not if it wraps FedAvg
        (
            """
            method = "aaggff-s"
            clients-per-round = 0
            aaggff.base = ["fedavg", "fedprox"]
            fedprox.mu = [0.1, 1.0]
            """,
            "fedprox.mu",
            {
                "base-fedavg": (None,),
                "base-fedprox_mu-0.1": (0.1,),
                "base-fedprox_mu-1.0": (1.0,),
            },
        ),
        # rules change the settings of some runs
        (
            """
            method = ["superfed-mm", "superfed-lm"]
            num-clients = [5, 9]
            superfed.nu = 1.5
            [[when]]
            method = "superfed-lm"
            set = { superfed.nu = 2.0 }
            [[when]]
            method = ["superfed-mm", "superfed-lm"]
            num-clients = 9
            set.superfed.start = 0.125
            """,
            "superfed.nu superfed.start",
            {
                "superfed-mm_num-clients-5": (1.5, 0.4),
                "superfed-mm_num-clients-9": (1.5, 0.125),
                "superfed-lm_num-clients-5": (2.0, 0.4),
                "superfed-lm_num-clients-9": (2.0, 0.125),
            },
        ),
        # also of a task that other methods do not have
        (
            """
            num-rounds = 4
            [axis.problem]
            vectors = { task = "lasso", method = "fedfw" }
            digits = { method = "fedavg" }
            [[when]]
            task = "lasso"
            set = { evaluate-every = 2 }
            """,
            "evaluate-every",
            {"vectors": (2,), "digits": (1,)},
        ),
    ],
)
def test_the_points_of_a_file_and_their_settings(plan_of, text, keys, settings):
    configs = {point.name: point.run.config for point in plan_of(text).points}
    assert list(configs) == list(settings)
    assert {
        name: tuple(config.get(key) for key in keys.split()) for name, config in configs.items()
    } == settings


def test_cases_set_several_settings_and_can_be_selected(plan_of):
    text = """
        method = "superfed-mm"
        [superfed]
        nu = 3.0
        [axis.kind]
        plain = { data.partition = "iid", num-clients = 7 }
        "two classes" = { superfed.nu = 1.0 }
        [scale.one]
        axis.kind = ["two classes"]
        [scale.other]
        axis.kind = { third = { num-rounds = 9 } }
    """
    configs = {point.name: point.run.config for point in plan_of(text).points}
    assert list(configs) == ["plain", "two-classes"]
    settings = {
        name: (c["data.partition"], c["num-clients"], c["superfed.nu"])
        for name, c in configs.items()
    }
    assert settings == {"plain": ("iid", 7, 3.0), "two-classes": ("pathological", 0, 1.0)}
    assert names(plan_of(text, scale="one")) == ["two-classes"]
    assert names(plan_of(text, 'axis.kind=["plain"]')) == ["plain"]
    assert plan_of(text, scale="other").points[0].run.config["num-rounds"] == 9


def test_scale_and_command_line_override_the_file(plan_of):
    text = """
        num-rounds = 100
        seed = [0, 1, 2]
        [sweep]
        title = "T"
        [scale.small]
        num-rounds = 5
        train.local-epochs = 3
        seed = 7
    """
    small, full = plan_of(text, scale="small"), plan_of(text, scale="full")
    assert (names(small), names(full)) == (["run"], ["seed-0", "seed-1", "seed-2"])
    (config,) = (point.run.config for point in small.points)
    assert [config[key] for key in ("num-rounds", "train.local-epochs", "seed")] == [5, 3, 7]
    assert (small.grid.name, small.title, full.title) == ("grid-small", "T (scale small)", "T")
    assert names(plan_of(text, "seed=[4,5]", "num-rounds=1", scale="small")) == ["seed-4", "seed-5"]
    assert {point.run.config["num-rounds"] for point in plan_of(text, "num-rounds=1").points} == {1}
    own = plan_of("num-rounds = 9\n[scale.full]\nnum-rounds = 99\n", scale="full")
    assert own.points[0].run.config["num-rounds"] == 99


def test_a_folder_of_data_does_not_depend_on_the_directory(plan_of, tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    assert plan_of("[data]\nsource = './images'\n").points[0].run.config["data.source"] == str(
        tmp_path / "images"
    )


def test_folder_names_are_valid_on_every_file_system(plan_of):
    cases = ["a/b ../c", "a b .. c", "A", "a"]
    text = "[axis.x]\n" + "".join(
        f'"{case}" = {{ num-rounds = {3 + index} }}\n' for index, case in enumerate(cases)
    )
    folders = names(plan_of(text))
    assert len({name.lower() for name in folders}) == 4
    assert all(re.fullmatch(r"[\w][\w.+=-]*", name) for name in folders)
    assert names(plan_of(text)) == folders


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("num-round = 3", [], "unknown setting 'num-round': did you mean 'num-rounds'?"),
        (
            "[superfed]\nnou = [1, 2]",
            [],
            "unknown setting 'superfed.nou': did you mean 'superfed.nu'?",
        ),
        ("seed = []", [], "seed = []: the list is empty"),
        ("seed = [0, 1, 0]", [], "seed = [0, 1, 0]: 0 is given twice"),
        ("train.momentum = [1, 1.0]", [], "train.momentum = [1, 1.0]: 1.0 is given twice"),
        (
            "num-rounds = [1, 'two']",
            [],
            "num-rounds = two: num-rounds = 'two': must be a whole number",
        ),
        ("method = ['fedavg', 'fedpro']", [], "method = 'fedpro': did you mean 'fedprox'?"),
        (
            "method = 'fedavg'\nsuperfed.nu = [1, 2]",
            [],
            "superfed.nu: no method of this sweep has superfed.nu: remove the axis",
        ),
        ("seed = [1]\naxis.a.x.seed = 2", [], "seed: is set by two axes, seed and a"),
        ("num-rounds = 2\naxis.a.x.num-rounds = 3", [], "num-rounds = 2: axis.a sets it, too"),
        (
            "axis.a.x.num-rounds = 3\naxis.a.y.seed = 1",
            ["num-rounds=5"],
            "num-rounds = 5: axis.a sets it, too",
        ),
        (
            "axis.a.x.num-rounds = 3\naxis.a.y.num-rounds = 3",
            [],
            "the runs x and y have the same settings",
        ),
        ("axis.a.x = {}\naxis.a.y.num-rounds = 50", [], "the runs x and y have the same settings"),
        ("axis.a.x.seed = [1, 2]", [], "axis.a.x: seed is a list"),
        ("axis.a = 3", [], "axis.a: must be a table of cases"),
        ("axis = 3", [], "axis = 3: must be a table"),
        ("axis.noise.x.seed = 1", ["axis.nose=['x']"], "axis.nose: did you mean 'noise'?"),
        (
            "axis.noise.pair.seed = 1",
            ["axis.noise=['pear']"],
            "axis.noise = ['pear']: did you mean 'pair'?",
        ),
        ("out = 'x'", [], "out: a sweep names the folders of its runs: choose"),
        ("resume = true", [], "resume: leave it out: a sweep always continues"),
        (
            "[scale.small]\nseed = 1",
            ["--scale", "smal"],
            "--scale smal: did you mean 'small'? the file has small, full",
        ),
        ("seed = 1", ["--scale", "small"], "--scale small: the file has full"),
        ("scale = 3", [], "scale: must hold tables"),
        ("[scale.a.scale.b]\nseed = 1", ["--scale", "a"], "scale: move it to the top of the file"),
        ("[sweep]\nmeasure = 'x'", [], "[sweep] = 'measure': did you mean 'measures'?"),
        ("[sweep]\nmeasures = [1]", [], "sweep.measures = (1,): must be a list of different names"),
        (
            "[sweep]\nkeep = ['models']",
            [],
            "sweep.keep = ['models']: choose from model, clients, checkpoint, synthetic",
        ),
        ("[sweep]\nminutes = -1", [], "sweep.minutes = -1: must be a number from 0"),
        ("[sweep]\nmeasures = ['best(']", [], "sweep.'best(': write NAME, NAME@ROUND"),
        ("[sweep]\nagainst = 3", [], "sweep.against = 3: must be the name of a row"),
        ("[sweep]\nprinted = 'x'", [], "sweep.printed = 'x': must be tables"),
        (
            "[sweep]\nplot = 3",
            [],
            "sweep.plot = 3: write each plot as a table [[sweep.plot]] with a kind",
        ),
        ("[[sweep.plot]]\nkind = 'bar'", [], "sweep.kind = 'bar': choose one of rounds, bytes"),
        (
            "[[sweep.plot]]\nkind = 'rounds'\nlogs = 'x'",
            [],
            "sweep.plot = 'logs': did you mean 'log'? choose one of kind",
        ),
        (
            "[[sweep.plot]]\nkind = 'parameter'",
            [],
            "a plot of kind parameter must name its axis in x",
        ),
        (
            "[[sweep.plot]]\nkind = 'rounds'\n[[sweep.plot]]\nkind = 'rounds'",
            [],
            "sweep.plot: two plots have the same kind: give each a name",
        ),
        ("[[sweep.plot]]\nkind = 'rounds'\nslope = 1.0", [], 'add log = "xy"'),
        (
            "method = ['fedavg', 'local']\n[sweep]\nrows = 'metod'",
            [],
            "sweep.rows = 'metod': did you mean 'method'?",
        ),
        ("[[when]]\nmethod = 'local'", [], "when: needs conditions and a table `set` of settings"),
        ("[[when]]\nmethod = 'locl'\nset.seed = 1", [], "method = 'locl': did you mean 'local'?"),
        ("[[when]]\ntask = 'laso'\nset.seed = 1", [], "task = 'laso': did you mean 'lasso'?"),
        (
            "[[when]]\nmethod = 'local'\nset.sed = 1",
            [],
            "unknown setting 'sed': did you mean 'seed'?",
        ),
        (
            "seed = [1]\n[[when]]\nmethod = 'local'\nset.seed = 1",
            [],
            "seed: is set by the axis seed and by a [[when]]",
        ),
        (
            "[[when]]\nmethod = 'local'\nset.num-rounds = 1",
            ["num-rounds=2"],
            "num-rounds: is set by the command line",
        ),
        (
            "[[when]]\nseed = 0\nset.num-rounds = 1\n[[when]]\nmethod = 'fedavg'\nset.num-rounds = "
            "2",
            [],
            "num-rounds: one [[when]] sets 1, another 2",
        ),
        ("seed = 0\nseed = 1", [], "cannot be read as TOML"),
        (
            "clients-per-round = [2, 30]\nnum-clients = 5",
            [],
            "clients-per-round-30: clients-per-round = 30, but there are 5 clients",
        ),
        ("data.source = '/no/such'", [], "/no/such"),
        ("seed = 0", ["--jobs", "-1"], "--jobs -1: choose 1 or more"),
        ("seed = 0", ["--gpus-per-run", "2"], "--gpus-per-run 2.0: choose a share of a GPU, "),
        (
            f"seed = {list(range(200))}\nnum-rounds = {list(range(1, 200))}",
            [],
            "39800 combinations of settings",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line_before_anything_runs(
    text, arguments, message, tmp_path, error_of, in_process
):
    path = write_file(tmp_path / "grid.toml", text)
    assert message in error_of("sweep", path, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


SWEEPS = [
    pytest.param(path, id=f"{path.parent.name}-{path.stem}")
    for path in sorted(EXPERIMENTS.glob("*/*.toml"))
    if re.search(r"^\[sweep\]", path.read_text(), re.M)
]


@pytest.mark.parametrize("path", SWEEPS)
def test_the_sweeps_of_the_project_plan_at_every_scale(path):
    """The scale small has at most a fifth of the work and states its duration. Every
    row that a file names exists at full scale.
    """
    text = path.read_text()
    scales = {*re.findall(r"^\[scale\.([\w-]+)[\w.-]*\]", text, re.M), "full", "small"}
    plans = {scale: read_plan(path, scale=scale) for scale in scales}
    work = {s: sum(p.run.config["num-rounds"] for p in plan.points) for s, plan in plans.items()}
    assert work["small"] <= work["full"] / 5 or "data.max-samples" in text
    assert 0 < plans["small"].grid.options.minutes <= 25
    results, full = Results(plans["full"], {}), plans["full"].grid.options
    printed = [pair for table in (full.printed or {}).values() for pair in table.items()]
    against = {"": full.against} if isinstance(full.against, str) else full.against
    named = {*chain(*against.items(), *(plot.rows for plot in full.plot)), *dict(printed)}
    columns = {c for _, beside in printed if isinstance(beside, dict) for c in beside}
    assert named <= {*map(results.row_name, results.rows), ""}
    assert columns <= set(map(results.column_name, results.columns))


def test_the_example_of_the_page_has_the_number_of_runs_it_states(plan_of):
    page = (EXPERIMENTS.parent / "docs" / "sweep.md").read_text()
    text = re.search(r"^```toml\n(.*?)^```", page, re.M | re.S)[1]
    whole, small = map(int, re.search(r"(\d+) runs, (\d+) at the small scale", page).groups())
    assert (len(plan_of(text).points), len(plan_of(text, scale="small").points)) == (whole, small)


# --- tables ---------------------------------------------------------------------------


def test_mean_and_deviation_over_seeds_and_the_best_of_each_column(results_of, tmp_path):
    text = 'method = ["fedavg", "ditto"]\nnum-clients = [5, 9]\nseed = [0, 1, 2]\n'
    accuracy = {
        f"{method}_num-clients-{clients}_seed-{seed}": value
        for method, rows in {
            "fedavg": [[0.5, 0.6, 0.75], [0.9, 0.9, 0.9]],
            "ditto": [[0.7, 0.8, 0.96], [0.25, None, 0.5]],
        }.items()
        for clients, values in zip((5, 9), rows, strict=True)
        for seed, value in enumerate(values)
    }
    results = results_of(text, accuracy)
    assert results.measures == ["accuracy-mean", "ece-mean"]
    (heading, header, rows), (second, _, errors) = results.tables(lambda text: f"*{text}*")
    assert (heading, second) == ("Accuracy, mean, %", "ECE, mean")  # of several tables
    assert header == ["method", "num-clients = 5", "num-clients = 9"]
    sample = {values: statistics.stdev(values) for values in ((50, 60, 75), (70, 80, 96), (25, 50))}
    assert rows == [
        ["fedavg", f"61.67 ± {sample[50, 60, 75]:.2f}", "90.00 ± 0.00"],
        ["ditto", f"*82.00 ± {sample[70, 80, 96]:.2f}*", f"37.50 ± {sample[25, 50]:.2f} (2 of 3)"],
    ]
    # for errors, the smallest is best
    assert errors[1][1] == f"*0.180 ± {sample[70, 80, 96] / 100:.3f}*"
    lines = list(csv.DictReader(results.csv().splitlines()))
    keys = ("method", "num-clients", "seeds", "of")
    assert [tuple(line[key] for key in keys) for line in lines] == [
        ("fedavg", "5", "3", "3"),
        ("fedavg", "9", "3", "3"),
        ("ditto", "5", "3", "3"),
        ("ditto", "9", "2", "3"),
    ]
    exact = [float(lines[0][f"accuracy-mean{end}"]) for end in ("", "-over-seeds-std")]
    assert exact == pytest.approx([(0.5 + 0.6 + 0.75) / 3, sample[50, 60, 75] / 100], abs=1e-15)
    assert "| ditto  | **82.00 ± 13.11** | 37.50 ± 17.68 (2 of 3) |" in results.markdown()


@pytest.mark.parametrize(
    ("text", "accuracy", "table"),
    [
        # an axis that some methods lack is a row axis
        (
            'method = ["fedavg", "superfed-mm"]\nnum-clients = [5]\n',
            {
                "fedavg_num-clients-5": 0.5,
                "superfed-mm_num-clients-5_nu-0.0": 0.75,
                "superfed-mm_num-clients-5_nu-1.0": 0.75,
            },
            [
                ["method", "Accuracy, mean, %"],
                ["fedavg", "50.00"],
                ["superfed-mm, nu = 0.0", "75.00"],
                ["superfed-mm, nu = 1.0", "75.00"],
            ],
        ),
        # rows can be chosen
        (
            'method = ["superfed-mm", "superfed-lm"]\nsweep.rows = "superfed.nu"\n',
            {
                "superfed-mm_nu-0.0": 0.5,
                "superfed-mm_nu-1.0": 0.75,
                "superfed-lm_nu-0.0": 0.5,
                "superfed-lm_nu-1.0": None,
            },
            [
                ["superfed.nu", "superfed-mm", "superfed-lm"],
                ["0.0", "50.00", "50.00"],
                ["1.0", "75.00", "missing"],
            ],
        ),
    ],
)
def test_which_axes_are_rows(results_of, text, accuracy, table):
    text += 'superfed.nu = [0.0, 1.0]\nsweep.measures = "accuracy-mean"\n'
    ((_, header, rows),) = results_of(text, accuracy).tables(lambda text: f"*{text}*")
    assert [header, *rows] == table


def test_the_note_says_what_private_runs_spend_together(results_of):
    """Six runs of ten rounds are sixty releases of the same clients' data."""
    results = results_of("seed = [0, 1, 2, 3, 4, 5]\n", {f"seed-{i}": 0.5 for i in range(6)})
    assert "spend" not in results.markdown()
    strategy = Private(FedAvg(), PrivacyOptions(noise_multiplier=1.5))
    strategy.releases = 10
    for run in results.runs:
        run.summary.update(strategy.privacy_spent())
    (spent,) = re.findall(r"in all 6 private runs spend epsilon = ([\d.]+) at", results.markdown())
    exact = gaussian_epsilon(1.5, 60, 1e-5)
    assert strategy.epsilon(10) * 2 < exact <= float(spent) < 1.1 * exact


@pytest.mark.parametrize("others", ["", ", 'accuracy-mean'"])
def test_a_measure_that_no_run_has_is_left_out_and_reported(results_of, others):
    results = results_of(f"[sweep]\nmeasures = ['acuracy-mean'{others}]\n", {"run": 0.5})
    assert results.measures[0] == "accuracy-mean"
    assert "No run has acuracy-mean: did you mean 'accuracy-mean'?" in results.markdown()


@pytest.mark.parametrize(
    ("best", "keys"),
    [
        (max, "accuracy-mean accuracy-worst10 global-accuracy-mean half-accuracy-mean"),
        (max, "auroc-worst accuracy-weighted"),
        (min, "accuracy-std parity-gap ece-mean mce-mean half-loss-mean bytes-up seconds gini"),
        (min, "auroc-gini"),
        (None, "lambda-mean rounds-completed"),
    ],
)
def test_which_end_of_a_measure_is_best(best, keys):
    assert {best_of(key) for key in keys.split()} == {best}


def test_the_page_is_self_contained_and_escapes_names(results_of, tmp_path):
    text = """
        superfed.nu = [0.0, 1.0]
        method = "superfed-mm"
        [sweep]
        title = "<i>nu</i> & mu"
        rows = ["kind", "superfed.nu"]
        [axis.kind]
        "<script>" = { num-rounds = 4 }
    """
    results = results_of(text, {"nu-0.0_-script": 0.5, "nu-1.0_-script": None})
    page = write_page(results, tmp_path, {"nu-1.0_-script": "it <b>died</b>"}).read_text()
    assert not re.search(r'<script>|(?:src|href|srcset)="(?!data:)|http(?!-equiv)|reload', page)
    texts = ("&lt;script&gt;", "&lt;i&gt;nu&lt;/i&gt; &amp; mu", "it &lt;b&gt;died&lt;/b&gt;")
    assert lacking(page, *texts, "1 of 2 runs finished, 1 failed") == []
    assert re.findall(r'data-name="(.*?)"', page) == ["curves"]


def test_the_page_is_drawn_again_while_the_sweep_goes_on(plan_of, in_process):
    """The second run sees the page that was drawn after the first one. A sweep that was
    interrupted or has ended reloads nothing.
    """
    plan, way, pages = plan_of(LASSO + "seed = [0, 1, 2]\n"), sweep_module.Way(jobs=1), []

    def go():
        sweep_module.execute_sweep(plan, sweep_module.missing_runs(plan), way, page_every=0.0)

    def page():
        return (plan.out / "report.html").read_text()

    def stopped(name):
        if name == "seed-1":
            pages.append(page())
        elif name == "seed-2":
            raise KeyboardInterrupt

    in_process.before = stopped
    with pytest.raises(KeyboardInterrupt):
        go()
    assert lacking(pages[0], "… 1 of 3 runs finished.", "reload()") == []
    assert lacking(page(), "2 of 3 runs finished. Repeat the command", "reload()") == ["reload()"]
    in_process.before = lambda name: None
    go()
    assert "reload()" not in page()


def test_the_page_of_a_sweep_that_goes_on_links_to_the_reports_that_are_drawn(results_of, tmp_path):
    results = results_of('method = ["fedavg", "local"]\n', {"fedavg": 0.5, "local": None})
    (tmp_path / "out/cells/local").mkdir()
    (tmp_path / "out/cells/local/report.html").touch()
    page = write_page(results, tmp_path / "out", {}, going=True).read_text()
    assert re.findall('<a href="(.*?)">', page) == ["cells/local/report.html"]


# --- the command ----------------------------------------------------------------------


def test_a_failed_run_stops_no_other_and_a_second_start_runs_only_the_missing_one(
    tmp_path, in_process, capsys, error_of
):
    path, out = tmp_path / "grid.toml", tmp_path / "out"
    path.write_text(LASSO + "seed = [0, 1, 2]\n")
    command = ["sweep", str(path), "--out", str(out)]
    assert main([*command, "--dry-run"]) == 0
    assert "3 runs, 0 of them finished" in capsys.readouterr().out
    assert not out.exists()

    in_process.broken["seed-1"] = "RuntimeError: no luck"
    assert main(command) == 1
    assert re.fullmatch(
        r"\[1/3\] seed-0: 4 rounds in .*\n"
        r"\[2/3\] seed-1: failed: RuntimeError: no luck\n"
        r"\[3/3\] seed-2: 4 rounds in .*\n"
        r"fedapps: the run failed: 1 of 3 runs .*\n",
        capsys.readouterr().err,
    )
    assert "(2 of 3)" in (out / "table.md").read_text()
    assert "RuntimeError: no luck" in (out / "report.html").read_text()

    in_process.broken.clear()
    in_process.begun.clear()
    assert main(command) == 0
    assert in_process.begun == ["seed-1"]
    said = capsys.readouterr().err
    assert re.match(r"2 of 3 runs are finished\n\[3/3\] seed-1: 4 rounds in ", said)
    assert "(2 of 3)" not in (out / "table.md").read_text()

    path.write_text(LASSO.replace("num-rounds = 4", "num-rounds = 5") + "seed = [0, 1, 2]\n")
    said = "holds a run with num-rounds = 4, not 5: choose another --out, or delete that folder"
    assert said in error_of(*command)


def test_a_finished_sweep_of_tables_continues(tmp_path, in_process, error_of):
    """``model.name`` is "auto" in the file and "linear" in the run's settings."""
    (tmp_path / "grid.toml").write_text(
        'task = "regression"\nmethod = "local"\nnum-rounds = 1\nnum-clients = 2\n'
        "evaluate-every = 0\ncheckpoint-every = 0\nseed = [0, 1]\n"
    )
    command = ["sweep", str(tmp_path / "grid.toml"), "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    in_process.broken.update({"seed-0": "started again", "seed-1": "started again"})
    assert main(command) == 0
    assert "model.name = 'linear', not 'mlp'" in error_of(*command, "model.name=mlp")


def test_a_folder_of_a_run_or_of_another_sweep_is_refused(
    tmp_path, in_process, error_of, write_run
):
    (tmp_path / "grid.toml").write_text(LASSO)
    run = write_run("run")
    assert "is the folder of a run" in error_of("sweep", tmp_path / "grid.toml", "--out", run)
    assert not (run / "cells").exists()
    command = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]
    with sweep_module.only_one(tmp_path / "out"):
        assert f"another run is writing to it (process {os.getpid()}" in error_of(*command)
    assert main(command) == 0


# --- GPUs -----------------------------------------------------------------------------


MANY = "{} runs at a time, at most "


@pytest.mark.parametrize(
    ("given", "on_gpu", "processes", "said"),
    [
        ({}, True, 2, [MANY]),
        ({"gpus_per_run": 0.25}, True, 8, [MANY]),
        ({"gpus_per_run": 0.4}, True, 4, [MANY]),  # two on each GPU, not five
        ({"gpus_per_run": 0.25, "jobs": 3}, True, 3, [MANY]),
        ({"gpus_per_run": 0.01}, True, 32, [MANY]),
        ({}, False, 32, []),  # one process per core
        ({"gpus_per_run": 0.5, "jobs": 3}, False, 3, ["gpus-per-run = 0.5 has no effect: "]),
    ],
)
def test_as_many_runs_at_a_time_as_fit(given, on_gpu, processes, said, gpus, caplog):
    assert sweep_module.Way(**given).processes(on_gpu) == (processes, ["1", "3"] if on_gpu else [])
    for message, beginning in zip(caplog.messages, said, strict=True):
        assert message.startswith(beginning.format(processes))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sweep_is_dealt_over_the_gpus_if_a_run_is_on_one(
    device, gpus, tmp_path, monkeypatch, capsys
):
    asked = []

    def run_all(runs, *places):
        asked.append(places)
        return iter(())

    monkeypatch.setattr(sweep_module, "run_all", run_all)
    (tmp_path / "grid.toml").write_text(f"num-rounds = 1\nseed = [0, 1]\ndevice = '{device}'\n")
    command = ["sweep", str(tmp_path / "grid.toml"), "--gpus-per-run", "0.5", "--out"]
    with pretended_cuda(monkeypatch, gpus=2):
        assert main([*command, str(tmp_path / "out")]) == 0
    assert asked == [(4, ["1", "3"]) if device == "cuda" else (32, [])]


def test_in_a_terminal_the_bar_counts_rounds_of_current_runs(plan_of, write_run):
    plan = plan_of("seed = [0, 1]\nnum-rounds = 8\n")
    console = Console(file=StringIO(), force_terminal=True, width=120)
    runs = [point.run for point in plan.points]
    with SweepProgress(runs, runs, console) as progress:
        (task,) = progress._bar.tasks
        write_run("out/cells/seed-0", rounds=4, planned=8)
        eventually(lambda: task.completed == 4)
        progress.show_end(Ended(runs[1], {}, "it died"))
        assert (task.description, task.completed) == ("0/2 runs, 1 failed", 12)
    assert "[1/2] seed-1: failed: it died" in console.file.getvalue()


@pytest.mark.slow
def test_two_processes_and_an_interrupt(tmp_path):
    """Ctrl-C ends the processes of the runs at once; the next start continues from
    their checkpoints.
    """
    path, out = tmp_path / "grid.toml", tmp_path / "out"
    path.write_text(LASSO.replace("num-rounds = 4", "num-rounds = 1000000") + "seed = [0, 1, 2]\n")
    words = [sys.executable, "-m", "fedapps", "sweep", path, "--jobs", "2", "--out", out]
    process = subprocess.Popen(
        words, cwd=EXPERIMENTS.parent, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def under_way(_):
        return len({path.parents[1] for path in out.glob("cells/*/checkpoint/[0-9]*")}) == 2

    wait_for(under_way, process, out, 50)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.endswith("interrupted; repeat the command to continue\n")
    assert "Traceback" not in error
    assert [summary_of(one)["status"] for one in out.glob("cells/*")] == ["interrupted"] * 2


def test_a_title_has_data_and_methods_and_rows_their_gain_over_training_alone(results_of):
    text = 'method = ["fedbn", "fedavg", "local"]\nseed = [0, 1]\n'
    values = {"fedbn": (0.7, 0.8), "fedavg": (0.6, 0.5), "local": (0.6, 0.6)}
    accuracy = {f"{m}_seed-{s}": own[s] for m, own in values.items() for s in (0, 1)}
    results = results_of(text, accuracy)
    assert results.plan.title == "digits: fedbn, fedavg, local"
    ((_, header, rows),) = results.tables(str)
    assert header[2] == "Accuracy, mean, %, over training alone"
    assert [row[2] for row in rows] == ["+15.00", "\N{MINUS SIGN}5.00", ""]


def test_a_note_on_two_runs_is_said_once(plan_of, caplog):
    assert len(sweep_module.missing_runs(plan_of('method = "fedbn"\nseed = [0, 1]\n'))) == 2
    assert len([text for text in caplog.messages if "fedbn" in text]) == 1


# --- a pool ---------------------------------------------------------------------------


LASSO_JOB: dict[str, Any] = {
    "method": "fedfw",
    "task": "lasso",
    "num-clients": 3,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 2,
}


def job(folder: Path, rounds: int = 3, **more: Any) -> PlannedRun:
    return PlannedRun({**LASSO_JOB, "num-rounds": rounds, **more}, folder)


def test_a_broken_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole, broken = (job(tmp_path / name, 6) for name in ("whole", "broken"))
    run_one(whole)
    with dying_after(5), pytest.raises(KeyboardInterrupt):
        run_one(broken)
    assert not finished(broken.folder)
    assert run_one(broken)["rounds-completed"] == 6
    assert outcome_of(whole.folder) == outcome_of(broken.folder)


def test_without_runs_no_process_is_started() -> None:
    assert list(run_all([], 1)) == []


@pytest.mark.slow
def test_a_pool_keeps_its_process_and_replaces_one_that_was_killed(tmp_path: Path) -> None:
    before = set(active_children())
    with Pool(1) as pool:
        # a run that fails does not stop the other
        runs = [job(tmp_path / "bad", **{"lasso.sparsity": 0}), job(tmp_path / "a")]
        bad, good = pool(runs)
        assert re.match("bad: failed: .*sparsity", str(bad))
        assert str(good).startswith("a: 3 rounds in")
        assert [finished(run.folder) for run in runs] == [False, True]
        (first,) = set(active_children()) - before
        assert not any(ended.error for ended in pool([job(tmp_path / "c")]))
        assert set(active_children()) - before == {first}
        first.kill()
        first.join()
        # what was under way is lost, or nothing was
        assert {ended.error for ended in pool([job(tmp_path / "d")])} <= {"", DIED}
        assert not any(ended.error for ended in pool([job(tmp_path / "e")]))
    assert set(active_children()) == before


NET = """
import os
import time
from pathlib import Path
from torch import nn

def net():
    \"\"\"Note this process and its GPUs, and wait for the other processes.\"\"\"
    here = Path(__file__).parent
    (here / str(os.getpid())).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    deadline = time.monotonic() + 100
    while len(list(here.glob("[0-9]*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
def test_each_process_sees_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes share two GPUs two to one; in their parent nothing changes."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    folder = tmp_path / "net"
    write_file(folder / "three_nets.py", NET)
    monkeypatch.syspath_prepend(folder)
    config = {"num-rounds": 1, "num-clients": 2, "device": "cpu", "model.name": "three_nets:net"}
    runs = [PlannedRun({**config, "seed": i}, tmp_path / f"{i}") for i in range(3)]
    assert [ended.error for ended in run_all(runs, 3, ["4", "7"])] == [""] * 3
    assert sorted(path.read_text() for path in folder.glob("[0-9]*")) == ["4", "4", "7"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


KILLED = f"""
import sys
from pathlib import Path
from fedapps.lab.sweeps.pool import PlannedRun, run_all

LASSO_JOB = {LASSO_JOB}
runs = [PlannedRun({{**LASSO_JOB, "num-rounds": n}}, Path(p)) for p, n in zip(sys.argv[1:], (3, 10**7))]
runs = run_all(runs, 1)
next(runs)
print("begun", flush=True)
next(runs)
"""


@pytest.mark.slow
def test_the_processes_of_a_pool_end_when_its_program_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "b")]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(1)  # the second run is under way
    program.kill()
    program.wait()
    with FolderLock(tmp_path / "b", WRITER, wait=30):  # its writer has ended
        pass
    assert status_of(tmp_path / "b") != "completed"
