from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedapps.algorithms.common.partitioners import stratified
from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import BINARY
from fedapps.data.generated_tables import classes
from fedapps.data.partition import stratified_rows
from fedapps.data.scaling import Moments, Scale, TableScale
from fedapps.data.source import Columns, Samples
from fedapps.data.tables import PRESETS, find_preset
from fedapps.errors import UserError
from fedapps.records.measures import summarise
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import read_settings
from tests.data_folders import write_parquet
from tests.helpers import assert_arrays, clients_of, refused, rounds_of, run_inline, write_file


def tabular(num_clients=0, seed=0, **options):
    config = {f"data.{key.replace('_', '-')}": value for key, value in options.items()}
    return build_task(
        with_defaults({"task": "tabular", "num-clients": num_clients, "seed": seed} | config)
    )


def small(n=20, clients=("b", "a")):
    """A table by hand: two clients, a number, a category with three values, one with
    two.
    """
    return {
        "client": [name for name in clients for _ in range(n)],
        "age": (50 + 10 * np.random.default_rng(0).normal(size=n * len(clients))).tolist(),
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
    three = stratified(np.ones(50, int), np.random.default_rng(0), 0.2, 0.1)
    assert [len(part) for part in three] == [35, 5, 10]


@pytest.mark.parametrize(("validation", "rare"), [(0.0, 1), (0.2, 2)])
def test_a_class_with_fewer_samples_than_sets_is_for_training(validation, rare):
    samples = Samples(np.zeros((30, 1, 1, 1)), np.repeat([0, 1], (30 - rare, rare)), 2)
    sets = stratified_rows(samples, np.arange(30), 0, 0, validation)
    assert sorted(np.concatenate(sets)) == list(range(30))
    assert set(range(30 - rare, 30)) <= set(sets[0])


def scaled(x, rows, scaled, clip=0.0):
    """All rows, scaled by these."""
    x, columns = x.astype(np.float32)[:, None, None], Columns(("a",) * len(scaled), scaled=scaled)
    return TableScale.of_rows([x[rows]], columns, clip).of(x)[:, 0, 0]


def test_filling_and_scaling_are_those_of_the_client_s_training_rows():
    rng = np.random.default_rng(0)
    x = 100 * rng.normal(size=(30, 3)) + 7
    x[rng.random(x.shape) < 0.2] = np.nan
    x[:, 2] = rng.integers(2, size=30)  # a category
    train, numeric = np.arange(20), (True, True, False)
    out = scaled(x, train, numeric)
    for column in (0, 1):
        mean = np.nanmean(x[:20, column])
        filled = np.where(np.isnan(x[:, column]), mean, x[:, column])
        np.testing.assert_allclose(
            out[:, column], (filled - mean) / filled[:20].std(), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(out[:20, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(out[:20, :2].std(0), 1, rtol=1e-5)
    np.testing.assert_array_equal(out[:, 2], x[:, 2])
    # What lies outside the training rows changes nothing in them.
    other = x.copy()
    other[20:] = 1e6
    np.testing.assert_array_equal(scaled(other, train, numeric)[:20], out[:20])


def test_a_column_that_is_missing_or_constant_in_training_is_zero():
    x = np.array(
        [
            [np.nan, 5.0, 0.1, 1.0],
            [np.nan, 5.0, np.nan, 1.0],
            [np.nan, np.nan, 0.1, 1.0],
            [300.0, 900.0, 7.0, 0.0],
        ]
    )
    out = scaled(x, np.arange(3), (True, True, True, False))
    np.testing.assert_array_equal(out, np.zeros((4, 4)))


def test_a_tail_is_cut_and_does_not_rule_the_others():
    x = np.random.default_rng(0).normal(size=(300, 1))
    plain = scaled(x, np.arange(300), (True,), 5.0)
    x[0] = 1e4
    out = scaled(x, np.arange(300), (True,), 5.0)
    assert out[0] == 5.0
    np.testing.assert_allclose(out[1:].std(), plain[1:].std(), rtol=0.15)
    assert scaled(x, np.arange(300), (True,))[1:].std() < 0.01, "without a cut"


def test_another_client_s_rows_change_nothing(tmp_path):
    one, other = small(), small()
    other["age"][:20] = [1e5 * value for value in other["age"][:20]]  # client b
    other["age"][3] = None
    other["label"][:20] = [1 - label for label in other["label"][:20]]
    a, b = (
        tabular(source=write_parquet(tmp_path / name, table), min_samples=5)
        for name, table in (("one", one), ("other", other))
    )
    mine, same, changed = a.client_data(0, 2), b.client_data(0, 2), b.client_data(1, 2)
    for part in ("train", "test"):
        assert_arrays(
            (getattr(mine, part).x, getattr(mine, part).y),
            (getattr(same, part).x, getattr(same, part).y),
        )
    assert not torch.equal(a.client_data(1, 2).train.x, changed.train.x)


def test_layout_of_a_table_by_hand(tmp_path):
    columns = small() | {"big": [1_000_000 + k % 3 for k in range(40)]}
    task = partial(tabular, source=write_parquet(tmp_path / "t", columns))
    samples = task(drop="big").samples
    assert samples.clients.names == ("a", "b")
    assert dict(zip(samples.numbers.used, samples.numbers.scaled, strict=True)) == {
        "age": True,
        "kind=x": False,
        "kind=y": False,
        "kind=z": False,
        "sex=m": False,
    }
    assert_arrays(
        (samples.x[20:24, 0, 0, 1:], samples.labels[:4]),
        ([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]], [0, 1, 1, 0]),
    )
    large = task(categorical="big", features="big").samples
    assert large.numbers.used == ("big=1000000", "big=1000001", "big=1000002")


def test_a_missing_category_is_the_client_s_shares_of_all(tmp_path):
    columns = small(clients=("a",))
    columns["kind"][0] = None
    x = tabular(source=write_parquet(tmp_path / "t", columns)).samples.x[:, 0, 0].astype(float)
    row = scaled(x, np.arange(12), (True, False, False, False, False))[0]
    np.testing.assert_allclose(row[1:4], [2 / 11, 6 / 11, 3 / 11], rtol=1e-6)


# --- the objective --------------------------------------------------------------------


def test_one_logit_is_a_softmax_over_the_difference_of_two():
    rng = torch.Generator().manual_seed(0)
    logits, y = (
        torch.randn(50, 2, generator=rng, dtype=torch.float64),
        torch.randint(2, (50,), generator=rng),
    )
    assert float(BINARY.loss(logits[:, 1:] - logits[:, :1], y)) == pytest.approx(
        float(functional.cross_entropy(logits, y)), rel=1e-12
    )


def test_scores_of_a_client():
    x, y = torch.tensor([[2.0], [-1.0], [0.5], [0.0], [-3.0]]), torch.tensor([1, 0, 0, 0, 1])
    scores = BINARY.score(torch.nn.Identity(), Split(x, y))
    # the 1 at 2 is above all three zeros, the 1 at -3 above none
    assert (scores["accuracy"], scores["auroc"]) == pytest.approx((3 / 5, 3 / 6))
    loss = functional.binary_cross_entropy_with_logits(x[:, 0], y.float())
    assert scores["loss"] == pytest.approx(float(loss))


def test_auroc_is_left_out_where_it_is_undefined():
    one_class, not_finite = (
        BINARY.score(torch.nn.Identity(), Split(torch.tensor(x), torch.tensor(y)))
        for x, y in (([[2.0], [-1.0]], [1, 1]), ([[np.nan], [-1.0]], [0, 0]))
    )
    classes = {"macro-precision", "macro-recall", "macro-f1", "confusion"}
    assert set(one_class) == {"accuracy", "loss", "test-samples", *classes}
    assert (not_finite["accuracy"], "auroc" in not_finite) == (0.5, False)


# --- the task -------------------------------------------------------------------------


def test_a_sites_csv_has_the_gaps_and_separators_of_any_other(tmp_path):
    path = write_file(tmp_path / "site.csv", "a;b;c;y\n1;NA;x;0\n;2;NULL;1\n")
    settings = {"task": "tabular", "sites.columns": "a,b,c=w|x", "data.label": "y"}
    samples = build_task(read_settings(settings), str(path)).samples
    nan = np.nan
    np.testing.assert_array_equal(samples.x[:, 0, 0], [[1, nan, 1], [nan, 2, nan]])


def test_the_generated_table_has_clients_that_differ():
    task = tabular(num_clients=5)
    task.check(5)
    assert sum(array.size for array in task.initial_arrays().values()) == 9 + 1
    parts = task.partition(5)
    assert len({len(part) for part in parts}) > 1
    assert np.ptp(np.array([np.nanmean(task.samples.x[part][..., 0]) for part in parts])) > 0.5
    few, many = classes(2), classes(6)
    n = len(few["label"])
    assert all(
        np.array_equal(few[name], many[name][:n], equal_nan=few[name].dtype.kind == "f")
        for name in few
    )


def test_heart_and_berka_are_recognised_by_their_columns():
    for name in ("heart", "berka"):
        preset = PRESETS[name]
        named = ("natural_id", "label", "features", "drop")
        columns = dict.fromkeys(",".join(preset[key] for key in named if key in preset).split(","))
        assert find_preset(columns, "auto") is preset
        assert find_preset({**columns, "more": None}, "auto") is preset
        assert find_preset(columns, "none") == {}
        del columns[preset["features"].split(",")[3]]
        assert find_preset(columns, "auto") == {}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {},
            {"natural_id": "hospital"},
            r"data.natural-id = 'hospital': .* has the columns client, age, kind, sex, label",
        ),
        ({}, {"label": "num"}, r"data.label = 'num': "),
        ({}, {"features": "age, size"}, r"data.features = .*: no column is 'size'"),
        ({}, {"drop": "size"}, r"data.drop = 'size': .* has the columns"),
        ({}, {"drop": "age,kind,sex"}, r"data.features: no column of .* is left"),
        ({}, {"drop_clients": "c"}, r"data.drop-clients: no client 'c': there are a, b"),
        ({"label": [1, None, 2, 1] * 10}, {}, r"column 'label': 10 samples have no value"),
        ({"client": ["a"] * 39 + [None]}, {}, r"column 'client': 1 samples have no value"),
        ({"age": [np.inf] * 40}, {}, "column 'age' holds infinite or too large numbers"),
        ({"age": [3e9, 3e9 + 100] * 20}, {}, "column 'age' of .* differ by too little"),
        ({"client": ["a"] * 40}, {}, r"has 1 clients .*, 2 are asked for: choose at most 1"),
        ({}, {"source": "/no/such"}, r"data\.source = .*no such folder"),
        ({}, {"split": "exam"}, r"data\.split = 'exam'"),
        ({}, {"preset": "hart"}, r"data\.preset = 'hart': did you mean 'heart'\?"),
        ({}, {"source": "generated", "label": "result"}, r"data.label = 'result': .*sites"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(change, options, message, tmp_path):
    given = {"source": write_parquet(tmp_path / "t", small() | change)} | options
    refused(lambda: tabular(**given).check(2), message, UserError)


def test_clients_that_are_left_out(tmp_path):
    task = tabular(source=write_parquet(tmp_path / "t", small()), min_samples=5, drop_clients="a")
    task.check(1)
    (mine,) = task.partition(1)
    assert {task.samples.clients.names[code] for code in task.samples.clients.codes[mine]} == {"b"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_run_improves_over_the_start_and_says_how_even_it_is(method, tmp_path):
    job = {"method": method, "task": "tabular", "num-clients": 6, "num-rounds": 15}
    job |= {"train.local-epochs": 1, "evaluate-every": 1}
    summary = run_inline(tmp_path / "r", **job)
    first, *_, last = [row["evaluate"] for row in rounds_of(tmp_path / "r")]
    assert last["loss-weighted"] < 0.9 * first["loss-weighted"]
    ends = ("worst", "worst10", "mean", "best10", "std", "weighted")
    wanted = {f"{name}-{end}" for name in ("accuracy", "auroc") for end in ends}
    assert wanted | {"gini", "parity-gap", "auroc-gini", "auroc-parity-gap"} <= set(summary)
    aurocs = [summary[f"auroc-{end}"] for end in ends[:4]]
    assert aurocs == sorted(aurocs)
    assert aurocs[-1] <= 1
    assert "auroc" in clients_of(tmp_path / "r")[0]


def test_clients_without_an_auroc_are_left_out_of_it():
    accuracies, aurocs = (0.5, 0.9, 0.7), ({}, {"auroc": 0.75}, {"auroc": 0.25})
    metrics = {
        k: {"num-examples": 5, "accuracy": accuracy, "loss": 1.0 + k, **auroc}
        for k, (accuracy, auroc) in enumerate(zip(accuracies, aurocs, strict=True))
    }
    summary = summarise(metrics)
    wanted = {"auroc-mean": 0.5, "auroc-worst": 0.25, "auroc-gini": 0.25}
    wanted |= {"parity-gap": 0.4, "auroc-parity-gap": 0.5}
    assert {name: summary[name] for name in wanted} == pytest.approx(wanted)
    assert "num-examples-mean" not in summary


def test_the_loss_of_the_worst_clients_stands_beside_their_accuracy():
    metrics = {k: {"num-examples": 5, "accuracy": 0.9, "loss": float(k)} for k in range(20)}
    summary = summarise(metrics)
    wanted = {"mean": 9.5, "worst10": 18.5, "worst": 19.0, "best10": 0.5}
    assert {end: summary[f"loss-{end}"] for end in wanted} == wanted
    # Where a client names its test loss, ``loss`` is that of its training samples;
    # without an accuracy there is no test.
    both = summarise({k: {**values, "test-loss": 1.0 + k} for k, values in metrics.items()})
    assert (both["test-loss-worst10"], both["test-loss-worst"]) == (19.5, 20.0)
    assert "loss-worst10" not in both
    assert not [name for name in summarise({0: {"loss": 1.0}, 1: {"loss": 2.0}}) if "worst" in name]


def test_a_constant_has_deviation_one_whatever_rounding_leaves():
    """0.1 + 0.1 + ... is not exactly a multiple of 0.1."""
    for value in (0.1, 1e6 + 0.3, -7e-5):
        x = np.full((1000, 1, 1, 1), value, np.float32)
        scale = Scale.of_sums([Moments.of(x[:333]), Moments.of(x[333:])])
        assert scale.deviation.ravel().tolist() == [1]
        assert abs(scale.of(x)).max() < 1e-6 * abs(value)
