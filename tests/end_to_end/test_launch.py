"""The launcher: a small Flower app runs, is refused or interrupted; no process or file
is left behind.
"""

import contextlib
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from fedapps.commands import parser as cli
from fedapps.engines import flower, superlink
from fedapps.engines.processes import free_port, marked
from fedapps.errors import UserError
from fedapps.runs import launch as launching
from tests.helpers import command, eventually, refused, rounds_of, summary_of, write_file

pytestmark = pytest.mark.slow
GUARD = "fedapps.engines.processes"  # of the helper that ends what a killed run has left

PYPROJECT = """
[project]
name = "tinyapp"
version = "0.1.0"
description = "An app that reports where it runs"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
fab-include = ["tinyapp/**/*.py"]
[tool.flwr.app.components]
serverapp = "tinyapp.server:app"
clientapp = "tinyapp.client:app"
[tool.flwr.app.config]
out = ""
text = ""
rounds = 2
[tool.flwr.app.config.nested]
rate = 0.5
"""
SERVER = """
import json, os, sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    config = dict(context.run_config)
    nodes = []
    while len(nodes) < 6:
        nodes = sorted(grid.get_node_ids())
        time.sleep(0.01)
    grid.pull_interval = 0.02
    for number in range(config["rounds"]):
        content = RecordDict({"config": ConfigRecord({"round": number})})
        replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
        clients = [{k: v for k, v in reply.content["seen"].items()} for reply in replies]
        seen = {"config": config, "cwd": os.getcwd(), "files": os.listdir("."), "env": dict(os.environ), "clients": clients}
        with open(config["out"], "a") as file:
            file.write(json.dumps(seen) + "\\n")
        print("finished round", number, "in", os.environ["FLWR_HOME"], flush=True)
    raise ValueError(f"the kettle in {os.environ['FLWR_HOME']} is empty")
"""
CLIENT = """
import os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    time.sleep(0.5)
    names = ("FLWR_HOME", "RAY_TMPDIR", "OMP_NUM_THREADS", "EXTRA", "CUDA_VISIBLE_DEVICES")
    seen = {name: os.environ.get(name, "") for name in names}
    seen |= {"cwd": os.getcwd(), "pid": os.getpid(), "file": __file__, "partition": int(context.node_config["partition-id"])}
    return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path):
    """A tiny app's folder."""
    folder = tmp_path / "app"
    (folder / "tinyapp").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    for name, code in {"__init__": "", "server": SERVER, "client": CLIENT}.items():
        (folder / "tinyapp" / f"{name}.py").write_text(code)
    return folder


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch):
    """Every SuperLink made in this process must leave neither a process nor its folder,
    however the test ends.
    """
    made = []
    make = superlink.SuperLink.__init__

    def remember(self, *arguments, **named):
        make(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(superlink.SuperLink, "__init__", remember)
    yield
    for one in made:
        assert marked(one.server.mark) == []
        assert not one.base.exists()
        assert one.guard.process.poll() == 0


def descendants(root):
    """The processes below `root`, each with its start time, so that a reused number is
    not mistaken for it.
    """
    parents, starts = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # the fields from 3 on, the state
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)], starts[int(entry.name)] = int(fields[1]), fields[19]
    below = {root}
    while more := {process for process in parents if parents[process] in below} - below:
        below |= more
    return {(one, starts[one]) for one in below - {root}}, set(starts.items())


def command_of(process):
    """Return the words of a process's command; none if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")[:-1]
    return []


@pytest.mark.ray
def test_a_run_is_isolated_and_shares_gpus_and_an_app_that_raises_gives_the_reason(
    app, tmp_path, monkeypatch
):
    """One run, many checks, in an environment made to mislead it. Ray is told that
    there are two GPUs. Two shares of 0.39 fit on each, so four clients run at a time,
    and each sees its GPU. Flower alone would start a fifth worker and wait forever.
    """
    decoy = tmp_path / "decoy"  # the current directory holds a package with the app's name
    write_file(decoy / "tinyapp" / "__init__.py", "raise ImportError('the decoy was imported')")
    monkeypatch.chdir(decoy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # too long for Ray's sockets
    monkeypatch.setenv("FLWR_HOME", str(decoy))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # the virtual environment is not activated
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    polls = []
    text = "two\nlines, \"quotes\", 'more', back\\slash, ünï 😀"
    log, out, port = tmp_path / "new" / "run.log", tmp_path / "seen.jsonl", free_port()
    config = {"out": str(out), "text": text, "nested.rate": 1e-05}
    for name, value in {
        "EXTRA": "given",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    outcome = flower.run_simulation(
        app,
        config,
        flower.Resources(6, gpus_per_client=0.39, ray_cpus=5, ray_gpus=2),
        flower.Following(
            log,
            poll=lambda: polls.append(threading.current_thread()),
        ),
        superlink=superlink.SuperLink(port),
    )
    lines = log.read_text(encoding="utf-8").splitlines()
    assert outcome.status == "failed", (outcome, lines[-20:])
    home = Path(re.fullmatch(r"ValueError: the kettle in (\S+) is empty", outcome.details)[1])
    assert marked(f"FLWR_HOME={home}") == []
    assert not home.exists()
    assert any(line.startswith("finished round 1") for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert set(polls) == {threading.main_thread()}
    _, server = (json.loads(line) for line in out.read_text().splitlines())  # of two rounds
    assert server["config"] == {**config, "rounds": 2}
    assert len(server["env"]["FLWR_HOME"]) < 30
    assert server["files"] == []
    assert sorted(client["partition"] for client in server["clients"]) == [*range(6)]
    # in the first round the workers are still starting
    gpus = {client["pid"]: client["CUDA_VISIBLE_DEVICES"] for client in server["clients"]}
    assert Counter(gpus.values()) == {"0": 2, "1": 2}
    for client in server["clients"]:
        assert client["FLWR_HOME"] == str(home)
        assert Path(client["RAY_TMPDIR"]).parent == Path(client["cwd"]).parent == home.parent
        assert client["file"].startswith(str(home))
        assert (client["OMP_NUM_THREADS"], client["EXTRA"]) == ("1", "given")
    assert list(decoy.iterdir()) == [decoy / "tinyapp"]


@pytest.mark.ray
def test_ctrl_c_twice_in_the_middle_leaves_the_results_and_nothing_else(tmp_path):
    out = tmp_path / "run"
    job = ["method=fedavg", "num-clients=4", "num-rounds=1000", "train.local-epochs=1"]
    process = command(*job, "--engine=ray", "--workers=1", "--out", out)
    try:
        eventually(lambda: len(rounds_of(out)) >= 2 or process.poll() is not None, 200)
        started, _ = descendants(process.pid)
        guard = next(words for one, _ in started if GUARD in (words := command_of(one)))
        mark, base = guard[guard.index(GUARD) + 1 :]
        programs = " ".join(word for one in marked(mark) for word in command_of(one))
        for name in ("superlink", "superexec", "flwr-simulation", "gcs_server", "raylet", "ray::"):
            assert name in programs
        unmarked = {one for one, _ in started & descendants(process.pid)[0]} - set(marked(mark))
        assert [GUARD in command_of(one) for one in unmarked] == [True]
        # as a terminal does it: to the whole foreground group
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "continue with: fedapps run --resume" in said
    assert (marked(mark), started & descendants(process.pid)[1]) == ([], set())
    assert not Path(base).exists()
    assert summary_of(out)["status"] == "interrupted"
    assert (out / "report.html").exists()
    assert len(rounds_of(out)) >= 2


def simulated(app, log, config=(), poll=lambda: None, **resources):
    """Run the app with three clients."""
    given = flower.Resources(3, **resources), flower.Following(log, poll=poll)
    return flower.run_simulation(app, dict(config), *given)


def test_an_unknown_setting_is_rejected_with_the_reason(app, tmp_path):
    outcome = simulated(app, tmp_path / "log", {"nested.rat": 1})
    assert outcome.status == "failed"
    assert outcome.details.startswith("Key 'nested.rat' is not present")


def test_a_superlink_that_dies_is_a_failure_with_its_last_log_lines(app, tmp_path, monkeypatch):
    broken = write_file(
        tmp_path / "flower-superlink", "#!/bin/sh\necho 'OSError: the disk is full' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    find = superlink.program
    monkeypatch.setattr(
        superlink, "program", lambda name: broken if name == broken.name else find(name)
    )
    outcome = simulated(app, tmp_path / "log")
    assert outcome.status == "failed"
    assert outcome.details == "Flower's SuperLink has ended unexpectedly: OSError: the disk is full"
    assert "the disk is full" in (tmp_path / "log").read_text()


def test_an_error_of_the_caller_is_raised_after_the_cleanup(app, tmp_path):
    def poll():
        raise RuntimeError("the display broke")

    refused(lambda: simulated(app, tmp_path / "log", poll=poll), "the display broke", RuntimeError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus_per_client": 0.5}, r"gpus-per-client = 0\.5 does not fit: this machine "),
        ({"gpus_per_client": -1.0}, r"^gpus-per-client = -1\.0: "),
        ({"gpus_per_client": 2, "ray_gpus": 1}, r"= 2 does not fit: .* and 1 GPUs: "),
    ],
)
def test_missing_resources_are_an_error(app, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(
        superlink.SuperLink, "__init__", lambda *_: pytest.fail("something was started")
    )
    refused(lambda: simulated(app, tmp_path / "log", **options), message, UserError)


def test_a_superlink_is_on_its_way_before_the_settings_are_checked_and_ends_with_a_refusal(
    tmp_path, monkeypatch, capsys
):
    launched = []
    launch = superlink.Program.launch
    monkeypatch.setattr(
        superlink.Program, "launch", lambda self: (launch(self), launched.append(self))[0]
    )

    def refuse(settings, asked, **_):
        assert all(link.alive() for link in launched)
        raise UserError("no such data")

    monkeypatch.setattr(launching, "assemble", refuse)
    for engine, number in (("inline", 0), ("ray", 1)):
        words = ["run", "method=fedavg", "--engine", engine, "--out", str(tmp_path / "run")]
        assert cli.main(words) == 2
        assert "no such data" in capsys.readouterr().err
        assert len(launched) == number
    assert not launched[0].alive()
    assert not (tmp_path / "run").exists()


def test_the_last_error_is_the_cause_not_its_wrapper():
    log = """INFO : a KeyError: in passing
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    client()
ZeroDivisionError: an earlier one
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    raise Wrong(
package.module.Wrong: the pool is empty: 3.5

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in <module>
RuntimeError: An error was encountered. Ending simulation.
ERROR : Exit Code: 700"""
    assert flower.last_error(log.splitlines()) == "Wrong: the pool is empty: 3.5"
    assert flower.last_error(["all is well"]) is None
    assert (
        flower.last_error(["Traceback (most recent call last):", "  x", "KeyError"]) == "KeyError"
    )
