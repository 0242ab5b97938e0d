"""``train.compile``: decided once, without a clock, recorded, and kept by a resumed
run.
"""

import pytest

from fedapps.engines.inline import InlineGrid
from fedapps.runs.assembly import build_task, takes_steps
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.work import WORTH, seconds_saved, with_compilation
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.clients.steps.traced import Traced

SMALL = {
    "num-clients": 4,
    "clients-per-round": 0,
    "num-rounds": 2,
    "train.local-epochs": 1,
    "evaluate-every": 0,
}


def settings_of(**keys):
    return read_settings({"method": "fedavg", "num-clients": 20, **keys})


def test_auto_compiles_long_runs_of_methods_that_take_steps():
    task = build_task(settings_of())
    short, long = settings_of(), settings_of(**{"num-rounds": 20_000})
    assert with_compilation(short, task, takes_steps).train.compile == "off"
    assert with_compilation(long, task, takes_steps).train.compile == "on"
    assert seconds_saved(long, task) == pytest.approx(400 * seconds_saved(short, task))
    # 5 clients a round, 10 epochs: just what saves twice the time that compiling takes
    rounds = round(50 * WORTH / seconds_saved(short, task))
    for number, decision in ((rounds - 1, "off"), (rounds + 1, "on")):
        settings = settings_of(**{"num-rounds": number})
        assert with_compilation(settings, task, takes_steps).train.compile == decision
    trees = settings_of(method="ffgb", task="tabular", **{"num-rounds": 20_000})
    assert with_compilation(trees, build_task(trees), takes_steps).train.compile == "off"


def test_steps_of_fits_are_counted_by_their_own_options():
    """10 epochs of 9 batches of 6 of 54 samples for each of 20 clients; trees take
    none, and nets of the L2 oracle theirs.
    """
    keys = {
        "method": "ffgb-distill",
        "ffgb-distill.oracle-epochs": 10,
        "ffgb-distill.oracle-batch-size": 6,
    }
    distilled = settings_of(**keys)
    task = build_task(distilled)
    few, twice = (
        seconds_saved(distilled, task),
        seconds_saved(settings_of(**{**keys, "ffgb-distill.oracle-epochs": 20}), task),
    )
    assert twice == pytest.approx(2 * few)
    assert few == pytest.approx(
        seconds_saved(settings_of(**{**keys, "train.local-epochs": 50}), task)
    )
    nets, worst = (
        settings_of(method=method, **{"num-rounds": 20_000}) for method in ("ffgb", "ffgb-c")
    )
    assert with_compilation(nets, task, takes_steps).train.compile == "on"
    assert with_compilation(worst, task, takes_steps).train.compile == "off"


def test_on_supernodes_auto_is_off():
    assert settings_of(**{"num-rounds": 20_000}).deployed().train.compile == "off"
    assert settings_of(**{"train.compile": "on"}).deployed().train.compile == "on"


def test_the_decision_reaches_the_clients_and_the_settings_and_a_resume_keeps_it(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        "fedapps.clients.fedavg.FedAvgClient.train",
        lambda self, config: seen.append(config["compile"]) or 0.0,
    )
    monkeypatch.setattr("fedapps.runs.work.seconds_saved", lambda *_: 1e9)
    keys = {**SMALL, "out": str(tmp_path / "run"), "checkpoint-every": 1}
    settings = settings_of(**keys)
    execute(settings, InlineGrid(app, 4, settings.flat()))
    assert read_toml(tmp_path / "run" / "settings.toml")["train.compile"] == "on"
    monkeypatch.setattr("fedapps.runs.work.seconds_saved", lambda *_: 0.0)
    longer = settings_of(**{**keys, "num-rounds": 2, "resume": True})
    assert with_compilation(longer, None, takes_steps).train.compile == "on"
    assert set(seen) == {"on"}


@pytest.mark.parametrize("method", ["ffgb", "ffgb-distill"])
def test_fits_with_adam_are_compiled_where_the_run_says_so(method, tmp_path, monkeypatch):
    compiler = Traced(tmp_path)
    monkeypatch.setattr("fedapps.runs.assembly.compiler", lambda: compiler)
    steps = (
        {"ffgb.fit-steps": 5}
        if method == "ffgb"
        else {"ffgb-distill.oracle-epochs": 2, "ffgb-distill.distill-epochs": 1}
    )
    settings = settings_of(
        **{
            **SMALL,
            **steps,
            "method": method,
            "train.compile": "on",
            "num-rounds": 1,
            "out": str(tmp_path / "run"),
        }
    )
    execute(settings, InlineGrid(app, 4, settings.flat()))
    assert compiler.graphs
    assert all(graph.run is not None for graph in compiler.graphs.values()), compiler.logged
