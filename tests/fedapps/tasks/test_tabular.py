import json
import os
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from algorithms.common.partitioners import stratified
from clients.base.data import Split
from clients.base.evaluation import BINARY
from fedapps.commands.parser import main
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.records.writer import summarise
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute, with_folder
from fedapps.settings.settings import read_settings
from fedapps.tasks.options import TabularOptions
from fedapps.tasks.scaling import standardised
from fedapps.tasks.tables import encode, generate, read_table


def tabular(num_clients=0, seed=0, **options):
    config = {f"tabular.{key.replace('_', '-')}": value for key, value in options.items()}
    return build_task(
        read_settings({"task": "tabular", "num-clients": num_clients, "seed": seed} | config)
    )


def write(folder, columns):
    import datasets

    folder.mkdir(exist_ok=True)
    datasets.Dataset.from_dict(columns).to_parquet(folder / "train-00000-of-00001.parquet")
    return str(folder)


def small(n=20, clients=("b", "a")):
    """A table by hand: two clients, a number, a category with three values, one with
    two.
    """
    rng = np.random.default_rng(0)
    return {
        "client": [name for name in clients for _ in range(n)],
        "age": (50 + 10 * rng.normal(size=n * len(clients))).tolist(),
        "kind": ["x", "y", "z", "y"] * (n // 4 * len(clients)),
        "sex": ["m", "f"] * (n // 2 * len(clients)),
        "label": [0, 1, 1, 0] * (n // 4 * len(clients)),
    }


# --- split, filling, scaling ----------------------------------------------------------


@pytest.mark.parametrize("counts", [(2, 2), (40, 10), (53, 7), (3, 90)])
def test_every_class_is_split_alike_and_every_sample_is_used_once(counts):
    labels = np.random.default_rng(1).permutation(np.repeat([0, 1], counts))
    train, validation, test = stratified(labels, np.random.default_rng(0), 0.2)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    assert len(validation) == 0
    for label, count in enumerate(counts):
        held = (labels[test] == label).sum()
        assert abs(held - 0.2 * count) <= 0.5 or held == 1
        assert 1 <= held < count
    assert [
        len(part) for part in stratified(np.ones(50, int), np.random.default_rng(0), 0.2, 0.1)
    ] == [35, 5, 10]


def test_a_class_that_cannot_be_in_every_part_is_refused():
    with pytest.raises(ValueError, match="class 1 has 2 samples for 3 parts"):
        stratified(np.array([0, 0, 0, 1, 1]), np.random.default_rng(0), 0.2, 0.2)


def test_filling_and_scaling_are_those_of_the_client_s_training_rows():
    rng = np.random.default_rng(0)
    x = 100 * rng.normal(size=(30, 3)) + 7
    x[rng.random(x.shape) < 0.2] = np.nan
    x[:, 2] = rng.integers(2, size=30)  # a dummy
    train, scaled = np.arange(20), np.array([True, True, False])
    out = standardised(x, scaled, train)
    for column in (0, 1):
        mean = np.nanmean(x[:20, column])
        filled = np.where(np.isnan(x[:, column]), mean, x[:, column])
        np.testing.assert_allclose(out[:, column], (filled - mean) / filled[:20].std())
    np.testing.assert_allclose(out[:20, :2].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(out[:20, :2].std(0), 1)
    np.testing.assert_array_equal(out[:, 2], x[:, 2])
    # What lies outside the training rows changes nothing in them.
    other = x.copy()
    other[20:] = 1e6
    np.testing.assert_array_equal(standardised(other, scaled, train)[:20], out[:20])


def test_a_column_that_is_missing_or_constant_in_training_is_zero():
    x = np.array(
        [
            [np.nan, 5.0, 0.1, 1.0],
            [np.nan, 5.0, np.nan, 1.0],
            [np.nan, np.nan, 0.1, 1.0],
            [300.0, 900.0, 7.0, 0.0],
        ]
    )
    out = standardised(x, np.array([True, True, True, False]), np.arange(3))
    np.testing.assert_array_equal(out, np.zeros((4, 4)))


def test_another_client_s_rows_change_nothing(tmp_path):
    one, other = small(), small()
    other["age"][:20] = [1e5 * value for value in other["age"][:20]]  # client b
    other["age"][3] = None
    other["label"][:20] = [1 - label for label in other["label"][:20]]
    a, b = (
        tabular(source=write(tmp_path / name, table), categorical="kind,sex")
        for name, table in (("one", one), ("other", other))
    )
    for part in ("train", "test"):
        first, second = (getattr(task.client_data(0, 2), part) for task in (a, b))
        assert torch.equal(first.x, second.x)
        assert torch.equal(first.y, second.y)
    assert not torch.equal(a.client_data(1, 2).train.x, b.client_data(1, 2).train.x)


def test_layout_of_a_table_by_hand():
    table = encode(
        {name: np.array(values) for name, values in small().items()},
        TabularOptions(categorical="kind, sex"),
    )
    assert table.clients == ("a", "b")
    assert table.features == ("age", "kind=x", "kind=y", "kind=z", "sex=m")
    np.testing.assert_array_equal(table.scaled, [True, False, False, False, False])
    np.testing.assert_array_equal(
        table.x[0][:4, 1:], [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    )
    np.testing.assert_array_equal(table.y[1][:4], [0, 1, 1, 0])


def test_a_missing_category_is_the_client_s_shares_of_all():
    columns = {name: np.array(values, object) for name, values in small(clients=("a",)).items()}
    columns["kind"][0] = None
    table = encode(columns, TabularOptions(categorical="kind,sex"))
    row = standardised(table.x[0], table.scaled, np.arange(12))[0]
    np.testing.assert_allclose(row[1:4], [2 / 11, 6 / 11, 3 / 11])


def test_a_client_s_rows_are_split_by_its_seed(tmp_path):
    task = partial(tabular, source=write(tmp_path / "t", small(40)), categorical="kind,sex")
    data = task().client_data(1, 2)
    assert (len(data.train), len(data.test)) == (32, 8)
    assert data.validation.x is data.train.x
    assert int(data.test.y.sum()) == 4
    again, other = task().client_data(1, 2), task(seed=1).client_data(1, 2)
    assert torch.equal(data.test.x, again.test.x)
    assert not torch.equal(data.test.x, other.test.x)
    parts = task(validation=0.1).client_data(1, 2)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [28, 4, 8]


# --- the objective --------------------------------------------------------------------


def test_one_logit_is_a_softmax_over_the_difference_of_two():
    rng = torch.Generator().manual_seed(0)
    logits, y = (
        torch.randn(50, 2, generator=rng, dtype=torch.float64),
        torch.randint(2, (50,), generator=rng),
    )
    difference = logits[:, 1:] - logits[:, :1]
    assert float(BINARY.loss(difference, y)) == pytest.approx(
        float(functional.cross_entropy(logits, y)), rel=1e-12
    )


class Given(torch.nn.Module):
    """A model whose logit is its input."""

    def forward(self, x):
        return x


def test_scores_of_a_client():
    x, y = torch.tensor([[2.0], [-1.0], [0.5], [0.0], [-3.0]]), torch.tensor([1, 0, 0, 0, 1])
    scores = BINARY.score(Given(), Split(x, y))
    assert scores["accuracy"] == pytest.approx(3 / 5)
    # the 1 at 2 is above all three zeros, the 1 at -3 above none
    assert scores["auroc"] == pytest.approx(3 / 6)
    probabilities = torch.sigmoid(x[:, 0])
    expected = -(y * probabilities.log() + (1 - y) * (1 - probabilities).log()).mean()
    assert scores["loss"] == pytest.approx(float(expected))


def test_auroc_is_left_out_where_it_is_undefined():
    x = torch.tensor([[2.0], [-1.0]])
    assert set(BINARY.score(Given(), Split(x, torch.tensor([1, 1])))) == {
        "accuracy",
        "loss",
        "test-samples",
    }
    scores = BINARY.score(Given(), Split(torch.tensor([[np.nan], [-1.0]]), torch.tensor([0, 0])))
    assert "auroc" not in scores
    assert scores["accuracy"] == 0.5


# --- the task -------------------------------------------------------------------------


def test_the_generated_table_has_clients_that_differ():
    task = tabular(num_clients=5)
    task.check(5)
    assert sum(array.size for array in task.initial_arrays().values()) == 9 + 1
    table = task.table(5)
    assert len({len(y) for y in table.y}) > 1
    means = np.array([np.nanmean(x[:, 0]) for x in table.x])
    assert np.ptp(means) > 0.5
    few, many = generate(2), generate(6)
    n = len(few["label"])
    assert all(
        np.array_equal(few[name], many[name][:n], equal_nan=few[name].dtype.kind == "f")
        for name in few
    )


def test_heart_and_berka_are_recognised_by_their_columns():
    from fedapps.tasks.tables import PRESETS, find_preset

    for name in ("heart", "berka"):
        preset = PRESETS[name]
        columns = dict.fromkeys((preset.client, preset.label, *preset.features, *preset.drop))
        assert find_preset(columns, TabularOptions()) is preset
        assert find_preset({**columns, "more": None}, TabularOptions()) is preset
        assert find_preset(columns, TabularOptions(preset="none")) is PRESETS["none"]
        del columns[preset.features[3]]
        assert find_preset(columns, TabularOptions()) is PRESETS["none"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {},
            {"client": "hospital"},
            r"tabular\.client: no column 'hospital' in .*: it has client, age, kind, sex, label",
        ),
        ({}, {"label": "num"}, r"tabular\.label: no column 'num'"),
        ({}, {"features": "age, size"}, r"tabular\.features: no column 'size'"),
        ({}, {"drop": "size"}, r"tabular\.drop: no column 'size'"),
        ({}, {"drop": "age,kind,sex"}, r"tabular\.features: no column is left"),
        (
            {},
            {},
            r"column 'kind' holds a str value, which is no number: name it in tabular\.categorical "
            r"or in tabular\.drop",
        ),
        (
            {},
            {"categorical": "kind,sex", "drop_clients": "c"},
            r"tabular\.drop-clients: no client 'c': there are a, b",
        ),
        (
            {"label": [1, 2, 2, 1] * 10},
            {"drop": "kind,sex"},
            r"tabular\.label = 'label': the column holds 1, 2: a label is 0 or 1",
        ),
        ({"label": [0, None, 1, 1] * 10}, {"drop": "kind,sex"}, r"a label is 0 or 1, in every row"),
        (
            {"client": ["a"] * 39 + [None]},
            {"drop": "kind,sex"},
            r"tabular\.client = 'client': 1 rows have no client",
        ),
        ({"age": [np.inf] * 40}, {"drop": "kind,sex"}, "column 'age' holds infinite numbers"),
        (
            {"label": [0] * 19 + [1] + [0, 1] * 10},
            {"drop": "kind,sex"},
            r"client 'b' has 19 rows of label 0 and 1 of label 1, .* name it in "
            r"tabular\.drop-clients",
        ),
        (
            {"label": [1] * 40},
            {"drop": "kind,sex"},
            r"tabular\.label: all rows of the clients have label 1: there is nothing to predict",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said(change, options, message, tmp_path):
    source = write(tmp_path / "t", small() | change)
    with pytest.raises(UserError, match=message) as error:
        tabular(source=source, **options).check(2)
    assert "\n" not in str(error.value)


def test_more_clients_than_there_are_and_folders_that_are_not_there(tmp_path):
    source = write(tmp_path / "t", small())
    with pytest.raises(
        UserError, match=r"num-clients = 3, but .* has 2 clients \(a, b\): choose at most 2"
    ):
        tabular(source=source, drop="kind,sex").check(3)
    with pytest.raises(UserError, match=r"tabular\.source = .*no such folder"):
        tabular(source=str(tmp_path / "none")).check(2)
    with pytest.raises(UserError, match=r"tabular\.split = 'exam'"):
        tabular(source=source, split="exam").check(2)
    with pytest.raises(UserError, match=r"tabular\.preset = 'hart': did you mean 'heart'\?"):
        tabular(preset="hart")


def test_clients_that_are_left_out(tmp_path):
    task = tabular(source=write(tmp_path / "t", small()), categorical="kind,sex", drop_clients="a")
    task.check(1)
    assert task.table(1).clients == ("b",)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "superfed-mm", "local"])
def test_a_run_improves_over_the_start_and_says_how_even_it_is(method, tmp_path):
    config = {
        "method": method,
        "task": "tabular",
        "num-clients": 6,
        "clients-per-round": 0,
        "num-rounds": 15,
    }
    settings = read_settings(
        config | {"train.local-epochs": 1, "train.learning-rate": 0.02, "evaluate-every": 1}
    )
    settings = with_folder(settings, tmp_path / "r")
    summary = execute(settings, InlineGrid(app, 6, settings.flat()))
    first, *_, last = [
        json.loads(line)["evaluate"]
        for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    ]
    assert last["loss-weighted"] < 0.9 * first["loss-weighted"]
    ends = ("mean", "std", "worst10", "best10", "worst", "weighted")
    wanted = {f"{name}-{end}" for name in ("accuracy", "auroc") for end in ends}
    assert wanted | {"gini", "parity-gap", "auroc-gini", "auroc-parity-gap"} <= set(summary)
    assert (
        summary["auroc-worst"]
        <= summary["auroc-worst10"]
        <= summary["auroc-mean"]
        <= summary["auroc-best10"]
        <= 1
    )
    assert "auroc" in (tmp_path / "r" / "clients.csv").read_text().splitlines()[0].split(",")


def test_clients_without_an_auroc_are_left_out_of_it():
    metrics = {
        0: {"num-examples": 5, "accuracy": 0.5, "loss": 1.0},
        1: {"num-examples": 5, "accuracy": 0.9, "loss": 2.0, "auroc": 0.75},
        2: {"num-examples": 5, "accuracy": 0.7, "loss": 3.0, "auroc": 0.25},
    }
    summary = summarise(metrics)
    assert summary["auroc-mean"] == 0.5
    assert summary["auroc-worst"] == 0.25
    assert summary["auroc-gini"] == pytest.approx(0.25)
    assert (summary["parity-gap"], summary["auroc-parity-gap"]) == pytest.approx((0.4, 0.5))
    assert "num-examples-mean" not in summary


def test_the_loss_of_the_worst_clients_stands_beside_their_accuracy():
    metrics = {k: {"num-examples": 5, "accuracy": 0.9, "loss": float(k)} for k in range(20)}
    summary = summarise(metrics)
    assert [summary[f"loss-{end}"] for end in ("mean", "worst10", "worst", "best10")] == [
        9.5,
        18.5,
        19.0,
        0.5,
    ]
    # Where a client names its test loss, ``loss`` is that of its training samples;
    # without an accuracy there is no test.
    both = summarise({k: {**values, "test-loss": 1.0 + k} for k, values in metrics.items()})
    assert (both["test-loss-worst10"], both["test-loss-worst"]) == (19.5, 20.0)
    assert "loss-worst10" not in both
    assert [
        name for name in summarise({0: {"loss": 1.0}, 1: {"loss": 2.0}}) if "worst" in name
    ] == []


# --- the real tables ------------------------------------------------------------------

REAL = Path(os.environ.get("FEDAPPS_TEST_DATA") or "missing")


@pytest.mark.skipif(
    not (REAL / "heart").is_dir(), reason="FEDAPPS_TEST_DATA names no folder with heart"
)
def test_heart_has_four_hospitals_and_fifteen_features():
    task = tabular(source=str((REAL / "heart").resolve()))
    task.check(4)
    table = task.table(4)
    assert table.clients == ("cleveland", "hungarian", "switzerland", "va")
    assert [len(y) for y in table.y] == [303, 294, 123, 200]
    assert (len(table.features), int(table.scaled.sum())) == (15, 8)
    assert sum(array.size for array in task.initial_arrays().values()) == 16
    swiss = task.client_data(2, 4).train
    assert torch.all(swiss.x[:, table.features.index("chol")] == 0)  # nothing but 0 there
    assert bool(torch.isfinite(torch.cat([task.client_data(i, 4).test.x for i in range(4)])).all())


@pytest.mark.skipif(
    not (REAL / "berka").is_dir(), reason="FEDAPPS_TEST_DATA names no folder with berka"
)
def test_berka_has_seven_regions_and_fifteen_features():
    source = str((REAL / "berka").resolve())
    task = tabular(source=source)
    task.check(7)
    table = task.table(7)
    sizes = np.array([len(y) for y in table.y])
    assert (len(sizes), sizes.sum()) == (7, 621)
    assert sizes.mean() == pytest.approx(88.71, abs=5e-3)  # Table 3.5
    assert (len(table.features), int(table.scaled.sum())) == (15, 13)
    assert sum(array.size for array in task.initial_arrays().values()) == 16
    assert (
        "north Bohemia" in read_table(TabularOptions(source=source, drop_clients="Prague")).clients
    )
    with pytest.raises(
        UserError, match=r"client 'north Bohemia' has 60 rows of label 0 and 1 of label 1"
    ):
        tabular(source=source, drop_clients="Prague").check(7)


@pytest.mark.slow
def test_a_run_has_as_many_clients_as_the_table(tmp_path):
    source = write(tmp_path / "table", small(40, ("a", "b", "c")))
    settings = [
        "task=tabular",
        f"tabular.source={source}",
        "tabular.categorical=kind,sex",
        "num-rounds=1",
    ]
    assert main(["run", "--engine", "inline", *settings, "--out", str(tmp_path / "run")]) == 0
    assert tomllib.loads((tmp_path / "run" / "settings.toml").read_text())["num-clients"] == 3
