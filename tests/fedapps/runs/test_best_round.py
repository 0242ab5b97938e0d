"""``keep-best`` and ``early-stopping``: the round is chosen by validation samples, and
numbers, model and personal models are all those of that round.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps.clients import ClientData, FedAvgClient, Split
from fedapps.clients.base.store import DiskStore
from fedapps.clients.base.training import get_arrays, set_arrays
from fedapps.errors import UserError
from fedapps.lab.results.comparison_table import rows_of
from fedapps.lab.results.report import state_sentence
from fedapps.records.best import SCORES, Best, gain, scores
from fedapps.records.reader import read_run
from fedapps.runs.assembly import Parts
from fedapps.runs.execution import execute_inline
from fedapps.runs.models import exported, of_nobody
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import assert_arrays, blobs, clients_of, refused, small_net

JOB = {
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 5,
    "evaluate-every": 1,
    "checkpoint-every": 2,
    "train.local-epochs": 1,
    "train.learning-rate": 0.05,
}


def play(folder, callbacks=(), **given):
    job = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    parts = assemble(with_defaults({**JOB, **job, "out": str(folder)}))
    return execute_inline(parts.settings, callbacks, Parts(*parts))


@pytest.fixture
def second_is_best(monkeypatch):
    """Let round 2 be the best, whatever the scores."""
    note = Best.note

    def changed(self, row):
        if "evaluate" in row and self.compares:
            row[SCORES] = {"0": 1 / (1 + abs(row["round"] - 2))}
        return note(self, row)

    monkeypatch.setattr(Best, "note", changed)


def rows(folder):
    return [
        {k: v for k, v in row.items() if not k.startswith("validation")}
        for row in clients_of(folder)
    ]


def assert_same(folder, other, personal):
    assert rows(folder) == rows(other)
    assert (folder / "confusion.csv").read_text() == (other / "confusion.csv").read_text()
    models = [load_file(path / "model.safetensors") for path in (folder, other)]
    assert_arrays(models[0], models[1])
    for client in range(4) if personal else ():
        (_, facts, ours), (_, wanted, theirs) = exported(folder, client), exported(other, client)
        assert facts["round"] == wanted["round"]
        assert_arrays(ours, theirs)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "local", "superfed-mm"])
def test_the_run_is_as_if_it_had_ended_with_its_best_round(method, second_is_best, tmp_path):
    # superfed starts to mix after a share of the rounds
    job = {"method": method, "superfed.start": 0.0} if "superfed" in method else {"method": method}
    summary = play(tmp_path / "kept", keep_best=True, **job)
    play(tmp_path / "short", num_rounds=2, **job)
    assert (summary["scored-round"], summary["rounds-completed"]) == (2, 5)
    assert_same(tmp_path / "kept", tmp_path / "short", personal=True)
    short = json.loads((tmp_path / "short" / "summary.json").read_text())
    assert summary["accuracy-mean"] == short["accuracy-mean"]
    run = read_run(tmp_path / "kept")
    assert run.evaluation["accuracy-mean"] == short["accuracy-mean"]
    assert "those of round 2, the best by" in state_sentence(run)
    assert [rows_of([one])[0].remark for one in (run, read_run(tmp_path / "short"))] == [
        "of round 2, best by validation",
        "",
    ]
    if method != "local":  # which has no global model
        assert of_nobody(tmp_path / "kept", False)[1]["round"] == 2


@pytest.mark.parametrize("stops_after", [3, 5])
def test_a_resumed_run_keeps_the_same_round(stops_after, second_is_best, tmp_path):
    def stop(now):
        if now.number == stops_after:
            raise KeyboardInterrupt

    job = {"method": "ditto", "num_rounds": 6, "keep_best": True}
    play(tmp_path / "whole", **job)
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "resumed", [stop], **job)
    (tmp_path / "resumed" / "clients.csv").write_text("client\n")  # of a later round, say
    assert play(tmp_path / "resumed", resume=True, **job)["scored-round"] == 2
    assert_same(tmp_path / "resumed", tmp_path / "whole", personal=True)


@pytest.mark.parametrize(
    "job",
    [
        {"train__learning_rate": 0.2},
        {"method": "histogram-boosting", "task": "tabular", "data__validation": 0.3},
    ],
)
def test_validation_samples_choose_and_test_samples_do_not(job, tmp_path):
    play(tmp_path / "run", keep_best=True, num_rounds=8, **{"clients_per_round": 0, **job})
    run = read_run(tmp_path / "run")
    wanted = run.rounds[0]
    for row in run.rounds[1:]:  # four clients: the mean of the two gains in the middle
        gains = [row[SCORES][client] - wanted[SCORES][client] for client in row[SCORES]]
        wanted = row if sum(sorted(gains)[1:-1]) > 0 else wanted
    assert run.scored_round == wanted["round"] > 1
    own = {row["client"]: row["validation-accuracy"] for row in run.clients}
    assert {str(client): score for client, score in own.items()} == wanted[SCORES]


def test_a_client_scores_the_model_of_its_evaluation_on_validation_samples():
    data, other = blobs(n=80), blobs(5, n=40)
    client = FedAvgClient(small_net, ClientData(data.train, other.train, data.test))
    arrays = get_arrays(small_net(3))
    found = client.evaluate_validation(arrays, {})
    client.data = ClientData(data.train, data.train, other.train)
    loss, _, metrics = client.evaluate(arrays, {})
    assert found == {"validation-accuracy": metrics["accuracy"], "validation-loss": loss}
    assert client.evaluate_validation(arrays, {}) == {}  # trained on: none of its own
    client.data = ClientData(data.train, Split(data.train.x[:0], data.train.y[:0]), data.test)
    assert client.evaluate_validation(arrays, {}) == {}


def test_a_run_that_gets_no_better_ends(second_is_best, tmp_path):
    summary = play(tmp_path / "run", early_stopping=2, num_rounds=20)
    assert (summary["status"], summary["stopped-early"]) == ("completed", True)
    assert "scored-round" not in summary
    run = read_run(tmp_path / "run")
    assert run.scored_round == 4
    assert "4 of 20 rounds, as validation scores got no better." in state_sentence(run)
    again = play(tmp_path / "run", early_stopping=2, num_rounds=20, resume=True)
    assert again["rounds-completed"] == 4


def record(number, metrics, diverged=(), **more):
    return {"round": number, "evaluate": {}, SCORES: scores(metrics, diverged), **more}


def test_equal_scores_are_not_better_and_of_errors_less_is():
    best = Best(keep=True, patience=2)
    rounds = [record(i, {0: {"validation-rmse": v}}) for i, v in ((1, 3.0), (2, 2.0), (3, 2.0))]
    assert [best.note(row) for row in rounds] == [True, True, False]
    assert not best.note({"round": 4})
    assert not best.exhausted
    assert not best.note(record(5, {0: {"loss": 1.0}}))
    assert (best.round, best.exhausted) == (2, True)


def test_a_round_whose_model_most_clients_could_not_score_is_not_better():
    best, gone = Best(keep=True), {"unusable": True}
    found = [
        best.note(record(i, {0: {"validation-accuracy": score}}, **more))
        for i, (score, more) in enumerate([(0.5, gone), (0.4, {}), (0.9, gone), (0.6, {})], 1)
    ]
    assert found == [True, True, False, True]


LIES = {
    "its score is huge, then tiny": lambda number: 1e30 if number == 1 else -1e30,
    "it gains more and more": lambda number: 10.0**number,
    "it diverges from round 2 on": lambda number: 0.5 if number == 1 else None,
    "it diverges in the first round": lambda number: None if number == 1 else 0.5,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("clients", [3, 6, 50])
def test_one_client_does_not_decide_which_round_is_kept(lie, clients):
    """The others gain until round 4, each at its own level, and lose after it."""
    honest, lying = (Best(keep=True, patience=3) for _ in range(2))
    rng = np.random.default_rng(0)
    level = rng.random(clients)
    for number in range(1, 9):
        change = 0.1 * (4 - abs(number - 4)) + 0.01 * rng.random(clients)
        metrics = {i: {"validation-accuracy": level[i] + change[i]} for i in range(clients)}
        if not honest.exhausted:
            honest.note(record(number, metrics))
        claim = LIES[lie](number)
        metrics[1] = {} if claim is None else {"validation-accuracy": claim}
        if not lying.exhausted:
            lying.note(record(number, metrics, [1] if claim is None else []))
    assert (lying.round, lying.waited) == (honest.round, honest.waited) == (4, 3)


def test_clients_that_diverge_decide_together():
    """Two of six: more than those that have no say."""
    best = Best(keep=True)
    sound = {i: {"validation-accuracy": 0.5} for i in range(6)}
    better = {i: {"validation-accuracy": 0.9} for i in range(4)}
    assert best.note(record(1, sound))
    assert not best.note(record(2, better, [4, 5]))
    assert best.note(record(3, better, [5]))
    assert gain({"a": None, "b": 1.0}, {"a": 0.0, "b": None}) == -np.inf
    assert gain({"a": None}, {"a": None}) == gain({"a": 1.0}, {"b": 2.0}) == 0


def test_a_store_keeps_what_the_best_round_needs(tmp_path):
    store = DiskStore(tmp_path, 1)
    for number in range(1, 8):
        config = {"server-round": number, "checkpoint-round": 4, "kept-rounds": [0, 2]}
        store.save("x", [np.array([number])], config)
    # 3: as if it were of the checkpoint before
    assert {int(path.name.split(".")[1]) for path in tmp_path.iterdir()} == {2, 3, 4, 7}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"keep_best": True, "data__validation": 0.0}, r"set data\.validation"),
        ({"early_stopping": 3, "data__validation": 0.0}, r"early-stopping = 3: .*data\.validation"),
        ({"keep_best": True, "task": "tabular"}, r"set data\.validation"),
        ({"keep_best": True, "evaluate_every": 0}, "one evaluation only"),
        ({"keep_best": True, "checkpoint_every": 0}, 'set client-store = "disk"'),
        ({"keep_best": True, "dp__noise_multiplier": 1.0}, "not private"),
        ({"keep_best": True, "method": "fedfw"}, "do not score validation samples"),
        ({"early_stopping": 1, "method": "warm-start"}, "do not score validation samples"),
    ],
)
def test_what_cannot_be_chosen_is_refused_at_once(given, why, tmp_path):
    refused(lambda: play(tmp_path / "run", **given), why, UserError)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_validation_score_says_which_setting_gives_some():
    refused(
        lambda: Best(keep=True, setting="tabular.validation").note({"round": 1, "evaluate": {}}),
        r"no client reported .*: set tabular\.validation",
        UserError,
    )


@pytest.mark.parametrize("task", ["tabular", "regression"])
@pytest.mark.parametrize(
    ("method", "share"), [("superfed-mm", 0.2), ("finetune", 0.2), ("fedavg", 0.0), ("apfl", 0.0)]
)
def test_clients_that_choose_have_validation_samples(method, share, task):
    """By default, also where a task's default job has none."""
    given = {"method": method, "task": task}
    assert with_defaults(given).data.validation == share
    assert with_defaults({**given, "data.validation": 0.1}).data.validation == 0.1


# --- evaluate-train -------------------------------------------------------------------


@pytest.mark.parametrize("asked", [True, False])
def test_the_loss_of_the_final_model_on_training_samples_is_a_column_if_asked_for(asked, tmp_path):
    play(tmp_path, method="propfair", clients_per_round=0, evaluate_train=asked)
    rows = clients_of(tmp_path)
    assert ["train-loss" in row for row in rows] == [asked] * 4
    if asked:
        task = assemble(with_defaults({**JOB, "method": "propfair"})).task
        model = task.work_model()
        arrays = load_file(tmp_path / "model.safetensors")
        set_arrays(model, [arrays[name] for name in model.state_dict()])
        for k, row in enumerate(rows):
            loss = task.objective.score(model, task.client_data(k, 4).train)["loss"]
            assert float(row["train-loss"]) == pytest.approx(loss, rel=1e-5)
