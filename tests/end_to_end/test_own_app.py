"""A method, a task and a net in one file of one's own (`examples/own-method`) on three
real SuperNodes, which have no copy of it.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedapps.deployment.local import Deployment
from fedapps.engines.processes import marked

ROOT = Path(__file__).parents[2]
SITES = {f"site-{i}": {"partition-id": i, "num-partitions": 3} for i in range(3)}
JOB = [
    "run",
    "run.toml",
    "num-clients=3",
    "num-rounds=2",
    "checkpoint-every=0",
    "train.local-epochs=1",
]

# every message starts processes: minutes on a busy machine
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


def fedapps(folder, *words, path=()):
    return subprocess.run(
        [sys.executable, "-m", "fedapps", *map(str, words)],
        cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def scores(folder):
    with (folder / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def example(tmp_path):
    """A copy of the example outside the project."""
    return Path(shutil.copytree(ROOT / "examples" / "own-method", tmp_path / "example"))


def test_the_sites_give_the_numbers_of_the_inline_engine_and_say_what_they_lack(example, tmp_path):
    """The file travels with the app. A package that it imports does not: the server has
    it and two sites, the third says its name.
    """
    lent = tmp_path / "lent"
    (lent / "scales").mkdir(parents=True)
    (lent / "scales" / "__init__.py").write_text("FACTOR = 1.0\n")
    with Deployment.create(tmp_path / "deployment", SITES) as deployment:
        for program in (
            deployment.superlink,
            deployment.sites["site-0"],
            deployment.sites["site-1"],
        ):
            program.environment["PYTHONPATH"] = str(lent)
        deployment.start()
        engine = ["--engine", "deployment", "--deployment", deployment.folder]

        for words, out in ((engine, "sites"), (["--engine", "inline"], "inline")):
            done = fedapps(example, *JOB, *words, "--out", tmp_path / out)
            assert done.returncode == 0, done.stdout + done.stderr
        assert scores(tmp_path / "sites") == scores(tmp_path / "inline")
        settings = (tmp_path / "sites" / "settings.toml").read_text()
        assert 'method = "own_method:METHOD"' in settings
        assert "epsilon = 0.001" in settings

        (example / "own_method.py").write_text(
            "import scales\n" + (example / "own_method.py").read_text()
        )
        done = fedapps(example, *JOB, *engine, "--out", tmp_path / "lacking", path=[lent])
        said = "there is no module 'scales', which own_method imports: install it here"
        told = [
            f"{failure['client']}: {failure['reason']}"
            for line in (tmp_path / "lacking" / "rounds.jsonl").read_text().splitlines()
            for failure in json.loads(line)["failures"]
        ]
        assert told, done.stdout + done.stderr
        assert all(text.startswith("2: ") and said in text for text in told), told
        assert said in deployment.sites["site-2"].words()
    assert marked(deployment.mark) == []
