"""Files around the code agree with it: workflows call existing targets on the supported
Pythons, and there is one version.
"""

import re
import shlex
import tomllib

import yaml

from fedapps import __version__
from fedapps.commands.parser import parse
from fedapps.commands.run import settings_of
from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (ROOT / ".github/workflows").glob("*.yml")
}
STEPS = [
    step
    for workflow in WORKFLOWS.values()
    for job in workflow["jobs"].values()
    for step in job.get("steps", [])
]
COMMANDS = [line for step in STEPS for line in step.get("run", "").splitlines()]
RELEASE = WORKFLOWS["release"]["jobs"]


def test_there_is_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == __version__ == citation["version"]
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_workflows_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    called = {line.split()[1] for line in COMMANDS if line.startswith("make ")}
    every = {"lint", "test", "test-library", "test-lowest", "test-deployment", "docs", "app"}
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
    assert settings_of(parse(shlex.split(line.partition("bin/fedapps ")[2]))).method == "fedavg"


def test_only_the_job_that_publishes_may_ask_for_an_identity_and_runs_no_code():
    asked = {}
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}
        for job, said in workflow["jobs"].items():
            wanted = {what for what, how in said.get("permissions", {}).items() if how == "write"}
            asked |= {(name, job): wanted} if wanted else {}
    assert asked == {
        ("release", "publish"): {"id-token", "attestations"},
        ("release", "attach"): {"contents"},
        ("release", "docs"): {"contents"},
    }
    assert all("uses" in step for step in RELEASE["publish"]["steps"])


def test_a_release_waits_for_the_tests():
    assert RELEASE["tests"] == {"uses": "./.github/workflows/tests.yml"}
    assert "workflow_call" in WORKFLOWS["tests"][True]  # YAML reads `on` so
    assert RELEASE["publish"]["needs"] == ["tests", "build"]
    assert {RELEASE[job]["needs"] for job in ("attach", "docs")} == {"publish"}


def test_actions_are_pinned_by_commit_and_name_the_version():
    """One commit for each action, so that an update cannot miss a place."""
    pinned = re.compile(r"uses: ([\w/-]+)@([0-9a-f]{40})  # (v\d+\.\d+\.\d+)")
    texts = [path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    found = {match for text in texts for match in pinned.findall(text)}
    assert sum(len(pinned.findall(text)) for text in texts) == sum("uses" in one for one in STEPS)
    assert len({action for action, *_ in found}) == len(found)
