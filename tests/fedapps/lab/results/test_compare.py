"""The comparison: which runs share a row, mean ± std by hand, best values, gains over a
reference run, predictors without training, errors; and runs that predict numbers: lower
errors are better, and impossible sums of clients are ignored.
"""

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedapps.algorithms.common.target_errors import error_sums, errors_of
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results.compare import compare
from fedapps.lab.results.comparison_table import columns_of, rows_of as rows_of_runs
from fedapps.lab.results.fair_plots import client_bars, fair_measure, worst_first
from fedapps.records.measures import pooled_errors
from fedapps.records.reader import RunFolder, read_run
from tests.helpers import refused, rows_of


def terminal(comparison, width=120, colour=False):
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    console.print(comparison.table)
    return console.file.getvalue()


def test_seeds_become_mean_and_sample_std(write_run):
    accuracies = [0.80, 0.84, 0.91]
    runs = [write_run(f"a{s}", seed=s, last={"accuracy-mean": a}) for s, a in enumerate(accuracies)]
    runs.append(write_run("b", "superfed-mm", last={"accuracy-mean": 0.97}))
    comparison = compare(runs)
    # mean 0.85; deviations -0.05, -0.01, 0.06: sum of squares 0.0062, over 2 = 0.0031
    rows = {row["label"]: row for row in rows_of(comparison.csv)}
    assert set(rows) == {"fedavg", "superfed-mm"}
    assert [float(rows["fedavg"][f"accuracy-mean{of}"]) for of in ("", "-over-seeds-std")] == (
        pytest.approx([0.85, math.sqrt(0.0031)])
    )
    assert rows["fedavg"]["seeds"] == "0 1 2"
    assert rows["superfed-mm"]["accuracy-mean-over-seeds-std"] == ""
    text, html = terminal(comparison), comparison.report.read_text(encoding="utf-8")
    assert re.search(r"85\.0 (.|\n)*±5\.6", text)
    assert "3 seeds" in text
    assert "±5.6" in html
    assert not re.search("https?:", html)
    assert comparison.out == runs[0].parent / "comparison"


@pytest.mark.parametrize(
    ("runs", "rows"),
    [
        # other settings are other rows, named by what differs
        (
            {
                f"nu{nu}": {
                    "method": "superfed-mm",
                    "settings": {"superfed": {"nu": nu, "mu": 0.01}},
                }
                for nu in (1.0, 2.0)
            },
            {"superfed-mm nu=1.0": [0], "superfed-mm nu=2.0": [0]},
        ),
        # a repeated seed gets its own row
        (
            {"first": {"seed": 1}, "second": {"seed": 1}, "third": {"seed": 2}},
            {"fedavg": [1, 2], "fedavg (second)": [1]},
        ),
    ],
)
def test_rows_are_settings_with_their_seeds(write_run, runs, rows):
    folders = [write_run(name, **how) for name, how in runs.items()]
    folders.append(folders[0].parent / "." / folders[0].name)  # given twice, counts once
    assert {r.label: [run.seed for run in r.runs] for r in compare(folders).rows} == rows


def seeds_of(write_run, method, values, key="accuracy-mean"):
    return [
        write_run(f"{method}-{seed}", method, seed, last={key: value})
        for seed, value in enumerate(values)
    ]


def bold(comparison):
    in_html = re.findall("<b>(.*?)</b>", comparison.report.read_text(encoding="utf-8"))
    assert in_html == re.findall("\x1b\\[1m *([0-9.]+)", terminal(comparison, colour=True))
    return in_html


def test_incomplete_run_is_marked_alone_and_never_bold(write_run):
    runs = [
        *seeds_of(write_run, "fedavg", [0.5, 0.55, 0.6]),
        write_run("cut", seed=3, rounds=2, planned=4, last={"accuracy-mean": 0.99}, summary=False),
        *seeds_of(write_run, "local", [0.3, 0.35, 0.4]),
    ]
    comparison = compare(runs)
    assert [len(row.runs) for row in comparison.rows] == [3, 1, 3]
    assert "interrupted at 2/4" in terminal(comparison)
    assert bold(comparison) == ["55.0"]


@pytest.mark.parametrize(
    ("key", "first", "second", "wanted"),
    [
        ("accuracy-mean", [0.9], [0.1], []),  # three seeds are needed
        ("accuracy-mean", [0.9, 0.91], [0.1, 0.11], []),
        ("accuracy-mean", [0.9, 0.8, 0.7], [0.7, 0.8, 0.6], []),
        # noisy, but ahead on every seed
        ("accuracy-mean", [0.9, 0.8, 0.7], [0.95, 0.85, 0.75], ["85.0"]),
        ("gini", [0.30, 0.31, 0.32], [0.10, 0.11, 0.12], ["0.110"]),  # less is better
    ],
)
def test_bold_means_beyond_the_noise_between_seeds(write_run, key, first, second, wanted):
    runs = seeds_of(write_run, "m1", first, key) + seeds_of(write_run, "m2", second, key)
    assert bold(compare(runs)) == wanted


OF_AUROC = {"auroc-mean": 0.7, "auroc-worst": 0.4, "auroc-parity-gap": 0.5, "auroc-gini": 0.1}
COSTS = ["bytes-up", "bytes-down", "seconds", "rounds-completed"]


@pytest.mark.parametrize(
    ("both", "second", "keys", "shown"),
    [
        ({"accuracy-mean": 0.9}, {"gini": 0.1}, ["accuracy-mean", "gini", *COSTS], "-"),
        (
            {"accuracy-mean": 0.8, "accuracy-worst": 0.3, "parity-gap": 0.6},
            {"parity-gap": 0.5},
            ["accuracy-mean", "accuracy-worst", "parity-gap", *COSTS],
            "60.0",
        ),
        # all have an AUROC; there is one model for all clients
        (
            {**OF_AUROC, "accuracy-mean": 0.8, "accuracy-std": 0.1, "global-accuracy-mean": 0.8},
            {},
            [*OF_AUROC, "accuracy-mean", *COSTS],
            "70.0",
        ),
        ({"accuracy-mean": 0.8}, {"auroc-mean": 0.7}, ["accuracy-mean", *COSTS], "80.0"),
        # another kind of task
        ({"loss-mean": 0.5, "psnr-mean": 20.0}, {}, ["loss-mean", "psnr-mean", *COSTS], "0.500"),
    ],
)
def test_only_columns_that_some_run_has(write_run, both, second, keys, shown):
    runs = [write_run("a", "m1", last=both), write_run("b", "m2", last=both | second, clients=[])]
    comparison = compare(runs)
    assert [column.key for column in comparison.columns] == keys
    assert shown in terminal(comparison)
    assert shown in comparison.report.read_text(encoding="utf-8")


def test_units_and_costs(write_run):
    text = terminal(compare([write_run()]))
    header, cells = text.split("─", 1)[0], text.split("─")[-1]
    assert [line.split()[-3:] for line in (header.split("\n")[1], cells)] == [
        ["kB", "kB", "s"],
        ["4.00", "8.00", "2.00"],
    ]


def test_fits_eighty_columns(write_run):
    last = {
        "accuracy-mean": 0.9,
        "accuracy-std": 0.1,
        "accuracy-worst10": 0.5,
        "accuracy-best10": 1.0,
        "gini": 0.1,
    }
    last |= {"ece-mean": 0.1, "global-accuracy-mean": 0.85}
    runs = [
        write_run(f"r{s}", "superfed-mm", s, last={k: v * (1 - s / 10) for k, v in last.items()})
        for s in range(2)
    ]
    text = terminal(compare(runs), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_foreign_names_stay_text(write_run):
    comparison = compare([write_run("a", "[red]m[/red]<script>$"), write_run("b", "m2")])
    assert "<script>" not in comparison.report.read_text(encoding="utf-8")
    assert "[red]m[/red]" in terminal(comparison)


def test_errors(write_run, tmp_path):
    good = write_run("good")
    (tmp_path / "empty").mkdir()
    young = write_run("young", rounds=1, planned=8, summary=False)
    for runs, out, message in (
        ([good, tmp_path / "empty"], None, r"empty holds no run"),
        ([], None, r"no folder given"),
        ([good, young], None, r"young has no finished evaluation \(interrupted after 1 rounds\)"),
        ([good], good, r"is the folder of a run"),
        ([good], good / "settings.toml", r"is a file"),
    ):
        refused(lambda: compare(runs, out), message, UserError)
    assert not (tmp_path / "comparison").exists()


# --- gains over a reference run -------------------------------------------------------


def gains(comparison):
    matches = [section for section in comparison.sections if section.title.startswith("Gain over")]
    return matches[0] if matches else None


ALONE = [(0, 0.75), (1, 0.5), (2, 1.0), (3, 0.5)]
TOGETHER = [(3, 0.5), (2, 0.75), (1, 1.0), (0, 0.875)]  # 0: +0.125, 1: +0.5, 2: -0.25, 3: 0


def test_gain_of_each_client_over_training_alone(write_run):
    runs = [
        write_run("f", clients=TOGETHER),
        write_run("l", "local", clients=ALONE),
        write_run("l2", "local", clients=TOGETHER),
    ]
    comparison = compare(runs)
    section = gains(comparison)
    # the first one of this method
    assert (section.title, section.rows) == (
        "Gain over local (l)",
        (
            ("fedavg", "+9.4", "50", "25", "-25.0", "4"),
            ("local (l2)", "+9.4", "50", "25", "-25.0", "4"),
        ),
    )
    rows = [row for row in rows_of(comparison.out / "gains.csv") if row["label"] == "fedavg"]
    own = {int(row["client"]): float(row["gain"]) for row in rows}
    assert own == {0: 0.125, 1: 0.5, 2: -0.25, 3: 0}
    keys = ("gain-mean", "gain-share", "gain-share-lost", "gain-worst")
    table = {row["label"]: [row[key] for key in keys] for row in rows_of(comparison.csv)}
    assert table["fedavg"] == ["0.09375", "0.5", "0.25", "-0.25"]
    assert table["local (l)"][0] == ""
    page = comparison.report.read_text(encoding="utf-8")
    assert re.search(r"<h2>Gain over local \(l\)</h2>(.|\n)*\+9\.4", page)
    # an old table of gains is deleted
    assert not (compare(runs[:1], comparison.out).out / "gains.csv").exists()


@pytest.mark.parametrize(
    ("by_seed", "row", "said"),
    [
        # seed 0: gains of 0.25 and 0.25, seed 1: 0 and -0.5; seed 2 has no reference
        (
            [
                ({0: 0.75, 1: 1.0}, {0: 0.5, 1: 0.75}),
                ({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.75}),
                ({0: 1.0, 1: 1.0}, {}),
            ],
            ("fedavg", "+0.0\n±35.4", "50", "25", "-50.0", "2"),
            "means over the seeds",
        ),
        # clients that only one of both has
        (
            [({1: 1.0, 9: 0.5}, dict(ALONE))],
            ("fedavg", "+50.0", "100", "0", "+50.0", "1"),
            "3 clients of the reference have no partner",
        ),
    ],
)
def test_clients_are_paired_with_those_of_the_same_seed(write_run, by_seed, row, said):
    runs = [
        write_run(f"{method}{seed}", method, seed, clients=list(values.items()))
        for seed, pair in enumerate(by_seed)
        for method, values in zip(("fedavg", "local"), pair, strict=True)
        if values
    ]
    section = gains(compare(runs))
    assert section.rows == (row,)
    assert said in section.note


@pytest.mark.parametrize(
    ("partition", "more"),
    [("natural", {}), ("dirichlet", {"split-seed": "0"}), ("dirichlet", {"split-seed": "seed"})],
)
def test_with_three_seeds_the_mean_gain_has_intervals(write_run, partition, more):
    """Clients gain 0.2 + k / 100 + s / 50 at seed s: means of 0.295, 0.315 and 0.335,
    so for these sites 0.315 ± 4.303 * 0.02 / sqrt(3). Clients that each seed deals anew
    are in that interval already; the same ones have another one for sites like these.
    """
    runs, settings = [], {"data": {"source": "table.csv", "partition": partition, **more}}
    for seed in range(3):
        alone = [(k, 0.25) for k in range(20)]
        taught = [(k, 0.45 + k / 100 + seed / 50) for k in range(20)]
        for method, clients in (("local", alone), ("fedavg", taught)):
            name = f"{method}{seed}"
            runs.append(write_run(name, method, seed, clients=clients, settings=settings))
    comparison = compare(runs)
    row = next(row for row in rows_of(comparison.csv) if row["label"] == "fedavg")
    low = float(row["gain-mean-sites-like-these-low"])
    section, reach = gains(comparison), 4.302653 * 0.02 / 3**0.5
    shown = section.rows[0][1].split("\n")
    dealt_anew = more == {"split-seed": "seed"}
    first = "sites like these" if dealt_anew else "these sites"
    assert shown[:4] == ["+31.5", "±2.0", first, "+26.5 to +36.5"]
    assert (len(shown) == 4) == dealt_anew
    assert low == pytest.approx(0.315 - reach)  # never narrower
    assert ("Each seed deals other clients" if dealt_anew else "other clients, too") in section.note


def test_any_run_can_be_the_reference(write_run, capsys, error_of):
    runs = [write_run("f", clients=TOGETHER), write_run("l", "local", clients=ALONE)]
    other = write_run("p", "fedprox", clients=TOGETHER)
    section = gains(compare(runs, reference=other))  # the reference is added to the comparison
    assert section.title == "Gain over fedprox"
    assert [row[:2] for row in section.rows] == [("fedavg", "+0.0"), ("local", "-9.4")]
    assert main(["compare", str(runs[0]), "--reference", str(runs[1]), "--worst", "0.25"]) == 0
    assert "Gain over local" in capsys.readouterr().out
    error_of("compare", runs[0], "--reference", runs[0].parent / "none")
    said = error_of("compare", runs[0], "--worst", "1.5")
    assert said == "fedapps: --worst 1.5: must be above 0 and at most 1\n"


def test_other_data_are_not_paired(write_run):

    def run(name, method="fedavg", seed=0, clients=TOGETHER, **data):
        settings = {"data": {"source": "digits", "alpha": 0.1, **data}}
        return write_run(name, method, seed, clients=clients, settings=settings)

    local, other = run("l", "local", clients=ALONE), run("f", alpha=0.5)
    late = run("g", "fedprox", seed=1)
    assert gains(compare([other, late, local])) is None
    refused(
        lambda: compare([other, late], reference=local),
        r"no run has the same seed, data and clients as .*l, so gains cannot",
        UserError,
    )
    noisy = run("n", noise="pair", group="sex")
    assert [row[0] for row in gains(compare([other, noisy, local])).rows] == [
        "fedavg alpha=0.1 noise=pair group=sex"
    ]


# --- predictors without training ------------------------------------------------------


def trained(name, seed=0, **evaluation):
    settings = {"method": name, "seed": seed}
    rounds = [{"round": 1, "evaluate": evaluation}]
    summary = {"state": "completed", "seed": seed, **evaluation}
    return RunFolder(Path(f"{name}{seed}"), settings, {}, rounds, 0, [], {}, summary)


def values(runs):
    return {
        row.label: {key: mean for key, (mean, _) in row.values.items()}
        for row in rows_of_runs(runs)
    }


def test_one_row_for_all_runs_of_the_same_data():
    numbers = {"test-rmse": 0.9, "test-rmse-of-mean": 1.1, "test-rmse-of-biases": 0.95}
    first, second = (
        trained("fedfw", **numbers),
        trained("dfw-trace", **(numbers | {"test-rmse": 0.8})),
    )
    by_row = values([first, second])
    assert list(by_row) == ["fedfw", "dfw-trace", "mean (not trained)", "biases (not trained)"]
    assert by_row["biases (not trained)"] == {"test-rmse": 0.95}
    other_data = trained("dfw-trace", **{"test-rmse": 0.9, "test-rmse-of-mean": 1.2})
    assert "mean (not trained)" not in values([first, other_data])


def test_reference_predictors_have_means_and_deviations_over_seeds():
    runs = [
        trained("fedfw", seed, **{"test-rmse": 0.9, "test-rmse-of-mean": 1.0 + 0.1 * seed})
        for seed in (0, 1, 2)
    ]
    (_, reference) = rows_of_runs(runs)
    assert reference.values["test-rmse"] == pytest.approx((1.1, 0.1))
    assert (reference.complete, reference.remark) == (True, "")
    # rows, and no columns
    assert all("-of-" not in column.key for column in columns_of(rows_of_runs(runs)))


# --- runs that predict numbers --------------------------------------------------------


def reported(y, f):
    sums = error_sums(f[:, None], y[:, None])
    return {
        **errors_of(len(y), sums),
        "loss": 1.0,
        "test-samples": len(y),
        "error-sums": sums.ravel().tolist(),
    }


def replies(sizes=(4, 30, 9)):
    rng = np.random.default_rng(0)
    parts = [
        (y, y + rng.normal(size=size) * (k + 1))
        for k, size in enumerate(sizes)
        for y in [7 * k + rng.normal(size=size)]
    ]
    return parts, {k: reported(*part) for k, part in enumerate(parts)}


@pytest.mark.parametrize(
    "lie",
    [
        {"error-sums": [-1.0, 1.0, 0.0, 1.0]},
        {"error-sums": [1.0, 1.0, 0.0]},
        {"error-sums": [1.0, 1.0, float("nan"), 1.0]},
        {"error-sums": "much"},
        {"test-samples": -5},
        {"test-samples": 0},
    ],
)
def test_impossible_sums_are_skipped(lie):
    _, metrics = replies()
    assert pooled_errors(metrics | {"liar": metrics[1] | lie}) == pooled_errors(metrics)
    assert pooled_errors({"liar": metrics[1] | lie}) == {}


def with_errors(path, *values):
    (path / "clients.csv").write_text(
        "client,rmse\n" + "".join(f"{k},{value}\n" for k, value in enumerate(values))
    )
    return read_run(path)


def test_lower_errors_are_better_in_all_comparisons(write_run):
    last = {"rmse-mean": 3.0, "rmse-worst": 4.0, "r2-pooled": 0.5}
    runs = [
        with_errors(write_run("a", "fedavg", last=last), 2.0, 4.0),
        with_errors(write_run("b", "local", last=last | {"rmse-mean": 5.0}), 4.0, 6.0),
    ]
    assert fair_measure(runs) == "rmse"
    assert worst_first([1.0, 3.0, 2.0], "rmse").tolist() == [3.0, 2.0, 1.0]
    assert worst_first([1.0, 3.0, 2.0], "accuracy").tolist() == [1.0, 2.0, 3.0]
    section = gains(compare([run.path for run in runs]))
    assert section.rows[0][1] == "+2.000"
    assert "points" not in section.note
    assert "worst 4.000" in client_bars({"a": runs[:1], "b": runs[1:]}, THEME).panels[0].note
