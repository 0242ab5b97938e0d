"""Helpers of several tests: runs on the in-process grid, clients whose result is known
by hand, small data and nets.
"""

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.client import NumPyClient

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, run_rounds
from fedapps.testing.problems import blobs as blobs, small_net as small_net

ROOT = Path(__file__).resolve().parents[1]
#: A model of two numbers.
START = {"w": np.zeros(2, np.float32)}


def python(*words, cwd=None, path=(), **environment):
    """Run Python in its own process. ``path``: additional folders of packages that it
    can import.
    """
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))} | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


def printed(*words, **more):
    """Run Python in its own process, check that it succeeds, and return what it
    printed.
    """
    done = python(*words, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fedapps(*words, **more):
    """Run the command in its own process."""
    return python("-m", "fedapps", *words, **more)


def run_inline(out, *words, **settings):
    """Run `fedapps run` in this process and return the summary of the run."""
    from fedapps.commands.parser import (
        main,
    )  # not at the top: tests of the library run without its dependencies

    given = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    assert main(["run", *words, *given, "--engine", "inline", "--out", str(out)]) == 0
    return summary_of(out)


def rounds_of(folder):
    """Return the rounds that a run has recorded, except an incomplete last line."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def outcome_of(folder):
    """Return what a run wrote that does not depend on its engine: the rounds, without
    seconds, id and traffic between nodes, and the content of the files.
    """
    free = ("seconds", "run", "travelled-up", "travelled-down", "node-messages")
    rows = [{k: v for k, v in r.items() if not k.endswith(free)} for r in rounds_of(folder)]
    names = ("clients.csv", "model.safetensors", "weights.csv", "time.csv")
    return rows, {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def lacking(text, *parts):
    """Return the parts that a text does not have."""
    return [part for part in parts if part not in text]


def summary_of(folder):
    """Return the summary of a run."""
    return json.loads((folder / "summary.json").read_text())


@contextlib.contextmanager
def dying_after(number):
    """Interrupt runs of this process when they have recorded the round ``number``."""
    from fedapps.runs import execution

    class Dies(execution.Recorder):
        def __call__(self, now):
            super().__call__(now)
            if now.number == number:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "Recorder", Dies)
        yield


def command(*arguments):
    """Start `fedapps run` in a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "fedapps", "run", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, process, folder, seconds):
    """Wait until ``condition(rows)`` holds while ``process`` runs; fail with what was
    said if it does not within twice the ``seconds`` that it takes where little else
    runs.
    """
    deadline = time.monotonic() + 2 * seconds
    while not condition(rounds_of(folder)):
        log = (
            (folder / "run.log").read_text()[-3000:] if (folder / "run.log").exists() else "no log"
        )
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.2)


def eventually(condition, seconds=60):
    """Wait until ``condition()`` holds, and return what it gives."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def write_file(path, text=""):
    """Write a file, with the folders that it needs; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_csv(path, rows, changed):
    """Write rows by column, with columns whose first cells are ``changed``; return the
    path.
    """
    for name, values in changed.items():
        for row, value in zip(rows, values, strict=False):
            row[name] = value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of(path):
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def clients_of(folder):
    """Return the rows of a run's clients."""
    return rows_of(folder / "clients.csv")


def some_slow(names, *quick):
    """Mark all but the names in ``quick`` as slow: they run the same code with another
    client or server.
    """
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def assert_same(a, b, where="", skip=lambda key: key in ("seconds", "run")):
    """Compare nested values, numbers to 1e-6, except the keys in ``skip``."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if not skip(key):
                assert_same(a[key], b[key], f"{where}.{key}", skip)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6), where
    else:
        assert a == b, where


def assert_arrays(found, wanted, rtol=0.0, atol=0.0):
    """Compare two mappings or two sequences of arrays or tensors, by default to the
    bit.
    """

    def numbers(array):
        array = array.detach() if hasattr(array, "detach") else array
        return array.numpy() if hasattr(array, "numpy") else array

    found, wanted = (
        dict(arrays) if hasattr(arrays, "keys") else dict(enumerate(arrays))
        for arrays in (found, wanted)
    )
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        one, other = numbers(array), numbers(wanted[name])
        np.testing.assert_allclose(one, other, rtol, atol, err_msg=str(name))


def seeded(build):
    """Check that the seed alone decides the arrays of ``build(seed)``, which leaves
    torch's own draws alone; return the arrays of two seeds.
    """
    first = build(5)
    torch.rand(1)
    state = torch.random.get_rng_state()
    again, other = build(5), build(6)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_arrays(first, again)
    return first, other


def play(strategy, client_fn, num_clients, start, rounds=1, config=(), inner=InlineGrid, **options):
    """Run any strategy in our loop with the clients ``client_fn(number)``;
    return its Result with ``seen``, the rounds. ``on``: options of its ClientGrid.
    """
    app = to_client_app(lambda context: client_fn(int(context.node_config["partition-id"])))
    grid = ClientGrid(inner(app, num_clients), **options.pop("on", {}))
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in start.items()})
    config, seen = ConfigRecord(dict(config)), []
    options["callbacks"] = [seen.append, *options.get("callbacks", ())]
    result = run_rounds(strategy, grid, arrays, rounds, train_config=config, **options)
    result.seen = seen
    return result


def simulate(
    strategy, client_fn, num_clients, initial, num_rounds=3, config=None, grid=None, **options
):
    """Run a strategy over clients made by ``client_fn(partition_id, context)``; return
    Flower's Result.
    """
    app = to_client_app(lambda context: client_fn(context.node_config["partition-id"], context))
    return strategy.start(
        grid or InlineGrid(app, num_clients),
        ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()}),
        num_rounds,
        train_config=ConfigRecord(dict(config or {})),
        **options,
    )


def arrays_of(result):
    """Return the final arrays of a Result by name."""
    return {name: array.numpy() for name, array in result.arrays.items()}


def refused(call, message, kind=ValueError):
    """Check that a call raises an error of this kind, whose message is one line in
    which the pattern ``message`` is found.
    """
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def exchanged(monkeypatch):
    """Return the list of what inline grids send and receive from now on: the type of a
    message, its content and that of its reply, if it is no error.
    """
    seen, answer = [], InlineGrid._answer

    def noted(self, message):
        reply = answer(self, message)
        both = [message.content] if reply.has_error() else [message.content, reply.content]
        seen.append((message.metadata.message_type, *both))
        return reply

    monkeypatch.setattr(InlineGrid, "_answer", noted)
    return seen


def arrays_in(*contents):
    """Return (name, array) of all arrays of messages' contents."""
    records = [record for one in contents for record in one.array_records.values()]
    return [(name, array.numpy()) for record in records for name, array in record.items()]


class EchoClient(NumPyClient):
    """Returns its model shifted by a constant, with its own weight; FedAvg's result is
    known by hand. ``heard`` gets the configuration of each training.
    """

    def __init__(self, shift, num_examples=1, metrics=None, heard=lambda config: None):
        self.shift, self.num_examples, self.metrics = shift, num_examples, metrics or {}
        self.heard = heard

    def fit(self, parameters, config):
        self.heard(config)
        return (
            [p + np.asarray(self.shift, p.dtype) for p in parameters],
            self.num_examples,
            {"loss": 1.0, **self.metrics},
        )

    def evaluate(self, parameters, config):
        return float(np.mean(parameters[0])), self.num_examples, {"accuracy": 0.5, **self.metrics}


class Trains(EchoClient):
    """A client that trains by a function: ``train(parameters, config)`` returns the
    arrays.
    """

    def __init__(self, train, num_examples=1, metrics=None):
        super().__init__(0.0, num_examples, metrics)
        self.train = train

    def fit(self, parameters, config):
        return self.train(parameters, config), self.num_examples, {"loss": 1.0, **self.metrics}


class Clock:
    """Time that passes only while somebody sleeps; ``pauses``: how long each time."""

    def __init__(self, now=0.0):
        self.now, self.pauses = now, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


class NoNoise:
    """Replaces the generator of noise, so that a result is known by hand."""

    def normal(self, mean, std, shape):
        self.std = std
        return np.zeros(shape)


def that_fails(kind, rounds=None):
    """Return clients of class ``kind`` whose training fails: in these rounds, where
    ``rounds(client, round)`` says so, or always.
    """

    class Failing(kind):
        def fit(self, parameters, config):
            now = config["server-round"]
            if rounds(self.client_id, now) if callable(rounds) else rounds is None or now in rounds:
                raise RuntimeError("the disk of this site is full")
            return super().fit(parameters, config)

    return Failing


class LossyClient(EchoClient):
    """An ``EchoClient`` that also reports the loss of the model it received,
    ``loss(server_round)`` or a number.
    """

    def __init__(self, shift, loss, num_examples=1):
        super().__init__(shift, num_examples)
        self.loss_of = loss if callable(loss) else lambda _: loss

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        asked = (
            {"loss-before": self.loss_of(config["server-round"])}
            if config.get("loss-before")
            else {}
        )
        return arrays, n, {**metrics, **asked}
