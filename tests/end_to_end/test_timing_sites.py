"""Asynchronous rounds, deadlines and partial work on real SuperNodes: nobody waits for
a site that hangs, its late reply counts, and the run can be repeated in a simulation.
"""

import pytest
from safetensors.numpy import load_file

from fedapps.deployment.local import Deployment
from fedapps.engines.processes import marked
from tests.end_to_end.sites import ended, hanging, on, running
from tests.helpers import assert_arrays, rounds_of, rows_of, run_inline, wait_for

SITES = {"oslo": 0, "paris": 1, "rome": 2}
JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "train.local-epochs": 1,
    "evaluate-every": 0,
    "seed": 5,
}

# every message starts processes: minutes on a busy machine
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    sites = {name: {"partition-id": i, "num-partitions": 3} for name, i in SITES.items()}
    with Deployment.create(tmp_path_factory.mktemp("timing") / "deployment", sites) as deployment:
        deployment.start()
        yield deployment
    assert marked(deployment.mark) == []


def given(deployment, out, **settings):
    return [*(f"{key}={value}" for key, value in {**JOB, **settings}.items()), *on(deployment, out)]


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
    repeated = {**JOB, **job, "time.speed": "file", "time.file": str(out / "time.csv")}
    run_inline(tmp_path / "inline", **repeated, hardened=True, **{"train.compile": "off"})
    again = rounds_of(tmp_path / "inline")
    assert [row["clients"] for row in again] == [row["clients"] for row in rows]
    folders = (tmp_path / "inline", out)
    assert_arrays(*(load_file(folder / "model.safetensors") for folder in folders))


def test_sites_stop_their_training_in_time(deployment, tmp_path):
    # a training would take an hour; on a busy machine it may take 30 s to start it
    settings = {"rounds.deadline": 60.0, "rounds.late": "partial", "train.local-epochs": 200_000}
    with running(*given(deployment, tmp_path / "r", **settings, **{"num-rounds": 2})) as process:
        ended(process, 400)
    rows = [row for row in rows_of(tmp_path / "r" / "time.csv") if row["round"] == "2"]
    assert {row["fate"] for row in rows} == {"used"}
    for row in rows:
        assert 0 < float(row["share"]) < 1
        assert float(row["arrived"]) - float(row["asked"]) <= 60


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
