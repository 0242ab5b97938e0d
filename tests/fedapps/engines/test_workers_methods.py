"""One, two and four workers give the same bits, for every method: with sampled clients,
with momentum and partial batches (the defaults), and with a client that fails after it
has trained.
"""

import pytest
from flwr.app import Context, Message

from fedapps.engines.inline import InlineGrid
from fedapps.engines.workers import WorkerGrid
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_task
from fedapps.runs.client_factory import share
from fedapps.runs.execution import execute
from fedapps.runs.inline_grid import load_app, number_of_workers
from fedapps.runs.prepare import with_defaults
from fedapps.strategies.base.messages import trains
from tests.helpers import outcome_of
from tests.small_jobs import JOB, SMALL

FAST = ("fedavg", "scaffold", "fedfw")
ALL = {"clients-per-round": 0}  # what some methods need


def failing_app():
    """Return the app of the runs, in which client 3 fails in round 2."""
    app = load_app()

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        config = message.content.config_records.get("config", {})
        if (
            trains(message)
            and config.get("server-round") == 2
            and context.node_config["partition-id"] == 3
        ):
            raise RuntimeError("out of battery")
        return reply

    return answer


def run(folder, workers, callbacks=(), start="fork", **config):
    settings = with_defaults({**config, "out": str(folder)})
    flat = settings.flat()
    share(flat, settings, build_task(settings))
    if workers == 1:
        grid = InlineGrid(failing_app(), settings.num_clients, flat, numbered=True)
        execute(settings, grid, callbacks)
        return outcome_of(folder)
    with WorkerGrid(
        failing_app, settings.num_clients, flat, numbered=True, workers=workers, method=start
    ) as grid:
        execute(settings, grid, callbacks)
    return outcome_of(folder)


@pytest.mark.parametrize(
    "method",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_the_same_bits(method, tmp_path):
    job = {
        **JOB,
        "method": method,
        "num-clients": 12,
        "clients-per-round": 8,
        "num-rounds": 3,
        "evaluate-every": 2,
        "checkpoint-every": 2,
        "train.local-epochs": 1,
        **SMALL.get(method, {}),
        **(ALL if method == "aaggff-s" else {}),
    }
    expected = run(tmp_path / "1", 1, **job)
    assert len(expected[0]) == 3
    assert run(tmp_path / "3", 3, **job) == expected


@pytest.mark.parametrize("store", ["message", "disk"])
def test_states_in_messages_and_on_disk(store, tmp_path):
    job = {
        "method": "scaffold",
        "num-clients": 8,
        "clients-per-round": 5,
        "num-rounds": 3,
        "evaluate-every": 1,
        "checkpoint-every": 0,
        "client-store": store,
        "train.local-epochs": 1,
    }
    assert run(tmp_path / "3", 3, **job) == run(tmp_path / "1", 1, **job)


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1)])
def test_a_resumed_run_may_have_other_workers(first, then, tmp_path):
    job = {
        "method": "scaffold",
        "num-clients": 8,
        "clients-per-round": 5,
        "num-rounds": 4,
        "evaluate-every": 2,
        "checkpoint-every": 2,
        "train.local-epochs": 1,
    }
    expected = run(tmp_path / "whole", 1, **job)
    # its checkpoint is that of round 2
    run(tmp_path / "parts", first, callbacks=[lambda now: now.number == 3], **job)
    assert run(tmp_path / "parts", then, **job, resume=True) == expected


def test_workers_are_many_where_a_run_has_much_work(monkeypatch):
    """Decided by steps. On one core, and for a task without a net, there is none."""
    monkeypatch.setattr("fedapps.runs.inline_grid.cores", lambda: 6)
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 1)

    def number(given=None, **keys):
        settings = with_defaults({"method": "fedavg", "num-clients": 20, **keys})
        return number_of_workers(settings, build_task(settings), given)

    assert number(**{"num-rounds": 50}) == 6
    assert number(**{"num-rounds": 1, "train.local-epochs": 1}) == 1
    assert number(**{"num-rounds": 50, "num-clients": 4}) == 4
    assert number(method="fedfw") == 1
    assert number(3, method="fedfw") == 3
    assert number(30) == 20
    monkeypatch.setattr("fedapps.engines.workers.threading.active_count", lambda: 9)
    assert number(**{"num-rounds": 50}) == 1  # they would load everything anew
    monkeypatch.setattr("fedapps.runs.inline_grid.cores", lambda: 1)
    assert number(**{"num-rounds": 50_000}) == 1


@pytest.mark.slow
def test_workers_that_are_started_as_new_programs(tmp_path):
    """As on macOS: each loads the app and the data itself."""
    job = {"method": "scaffold", "num-clients": 6, "clients-per-round": 4, "num-rounds": 2}
    job |= {"train.local-epochs": 1, "client-store": "message", "checkpoint-every": 0}
    expected = run(tmp_path / "1", 1, **job)
    assert run(tmp_path / "2", 2, start="spawn", **job) == expected
