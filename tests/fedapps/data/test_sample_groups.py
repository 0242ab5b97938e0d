"""Groups of samples: the values of a column, and what becomes of them in a run on
images and on a table.
"""

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedapps.algorithms.fairness.groups import group_measures, group_sums
from fedapps.clients.fedavg import FedAvgClient
from fedapps.data.columns import MAX_GROUPS, grouped
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.partition import thinned
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline, with_folder
from fedapps.settings.reading import read_settings
from tests.data_folders import write_parquet
from tests.helpers import refused, rounds_of, rows_of

pytestmark = pytest.mark.usefixtures("own_caches")


GREY = {"image": datasets.Image(), "label": datasets.Value("int64")}


def pictures(folder, n=120):
    """Grey 4 x 4 pictures in three classes with a column ``sex``, empty in every tenth
    row.
    """
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=n)
    pixels = (60 * label[:, None, None] + rng.integers(0, 80, (n, 4, 4))).astype(np.uint8)
    sex = [None if i % 10 == 9 else "fm"[int(k)] for i, k in enumerate(rng.integers(2, size=n))]
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": label.tolist(), "sex": sex}
    return write_parquet(folder, columns, GREY | {"sex": datasets.Value("string")})


def run(tmp_path, clients, **config):
    job = {"num-clients": clients, "clients-per-round": 0, "num-rounds": 2}
    settings = read_settings(job | {"train.local-epochs": 1} | config)
    settings = with_folder(settings, tmp_path / "run")
    summary = execute_inline(settings)
    return settings, summary, {row["group"]: row for row in rows_of(tmp_path / "run/groups.csv")}


@pytest.mark.parametrize(
    ("values", "edges", "codes", "names"),
    [
        (["m", "f", None, "m"], (), [1, 0, -1, 1], ("f", "m")),
        ([1.0, 0.0, np.nan, 1.0], (), [1, 0, -1, 1], ("0", "1")),
        (
            [39, 40, None, 60.4, 60.5, 99],
            (40.0, 60.5),
            [0, 1, -1, 1, 2, 2],
            ("below 40", "40 to below 60.5", "from 60.5"),
        ),
    ],
)
def test_values_are_groups_in_order_and_a_missing_one_is_in_none(values, edges, codes, names):
    found = grouped(pa.chunked_array([values]), "sex", edges)
    assert (found.codes.tolist(), found.names) == (codes, names)


@pytest.mark.parametrize(
    ("values", "edges", "message"),
    [
        (range(MAX_GROUPS + 1), (), "21 values, from 2 to 20 can be groups: set data.group-edges"),
        (["a"] * 5, (), "1 values"),
        (["a", "b"], (3.0,), "is for a column of numbers, but 'g' holds text"),
    ],
)
def test_what_makes_no_groups_is_refused(values, edges, message):
    refused(lambda: grouped(pa.chunked_array([list(values)]), "g", edges), message, UserError)


@pytest.mark.parametrize("edges", ["60,40", "40,", "x", "1,nan", "inf"])
def test_limits_that_do_not_ascend_are_refused(edges):
    refused(lambda: DataOptions(group="age", group_edges=edges), "group-edges")


def test_more_sums_than_a_reply_may_hold_are_refused(tmp_path):
    """20 groups of 200 classes: 20 (3 x 200 + 45) = 12,900 numbers."""
    grey = [Image.fromarray(np.zeros((2, 2), np.uint8))] * 1000
    columns = {"image": grey, "label": np.arange(1000) % 200, "site": np.arange(1000) % 20}
    source = write_parquet(tmp_path / "set", columns, GREY | {"site": datasets.Value("int64")})
    config = {"task": "classification", "data.source": source, "data.partition": "iid"}
    build_task(read_settings(config)).check(2)
    refused(
        lambda: build_task(read_settings(config | {"data.group": "site"})).check(2),
        r"data.group = 'site': 20 groups and 200 classes are 12900 numbers a client, more than "
        r"10000",
        UserError,
    )


def test_tasks_and_sites_without_groups_say_so():
    own = {"sites.labels": "a,b", "sites.shape": "1,4,4", "task": "classification"}
    for given, message in (
        ({}, "task 'digits' is not scored by group"),
        (own, "sites with their own data are not scored by group"),
    ):
        refused(lambda: read_settings(given | {"data.group": "sex"}), message, UserError)


def test_a_run_on_images_reports_what_its_model_does_to_each_group(tmp_path):
    """The sums of the clients give the measures of the final model on all test samples
    together.
    """
    given = {"data.source": pictures(tmp_path / "set"), "data.group": "sex"}
    given |= {"task": "classification", "data.partition": "iid"}
    settings, summary, rows = run(tmp_path, 4, **given)
    task = build_task(settings)
    model = task.model_fn(0)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    tests = [task.client_data(k, 4).test for k in range(4)]
    p = model(torch.cat([t.x for t in tests])).softmax(1).detach().numpy()
    y, g = (torch.cat([getattr(t, name) for t in tests]).numpy() for name in ("y", "groups"))
    expected = group_measures(group_sums(y, p.argmax(1), p.max(1), g, 3), task.groups)
    assert list(rows) == ["f", "m"]
    assert sum(int(row["samples"]) for row in rows.values()) == g.sum() < len(y)
    for row, wanted in zip(rows.values(), expected, strict=True):
        assert {name: float(row[name]) for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert row["clients"] == "4"
        assert (row["tp"], row["selected"]) == ("", "")
    accuracies = [row["accuracy"] for row in expected]
    assert summary["group-accuracy-gap"] == pytest.approx(max(accuracies) - min(accuracies))
    assert {"demographic-parity-gap", "equalised-odds-gap", "group-ece-worst"} <= set(summary)
    assert "test-samples-mean" not in summary


@pytest.mark.parametrize("method", ["fedavg", "superfed-mm", "ditto", "local", "ffgb"])
def test_the_generated_table_has_groups_with_every_kind_of_client(method, tmp_path):
    settings, summary, rows = run(
        tmp_path, 3, method=method, task="tabular", **{"data.group": "kind"}
    )
    assert list(rows) == ["a", "b", "c"]
    tests = [build_task(settings).client_data(k, 3).test for k in range(3)]
    assert [int(row["samples"]) for row in rows.values()] == sum(
        part.groups.sum(0) for part in tests
    ).tolist()
    for row in rows.values():
        tp, fp, fn, tn = (int(row[name]) for name in ("tp", "fp", "fn", "tn"))
        assert tp + fp + fn + tn == int(row["samples"])
        assert float(row["tpr"]) == pytest.approx(tp / (tp + fn))
        assert float(row["fpr"]) == pytest.approx(fp / (fp + tn))
    right = sum(int(row["right"]) for row in rows.values())
    # every row has a kind
    assert summary["accuracy-weighted"] == pytest.approx(right / sum(map(len, tests)))
    assert "left-out" not in rounds_of(tmp_path / "run")[-1]


def test_a_table_by_age_and_one_by_sex(tmp_path):
    rng = np.random.default_rng(0)
    ages = rng.integers(20, 90, 120)
    ages[2::3] = 75  # of client c, which is in one group only
    columns = {"client": ["a", "b", "c"] * 40, "age": ages, "label": rng.integers(2, size=120)}
    source = write_parquet(tmp_path / "set", columns | {"sex": rng.choice(["f", "m"], 120)})
    table = {"task": "tabular", "data.source": source, "data.drop": "sex"}
    _, _, rows = run(tmp_path, 3, **table, **{"data.group": "age", "data.group-edges": "40,60"})
    assert list(rows) == ["below 40", "40 to below 60", "from 60"]
    assert [row["clients"] for row in rows.values()] == ["2", "2", "3"]
    task = build_task(read_settings(table | {"data.group": "sex"}))
    assert task.groups.names == ("f", "m")
    assert task.samples.numbers.used == ("age",)


def test_malformed_sums_are_left_out_and_named_and_the_run_goes_on(tmp_path, monkeypatch):
    """Client 1 has samples of a class that no bin holds, client 2 sends a single
    number.
    """
    honest = FedAvgClient.evaluate

    def evaluate(self, parameters, config):
        loss, n, metrics = honest(self, parameters, config)
        if self.client_id == 1:
            metrics["group-sums"] = [1e12, *metrics["group-sums"][1:]]
        if self.client_id == 2:
            metrics["group-sums"] = [7.0]
        return loss, n, metrics

    monkeypatch.setattr(FedAvgClient, "evaluate", evaluate)
    settings, summary, rows = run(tmp_path, 4, task="tabular", **{"data.group": "kind"})
    assert summary["status"] == "completed"
    parts = [build_task(settings).client_data(k, 4).test.groups.sum(0) for k in (0, 3)]
    assert [int(row["samples"]) for row in rows.values()] == sum(parts).tolist()
    left_out = rounds_of(tmp_path / "run")[-1]["left-out"]
    assert [entry["client"] for entry in left_out] == [1, 2]
    assert "different numbers of samples" in left_out[0]["reason"]
    assert "1 numbers, but 3 groups need" in left_out[1]["reason"]


def test_samples_of_all_splits_have_a_group(tmp_path):
    source = tmp_path / "set"
    source.mkdir()
    for split, count in (("train", 30), ("test", 9), ("validation", 6)):
        lines = [f"{row / 7},{'fm'[row % 2]},{row % 3}" for row in range(count)]
        (source / f"{split}.csv").write_text("\n".join(["height,sex,label", *lines]))
    options = DataOptions(
        source=str(source),
        test="test",
        validation_split="validation",
        group="sex",
        partition="iid",
        max_samples=10,
    )
    samples = thinned(read_samples(options), options)
    assert len(samples.labels) == len(samples.groups.codes) == 10 + 9 + 6
    # every second row, of each split
    np.testing.assert_array_equal(samples.groups.codes[-15:], [0, 1] * 4 + [0] + [0, 1] * 3)
