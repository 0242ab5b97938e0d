"""One way to name a source, and one reader for tables: a csv as it comes, for every
task.
"""

from pathlib import Path

import numpy as np
import pytest

from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.helpers import refused, write_csv


def rows(n=30, classes=("bad", "good", "best"), seed=0):
    """Rows of four plants: a number with gaps, a text with few values, a text of one
    value per row, a label.
    """
    rng = np.random.default_rng(seed)
    return [
        {
            "plant": plant,
            "heat": "" if number == 3 else f"{rng.normal(50, 10):.3f}",
            "shift": rng.choice(["day", "night"]),
            "note": f"{plant} {number}",
            "label": classes[number % len(classes)],
        }
        for plant in ("Ulm", "Jena", "Bonn", "Kiel")
        for number in range(n)
    ]


def write(path, lines):
    return str(write_csv(path, lines, {}))


def task_of(source, task="tabular", **settings):
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    given = {"task": task, "data.source": source, "device": "cpu", **given}
    return build_task(with_defaults(given))


# --- one way to name a source ---------------------------------------------------------


def test_a_file_for_another_task_names_all_that_is_in_the_way():
    """The main job's file with a method whose default task reads no such data."""
    given = read_toml(Path(__file__).parents[3] / "experiments" / "default.toml")
    refused(
        lambda: read_settings({**given, "method": "fedfw"}),
        "^data.source = 'digits', data.partition = 'dirichlet': task 'lasso' does not use them: "
        "leave them out, or choose task = 'constrained-classification'$",
        UserError,
    )


@pytest.mark.parametrize(
    ("task", "key", "value"),
    [
        ("lasso", "data.source", "x.csv"),
        ("lasso", "data.label", "y"),
        ("sparse-logistic", "data.score-on", "validation"),
        ("text", "data.natural-id", "role"),
        ("text", "data.part", "x"),
        ("text", "data.group", "role"),
        ("qap", "data.alpha", 0.3),
    ],
)
def test_a_setting_that_a_task_does_not_read_is_refused(task, key, value):
    method = "fedavg" if task == "text" else "fedfw"
    refused(
        lambda: read_settings({"task": task, "method": method, key: value}),
        rf"{key} = .*: task '{task}' does not use it",
        UserError,
    )


# --- one reader -----------------------------------------------------------------------


@pytest.mark.parametrize("task", ["tabular", "classification"])
def test_categories_and_missing_values_and_three_classes(task, tmp_path):
    task = task_of(write(tmp_path / "t.csv", rows()), task, data__natural_id="plant")
    task.check(4)
    assert task.samples.numbers.used == ("heat", "shift=night")
    assert task.samples.classes == ("bad", "best", "good")
    assert task.num_outputs == 3
    assert any("note" in line and "left out" in line for line in task.remarks(4))
    assert any("shift" in line and "categor" in line for line in task.remarks(4))
    filled = "data.features: missing values are filled with means and shares: heat (3 %)"
    assert filled in task.remarks(4)
    data = task.client_data(0, 4)
    x = np.concatenate([part.x.reshape(len(part), -1) for part in (data.train, data.test)])
    assert np.isfinite(x).all()
    assert set(np.unique(x[:, 1])) == {0.0, 1.0}
    if task.name == "tabular":
        assert np.isnan(task.arrays(0, 4, scale=False).train.x).any()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("label", "", r"'label': 1 samples have no value in it \(first: row 7\)"),
        ("heat", "warm", r"'heat': 1 of 120 rows hold text where the others hold .*first: row 7"),
    ],
)
def test_messages_count_rows_as_the_file_does(column, value, message, tmp_path):
    lines = rows()
    lines[5][column] = value  # the header is row 1
    source = write(tmp_path / "t.csv", lines)
    refused(lambda: task_of(source, data__natural_id="plant").check(4), message, UserError)


def test_a_column_of_clients_is_suggested_and_none_are_invented(tmp_path):
    source = write(tmp_path / "t.csv", rows())
    refused(
        lambda: assemble(
            with_defaults({"task": "tabular", "data.source": source, "device": "cpu"})
        ),
        r"'plant' \(4 values\) looks like one.*natural-id=plant",
        UserError,
    )
    task = task_of(source, "classification", num_clients=5)
    assert any("'plant' (4 values) looks like one" in line for line in task.remarks(5))
    assert len(task_of(source, data__partition="iid", num_clients=5).partition(5)) == 5
