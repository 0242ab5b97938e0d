"""`num-new-clients`: clients that never take part, and the model that each method gives
them, before and after local epochs.
"""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict
from safetensors.numpy import load_file

from fedapps.clients import to_client_app
from fedapps.clients.base.store import MessageStore
from fedapps.clients.base.training import set_arrays
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_grid import FIRST_NODE
from fedapps.errors import UserError
from fedapps.lab.results.compare import compared
from fedapps.lab.results.run_tables import newcomers_section
from fedapps.methods import METHODS, TorchClient
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.client_app import app
from fedapps.runs.client_factory import client_of
from fedapps.runs.execution import execute
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from tests.helpers import assert_same, clients_of, lacking, refused, some_slow
from tests.small_jobs import unlike_at_clients

CLIENTS = 6
JOB = {
    "task": "classification",
    "num-clients": CLIENTS,
    "num-new-clients": 2,
    "new-epochs": 3,
    "clients-per-round": 2,
    "num-rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 0,
    "data.partition": "dirichlet",
    "data.alpha": 0.5,
    "data.max-samples": 600,
    "train.local-epochs": 2,
    "superfed.start": 0.3,
    "seed": 3,
}
TORCH = [
    name
    for name, method in METHODS.items()
    if isinstance(method.client, TorchClient) and not method.public
]


class Part(InlineGrid):
    """A grid with only some of the clients; it must ask for their ids."""

    def __init__(self, left_out, *arguments):
        super().__init__(app, *arguments)
        self.left_out = {FIRST_NODE + client for client in left_out}

    def get_node_ids(self):
        return [node for node in self.contexts.nodes if node not in self.left_out]


def run(folder, grid=None, callbacks=(), client_app=app, **given):
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    settings = read_settings({**with_defaults({**JOB, **given}).flat(), "out": str(folder)})
    execute(
        settings, grid or InlineGrid(client_app, CLIENTS, settings.flat(), numbered=True), callbacks
    )
    return read_run(folder)


def newcomers(result):
    return [int(row["client"]) for row in result.clients if row.get("new")]


def of_training(result):
    """Return the parts of a run's record that concern the clients in training."""
    rows = [
        {k: v for k, v in row.items() if k not in ("seconds", "new-clients", "run")}
        for row in result.rounds
    ]
    for row in rows:
        for phase in ("up", "down"):
            row.pop(f"evaluate-bytes-{phase}", 0)
        row["evaluate"] = {
            k: v for k, v in row.get("evaluate", {}).items() if not k.startswith("new-")
        }
    return rows, load_file(result.path / "model.safetensors"), result.weights


@pytest.mark.parametrize(
    "method",
    some_slow(
        ["fedavg", "scaffold", "feddyn", "aaggff-d", "local", "superfed-mm", "fedrod"], "scaffold"
    ),
)
def test_new_clients_do_not_affect_training(method, tmp_path):
    """Sampling, sums, counts and weights are equal to the last bit, as if the new
    clients did not exist.
    """
    together = run(tmp_path / "together", method=method)
    new = newcomers(together)
    assert len(new) == 2
    flat = with_defaults({**JOB, "method": method}).flat()
    config = {"method": method, "num_clients": CLIENTS - 2, "num_new_clients": 0}
    alone = run(
        tmp_path / "alone", Part(new, CLIENTS, {**flat, "client-store": "message"}), **config
    )
    assert not set(new) & {client for row in together.rounds for client in row["clients"]}
    np.testing.assert_equal(of_training(together), of_training(alone))
    members = [row for row in together.clients if not row.get("new")]
    assert [
        {k: v for k, v in row.items() if not k.startswith("new")} for row in members
    ] == alone.clients


def new_rows(result):
    return {
        int(row["client"]): {k: v for k, v in row.items() if k.startswith("new-")}
        for row in result.clients
        if row.get("new")
    }


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "local", "fedrep"])
def test_new_clients_score_the_methods_model_before_and_after_training(method, tmp_path):
    """That is the server's. Training alone starts at the initial model, and its first
    epoch has the order of the client's first visit. FedRep fits a head to the server's
    body, from the initial one.
    """
    rows = new_rows(run(tmp_path / "r", method=method, fedprox__mu=0.5))
    settings = read_settings(with_defaults({**JOB, "method": method, "fedprox.mu": 0.5}).flat())
    arrays = load_file(tmp_path / "r" / "model.safetensors")
    config = {"seed": 3, "server-round": 4, "proximal-mu": 0.5, **settings.train.to_config()}
    if method == "local":
        config |= {"server-round": 1, "learning-rate": settings.train.rate(4)}
    for number, row in rows.items():
        store = MessageStore(RecordDict())
        client = build_client(settings, build_task(settings), number, CLIENTS, store)
        start = [arrays[name] for name in client.model.state_dict()]
        if method == "local":
            start = client.fresh_arrays("model", {"seed": 3}, own=False)
        for epochs, suffix in ((0, ""), (1, "-1"), (3, "-3")):
            set_arrays(client.model, start)
            head = client.only({"share": "body"}, shared=False) if method == "fedrep" else None
            with head or contextlib.nullcontext():
                if epochs:
                    client.train({**config, "local-epochs": epochs})
            scores = client.score(client.data.test)
            assert (row[f"new-accuracy{suffix}"], row[f"new-loss{suffix}"]) == (
                scores["accuracy"],
                pytest.approx(scores["loss"]),
            )


def test_methods_that_adapt_before_use_do_so_for_the_given_epochs(tmp_path):
    """Fine-tuning's new clients are adapted as its members are, for the given number of
    epochs, and never twice. With mu = 0 Ditto's personal model is fine-tuned, too.
    """
    plain = new_rows(run(tmp_path / "fedavg", method="fedavg"))
    assert new_rows(run(tmp_path / "d", method="ditto", ditto__mu=0.0, ditto__epochs=7)) == plain
    fine = new_rows(run(tmp_path / "fine", method="finetune", finetune__epochs=3))
    for number, row in fine.items():
        assert {name: row[f"new-accuracy{name}"] for name in ("", "-1", "-3")} == {
            "": plain[number]["new-accuracy-3"],
            "-1": plain[number]["new-accuracy-1"],
            "-3": plain[number]["new-accuracy-3"],
        }
    assert any(row["new-loss"] != row["new-loss-1"] for row in fine.values())


@pytest.mark.parametrize("method", some_slow(unlike_at_clients(TORCH), "fedavg", "fedrep"))
def test_every_method_of_a_net_scores_them_and_keeps_nothing(method, tmp_path):
    """Adapting before one evaluation affects neither the next one nor the files."""
    every = {"num_rounds": 2, "client_store": "disk", "new_epochs": 2, "clients_per_round": 0}
    every |= {"train__local_epochs": 1, "data__max_samples": 240}
    often = run(tmp_path / "often", method=method, evaluate_every=1, **every)
    once = run(tmp_path / "once", method=method, evaluate_every=0, **every)
    rows = new_rows(often)
    assert rows == new_rows(once)
    assert all(
        {"new-accuracy", "new-accuracy-1", "new-accuracy-2", "new-loss-2"} <= row.keys()
        for row in rows.values()
    )
    kept = {path.name for path in (tmp_path / "often" / "clients").glob("*")}
    assert not kept & {f"client-{number}" for number in rows}
    measures = often.rounds[-1]["evaluate"]
    for key in ("new-accuracy", "new-accuracy-1", "new-accuracy-2"):
        values = [row[key] for row in rows.values()]
        assert (measures[f"{key}-mean"], measures[f"{key}-worst10"]) == (
            pytest.approx(np.mean(values)),
            min(values),
        )


def test_a_failing_newcomer_costs_only_itself(tmp_path):
    """First one fails in its own training, then both. The run continues with the same
    numbers.
    """
    whole = run(tmp_path / "whole")
    first, second = newcomers(whole)

    def failing(numbers):
        def client_fn(context):
            client = client_of(context)
            if client.client_id in numbers:
                client.train = lambda config: [][0]
            return client

        return to_client_app(client_fn, writable=False)

    one = run(tmp_path / "one", client_app=failing([first]))
    assert of_training(one)[0][0] == of_training(whole)[0][0]
    assert newcomers(one) == [second]
    assert new_rows(one)[second] == new_rows(whole)[second]
    assert {int(failure.client) for failure in one.failures} == {first}
    both = run(tmp_path / "both", client_app=failing([first, second]))
    assert (both.state, newcomers(both)) == ("completed", [])
    np.testing.assert_equal(of_training(both)[1], of_training(whole)[1])


@pytest.mark.slow
def test_a_resumed_run_keeps_new_clients_out_of_training(tmp_path):
    """The record lists the new clients. It does not matter which clients are connected
    at the resume.
    """
    job = {"checkpoint_every": 2, "method": "superfed-mm", "data__max_samples": 240}
    whole = run(tmp_path / "whole", **job)
    for name in ("half", "other"):
        run(tmp_path / name, callbacks=[lambda now: now.number == 3], **job)
    resumed = run(tmp_path / "half", **job, resume=True)
    assert_same(of_training(resumed)[0], of_training(whole)[0])
    assert new_rows(resumed) == new_rows(whole)
    record = tmp_path / "other" / "rounds.jsonl"
    first, *rows = record.read_text().splitlines()
    assert json.loads(first)["new-clients"] == newcomers(whole)
    other = sorted(set(range(CLIENTS)) - set(newcomers(whole)))[:2]
    record.write_text(
        "\n".join([json.dumps({**json.loads(first), "new-clients": other}), *rows, ""])
    )
    assert newcomers(run(tmp_path / "other", **job, resume=True)) == other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num-new-clients": 6}, "num-new-clients = 6, but there are 6 clients"),
        (
            {"clients-per-round": 6},
            "clients-per-round = 6, but there are 4 clients that are not new: choose 1..4",
        ),
        (
            {"method": "warm-start"},
            "num-new-clients = 2: method 'warm-start' does not support new clients",
        ),
        ({"method": "ffgb"}, "num-new-clients = 2: method 'ffgb' does not support new clients"),
        ({"new-epochs": 0}, "new-epochs = 0"),
    ],
)
def test_settings_that_exclude_new_clients_are_refused(given, said):
    job = {k: v for k, v in JOB.items() if k != "task" or "method" not in given}
    refused(lambda: assemble(with_defaults(job | given)), said, UserError)


def test_new_clients_are_shown_and_marked(tmp_path):
    result = run(tmp_path / "r")
    section = newcomers_section(result)
    assert [row[0] for row in section.rows] == ["not at all", "1 epoch", "3 epochs"]
    assert section.note.startswith("2 clients that never took part")
    shown = " ".join(str(column.header) for column in compared([result.path]).table.columns)
    assert lacking(shown, "new", "3 epochs") == []
    assert [row["new"] for row in clients_of(result.path)] == [""] * 4 + ["1"] * 2
    assert newcomers_section(run(Path(tmp_path / "none"), num_new_clients=0)) is None
