"""Numbers to predict: from reading to scoring. Oracles are closed forms and the union
of the test rows.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch.nn import functional

import fedapps
from fedapps.algorithms.common.survival import concordance, pair_counts
from fedapps.clients.base.regression import regression
from fedapps.clients.base.survival import SURVIVAL
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.records.reader import read_run
from fedapps.records.tables import pooled_concordance
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import clients_of, lacking, refused, rows_of, run_inline, summary_of, write_csv

HOUSES = {"north": 3.0, "south": 5.0, "west": 0.5}  # thousands a square metre


def task_of(num_clients=3, **settings):
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    return build_task(
        with_defaults(
            {"task": "regression", "num-clients": num_clients, "device": "cpu", **settings}
        )
    )


def houses(folder, rows=30, **changed):
    """A csv of houses in three towns, in each of which a square metre has another
    price.
    """
    rng, lines = np.random.default_rng(0), []
    for town, price in [one for one in HOUSES.items() for _ in range(rows)]:
        area, old = rng.uniform(30, 150), rng.choice(["yes", "no"])
        price = 1000 * (price * area - 20 * (old == "yes")) + rng.normal()
        lines.append({"town": town, "area": area, "old": old, "price": price})
    return write_csv(folder / "houses.csv", lines, changed)


def table(path):
    """The settings of a run on a table, which ``task_of`` takes, too."""
    named = {"data.natural-id": "town", "data.label": "price"}
    return {"task": "regression", "data.source": str(path), **named}


def run(out, **settings):
    return run_inline(
        out, "device=cpu", **{key.replace("_", "-"): value for key, value in settings.items()}
    )


def weight_and_bias(arrays):
    """The two arrays of a net of one layer."""
    return [
        next(array.astype(float) for name, array in arrays.items() if name.endswith(end))
        for end in ("weight", "bias")
    ]


def root_mean_square(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


# --- mathematics ----------------------------------------------------------------------


def test_fedavg_with_one_client_and_full_batches_is_gradient_descent_on_least_squares(tmp_path):
    rounds, rate = 7, 0.05
    plain = {"batch-size": 442, "lr-decay": 1.0, "weight-decay": 0.0, "max-gradient-norm": 0.0}
    plain |= {"local-epochs": 1, "learning-rate": rate, "momentum": 0.0}
    settings = {"task": "regression", "data.source": "diabetes", "num-clients": 1}
    settings |= {f"train.{key}": value for key, value in plain.items()}
    run(tmp_path / "run", **settings, num_rounds=rounds)
    task = build_task(with_defaults(settings))
    data = task.client_data(0, 1)
    assert [float(data.train.y.mean()), float(data.train.y.std(correction=0))] == pytest.approx(
        [0, 1], abs=1e-6
    )
    x = data.train.x.double().numpy().reshape(len(data.train), -1)
    x, y = np.column_stack([x, np.ones(len(x))]), data.train.y.double().numpy()
    best = np.linalg.lstsq(x, y, rcond=None)[0][:, 0]
    step = np.eye(x.shape[1]) - rate * 2 / len(x) * x.T @ x  # of the mean of squares
    start, found = (
        np.append(*map(np.ravel, weight_and_bias(arrays)))
        for arrays in (task.initial_arrays(), load_file(tmp_path / "run" / "model.safetensors"))
    )
    wanted = best + np.linalg.matrix_power(step, rounds) @ (start - best)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def huber(errors):
    """Squared near the target, absolute beyond 1."""
    return np.where(np.abs(errors) < 1, errors**2 / 2, np.abs(errors) - 0.5)


@pytest.mark.parametrize(
    ("name", "of"), [("squared", np.square), ("absolute", np.abs), ("huber", huber)]
)
def test_losses_are_means_over_samples_and_targets(name, of):
    errors = torch.linspace(-3, 2, 18).reshape(9, 2)
    y = torch.randn(9, 2)
    assert float(regression(name).loss(y + errors, y)) == pytest.approx(
        float(of(errors.numpy()).mean()), rel=1e-5
    )


def test_a_net_with_one_output_without_an_axis_is_no_table_of_all_pairs():
    y, outputs = torch.randn(5, 1), torch.randn(5)
    assert float(regression().loss(outputs, y)) == pytest.approx(
        float(functional.mse_loss(outputs, y[:, 0]))
    )
    refused(lambda: regression().loss(torch.randn(5, 2), y), "", RuntimeError)


def test_pooled_scores_of_a_run_are_those_of_the_union_of_its_test_rows(tmp_path):
    settings = {"task": "regression", "num-clients": 5, "seed": 1}
    summary = run(tmp_path / "run", **settings, num_rounds=2, evaluate_every=2)
    task = build_task(with_defaults(settings))
    weight, bias = weight_and_bias(load_file(tmp_path / "run" / "model.safetensors"))
    of, tests = task.target_scale, [task.arrays(client, 5).test for client in range(5)]
    errors = [
        of.center
        + of.scale * (part.x.astype(float).reshape(len(part), -1) @ weight.T + bias)
        - part.y
        for part in tests
    ]
    own = [root_mean_square(of_client) for of_client in errors]
    errors, y = np.concatenate(errors), np.concatenate([part.y for part in tests])
    wanted = {
        "rmse-pooled": root_mean_square(errors),
        "mae-pooled": np.abs(errors).mean(),
        "r2-pooled": 1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum(),
        "rmse-mean": np.mean(own),
        "rmse-worst": max(own),
        "loss-weighted": np.mean((errors / of.scale) ** 2),
    }
    assert {name: summary[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)
    ends = [summary[f"rmse-{end}"] for end in ("worst", "worst10", "mean", "best10")]
    assert ends == sorted(ends, reverse=True)
    assert not [key for key in summary if "accuracy" in key or "parity" in key or "gini" in key]
    assert len(set(map(len, tests))) > 1, "the weights of the samples would not matter"


# --- the scale of the targets ---------------------------------------------------------


def test_one_scale_serves_all_clients_and_is_that_of_all_training_targets():
    task = task_of(6)
    parts = [task.arrays(client, 6) for client in range(6)]
    y = np.concatenate([part.train.y for part in parts])
    np.testing.assert_allclose(task.target_scale.center, y.mean(0), rtol=1e-12)
    np.testing.assert_allclose(task.target_scale.scale, y.std(0), rtol=1e-12)
    for client, part in enumerate(parts):
        found, wanted = task.client_data(client, 6).test.y, (part.test.y - y.mean(0)) / y.std(0)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert "from sums over the clients" in task.from_clients


def test_a_net_of_one_layer_starts_at_the_trivial_prediction():
    """Its loss is then the variance of the standardised targets, which is 1; a random
    start, which the settings may ask for, is worse.
    """

    def loss_at_start(**settings):
        task = task_of(data__validation=0.0, **settings)
        parts = [task.client_data(client, 3).train for client in range(3)]
        x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
        return float(task.objective.loss(task.initial_model()(x), y))

    assert loss_at_start() == pytest.approx(1.0, abs=1e-5)
    assert loss_at_start(method="superfed-mm") == pytest.approx(1.0, abs=1e-5)
    assert loss_at_start(model__start="random") > 1.2
    assert loss_at_start(method="superfed-mm", form="printed") > 1.2, "its models must differ"
    assert not any(array.any() for array in task_of(task="tabular").initial_arrays().values())
    # units of a hidden layer that start alike stay alike
    assert any(array.any() for array in task_of(model__name="mlp").initial_arrays().values())


def test_inputs_are_scaled_alike_at_all_clients_unless_each_is_to_use_its_own():
    def inputs(how):
        task = task_of(6, data__standardise=how, data__clip=0.0)
        numbers = list(task.samples.numbers.scaled)
        return [task.arrays(k, 6).train.x[:, numbers].astype(float) for k in range(6)]

    alike, own = inputs("sums"), inputs("client")
    together = np.concatenate(alike)
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(together.std(0), 1, rtol=1e-6)
    assert max(np.abs(part.mean(0)).max() for part in alike) > 0.3, "that they differ is seen"
    for part in own:
        np.testing.assert_allclose(part.mean(0), 0, atol=1e-6)


def test_fedapps_data_shows_the_targets_and_what_is_to_be_beaten(capsys):
    assert main(["data", "task=regression", "num-clients=4"]) == 0
    shown = capsys.readouterr().out
    parts = [task_of(4).target_parts(client, 4) for client in range(4)]
    mean = np.concatenate([train for train, *_ in parts]).mean()
    of_all = [root_mean_square(test - mean) for *_, test in parts]
    own = [root_mean_square(test - train.mean()) for train, _, test in parts]
    assert not lacking(
        shown,
        f"all clients' training targets: RMSE {np.mean(of_all):.4g} (mean over clients), "
        f"{max(of_all):.4g} (worst)",
        f"each client's own training targets: RMSE {np.mean(own):.4g}",
    )
    assert "one class only" not in shown


def test_a_scale_in_the_settings_needs_nothing_of_the_clients():
    task = task_of(4, regression__center="200", regression__scale="50", data__standardise="client")
    assert task.from_clients == ""
    np.testing.assert_array_equal(task.target_scale.center, [200.0])
    np.testing.assert_allclose(
        task.client_data(2, 4).test.y.numpy(), (task.arrays(2, 4).test.y - 200) / 50, rtol=1e-5
    )


# --- an own csv ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_csv_with_a_site_column_from_the_command_to_a_model_in_plain_torch(tmp_path, capsys):
    given = table(houses(tmp_path))
    own = {"num-rounds": 6, "train.local-epochs": 10, "train.learning-rate": 0.05}
    scores = {
        method: run(tmp_path / method, method=method, client_store="disk", **given, **own)
        for method in ("fedavg", "local", "finetune")
    }
    capsys.readouterr()
    folders = [str(tmp_path / method) for method in scores]
    assert main(["compare", *folders, "--out", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    assert "RMSE" in shown
    assert "accuracy" not in shown.lower()
    gains = rows_of(tmp_path / "c" / "gains.csv")
    assert gains
    assert all(
        float(row["gain"]) == pytest.approx(float(row["reference"]) - float(row["value"]))
        for row in gains
    )

    # The prices differ by town, so that no one model serves all.
    assert scores["local"]["rmse-mean"] < 0.5 * scores["fedavg"]["rmse-mean"]
    assert scores["finetune"]["rmse-mean"] < scores["fedavg"]["rmse-mean"]
    report = (tmp_path / "fedavg" / "report.html").read_text()
    assert "RMSE, mean over clients" in report
    assert "ccuracy" not in report.partition("Settings")[0]

    out = tmp_path / "north.safetensors"
    assert main(["export", str(tmp_path / "local"), "--client", "0", "--out", str(out)]) == 0
    weight, bias = weight_and_bias(load_file(out))
    with safe_open(out, "np") as file:
        known = file.metadata()
    assert json.loads(known["features"]) == ["area", "old=yes"]
    mean, deviation, center, scale = (
        np.array(json.loads(known[name]))
        for name in ("mean", "deviation", "target-center", "target-scale")
    )
    part = task_of(**given).arrays(0, 3, scale=False).test
    guess = center + scale * ((part.x - mean) / deviation @ weight.T + bias)
    rmse = float(clients_of(tmp_path / "local")[0]["rmse"])
    assert root_mean_square(guess - part.y) == pytest.approx(rmse, rel=1e-3)


# --- arrays ---------------------------------------------------------------------------


def embeddings(path, targets=0, n=60, **changed):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    y = x @ rng.normal(size=(5, max(targets, 1))) * 30 + 100
    np.savez(path, **({"x": x, "y": y if targets else y[:, 0], "who": np.arange(n) % 4} | changed))
    return {"task": "regression", "data.source": str(path), "data.natural-id": "who"}


@pytest.mark.parametrize("targets", [0, 3])
def test_an_npz_with_targets_of_any_number(targets, tmp_path):
    given = embeddings(tmp_path / "set.npz", targets)
    summary = run(tmp_path / "run", **given, num_rounds=30, **{"train.learning-rate": 0.05})
    assert summary["r2-pooled"] > 0.9, "they are linear in x"
    task = task_of(4, **given)
    assert task.num_outputs == max(targets, 1)
    y = np.load(tmp_path / "set.npz")["y"].reshape(60, -1)
    found = task.client_data(1, 4).test.y.numpy() * task.target_scale.scale
    found += task.target_scale.center
    np.testing.assert_allclose(found, y[task.split(1, 4)[2]], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda tmp_path, settings=settings: assemble(
                    with_defaults(
                        {"task": "regression", "num-clients": 3, "device": "cpu", **settings}
                    )
                ),
                message,
            )
            for settings, message in [
                ({"regression.scale": "0"}, r"scale = '0': must be sums, or numbers above 0"),
                (
                    {"regression.center": "much"},
                    r"center = 'much': must be sums, or numbers with commas",
                ),
                ({"regression.center": "1,2"}, r"has 2 numbers for 1 targets: give one or as many"),
                (
                    {"dp.noise-multiplier": 1.0},
                    r"epsilon would be wrong, .*center and scale of the targets",
                ),
                ({"data.group": "kind"}, r"data.group"),
                ({"method": "fedevg"}, r"task = 'regression': this method needs classes"),
                ({"method": "fedrod"}, r"task = 'regression': this method needs classes"),
                ({"data.source": "diabetes", "num-clients": 200}, r"choose 1..88"),
            ]
        ),
        *(
            (
                lambda tmp_path, changed=changed, settings=settings: assemble(
                    with_defaults(
                        embeddings(tmp_path / "set.npz", **changed) | {"num-clients": 4} | settings
                    )
                ),
                message,
            )
            for changed, settings, message in [
                (
                    {"y": np.array(["a", "b"] * 30)},
                    {},
                    r"data.label = 'y' of .*: holds text, and regression predicts numbers",
                ),
                (
                    {"y": np.r_[np.nan, np.arange(59.0)]},
                    {},
                    r"data.label = 'y' of .*: 1 of 60 rows .* \(first: row 0\)",
                ),
                ({"y": np.r_[np.arange(59.0), np.inf]}, {}, r"\(first: row 59\)"),
                ({"y": np.full(60, 3.0)}, {}, r"one and the same value in every row"),
                (
                    {},
                    {"data.partition": "dirichlet"},
                    r"data.partition = 'dirichlet': deals samples by class",
                ),
                (
                    {},
                    {
                        "data.partition": "flwr:DirichletPartitioner",
                        "data.partition-arguments": "alpha = 1.0",
                    },
                    r"deals samples by class",
                ),
                ({}, {"data.noise": "pair"}, r"data.noise = 'pair': is for samples with a class"),
                ({}, {"model.name": "two-cnn"}, r"model.name = 'two-cnn': does not take"),
            ]
        ),
    ],
)
def test_arrays_and_settings_that_do_not_fit_are_refused_in_one_line(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, (UserError, ValueError))


# --- sites ----------------------------------------------------------------------------

AT_SITES = {
    "task": "regression",
    "sites.columns": "area, old=yes|no",
    "data.label": "price",
    "data.standardise": "client",
    "regression.center": "250000",
    "regression.scale": "200000",
}


# --- methods --------------------------------------------------------------------------

ON_NUMBERS = sorted(
    name
    for name, method in METHODS.items()
    if "regression" in method.tasks and name != "warm-start"
)


@pytest.mark.slow
@pytest.mark.parametrize("method", ON_NUMBERS)
def test_every_method_that_takes_the_task_runs_and_is_scored(method, tmp_path):
    rounds = 5 if method == "histogram-boosting" else 1
    job = {"task": "regression", "model.name": "mlp", "num-clients": 3, "method": method}
    job |= {"num-rounds": rounds, "evaluate-every": rounds, "train.local-epochs": 1}
    summary = run(tmp_path / "run", **job)
    assert (summary["status"], summary["failures"]) == ("completed", 0)
    assert 0 < summary["rmse-pooled"] < 1000
    assert summary["rmse-worst"] >= summary["rmse-mean"]
    assert not [key for key in summary if "accuracy" in key]


def test_histogram_boosting_learns_what_no_line_can_and_takes_missing_values_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    area, age = rng.uniform(30, 150, 400), rng.uniform(0, 100, 400)
    price = np.where((area > 90) == (age > 50), 300.0, 100.0) + rng.normal(size=400)
    columns = {"area": area, "age": age, "price": price, "town": np.resize(list("abcd"), 400)}
    flats = pd.DataFrame(columns)
    flats.loc[3, "area"] = np.nan
    flats.to_csv(tmp_path / "flats.csv", index=False)
    given = table(tmp_path / "flats.csv")
    trees = {"method": "histogram-boosting", "histogram-boosting.learning-rate": 0.5}
    boosted = run(tmp_path / "trees", **given, **trees, num_rounds=32, evaluate_every=32)
    line = run(tmp_path / "line", **given, num_rounds=20, evaluate_every=20)
    assert boosted["r2-pooled"] > 0.9
    assert line["r2-pooled"] < 0.3
    # in standardised units
    assert boosted["loss-weighted"] == pytest.approx(1 - boosted["r2-pooled"], rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedadam", "ditto", "superfed-mm"])
def test_tails_and_copied_columns_train_by_defaults(method, tmp_path):
    """Like the voices of Parkinsons: five columns of the same measure, a few values far
    away, people with their own level. R² above that of the mean.
    """
    rng, rows = np.random.default_rng(1), []
    for town in range(6):
        level = rng.normal(0, 0.3)
        for _ in range(60):
            age, z = rng.normal(size=2)
            voice = np.exp(2.5 * z) * (1 + 0.001 * rng.normal(size=5))
            price = age + 0.5 * z + level + 0.3 * rng.normal()
            row = {"town": f"town-{town}", "age": age, "price": price}
            rows.append(row | dict(zip("abcde", voice, strict=True)))
    given = table(write_csv(tmp_path / "t.csv", rows, {}))
    summary = run(tmp_path / "r", **given, method=method, num_rounds=5, evaluate_every=5)
    assert summary["failures"] == 0
    assert summary["r2-pooled"] > 0.2


# --- the task survival ----------------------------------------------------------------


SLOPES = np.array([0.8, -0.5, 0.0])


def patients(folder, sites=3, rows=80, **changed):
    """A csv of patients with proportional hazards; each site has its own baseline."""
    rng, lines = np.random.default_rng(0), []
    for site in range(sites):
        x = rng.normal(size=(rows, 3))
        death = rng.exponential(np.exp(-x @ SLOPES)) * 100 * 3**site
        end = rng.exponential(150.0 * 3**site, size=rows)
        for row, t, e in zip(x, np.minimum(death, end), death <= end, strict=True):
            lines.append({"site": f"s{site}", **dict(zip("abc", row, strict=True))})
            lines[-1] |= {"days": np.ceil(t), "dead": int(e)}
    return write_csv(folder / "patients.csv", lines, changed)


def survivors(path):
    named = {"data.natural-id": "site", "data.label": "days", "survival.event": "dead"}
    return {"task": "survival", "data.source": str(path), "checkpoint-every": 0, **named}


def run_survival(out, settings):
    settings = with_defaults({**settings, "out": str(out)})
    parts = assemble(settings)
    return execute_inline(parts.settings, parts=parts), parts


def newton(clients):
    """The coefficients at which the sum of the clients' log partial likelihoods (ties:
    Breslow) is largest.
    """
    beta = np.zeros(clients[0][0].shape[1])
    for _ in range(20):
        gradient, hessian = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
        for x, (times, events) in clients:
            for i in np.flatnonzero(events):
                at_risk = x[times >= times[i]]
                p = np.exp(at_risk @ beta)
                p /= p.sum()
                mean = p @ at_risk
                gradient += x[i] - mean
                hessian += (at_risk - mean).T @ (p[:, None] * (at_risk - mean))
        beta = beta + np.linalg.solve(hessian, gradient)
    return beta


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 3])
def test_fedavg_with_full_batches_finds_the_cox_fit_stratified_by_site(sites, tmp_path):
    plain = {"local-epochs": 1, "learning-rate": 1.0, "lr-decay": 1.0, "weight-decay": 0.0}
    own = {f"train.{key}": value for key, value in plain.items()}
    own |= {"train.max-gradient-norm": 0.0, "num-rounds": 80, "evaluate-every": 0}
    _, parts = run_survival(tmp_path / "run", survivors(patients(tmp_path, sites)) | own)
    data = [parts.task.client_data(k, sites).train for k in range(sites)]
    x = [part.x.double().numpy().reshape(len(part), -1) for part in data]
    wanted = newton(list(zip(x, (part.y.numpy().T for part in data), strict=True)))
    found = load_file(tmp_path / "run" / "model.safetensors")
    (weights,) = (array for name, array in found.items() if name.endswith("weight"))
    np.testing.assert_allclose(weights[0], wanted, atol=1e-3)
    assert np.abs(wanted - SLOPES).max() < 0.5  # the table's own


def test_the_pooled_concordance_is_that_of_all_sites_rows(tmp_path):
    summary, parts = run_survival(
        tmp_path / "run", {**survivors(patients(tmp_path)), "num-rounds": 2}
    )
    model = parts.task.work_model()
    arrays = load_file(tmp_path / "run" / "model.safetensors")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    total, own = np.zeros(3, int), []
    for k in range(3):
        test = parts.task.client_data(k, 3).test
        counts = pair_counts(*test.y.numpy().T, model(test.x).detach().double().numpy().ravel())
        total += counts
        own.append(concordance(counts))
    assert [summary[f"concordance-{of}"] for of in ("pooled", "mean")] == pytest.approx(
        [concordance(total), np.mean(own)]
    )
    assert {"event", "dead", "days"}.isdisjoint(parts.task.samples.numbers.used)


def test_a_site_without_a_pair_is_named_and_not_in_the_mean():
    one = {"loss": 0.1, "test-samples": 9, "concordance": 0.7, "pair-counts": [7, 3, 0]}
    none = {"loss": 0.0, "test-samples": 9, "pair-counts": [0, 0, 0]}
    liar = one | {"pair-counts": [9, 0, 0]}
    _, measures, left_out = pooled_concordance({"a": one, "b": none, "c": liar})
    assert measures == {"concordance-pooled": 0.7}
    assert {entry["client"]: entry["reason"][:26] for entry in left_out} == {
        "b": "pair-counts: no pair of it",
        "c": "pair-counts: the counts ha",
    }
    assert pooled_concordance({"b": none})[1] == {}
    assert pooled_concordance({"a": {"accuracy": 1.0}}) == ([], {}, [])


def test_a_run_with_such_sites_goes_on_and_its_log_names_them(tmp_path):
    path = patients(tmp_path, dead=[0] * 80)
    settings = {**survivors(path), "num-rounds": 2, "method": "superfed-mm"}
    summary, parts = run_survival(tmp_path / "run", settings)
    assert any("no event to learn from at s0" in line for line in parts.task.remarks(3))
    folder = read_run(tmp_path / "run")
    assert folder.left_out("pair-counts") == ["s0"]
    own = folder.column("concordance")
    assert (len(own), summary["concordance-mean"]) == (2, pytest.approx(np.mean(own)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "finetune", "fedprox", "scaffold", "apfl"])
def test_methods_that_train_one_net_run(method, tmp_path):
    settings = {"task": "survival", "num-clients": 4, "num-rounds": 2, "method": method}
    summary, _ = run_survival(tmp_path / "run", {**settings, "device": "cpu"})
    assert summary["concordance-mean"] > 0.6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda tmp_path, changed=changed, settings=settings: assemble(
                    with_defaults(table(houses(tmp_path, **changed)) | settings)
                ),
                message,
            )
            for changed, settings, message in [
                (
                    {"price": ["dear"]},
                    {},
                    r"column 'price': 1 of 90 rows hold text where the others hold",
                ),
                (
                    {"price": ["", ""]},
                    {},
                    r"data.label = 'price' of .*: 2 of 90 rows hold no value to predict",
                ),
                (
                    {"price": ["inf"]},
                    {},
                    r"1 of 90 rows hold no value to predict, or an infinite one",
                ),
                (
                    {"price": ["7"] * 90},
                    {},
                    r"has one and the same value in every row: there is nothing to predict",
                ),
                (
                    {"area": ["large"]},
                    {},
                    r"column 'area': 1 of 90 rows hold text .*first: row 2 of .* name it in data.categorical",
                ),
                ({}, {"data.label": "prise"}, "data.label = 'prise': .* did you mean 'price'"),
                # a task of classes names this one
                ({}, {"task": "tabular"}, "or predict numbers: task = 'regression'"),
                (
                    {},
                    {"task": "classification", "data.natural-id": ""},
                    "or predict numbers: task = 'regression'",
                ),
            ]
        ),
        *(
            (
                lambda tmp_path, settings=settings: build_task(
                    with_defaults(AT_SITES | settings), str(houses(tmp_path))
                ).client_data("estate", 1),
                message,
            )
            for settings, message in [
                (
                    {"regression.center": "sums"},
                    r"regression.center = 'sums': sites with data of their own send no sums .*: give a "
                    r"number",
                ),
                (
                    {"data.standardise": "sums"},
                    r"data.standardise = 'sums': sites .*: choose 'client'",
                ),
                (
                    {"data.label": "old"},
                    r"data.label = 'old' of .*: holds text, and regression predicts numbers",
                ),
                ({"data.label": "rent"}, r"no column 'rent' \(sites.columns, data.label\)"),
            ]
        ),
        *(
            (
                lambda tmp_path, changed=changed, settings=settings: assemble(
                    with_defaults(survivors(patients(tmp_path, **changed)) | settings)
                ),
                message,
            )
            for changed, settings, message in [
                ({"dead": [2]}, {}, r"survival\.event = 'dead': .* other values than 1"),
                ({"dead": [""]}, {}, r"survival\.event = 'dead'"),
                ({"days": [-1]}, {}, r"data\.label = 'days': .* at least 0"),
                ({"dead": [0] * 240}, {}, r"survival\.event = 'dead'"),
                (
                    {},
                    {"survival.event": "died"},
                    r"survival\.event = 'died': .*did you mean 'dead'",
                ),
                ({}, {"data.label": "days,a"}, "must be one column"),
                ({}, {"data.noise": "pair", "data.noise-ratio": 0.1}, "survival has times"),
                ({}, {"data.group": "a"}, "not scored by group"),
                (
                    {},
                    {"method": "histogram-boosting"},
                    "task = 'survival': this method needs classes",
                ),
            ]
        ),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_line(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, UserError)


def test_all_may_have_happened(tmp_path):
    given = {"survival.event": "", "data.drop": "dead", "num-clients": 3}
    task = build_task(with_defaults(survivors(patients(tmp_path)) | given))
    assert task.client_data(0, 3).train.y[:, 1].min() == 1


def test_sites_with_tables_of_their_own(tmp_path):
    path = patients(tmp_path, sites=1, dead=[0] * 80)  # no event there
    given = {"task": "survival", "data.label": "days", "survival.event": "dead"}
    chosen = with_defaults(given | {"sites.columns": "a,b,c"})
    site = build_task(chosen, str(path))
    data = site.client_data("s0", 1)
    assert (data.train.y.shape, data.train.x.shape) == ((64, 2), (64, 3))
    assert not data.train.y[:, 1].any()
    assert build_task(chosen).input_scale(1) == {}  # the server reads no samples there
    assert len(SURVIVAL.score(site.work_model(), data.test)["pair-counts"]) == 3


def test_from_python_and_from_the_command(tmp_path):
    given = survivors(patients(tmp_path)) | {"num-rounds": 2}
    assert main(["data", *(f"{key}={value}" for key, value in given.items())]) == 0
    assert fedapps.run(**given, out=tmp_path / "run", progress=False)
    assert summary_of(tmp_path / "run")["concordance-pooled"] > 0.5
