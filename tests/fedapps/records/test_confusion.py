"""The confusion matrix of a run: as counted over all clients' test samples, without
those of clients that lie.
"""

import csv

import numpy as np
import pytest

from fedapps.algorithms.common.confusion import macro_measures, margins
from fedapps.clients.base.scores import CONFUSION, class_scores
from fedapps.lab.results.class_tables import classes_section
from fedapps.lab.results.parts import run_sections
from fedapps.records.reader import read_run
from fedapps.records.tables import confusion_table
from tests.helpers import lacking, run_inline


def metrics_of(labels, predicted, classes=3):
    labels, predicted = np.array(labels), np.array(predicted)
    return {
        "accuracy": float((labels == predicted).mean()),
        "test-samples": len(labels),
        **class_scores(labels, predicted, classes),
    }


HONEST = {0: metrics_of([0, 1, 2], [0, 1, 1]), 1: metrics_of([2, 2], [2, 0])}


@pytest.mark.parametrize("names", [("a", "b", "c"), ()])
def test_the_counts_of_all_clients_add_up(names):
    table, measures, left_out = confusion_table(names, HONEST)
    shown = list(names) or ["0", "1", "2"]
    assert table == [
        ["actual", *shown],
        [shown[0], 1, 0, 0],
        [shown[1], 0, 1, 0],
        [shown[2], 1, 1, 1],
    ]
    counts = np.array([row[1:] for row in table[1:]])
    assert measures == {f"{k}-pooled": v for k, v in macro_measures(*margins(counts)).items()}
    assert not left_out


@pytest.mark.parametrize(
    "lie",
    [[-1, *HONEST[0][CONFUSION][1:]], [9] * 9, [1, 2], HONEST[1][CONFUSION], [0.5] * 6 + [0] * 3],
)
def test_a_client_that_lies_is_left_out_and_named(lie):
    honest = {k: v for k, v in HONEST.items() if k} | {7: HONEST[0]}
    found = confusion_table((), honest | {3: {**HONEST[0], CONFUSION: lie}})
    assert found[:2] == confusion_table((), honest)[:2]
    assert [(entry["client"], entry["reason"][:11]) for entry in found[2]] == [(3, "confusion: ")]


def test_many_classes_have_macro_measures_and_no_counts():
    few, many = (class_scores(np.array([0, 1, 1]), np.array([0, 1, 0]), c) for c in (100, 101))
    assert (len(few.pop(CONFUSION)), few) == (10_000, many)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["superfed-mm", "local"])
def test_a_run_writes_and_shows_its_classes(method, tmp_path):
    more = {"num-clients": 4, "num-rounds": 2, "checkpoint-every": 0, "train.local-epochs": 2}
    summary = run_inline(tmp_path / "run", method=method, **more)
    run = read_run(tmp_path / "run")
    table = list(csv.reader((tmp_path / "run" / "confusion.csv").read_text().splitlines()))
    counts = np.array([row[1:] for row in table[1:]], int)
    samples = sum(row["test-samples"] for row in run.clients)
    right = sum(row["test-samples"] * row["accuracy"] for row in run.clients)
    assert (counts.sum(), counts.trace()) == (samples, round(right))
    assert {"macro-precision", "macro-recall", "macro-f1"} <= set(run.clients[0])
    assert summary["macro-f1-pooled"] == macro_measures(*margins(counts))["macro-f1"]
    assert "left-out" not in run.rounds[-1]
    section = classes_section(run)
    assert [row[0] for row in section.rows] == [str(c) for c in range(10)]
    assert section.title not in [s.title for s in run_sections(run)]  # too long for a terminal
    page = (tmp_path / "run" / "report.html").read_text()
    assert not lacking(page, "<h2>Classes</h2>", "Confusion matrix")


@pytest.mark.parametrize("more", [{"class-counts": False}, {"dp.noise-multiplier": 1.0}])
def test_counts_stay_with_the_clients_unless_asked_for(more, tmp_path):
    small = {"num-clients": 4, "num-rounds": 1, "checkpoint-every": 0, "train.local-epochs": 1}
    summary = run_inline(tmp_path / "run", **small, **more)
    assert lacking(summary, "macro-f1-mean", "macro-f1-pooled") == ["macro-f1-pooled"]
    assert not (tmp_path / "run" / "confusion.csv").exists()
    assert "class-counts = true" in classes_section(read_run(tmp_path / "run")).note
