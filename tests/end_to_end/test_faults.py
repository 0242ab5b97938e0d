"""Faults of a deployment with real processes: a site lacks a package, sites and the
SuperLink are killed or hang, and runs continue or are resumed.
"""

import os
import shutil
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedapps.deployment import certificates
from fedapps.deployment.certificates import CA_KEY
from fedapps.deployment.local import HOSTS, Deployment
from fedapps.engines.processes import marked
from fedapps.errors import UserError
from tests.end_to_end.sites import ended, hanging, on, running, succeed
from tests.helpers import (
    ROOT,
    assert_arrays,
    clients_of,
    refused,
    rounds_of,
    rows_of,
    run_inline,
    summary_of,
    wait_for,
    write_file,
)

# their ids as clients: the three share the settings' data
SITES = {"oslo": 0, "paris": 1, "rome": 2}
WAIT = 30  # seconds for a phase: after some more the SuperLink gives a silent site up
SMALL = [
    "train.local-epochs=1",
    "evaluate-every=0",
    "clients-per-round=0",
    "seed=5",
    "num-clients=3",
]

# every message starts processes: minutes on a busy machine
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lent(tmp_path_factory):
    """A folder with a package that the server and two of the sites have."""
    folder = tmp_path_factory.mktemp("lent")
    write_file(folder / "scales" / "__init__.py", "FACTOR = 1.0\n")
    return folder


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, lent):
    sites = {name: {"partition-id": i, "num-partitions": 3} for name, i in SITES.items()}
    with Deployment.create(tmp_path_factory.mktemp("faults") / "deployment", sites) as deployment:
        for program in (deployment.superlink, deployment.sites["oslo"], deployment.sites["paris"]):
            program.environment["PYTHONPATH"] = str(lent)
        deployment.start()
        yield deployment
    assert marked(deployment.mark) == []


def stores(site):
    """Return the folders of a site's store, one for each run."""
    return set((site.folder / "store").glob("run-*"))


def versions(site, but=()):
    """Return round -> personal model of a site, as its store has it, but for some
    runs.
    """
    return {
        int(path.name.split(".")[1]): load_file(path)
        for folder in sorted(stores(site) - set(but))
        for path in sorted(folder.glob("*/*.safetensors"))
    }


#: Client 1 claims many samples, and then sends no numbers.
LYING = """class Lying(FedExPClient):
    def fit(self, parameters, config):
        arrays, count, metrics = super().fit(parameters, config)
        if self.client_id == 1:
            count = 10**14
            if config["server-round"] == 2:
                arrays = [np.full_like(array, np.nan) for array in arrays]
        return arrays, count, metrics


METHOD = Method("""


def test_an_own_method_is_sent_to_the_sites_which_report_missing_packages(
    deployment, lent, tmp_path
):
    """The file of `examples/own-method` is sent with the app, but a package that it
    imports is not: the server and two sites have it, the third reports its name. One of
    the two lies: its weight is capped, its reply without numbers is left out.
    """
    example = shutil.copytree(ROOT / "examples" / "own-method", tmp_path / "example")
    job = ["run", "run.toml", "num-clients=3", "num-rounds=2", "checkpoint-every=0"]
    job += ["train.local-epochs=1"]
    succeed(*job, *on(deployment, tmp_path / "sites"), cwd=example)
    succeed(*job, "--engine", "inline", "--out", tmp_path / "inline", cwd=example)
    assert clients_of(tmp_path / "sites") == clients_of(tmp_path / "inline")
    settings = (tmp_path / "sites" / "settings.toml").read_text()
    assert 'method = "own_method:METHOD"' in settings
    assert "epsilon = 0.001" in settings

    code = (example / "own_method.py").read_text()
    code = code.replace("METHOD = Method(", LYING).replace("client=FedExPClient", "client=Lying")
    (example / "own_method.py").write_text("import scales\n" + code)
    said = succeed(*job, *on(deployment, tmp_path / "lacking"), cwd=example, path=[lent])
    reason = "no module 'scales': own_method imports it: install it"
    rows = rounds_of(tmp_path / "lacking")
    failures = [
        (row["round"], failure["client"], failure["reason"])
        for row in rows
        for failure in row["failures"]
    ]
    lacking, lies = ([f for f in failures if f[1] == client] for client in (2, 1))
    assert lacking, said
    assert all(reason in why for _, _, why in lacking), failures
    assert [(number, "not finite" in why) for number, _, why in lies] == [(2, True)], failures
    assert len(lacking) + len(lies) == len(failures)
    assert [row.get("capped", []) for row in rows] == [[1], []]
    assert reason in deployment.sites["rome"].words()


def test_a_site_is_killed_and_another_hangs_and_both_come_back(deployment, tmp_path):
    """In round 2 `paris` is killed and `rome` stops answering: both are skipped and
    named, later both take part again.
    """
    out, paris, rome = tmp_path / "r", deployment.sites["paris"], deployment.sites["rome"]
    job = [
        "method=superfed-mm",
        "superfed.start=0.0",
        "num-rounds=50",
        f"timeout={WAIT}",
        "checkpoint-every=50",
        *SMALL,
    ]
    with running(*job, *on(deployment, out)) as process:
        wait_for(lambda rows: len(rows) >= 1, process, out, 90)
        before = versions(paris)
        paris.kill()
        kept = versions(paris)  # what it had learnt is still there
        assert kept.keys() == before.keys()
        for number, model in before.items():
            assert_arrays(kept[number], model)
        with hanging(rome):
            alone = lambda row: row["clients"] == [0] and len(row["failures"]) == 2
            wait_for(lambda rows: any(map(alone, rows)), process, out, 3 * WAIT)
        # refused until the old one has been silent for a minute
        back = threading.Thread(target=paris.start)
        back.start()
        bad = next(row["round"] for row in rounds_of(out) if row["failures"])
        again = lambda rows: [0, 1, 2] in [row["clients"] for row in rows if row["round"] > bad]
        wait_for(again, process, out, 180)
        back.join(10)
        process.send_signal(signal.SIGINT)
        ended(process, 60, 130)
    rows = rounds_of(out)
    failures = {(f["client"], row["round"]): f["reason"] for row in rows for f in row["failures"]}
    assert {client for client, _ in failures} == {SITES["paris"], SITES["rome"]}
    assert failures[SITES["rome"], bad] == f"no answer within {WAIT} s"
    assert summary_of(out)["failures"] == len(failures)
    again = max(row["round"] for row in rows if SITES["paris"] in row["clients"])
    assert again > bad
    # its newest version; without a checkpoint an older version is useless
    assert set(versions(paris)) == {again}


def refusal(deployment):
    """Return why a site cannot connect, or ""."""
    try:
        deployment.check_connection(deployment.authority)
    except UserError as error:
        return str(error)
    return ""


def test_the_superlink_is_killed_and_the_run_resumed(deployment, tmp_path, monkeypatch):
    """It is killed in the middle of round 2, when a site has trained; meanwhile its
    certificate ends. Sites do not accept that, and come back after the renewal. The
    numbers equal those of a run without faults. A SuperNode that has met
    the certificate runs on, but never tries again: it is started again.
    """
    job = ["method=superfed-mm", "superfed.start=0.0", "num-rounds=2", "checkpoint-every=1", *SMALL]
    out = tmp_path / "sites"
    sites = list(deployment.sites.values())
    old = set().union(*map(stores, sites))
    with running(*job, *on(deployment, out)) as process:
        wait_for(lambda rows: any(2 in versions(site, old) for site in sites), process, out, 120)
        deployment.superlink.kill()  # and the ServerApp, which it had started
        said = ended(process, 100, 1)
    assert (
        "SuperLink has ended unexpectedly: its log gives no reason; it was probably killed"
        in " ".join(said.split())
    )
    assert [row["round"] for row in rounds_of(out)] == [1]
    key = deployment.certificates / CA_KEY
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "now", lambda: datetime.now(UTC) - timedelta(days=400))
        certificates.make_certificates(deployment.certificates, HOSTS)
    deployment.superlink.launch()
    expired = "certificate has expired"
    deadline = time.monotonic() + 60
    while expired not in (said := refusal(deployment)):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    deployment.superlink.kill()
    secret = key.read_bytes()
    key.unlink()
    refused(lambda: deployment.start(), r"server\.pem has ended: copy ca\.key back", UserError)
    certificates.write_private(key, secret)
    deployment.start()
    with running("--resume", *on(deployment, out)) as process:
        ended(process, 200)
    theirs = run_inline(tmp_path / "inline", *job)
    assert [row["failures"] for row in rounds_of(out)] == [[]] * 2
    newest = max(stores(deployment.sites["oslo"]), key=lambda path: path.stat().st_mtime).name
    # every site has its personal model on its own disk, and only its own
    for name, site in deployment.sites.items():
        kept = [path.name for path in (site.folder / "store" / newest).iterdir()]
        assert kept == [f"client-{SITES[name]}"]
    left, right = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "inline"))
    assert_arrays(right, left, atol=1e-06)
    ours = summary_of(out)
    for key in ("accuracy-mean", "global-accuracy-mean", "loss-mean"):
        assert ours[key] == pytest.approx(theirs[key], abs=1e-6)


def helpers(program):
    """Return the ids of a program's `flower-superexec`."""
    lines = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in marked(program.mark)}
    return [
        one for one, line in lines.items() if b"python" in line and b"flower-superexec\0" in line
    ]


def test_the_superlinks_helper_is_killed_and_the_run_resumed(deployment, tmp_path):
    """Flower does not start it again. It takes the run's process with it; the run says
    so, and the next one finds a new helper.
    """
    job = ["method=fedavg", "num-rounds=3", "checkpoint-every=1", *SMALL]
    out = tmp_path / "sites"
    deployment.start()
    with running(*job, *on(deployment, out)) as process:
        wait_for(lambda rows: len(rows) >= 1, process, out, 120)
        (old,) = helpers(deployment.superlink)
        os.kill(old, signal.SIGKILL)
        said = ended(process, 120, 1)
    assert "flower-superexec" in said
    assert "has ended with status 137" in " ".join(said.split())
    deployment.start()
    with running("--resume", *on(deployment, out)) as process:
        ended(process, 300)
    assert [row["round"] for row in rounds_of(out)] == [1, 2, 3]


# --- rounds with a clock --------------------------------------------------------------


def given(deployment, out, **settings):
    job = [f"{key}={value}" for key, value in settings.items()]
    return [*SMALL, *job, *on(deployment, out)]


def test_a_site_hangs_its_late_reply_counts_and_the_run_is_repeated(deployment, tmp_path):
    job = {"method": "fedbuff", "fedbuff.buffer": 1, "num-rounds": 12}
    out = tmp_path / "sites"
    with running(*given(deployment, out, **job)) as process:
        wait_for(lambda rows: rows, process, out, 90)
        with hanging(deployment.sites["rome"]):
            begun = len(rounds_of(out))
            wait_for(lambda rows: len(rows) >= begun + 3, process, out, 120)
        ended(process, 300)
    rows = rounds_of(out)
    assert all(len(row["clients"]) == 1 for row in rows)  # nobody waited for rome
    events = [line for line in (out / "audit.jsonl").read_text().splitlines() if "answered" in line]
    assert len(events) >= len(rows)
    # on a busy machine the SuperLink may give rome up meanwhile, and lose its reply
    lost = {row["client"] for row in rows_of(out / "time.csv") if row["fate"] == "failed"}
    assert max(row.get("reply-age", 0) for row in rows) >= 2 or "2" in lost

    # the same settings as on SuperNodes, in a simulation with the sites' own times
    repeated = {**job, "time.speed": "file", "time.file": str(out / "time.csv")}
    run_inline(tmp_path / "inline", *SMALL, **repeated, hardened=True, **{"train.compile": "off"})
    again = rounds_of(tmp_path / "inline")
    assert [row["clients"] for row in again] == [row["clients"] for row in rows]
    folders = (tmp_path / "inline", out)
    assert_arrays(*(load_file(folder / "model.safetensors") for folder in folders))


def test_sites_stop_their_training_in_time(deployment, tmp_path):
    # a training would take an hour. On a busy machine 40 s pass until it starts: a site
    # that was never timed leaves 60 % of the deadline for that
    settings = {"rounds.deadline": 120.0, "rounds.late": "partial", "train.local-epochs": 200_000}
    with running(*given(deployment, tmp_path / "r", **settings, **{"num-rounds": 1})) as process:
        ended(process, 400)
    rows = rows_of(tmp_path / "r" / "time.csv")
    assert {row["fate"] for row in rows} == {"used"}
    for row in rows:
        assert 0 < float(row["share"]) < 1
        assert float(row["arrived"]) - float(row["asked"]) <= 120


def test_a_deadline_does_not_wait_for_a_site_that_hangs(deployment, tmp_path):
    out = tmp_path / "r"
    settings = {"method": "fedavg", "num-rounds": 2, "rounds.deadline": 60.0}
    with running(*given(deployment, out, **settings)) as process:
        wait_for(lambda rows: rows, process, out, 90)
        with hanging(deployment.sites["paris"]):
            ended(process, 300)
    assert rounds_of(out)[-1]["clients"] == [0, 2]
    # the SuperLink may report it as gone before the deadline
    fates = {row["client"]: row["fate"] for row in rows_of(out / "time.csv") if row["round"] == "2"}
    assert fates.pop("1") in ("late", "failed")
    assert set(fates.values()) == {"used"}
