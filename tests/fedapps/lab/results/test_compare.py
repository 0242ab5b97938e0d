"""The comparison: which runs share a row, mean ± std by hand, best values, and
errors.
"""

import io
import math
import re

import pytest
from rich.console import Console

from fedapps.errors import UserError
from fedapps.lab.results.compare import compare
from tests.helpers import rows_of


def terminal(comparison, width=120, colour=False):
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    console.print(comparison.table)
    return console.file.getvalue()


def csv_rows(comparison):
    return {row["label"]: row for row in rows_of(comparison.csv)}


def test_seeds_become_mean_and_sample_std(write_run):
    accuracies = [0.80, 0.84, 0.91]
    runs = [write_run(f"a{s}", seed=s, last={"accuracy-mean": a}) for s, a in enumerate(accuracies)]
    runs.append(write_run("b", "superfed-mm", last={"accuracy-mean": 0.97}))
    comparison = compare(runs)
    # mean 0.85; deviations -0.05, -0.01, 0.06: sum of squares 0.0062, over 2 = 0.0031
    rows = csv_rows(comparison)
    assert set(rows) == {"fedavg", "superfed-mm"}
    assert float(rows["fedavg"]["accuracy-mean"]) == pytest.approx(0.85)
    assert float(rows["fedavg"]["accuracy-mean-over-seeds-std"]) == pytest.approx(math.sqrt(0.0031))
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
    in_terminal = re.findall("\x1b\\[1m *([0-9.]+)", terminal(comparison, colour=True))
    assert in_html == in_terminal
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


COSTS = ["bytes-up", "bytes-down", "seconds", "rounds-completed"]


@pytest.mark.parametrize(
    ("both", "second", "keys", "shown"),
    [
        ({"accuracy-mean": 0.9}, {"gini": 0.1}, ["accuracy-mean", "gini", *COSTS], "-"),
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
    assert header.split("\n")[1].split()[-3:] == ["kB", "kB", "s"]
    assert cells.split()[-3:] == ["4.00", "8.00", "2.00"]


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
    runs = [write_run("a", "[red]m[/red]<script>$"), write_run("b", "m2")]
    comparison = compare(runs)
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
        with pytest.raises(UserError, match=message):
            compare(runs, out)
    assert not (tmp_path / "comparison").exists()
