"""A run folder written by hand, in the form that the recorder leaves."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest

#: Measures of the last evaluation.
LAST = {"accuracy-mean": 0.875, "accuracy-std": 0.0625, "ece-mean": 0.125}


def toml_value(value):
    return json.dumps(value) if isinstance(value, (str, bool)) else repr(value)


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    """Decoded data, the library's files and the hub's go to the test's folder."""
    datasets = pytest.importorskip("datasets")
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """`modules(name=text)` writes modules of the user's into the current folder, which
    it returns, and lets them be imported anew.
    """

    def write(**texts):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    return write


@pytest.fixture
def error_of(capsys):
    """`error_of(*words)` returns the one line with which the command refuses them."""
    from fedapps.commands.parser import main

    def refusal(*words):
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fedapps: ")
        assert error.count("\n") == 1, error
        return error

    return refusal


@pytest.fixture
def in_process(monkeypatch):
    """Execute a sweep's runs one after the other in this process. ``begun``: their
    names; those in ``broken`` fail with its text. ``before(name)``: called before each.
    """
    from fedapps.lab.sweeps import execution
    from fedapps.lab.sweeps.pool import Ended, run_one

    made = SimpleNamespace(broken={}, begun=[], before=lambda name: None)

    def run_all(runs, *places):
        for run in runs:
            name = run.folder.name
            made.begun.append(name)
            made.before(name)
            error = made.broken.get(name)
            yield Ended(run, {}, error) if error else Ended(run, run_one(run))

    monkeypatch.setattr(execution, "run_all", run_all)
    return made


@pytest.fixture
def write_run(tmp_path):
    """`write_run(name, ...)` writes a folder with two evaluated rounds of four and
    returns its path.

    `last` are the metrics of the last evaluation, `clients` the rows of clients.csv;
    `summary=False` leaves the folder as a killed run does: no summary, and a torn last
    line.
    """

    def write(
        name="run",
        method="fedavg",
        seed=0,
        rounds=4,
        planned=None,
        last=LAST,
        clients=((0, 0.75), (1, 1.0), (7, 0.5)),
        failures=(),
        settings=None,
        curves=None,
        summary=True,
        extra=None,
    ):
        path = tmp_path / name
        path.mkdir(parents=True)
        known = {
            "method": method,
            "task": "classification",
            "seed": seed,
            "num-rounds": planned or rounds,
        }
        flat = {**known, "clients-per-round": 2}
        tables = {"data": {"source": "digits"}, "versions": {"flwr": "1.41.0"}, **(settings or {})}
        lines = [f"{key} = {toml_value(value)}" for key, value in flat.items()]
        for table, values in tables.items():
            lines += [
                f"[{table}]",
                *(f"{key} = {toml_value(value)}" for key, value in values.items()),
            ]
        (path / "settings.toml").write_text("\n".join(lines))
        records = []
        for number in range(1, rounds + 1):
            record = {
                "round": number,
                "clients": [0, 1],
                "failures": [f for n, f in failures if n == number],
                "train": {"loss": 1 / number},
                "bytes-up": 1000,
                "bytes-down": 2000,
                "seconds": 0.5,
            }
            if number % 2 == 0:
                scale = number / (rounds - rounds % 2)
                record["evaluate"] = {key: value * scale for key, value in last.items()}
            records.append(record)
        with (path / "rounds.jsonl").open("w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            if not summary:
                file.write('{"round": 99, "train": {"lo')
        with (path / "clients.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "num-examples", "accuracy"])
            writer.writerows([client, 8, accuracy] for client, accuracy in clients)
        if curves:
            (path / "curves.json").write_text(json.dumps(curves))
        if summary:
            table = known | {
                "rounds-completed": rounds,
                "failures": len(failures),
                "seconds": 0.5 * rounds,
                "bytes-up": 1000 * rounds,
                "bytes-down": 2000 * rounds,
                **last,
                **(extra or {}),
            }
            (path / "summary.json").write_text(json.dumps(table))
        return path

    return write
