"""Metrics that one client sends by mistake or on purpose, through a whole run: rounds,
recorder, report, comparison.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedapps.lab.results.compare import compare
from fedapps.lab.results.report import write_report
from fedapps.records.writer import Recorder
from fedapps.settings.settings import Settings
from fedapps.strategies import AAggFFD, FedAvg
from fedapps.strategies.base.agreement import MOST_RARE, Agreement
from tests.helpers import START, EchoClient, LossyClient, play, rounds_of


class Hostile(EchoClient):
    """Client 1 adds ``odd(round)`` to its metrics, in training and evaluation. All
    clients train with an accuracy.
    """

    def __init__(self, i, odd):
        super().__init__(1.0, 10)
        self.i, self.odd = i, odd

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        own = self.odd(config["server-round"]) if self.i == 1 else {}
        return arrays, n, {"accuracy": 0.25, **metrics, **own}

    def evaluate(self, parameters, config):
        loss, n, _ = super().evaluate(parameters, config)
        return (
            loss,
            n,
            {"accuracy": 0.5} | (self.odd(config["server-round"]) if self.i == 1 else {}),
        )


def run(folder, odd, strategy=None, rounds=3, clients=4, client=Hostile, **config):
    """Run, record, report and compare; return the summary and the records of the
    rounds.
    """
    strategy = strategy or FedAvg()
    recorder = Recorder(
        folder, Settings(num_rounds=rounds).flat() | config, "digits", strategy=strategy
    )
    result = play(strategy, lambda i: client(i, odd), clients, START, rounds, callbacks=[recorder])
    np.testing.assert_allclose(result.arrays["w"].numpy(), rounds, rtol=1e-5)
    summary = recorder.finish("completed")
    write_report(folder)
    compare([folder])
    return summary, rounds_of(folder)


def test_rows_that_nobody_reports_are_told(tmp_path, caplog):
    run(tmp_path / "run", lambda _: {}, **{"data.test-rows": True})
    assert "test-rows.csv is not written" in caplog.text
    assert not (tmp_path / "run" / "test-rows.csv").exists()


@pytest.mark.parametrize(
    "name",
    ["models-up", "models-down", "counts-models", "epsilon", "status", "round", "gap", "learners"],
)
def test_a_name_that_the_server_uses_itself(name, tmp_path):
    summary, rounds = run(tmp_path / "run", lambda _: {name: 7.0})
    names = ("status", "models-up", "models-down", "rounds-completed", "accuracy-mean")
    assert [summary[name] for name in names] == ["completed", 12, 12, 3, 0.5]
    assert all(row["clients"] == [0, 1, 2, 3] for row in rounds)


@pytest.mark.parametrize("wild_ones", [{1}, {0, 1, 2, 3}])
def test_a_client_whose_loss_diverged_is_named_and_in_no_mean(wild_ones, tmp_path):
    """The last of three evaluations; the others are as if the client were sound. If all
    diverged, the means say so.
    """

    class Diverging(Hostile):
        def evaluate(self, parameters, config):
            wild = self.i in wild_ones and config["server-round"] == 3
            return (1e9 if wild else 0.25), 10, {"accuracy": 0.0 if wild else 0.5}

    summary, rounds = run(tmp_path / "run", lambda _: {}, client=Diverging)
    assert [("diverged" in row, "accuracy-weighted" in row["evaluate"]) for row in rounds] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert rounds[2]["diverged"] == [{"client": k, "loss": 1e9} for k in sorted(wild_ones)]
    if len(wild_ones) == 4:
        assert (summary["loss-mean"], summary["accuracy-mean"]) == (1e9, 0.0)
        return
    assert (summary["loss-mean"], summary["accuracy-mean"]) == (0.25, 0.5)
    clients = (tmp_path / "run" / "clients.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in clients] == ["0", "2", "3"]
    (row,) = compare([tmp_path / "run"]).rows
    assert "diverged, not in the means: 1" in row.remark


ODD = {
    "a name of a million characters": ({"x" * 10**6: 1.0}, "a metric is called 'xxxx"),
    "a name that no terminal could show": ({"a\n\x1b[31m": 1.0}, "printable"),
    "one metric too many": (
        {f"m{i}": 1.0 for i in range(100)},  # and num-examples
        "metrics in the reply: at most 100",
    ),
    "a million numbers in lists, each of which is allowed": (
        {f"m{i}": [0.5] * 10_000 for i in range(50)},
        "bytes: at most max-metric-bytes = 200000",
    ),
    "a list of one number too many": (
        {"curve": [0.5] * 10_001},
        "metric 'curve' holds 10001 numbers: at most 10000",
    ),
    "a list in the place of a number": (
        {"accuracy": [0.5]},
        "metric 'accuracy' is a list, of most clients it is a number",
    ),
    "an accuracy of 1e14": ({"accuracy": 1e14}, "metric 'accuracy' is 1e+14: must be from 0 to 1"),
    "an accuracy of 1.5": ({"accuracy": 1.5}, "metric 'accuracy' is 1.5: must be from 0 to 1"),
    "an accuracy below 0": ({"accuracy": -0.1}, "metric 'accuracy' is -0.1: must be from 0 to 1"),
}


def test_an_accuracy_that_rounding_brings_below_0_spoils_nothing(tmp_path):
    """A Gini coefficient is of numbers from 0."""
    summary, rounds = run(tmp_path / "run", lambda _: {"accuracy": -5e-7})
    assert (summary["failures"], summary["accuracy-mean"]) == (0, pytest.approx(0.375))
    assert all("gini" not in row["evaluate"] for row in rounds)


@pytest.mark.parametrize("case", ODD)
def test_a_deviating_client_is_skipped_and_named_and_the_measure_stays(case, tmp_path):
    odd, reason = ODD[case]
    summary, rounds = run(tmp_path / "run", lambda _: odd)
    # three rounds, two phases
    assert (summary["accuracy-mean"], summary["failures"]) == (0.5, 6)
    for row in rounds:
        assert row["train"]["accuracy"] == 0.25
        assert {failure["client"] for failure in row["failures"]} == {1}
        assert all(
            reason in failure["reason"] and len(failure["reason"]) <= 500
            for failure in row["failures"]
        )
    assert (
        sum(path.stat().st_size for path in (tmp_path / "run").iterdir() if path.is_file()) < 10**6
    )


def test_new_metric_names_are_recorded_up_to_a_limit(tmp_path):
    summary, rounds = run(
        tmp_path / "run", lambda now: {f"r{now}-{i}": 1.0 for i in range(80)}, rounds=10
    )
    names = {name for row in rounds for part in ("train", "evaluate") for name in row[part]}
    assert len(names) < 2 * MOST_RARE + 20
    # the client's model is valid
    assert (summary["failures"], summary["accuracy-mean"]) == (0, 0.5)


def test_a_name_cannot_lead_out_of_the_folder(tmp_path):
    for path in ("../../x", "/x", "a/b"):
        run(
            tmp_path / "a" / "run",
            lambda _, path=path: {f"{path}-grid": [0.0, 1.0], f"{path}-accuracy": [0.5, 0.5]},
        )
    assert not [path for path in tmp_path.rglob("*") if "x-acc" in path.name]


def test_a_measure_of_the_server_cannot_be_hidden(tmp_path):
    class Measures(FedAvg):
        own_measures = {"gap": 0.25}  # noqa: RUF012

        def aggregate_evaluate(self, server_round, replies):
            return MetricRecord(
                {**super().aggregate_evaluate(server_round, replies), **self.own_measures}
            )

    summary, _ = run(tmp_path / "run", lambda _: {"gap": 1e3}, Measures())
    assert summary["gap"] == 0.25


def test_one_client_cannot_move_the_grid_of_the_curves(tmp_path):
    class Curves(Hostile):
        def evaluate(self, parameters, config):
            loss, n, metrics = super().evaluate(parameters, config)
            usual = {"lambda-grid": [0.0, 0.5, 1.0], "lambda-accuracy": [0.1, 0.2, 0.3]}
            return loss, n, {**metrics, **(self.odd(0) if self.i == 0 else usual)}

    for odd in (
        {"lambda-grid": [9.0, 9.0, 9.0]},
        {"lambda-grid": [9.0], "lambda-accuracy": [0.9]},
        {},
    ):
        run(tmp_path / "run", lambda _, odd=odd: odd, client=Curves)
        curves = json.loads((tmp_path / "run" / "curves.json").read_text())
        assert curves["lambda"] == [0.0, 0.5, 1.0]
        np.testing.assert_allclose(curves["lambda-accuracy"], [0.1, 0.2, 0.3])


# --- around Flower's own strategies, which end the run when replies differ ------------

EXTRA = {
    "an extra metric": {"extra": 1.0},
    "a list": {"extra": [1.0, 2.0]},
    "a count": {"models-up": 1},
}


def flwr(kind, **options):
    return kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, **options)


@pytest.mark.parametrize(
    "strategy",
    [
        *map(flwr, (flower.FedAdam, flower.FedAvgM, flower.FedTrimmedAvg, flower.MultiKrum)),
        flwr(flower.QFedAvg, client_learning_rate=0.1, train_loss_key="loss"),
        AAggFFD(flwr(flower.FedAdam)),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_an_extra_metric_ends_no_other_strategy(strategy):
    class Extra(LossyClient):
        def __init__(self, i):
            super().__init__(1.0, 1.0 + i)
            self.metrics = {"extra": 1.0} if i == 1 else {}

    assert list(play(strategy, Extra, 5, START, 2).train_metrics_clientapp) == [1, 2]


@pytest.mark.parametrize("case", EXTRA)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_extra_metric_of_one_client_does_not_end_a_run_of_flowers(case, place, tmp_path):
    class Placed(Hostile):
        def __init__(self, i, odd):
            super().__init__(1 if i == place else 0, odd)

    summary, rounds = run(
        tmp_path / "run", lambda _: EXTRA[case], flwr(flower.FedAvg), clients=3, client=Placed
    )
    assert summary["accuracy-mean"] == 0.5
    assert all(row["clients"] == [0, 1, 2] and "extra" not in row["train"] for row in rounds)


def test_a_client_without_a_common_metric_is_missing_from_flowers_mean_but_not_from_ours(tmp_path):
    class Lacks(Hostile):
        def fit(self, parameters, config):
            arrays, n, metrics = super().fit(parameters, config)
            return arrays, n, metrics if self.i == 1 else {**metrics, "auroc": 0.75}

    _, rounds = run(tmp_path / "a", lambda _: {}, flwr(flower.FedAvg), client=Lacks)
    assert all(row["clients"] == [0, 2, 3] for row in rounds)
    assert rounds[0]["failures"][0]["reason"].startswith("metric 'auroc' is missing")
    _, rounds = run(tmp_path / "b", lambda _: {}, client=Lacks)
    assert all(row["clients"] == [0, 1, 2, 3] and row["train"]["auroc"] == 0.75 for row in rounds)


# --- the comparison itself ------------------------------------------------------------


def odd(rows, alike=False):
    kind = SimpleNamespace(message_type="evaluate")
    contents = [RecordDict({"metrics": MetricRecord(row)}) for row in rows]
    replies = list(enumerate(SimpleNamespace(content=one, metadata=kind) for one in contents))
    return Agreement().odd(replies, alike), [dict(reply.content["metrics"]) for _, reply in replies]


def test_percentages_are_known_by_the_majority():
    assert [
        list(odd([{"acc": value} for value in values])[0])
        for values in (
            (70.0, 80.0, 0.5),
            (70.0, 0.7, 0.5),
            (70.0, 170.0, 90.0),
            (1e14,),
        )
    ] == [[], [0], [1], [0]]
    assert not odd([{"accuracy-loss": 70.0}, {"accuracy-loss": 0.5}])[0]  # a loss


def test_skipped_clients_have_no_say_about_others():
    """Two of four clients send a list. Once they are skipped, the accuracies of the
    others determine the range.
    """
    rows = [
        {"a": 1.0, "acc": 60.0},
        {"a": 1.0, "acc": 0.5},
        {"a": [1.0], "acc": 70.0},
        {"a": 1.0, "acc": 0.5},
    ]
    assert set(odd(rows)[0]) == {0, 2}


def test_a_round_in_which_all_differ_is_reduced_to_what_they_share():
    out, rows = odd([{"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0}, {"b": 1.0, "d": 1.0}], alike=True)
    assert not out
    assert rows == [{"b": 1.0}] * 3
