"""Trackers: the records of each, read back with its own library; a failing one does not
end the run; none is imported unless named.
"""

import importlib.util
import json
import tomllib

import pytest

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.settings.reading import read_settings
from fedapps.tracking.names import TRACKERS, check_installed
from fedapps.tracking.trackers import ADAPTERS, Tracked, measures_of
from tests.helpers import dying_after, printed, refused, rounds_of, summary_of

JOB = [
    "run",
    "--engine",
    "inline",
    "num-clients=4",
    "clients-per-round=0",
    "evaluate-every=2",
    "train.local-epochs=1",
    "device=cpu",
    "checkpoint-every=1",
]


def run(out, *more, rounds=3):
    assert main([*JOB, f"num-rounds={rounds}", *more, "--out", str(out)]) == 0
    return rounds_of(out)


def stopped_and_resumed(out, *more):
    """Run three rounds, with Ctrl-C after the second."""
    with dying_after(2):
        assert main([*JOB, "num-rounds=3", *more, "--out", str(out)]) == 130
    return run(out, "--resume")


def has(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed (extra {package})",
    )


class RecordingTracker:
    """A tracker that stores what it receives, and fails on request."""

    fails, last = "", None

    def __init__(self, run):
        self.run, self.rounds, self.ended = run, [], None
        type(self).last = self
        self.maybe("start")

    def maybe(self, what):
        if type(self).fails == what:
            raise OSError("no\nroom")

    def round(self, number, measures):
        self.maybe("round")
        self.rounds.append((number, measures))

    def end(self, status, files):
        self.ended = (status, [path.name for path in files])
        self.maybe("end")


@pytest.fixture
def tracker_class(monkeypatch):
    monkeypatch.setitem(ADAPTERS, "wandb", RecordingTracker)
    monkeypatch.setitem(TRACKERS, "wandb", "json")
    monkeypatch.setattr(RecordingTracker, "fails", "")
    return RecordingTracker


def test_a_tracker_receives_rounds_and_the_end(tracker_class, tmp_path):
    rows = run(tmp_path / "run", "track=wandb", rounds=4)
    tracker = tracker_class.last
    assert [number for number, _ in tracker.rounds] == [1, 2, 3, 4]
    for row, (_, measures) in zip(rows, tracker.rounds, strict=True):
        names = ("bytes-up", "train/loss", "replies", "failures")
        assert [measures[name] for name in names] == [row["bytes-up"], row["train"]["loss"], 4, 0]
        assert ("evaluate/accuracy-mean" in measures) == ("evaluate" in row)
    status, files = tracker.ended
    assert status == "completed"
    assert {"rounds.jsonl", "settings.toml", "summary.json", "clients.csv"} <= set(files)
    assert tracker.run.config["num-rounds"] == 4
    assert tomllib.loads((tmp_path / "run" / "settings.toml").read_text())["track"] == "wandb"


@pytest.mark.parametrize("where", ["start", "round", "end"])
def test_a_failing_tracker_does_not_end_the_run(tracker_class, tmp_path, monkeypatch, where):
    monkeypatch.setattr(tracker_class, "fails", where)
    assert len(run(tmp_path / "run", "track=wandb")) == 3
    assert summary_of(tmp_path / "run")["status"] == "completed"
    said = (tmp_path / "run" / "run.log").read_text()
    failed = "track = 'wandb' failed (OSError: no room). The run continues without this tracker."
    assert said.count(failed) == said.count("track = ") == 1, "it is not used again"


def test_trackers_receive_a_failed_run(tracker_class, tmp_path):
    words = ["num-rounds=2", "track=wandb", "max-update-norm=1e-9", "--out", str(tmp_path / "run")]
    assert main([*JOB, *words]) == 1
    assert tracker_class.last.ended[0] == "failed"


def test_runs_of_a_sweep_know_its_name(tmp_path):
    assert Tracked(tmp_path / "sweep-alpha" / "cells" / "alpha=1", {}).sweep == "sweep-alpha"
    assert Tracked(tmp_path / "run", {}).sweep == ""


def test_measures_are_the_numbers_of_a_record():
    row = {
        "round": 4,
        "clients": [1, 2],
        "failures": [{"client": 3, "reason": "x"}],
        "train": {"loss": 1, "curve": [1, 2]},
        "capped": [3],
    }
    assert measures_of(row | {"counts-models": True}) == {
        "replies": 2,
        "failures": 1,
        "train/loss": 1.0,
    }


def test_names_are_checked_before_anything_starts(monkeypatch):
    refused(
        lambda: read_settings({"track": "mlfow"}),
        r"^track = 'mlfow': did you mean 'mlflow'\? choose from tensorboard, mlflow, "
        r"wandb, separated by commas",
        UserError,
    )
    assert read_settings({"track": "wandb, mlflow"}).track == "wandb, mlflow"
    monkeypatch.setitem(TRACKERS, "mlflow", "no_such_package_here")
    refused(
        lambda: check_installed("mlflow"),
        r"^track = 'mlflow': no_such_package_here is not installed: pip install "
        r"'fedapps\[mlflow\]'$",
        UserError,
    )


@pytest.mark.slow
def test_trackers_are_imported_only_if_named(tmp_path):
    program = (
        "import sys; from fedapps.commands.parser import main; "
        f"main({[*JOB, 'num-rounds=1', '--out', str(tmp_path / 'run')]!r}); "
        f"print(sorted({set(TRACKERS)!r} & set(sys.modules)), [name for name in sys.modules if "
        "name.startswith('fedapps.tracking.')])"
    )
    ours = [f"fedapps.tracking.{name}" for name in ("names", "trackers")]
    assert printed("-c", program).splitlines()[-1] == f"[] {ours}"


# The real libraries


@has("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    rows = stopped_and_resumed(out, "track=tensorboard")
    events = EventAccumulator(str(out / "tensorboard"), {"tensors": 0, "scalars": 0}).Reload()
    losses = events.Scalars("train/loss")
    assert [(event.step, event.value) for event in losses] == [
        (number, pytest.approx(row["train"]["loss"])) for number, row in enumerate(rows, 1)
    ]
    assert [(event.step, event.value) for event in events.Scalars("evaluate/accuracy-mean")] == [
        (row["round"], pytest.approx(row["evaluate"]["accuracy-mean"]))
        for row in rows
        if "evaluate" in row
    ]
    texts = {
        tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
    }
    assert "    num-clients = 4" in texts["settings/text_summary"]
    assert texts["status/text_summary"] == "completed"


@has("mlflow")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sweep = tmp_path / "sweep-seeds"
    rows = run(sweep / "cells" / "seed=0", "track=mlflow")
    client = MlflowClient(f"sqlite:///{sweep}/cells/seed=0/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("sweep-seeds").experiment_id
    (first,) = client.search_runs([experiment])
    assert (first.info.run_name, first.info.status) == ("seed=0", "FINISHED")
    assert (first.data.params["num-clients"], first.data.params["method"]) == ("4", "fedavg")
    history = sorted(
        client.get_metric_history(first.info.run_id, "train/loss"), key=lambda metric: metric.step
    )
    assert [(metric.step, metric.value) for metric in history] == [
        (row["round"], row["train"]["loss"]) for row in rows
    ]
    names = {item.path for item in client.list_artifacts(first.info.run_id)}
    assert {"rounds.jsonl", "settings.toml", "summary.json", "clients.csv"} <= names


def kept_records(content):
    """Yield the records of a Weights & Biases file: LevelDB's log format, in blocks of
    32 KiB, after a header of 7 bytes.
    """
    place, record = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@has("wandb")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    from wandb.proto.wandb_internal_pb2 import Record

    out = tmp_path / "sweep-seeds" / "cells" / "seed=0"
    rows = run(out, "track=wandb")
    (path,) = out.glob("wandb/offline-run-*/*.wandb")
    history, started, artifacts = {}, None, []
    for content in kept_records(path.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            started = record.run
        elif kind == "history":
            items = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            history.setdefault(record.history.step.num or items.get("_step"), {}).update(items)
        elif kind == "artifact" or (
            kind == "request" and record.request.WhichOneof("request_type") == "log_artifact"
        ):
            artifact = (
                record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            )
            artifacts += [entry.path for entry in artifact.manifest.contents]
    assert (started.run_group, started.display_name, started.project) == (
        "sweep-seeds",
        "seed=0",
        "fedapps",
    )
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert (config["num-clients"], config["method"]) == (4, "fedavg")
    for row in rows:
        assert history[row["round"]]["train/loss"] == pytest.approx(row["train"]["loss"])
    assert {"rounds.jsonl", "settings.toml", "clients.csv"} <= set(artifacts)
