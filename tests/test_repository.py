"""Files around the code agree with it: workflows call existing targets on the supported
Pythons, and there is one version.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from fedapps import __version__
from fedapps.commands.parser import parse
from fedapps.commands.run import settings_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (ROOT / ".github/workflows").glob("*.yml")
}
COMMANDS = [
    line
    for workflow in WORKFLOWS.values()
    for job in workflow["jobs"].values()
    for step in job["steps"]
    for line in step.get("run", "").splitlines()
]


def test_there_is_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == __version__ == citation["version"]
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_workflows_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    called = {line.split()[1] for line in COMMANDS if line.startswith("make ")}
    every = {"lint", "test", "test-library", "test-lowest", "test-deployment", "docs"}
    assert every <= called <= targets


def test_the_suite_runs_on_every_supported_python():
    tried = WORKFLOWS["tests"]["jobs"]["newest"]["strategy"]["matrix"]["python"]
    said = [
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)
    ]
    assert tried == said
    assert PROJECT["requires-python"] == f">={tried[0]}"


def test_the_release_tries_a_command_that_parses():
    (line,) = [line for line in COMMANDS if "bin/fedapps" in line]
    words = shlex.split(line.partition("bin/fedapps ")[2])
    assert settings_of(parse(words)).method == "fedavg"


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}
        identified = [job for job, steps in workflow["jobs"].items() if "permissions" in steps]
        assert identified == (["publish"] if name == "release" else [])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_ask_something(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])
