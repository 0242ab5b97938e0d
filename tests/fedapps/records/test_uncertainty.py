"""The table of the worst clients comes from clients.csv alone, and needs the number of
test samples.
"""

import re

import numpy as np
import pytest

from fedapps.lab.results.compare import compare
from fedapps.lab.results.comparison_table import rows_of
from fedapps.lab.results.report import write_report
from fedapps.lab.results.run_tables import worst_section
from fedapps.records.reader import read_run
from fedapps.records.uncertainty import as_numbers, of_clients
from tests.helpers import lacking, run_inline


def with_samples(path, rows):
    """``rows``: (client, accuracy, test samples, loss)."""
    lines = ["client,accuracy,test-samples,loss", *(",".join(map(str, row)) for row in rows)]
    (path / "clients.csv").write_text("\n".join(lines) + "\n")
    return path


TWELVE = [(k, 0.5 if k == 3 else 0.9, 100, 0.1 * k) for k in range(12)]


def test_the_table_of_worst_clients_has_estimates_with_intervals(write_run):
    run = with_samples(write_run(), TWELVE)
    section = worst_section(rows_of([read_run(run)]))
    assert section.header == (
        "method",
        "worst 10 %, measured",
        "estimate",
        "worst client, measured",
        "estimate",
        "gap, measured",
        "estimate",
    )
    (row,) = section.rows
    statistics = of_clients(read_run(run).clients, 0)
    # a tenth of twelve clients is rounded up to two
    assert row[:1] + row[1:6:2] == ("fedavg", "70.0", "50.0", "40.0")
    worst = statistics["worst"]
    bounds = f"{100 * worst.low:.1f}\N{EN DASH}{100 * worst.high:.1f}"
    assert row[4] == f"{100 * worst.estimate:.1f}\n{bounds}"
    assert worst.low < 0.5 < worst.estimate < worst.high
    assert not lacking(write_report(run).read_text(encoding="utf-8"), "Worst clients", bounds)
    fifth = worst_section(rows_of([read_run(run)]), 0.25)
    assert fifth.header[1] == "worst 25 %, measured"
    assert fifth.rows[0][1] == f"{100 * (0.5 + 0.9 + 0.9) / 3:.1f}"


def test_the_same_run_gives_the_same_intervals_and_seeds_their_means(write_run):
    runs = [with_samples(write_run(f"r{seed}", seed=seed), TWELVE) for seed in (0, 1)]
    alone = [worst_section(rows_of([read_run(run)])).rows[0] for run in runs]
    assert alone[0] == worst_section(rows_of([read_run(runs[0])])).rows[0]
    (both,) = worst_section(rows_of([read_run(run) for run in runs])).rows
    numbers = [[float(x) for x in re.findall(r"[\d.]+", str(row))] for row in (*alone, both)]
    assert numbers[0] != numbers[1]
    assert numbers[2] == pytest.approx(np.mean(numbers[:2], axis=0), abs=0.11)
    assert compare(runs).sections[0].rows == (both,)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0.5, "", 1.0), (1, 0.5, 10, 1.0)],
        [(0, 1.5, 10, 1.0), (1, 0.5, 10, 1.0)],
        [(0, 0.5, 0, 1.0), (1, 0.5, 10, 1.0)],
        [(0, 0.5, 1e300, 1.0), (1, 0.5, 10, 1.0)],
        [(0, 0.5, "nan", 1.0), (1, "inf", 10, 1.0)],
        [(0, 0.5, 10, 1.0)],  # one client has no worst client
        [],
    ],
)
def test_without_numbers_of_samples_there_is_no_table(rows, write_run):
    run = read_run(with_samples(write_run(), rows))
    assert worst_section(rows_of([run])) is None
    assert len(rows) == 1 or as_numbers(of_clients(run.clients, 0)) == {}


def test_the_summary_of_a_run_has_the_intervals_of_its_clients(tmp_path):
    job = {"task": "tabular", "num-clients": 5, "clients-per-round": 0, "num-rounds": 2, "seed": 3}
    summary = run_inline(tmp_path, **job)
    expected = as_numbers(of_clients(read_run(tmp_path).clients, 3))
    keys = {
        f"{key}-{end}"
        for key in ("accuracy-mean", "accuracy-worst", "accuracy-worst10", "parity-gap")
        for end in ("low", "high")
    }
    assert set(expected) == keys | {
        f"{key}-estimate" for key in ("accuracy-worst", "accuracy-worst10", "parity-gap")
    }
    assert {key: summary[key] for key in expected} == expected
    assert summary["accuracy-mean-low"] < summary["accuracy-mean"] < summary["accuracy-mean-high"]


def test_text_has_no_intervals(tmp_path):
    """The accuracy on text is a mean over characters, which depend on each other."""
    job = {"task": "text", "num-clients": 3, "num-rounds": 1, "train.local-epochs": 1}
    summary = run_inline(tmp_path, **job)
    assert "accuracy-worst" in summary
    assert [key for key in summary if key.endswith(("-low", "-estimate"))] == []
