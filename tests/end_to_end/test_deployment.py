"""A deployment on this machine with real processes: the numbers equal those of the
inline engine, refusals give a reason, sites can have their own data.
"""

import base64
import hashlib
import json
import os
import shutil
import stat
import time
import tomllib

import numpy as np
import pytest

from fedapps.deployment.certificates import make_certificates, make_site_key
from fedapps.deployment.local import Deployment, Site
from fedapps.deployment.warm import make_warm
from fedapps.engines.app_folder import copy_app
from fedapps.engines.processes import free_port, marked
from fedapps.engines.superlink import end_programs
from fedapps.errors import RunFailed, UserError
from tests.end_to_end.sites import on, succeed
from tests.helpers import (
    assert_same,
    clients_of,
    fedapps,
    refused,
    rounds_of,
    run_inline,
    summary_of,
)

SMALL = [
    "train.local-epochs=1",
    "evaluate-every=0",
    "clients-per-round=0",
    "seed=5",
    "num-clients=3",
]
JOBS = {  # and SuPerFed-MM, which keeps state at the sites, in test_faults.py
    "fedavg": ["method=fedavg", "num-rounds=1"],
    "aaggff-d": ["method=aaggff-d", "num-rounds=1"],
    # task=lasso has no file to read
    "fedfw-plus": ["method=fedfw-plus", "task=lasso", "num-rounds=2"],
}

# every message starts processes: minutes on a busy machine
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


def not_compared(key):
    """Skip run ids, and values that depend on time or on the length of a path."""
    return key in ("seconds", "run") or "bytes" in key


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Three sites that share the settings' data; after the test no process of them is
    left.
    """
    folder = tmp_path_factory.mktemp("sites") / "deployment"
    said = succeed("deploy", "up", "--nodes", "3", "--dir", folder)
    opened = Deployment.open(folder)
    assert f"fedapps deploy flwr --dir {folder} run . own" in said
    assert "ports: open to every user of this machine" in said
    yield opened
    succeed("deploy", "down", "--dir", folder)
    assert marked(opened.mark) == []
    assert not folder.exists()


@pytest.mark.parametrize("method", JOBS)
def test_the_sites_give_the_numbers_of_the_inline_engine(deployment, method, tmp_path):
    job = [*JOBS[method], *SMALL]
    run_inline(tmp_path / "inline", *job)
    # as a Flower user does: the printed command `flwr run . own`
    if method == "fedavg":
        settings = tomllib.loads((tmp_path / "inline" / "settings.toml").read_text())
        settings = {key: value for key, value in settings.items() if key != "versions"} | {
            "out": str(tmp_path / "sites")
        }
        lines = [
            f"{key} = {json.dumps(value)}"
            for key, value in settings.items()
            if not isinstance(value, dict)
        ]
        (tmp_path / "run.toml").write_text("\n".join([*lines, "[train]", "local-epochs = 1"]))
        app = [
            "run",
            copy_app(tmp_path / "app"),
            "own",
            "--stream",
            "--run-config",
            tmp_path / "run.toml",
        ]
        succeed("deploy", "flwr", "--dir", deployment.folder, *app)
    else:
        succeed("run", *job, *on(deployment, tmp_path / "sites"))
    assert summary_of(tmp_path / "sites")["status"] == "completed"
    left, right = rounds_of(tmp_path / "sites"), rounds_of(tmp_path / "inline")
    for one, other in zip(left, right, strict=True):
        assert_same(one, other, f"round {one['round']}", not_compared)


def test_status_logs_and_file_permissions(deployment):
    there = ["--dir", deployment.folder]
    assert succeed("deploy", "status", *there).count("online") == 3
    assert "SuperLink" in succeed("deploy", "logs", *there, "--lines", "500")
    assert "SuperNode ID" in succeed("deploy", "logs", "site-1", *there, "--lines", "500")
    assert "no site 'x': choose one of site-0" in fedapps("deploy", "logs", "x", *there).stderr
    assert stat.S_IMODE(deployment.folder.stat().st_mode) == 0o700
    secret = [deployment.certificates / "server.key", deployment.certificates / "ca.key"]
    for path in [*secret, *(site.folder / "key" for site in deployment.sites.values())]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_refused_sites_and_their_messages(deployment, tmp_path):
    stranger = Site(deployment, "stranger", {"partition-id": 9}, free_port())
    make_site_key(stranger.folder / "key")
    shutil.copy(deployment.certificates / "ca.pem", stranger.folder)
    with pytest.raises(
        RunFailed,
        match=r"refused site 'stranger': .*register its key with `flwr supernode register",
    ):
        stranger.start()
    end_programs([stranger])
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    shutil.copy(tmp_path / "other" / "ca.pem", stranger.folder)
    refused(lambda: stranger.start(), r"certificate was not accepted .*check that", UserError)
    assert marked(stranger.mark) == []


def test_a_site_whose_key_is_removed_ends_and_needs_another_key(deployment):
    site = deployment.sites["site-2"]
    unregister = ("supernode", "unregister", (site.folder / "node-id").read_text(), "own")
    succeed("deploy", "flwr", "--dir", deployment.folder, *unregister)
    deadline = time.monotonic() + 120
    while site.alive():
        assert time.monotonic() < deadline, site.words()[-3000:]
        time.sleep(0.5)
    with pytest.raises(RunFailed, match=r"its key was removed .* make another key with"):
        site.start()
    for name in ("key", "key.pub", "registered"):
        (site.folder / name).unlink()
    make_site_key(site.folder / "key")
    deployment.start()
    assert [row["superlink"] for row in deployment.status()] == ["online"] * 3


def test_sites_with_their_own_data(tmp_path):
    """Three tables; one names a category that the settings do not know: the site is
    named, here and there, and the others go on. Mended, it takes part, and another
    refuses the method by its policy, which its own copy of the app enforces. Then each
    of the two wards of a site is a client of its own, whose state stays in the
    SuperNode: a message a site.
    """
    (tmp_path / "policy.toml").write_text('methods = ["scaffold"]\n')
    for number, name in enumerate(["rome", "oslo", "bern"]):
        write_table(tmp_path / f"{name}.csv", number, kinds="abx" if name == "oslo" else "abc")
    sites = {
        name: {"client-id": name, "data": str(tmp_path / f"{name}.csv")}
        for name in ("rome", "oslo", "bern")
    }
    sites["bern"]["policy"] = str(tmp_path / "policy.toml")
    job = ["task=tabular", "sites.columns=age,kind=a|b|c", "evaluate-every=0"]
    one = [*job, "method=fedavg", "num-rounds=1"]
    wards = [*job, "method=scaffold", "num-rounds=2", "sites.client=ward", "num-clients=6"]
    wards += ["clients-per-round=0", "client-store=message", "checkpoint-every=0"]
    with Deployment.create(tmp_path / "deployment", sites) as deployment:
        bern = deployment.sites["bern"]
        own = make_warm(bern.folder / "own", installed=True)
        bern.environment["PATH"] = f"{own}{os.pathsep}{bern.environment['PATH']}"
        deployment.start()
        succeed("run", *one, *on(deployment, tmp_path / "bad"))
        said = (
            f"client 'oslo' cannot take part: {tmp_path}/oslo.csv: column 'kind' holds 'x', "
            "but sites.columns names a, b, c for it"
        )
        assert [row["client"] for row in clients_of(tmp_path / "bad")] == ["rome"]
        assert {"client": "oslo", "reason": said} in rounds_of(tmp_path / "bad")[0]["failures"]
        assert said in (tmp_path / "bad" / "run.log").read_text()
        assert said.replace("'oslo'", "oslo") in deployment.sites["oslo"].words()
        write_table(tmp_path / "oslo.csv", 1)
        succeed("run", *one, *on(deployment, tmp_path / "good"))
        assert [row["client"] for row in clients_of(tmp_path / "good")] == ["oslo", "rome"]
        said = "refused by the policy of site bern: method = 'fedavg', but methods = scaffold"
        (row,) = rounds_of(tmp_path / "good")
        assert row["failures"] == [{"client": "bern", "reason": said}] * 2
        assert said in bern.words()
        assert_audited(tmp_path / "good", bern)
        succeed("run", *wards, *on(deployment, tmp_path / "wards"))
    names = [row["client"].partition(":")[0] for row in clients_of(tmp_path / "wards")]
    assert names == ["bern", "bern", "oslo", "oslo", "rome", "rome"]
    assert [
        (len(row["clients"]), row["node-messages"], row["failures"])
        for row in rounds_of(tmp_path / "wards")
    ] == [(6, 3, [])] * 2
    assert marked(deployment.mark) == []


def assert_audited(folder, site):
    """The server knows the key of a site that refused; the rest is examined in
    tests/fedapps/runs/test_site_policy.py.
    """
    server = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    keys = {line["node"]: line["key"] for line in server if line["event"] == "connected"}
    key = base64.b64decode((site.folder / "key.pub").read_text().split()[1])
    print_ = "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    assert keys[int(site.node_id)] == print_


def write_table(path, seed, kinds="abc"):
    rng = np.random.default_rng(seed)
    lines = [
        f"{rng.normal(50, 10):.1f},{rng.choice(list(kinds))},{i % 2},{'east' if i < 20 else 'west'}"
        for i in range(40)
    ]
    path.write_text("\n".join(["age,kind,label,ward", *lines]) + "\n")
