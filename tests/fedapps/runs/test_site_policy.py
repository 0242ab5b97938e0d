"""A site's own policy and audit log: what it refuses, whatever the server sends, and
one line for every message. What leaves it of an error: its class and the line of code
that raised it, never the name of a column, a value of a cell or a path.
"""

import ast
import builtins
import errno
import fcntl
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from fedapps import errors
from fedapps.algorithms.secure.wire import CLEAR, MASKED, RECORD, packed
from fedapps.clients.base.store import DiskStore, MessageStore
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import Part, pack, unpack
from fedapps.errors import UserError
from fedapps.runs import client_factory, guarded_app
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.client_factory import clients_of, store_of
from fedapps.runs.execution import execute
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.site_policy import SitePolicy
from fedapps.strategies.base.messages import metrics_of, to_record
from tests.helpers import assert_same, lacking, refused, rounds_of, write_file

JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "num-rounds": 2,
    "evaluate-every": 1,
    "train.local-epochs": 1,
    "model.name": "logistic",
    "min-replies": 2,
    "checkpoint-every": 0,
}


@pytest.fixture
def site(tmp_path):
    """Return a function that makes a grid whose client 1 has this policy."""

    def made(policy, **changed):
        (tmp_path / "policy.toml").write_text(policy)
        settings = read_settings(JOB | {"out": str(tmp_path / "run")} | changed)
        grid = InlineGrid(app, settings.num_clients, default_config() | settings.flat())
        grid.contexts[1001].node_config |= {
            "policy": str(tmp_path / "policy.toml"),
            "store-dir": str(tmp_path / "store"),
        }
        (tmp_path / "store").mkdir(exist_ok=True)
        return settings, grid

    return made


def question(settings, number=1, **config):
    """Return the content of a message of a round."""
    facts = {"seed": 0, "first-round": 1, "num-rounds": 9, "checkpoint-round": 0}
    sent = ConfigRecord(facts | settings.train.to_config() | config | {"server-round": number})
    model = build_task(settings).initial_arrays()
    return RecordDict({"arrays": to_record(list(model), list(model.values())), "config": sent})


def ask(grid, settings, kind="train", number=1, **config):
    """Send one message to client 1 and return the reply."""
    return grid.send_and_receive([Message(question(settings, number, **config), 1001, kind)])[0]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


REFUSED = {  # policy: (settings, words of the reason)
    'methods = ["scaffold", "fedprox"]': ({}, "method = 'fedavg'"),
    'methods = "aaggff-s"': (
        {"method": "aaggff-s", "aaggff.base": "fedadam"},
        "method = 'fedadam'",
    ),
    'methods = ["aaggff-s"]': (
        {"method": "aaggff-s", "aaggff.base": "evil_module:net"},
        "method = 'evil_module:net'",
    ),
    "own-code = false": ({"task": "evil_module:Task"}, "task = 'evil_module:Task'"),
    "min-clients = 3": ({}, "min-replies = 2"),
    "arrays = false": ({}, "arrays"),
    "metrics = []": ({}, "'loss'"),
    'metrics = "acc*, *-loss"': ({}, "'loss'"),
    "rounds-per-day = 3\nroundsperrun = 1": ({}, "did you mean 'rounds-per-run'?"),
    "secure-sums = true": ({}, "secure.on is not true"),
    "counts = 3": ({}, "must be true or false"),
    "methods = []": ({}, "methods is empty"),
    "rounds-per-day = -1": ({}, "rounds-per-day = -1"),
    "methods =": ({}, "cannot be read as TOML"),
}


@pytest.mark.parametrize("policy", REFUSED)
def test_what_the_policy_forbids_is_refused_and_not_computed(site, policy, monkeypatch, tmp_path):
    changed, words = REFUSED[policy]
    (tmp_path / "evil_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    settings, grid = site(policy, **{k: v for k, v in changed.items() if ":" not in v})
    run_config = grid.contexts[1001].run_config
    run_config |= changed
    if words not in ("arrays", "'loss'"):  # these are known after training only
        monkeypatch.setattr("fedapps.runs.client_app.client_fn", None)
        monkeypatch.setattr("fedapps.runs.client_factory.client_of", None)
    reply = ask(grid, settings)
    assert reply.has_error()
    assert reply.error.reason.startswith("refused by the policy of site 1: ")
    assert lacking(reply.error.reason, words, "\n") == ["\n"]
    assert "evil_module" not in sys.modules  # the audit log reads the settings, too


@pytest.mark.parametrize(
    "policy",
    [
        "",
        'methods = ["fedavg"]\nmin-clients = 2\nown-code = false\nrounds-per-run = 2\n'
        'rounds-per-day = 2\nmetrics = ["*[a-f]*", "*s*", "top*"]',
    ],
)
def test_what_it_allows_gives_the_numbers_of_a_run_without_it(site, policy, tmp_path):
    settings, grid = site(policy, **{"class-counts": False})
    execute(settings, grid)
    free = read_settings(JOB | {"out": str(tmp_path / "free"), "class-counts": False})
    execute(free, InlineGrid(app, 3, free.flat()))
    for one, other in zip(rounds_of(tmp_path / "run"), rounds_of(tmp_path / "free"), strict=True):
        assert_same(one, other, "round", lambda key: key in ("seconds", "run"))
    mine = lines(tmp_path / "store" / "audit.jsonl")
    assert [line["type"] for line in mine] == ["query.identity", *["train", "evaluate"] * 2]


@pytest.mark.parametrize(
    ("policy", "column", "refuses"),
    [("", "ssn", False), ('clients = ["ward*", "id"]', "ward-2", False)]
    + [(policy, "ssn", True) for policy in ("clients = []", 'clients = "ward*, id"')],
)
def test_only_columns_that_the_policy_names_name_clients(site, policy, column, refuses):
    settings, grid = site(policy)
    grid.contexts[1001].run_config["sites.client"] = column
    for kind in ("query.clients", "train"):
        reply = ask(grid, settings, kind)
        said = reply.error.reason if reply.has_error() else ""
        assert (f"sites.client = {column!r}, but" in said) == refuses


def test_the_run_goes_on_without_the_site_and_both_logs_have_the_reason(site, tmp_path):
    settings, grid = site('methods = "scaffold"', **{"audit-log": "on"})
    assert execute(settings, grid)["status"] == "completed"
    for row in rounds_of(tmp_path / "run"):
        assert row["clients"] == [0, 2]
        assert {(failure["client"], failure["reason"][:31]) for failure in row["failures"]} == {
            (1, "refused by the policy of site 1")
        }
    server, mine = lines(tmp_path / "run" / "audit.jsonl"), lines(tmp_path / "store/audit.jsonl")
    assert [line["event"] for line in mine] == ["answered"] + ["refused"] * 4
    assert "methods" in mine[1]["reason"]
    assert {line["settings"] for line in mine[1:]} == {server[0]["settings"]}
    assert (server[0]["event"], server[0]["method"]) == ("run", "fedavg")
    assert [line["node"] for line in server if line["event"] == "connected"] == [1000, 1001, 1002]
    said = [line for line in server if line["event"] == "left out"]
    assert [(line["client"], line["round"]) for line in said] == [(1, 1), (1, 1), (1, 2), (1, 2)]
    for line in mine:
        (seen,) = [
            other
            for other in server
            if (other.get("node"), other.get("type"), other.get("round"))
            == (1001, line["type"], line.get("round"))
        ]
        assert seen["bytes-down"] == line["bytes-down"] > 0
        assert seen.get("bytes-up") == line.get("bytes-up")
        assert seen["event"] == {"answered": "answered", "refused": "failed"}[line["event"]]
    assert (server[-1]["event"], server[-1]["status"]) == ("ended", "completed")
    text = (tmp_path / "run" / "audit.jsonl").read_text()
    assert lacking(text, "loss", "accuracy") == ["loss", "accuracy"]


def test_rounds_are_counted_on_disk_whatever_round_the_server_names(site, tmp_path):
    settings, grid = site("rounds-per-run = 3")
    assert not any(ask(grid, settings, number=1).has_error() for _ in range(2))
    settings, grid = site("rounds-per-run = 3")  # a site that was restarted
    assert not ask(grid, settings, number=7).has_error()
    assert "rounds-per-run = 3" in ask(grid, settings, number=1).error.reason
    assert not ask(grid, settings, MessageType.EVALUATE).has_error()  # counted alone
    settings, grid = site("rounds-per-run = 3", out=str(tmp_path / "another"))
    assert not ask(grid, settings).has_error()
    settings, grid = site("rounds-per-day = 4", out=str(tmp_path / "third"))
    assert "rounds-per-day = 4" in ask(grid, settings).error.reason
    (tmp_path / "store" / guarded_app.COUNTS).write_text("{")
    assert "cannot be read" in ask(grid, settings).error.reason
    del grid.contexts[1001].node_config["store-dir"]
    assert "add store-dir" in ask(grid, settings).error.reason


def test_a_round_asks_each_client_of_a_site_once_whatever_a_server_calls_it(site):
    _, grid = site("rounds-per-run = 2")
    context, refused = grid.contexts[1001], []
    here = guarded_app.Site(context)  # of one message
    for name in ("rome:red", "rome:blue", "oslo:x:red", "blue", "red"):
        context.node_config["client-id"] = name
        refused.append(bool(here.refuses("train", context)))
    assert refused == [False, False, False, False, True]
    assert guarded_app.Site(context).refuses("train", context)  # the next message


def test_no_name_of_a_client_leads_out_of_the_folder(site, tmp_path):
    settings, grid = site("", **{"client-store": "disk"})
    found = store_of(settings, grid.contexts[1001], "../../../x:red").folder
    assert found.resolve().parent.parent == (tmp_path / "store").resolve()


def test_a_site_writes_in_no_folder_that_a_server_names(tmp_path):
    settings = read_settings(JOB | {"out": str(tmp_path / "run"), "client-store": "disk"})
    place = {"partition-id": 1, "num-partitions": 3}
    for more, kind in ({}, DiskStore), ({"data": "x.csv"}, MessageStore):
        context = Context(7, 1001, place | more, RecordDict(), settings.flat())
        assert isinstance(store_of(settings, context, 1), kind)
    best = replace(settings, keep_best=True)
    refused(lambda: store_of(best, context, 1), "on a site store-dir", UserError)
    context.node_config["store-dir"] = str(tmp_path / "own")
    assert store_of(best, context, 1).folder.is_relative_to(tmp_path / "own")


def test_a_new_day_begins_at_zero(site, monkeypatch):
    settings, grid = site("rounds-per-day = 1")
    assert not ask(grid, settings).has_error()
    assert ask(grid, settings).has_error()
    monkeypatch.setattr(guarded_app, "today", lambda: "2100-01-01")
    assert not ask(grid, settings).has_error()
    monkeypatch.setattr(guarded_app, "today", lambda: "2099-12-31")  # no new day
    assert "on 2100-01-01 rounds-per-day = 1 is used up" in ask(grid, settings).error.reason


def test_a_site_whose_rounds_cannot_be_counted_answers_none(site, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    settings, grid = site("rounds-per-day = 1")
    assert ask(grid, settings).has_error()
    assert "choose a folder on another file system" in caplog.text


def test_a_server_cannot_take_all_memory_of_a_site(site, monkeypatch):
    """A net of a width that a server chose: no more than the policy allows, and the
    next message is answered.
    """
    real, sizes = client_factory.client_of, [1 << 20, 12 << 30]

    def large(*facts, **more):
        np.empty(sizes.pop(), np.uint8)
        return real(*facts, **more)

    monkeypatch.setattr(client_factory, "client_of", large)
    settings, grid = site("memory = 10")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for number, answered in enumerate((False, True), 1):
        assert ask(grid, settings, number=number).has_content() == answered
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_counts_stay_if_the_policy_says_so(site):
    settings, grid = site("counts = false")
    assert "confusion" in ask(grid, settings, "evaluate", **{"class-counts": True}).error.reason
    assert "num-examples" in metrics_of(ask(grid, settings, "evaluate").content)


def test_only_the_frame_of_a_masked_reply_may_hold_any_text():
    policy, frame = SitePolicy(metrics=""), ConfigRecord(packed({"layout": "x"}))
    assert policy.refuses_reply(RecordDict({RECORD: frame})) == ""
    masked = RecordDict({MASKED: to_record(["a"], [np.zeros(2)]), RECORD: frame})
    assert policy.refuses_reply(masked) == ""
    clear = {CLEAR: MetricRecord({"loss-before": 1.0}), RECORD: frame}
    assert "its reply holds 'loss-before'" in policy.refuses_reply(RecordDict(clear))
    for other in ({"info": frame}, {RECORD: frame, "info": ConfigRecord()}):
        assert "its reply holds 'json'" in policy.refuses_reply(RecordDict(other))


@pytest.mark.parametrize("told", [{}, {"min-replies": "many"}, {"min-replies": 2}])
def test_a_run_says_how_many_take_part_at_least(told):
    assert "but min-clients = 3" in SitePolicy(min_clients=3).refuses_run(told)
    assert SitePolicy(min_clients=2).refuses_run({"min-replies": 2}) == ""


# --- what an error says ---------------------------------------------------------------

ROOT = Path(errors.__file__).parent
SECRET = "MrsMiller4711"
TABLE = {"task": "tabular", "sites.columns": "age, kind=a|b", "num-clients": 3}
GOOD = [f"{i}.5,{'ab'[i % 2]},{i // 2 % 2}" for i in range(20)]
#: Files of a site, each with a fault that has the secret: text, and its name.
FILES = {
    "a cell of a category": ("age,kind,label", [f"1,{SECRET},0", *GOOD]),
    "a cell of a number": ("age,kind,label", [f"{SECRET},a,0", *GOOD]),
    "a label": ("age,kind,label", [f"1,a,{SECRET}", *GOOD]),
    "the name of a column": (f"{SECRET},kind,label", GOOD),
    "two columns of a name": (f"age,kind,label,{SECRET},{SECRET}", [f"{r},1,2" for r in GOOD]),
    "a line too long": ("age,kind,label", [*GOOD, f"1,a,0,{SECRET}"]),
    "a quote that does not end": ("age,kind,label", [*GOOD, f'1,"{SECRET},0']),
    "no rows": (f"age,kind,label,{SECRET}", []),
    "a client's name": (f"age,kind,label,{SECRET}", [f"{r},{SECRET}" for r in GOOD[:1]]),
}


def asked(config, node, kind="train", many=False):
    """Ask a site; return all that leaves it, as text."""
    settings = read_settings(TABLE | config)
    grid = InlineGrid(app, settings.num_clients, default_config() | settings.flat())
    grid.contexts[1001].node_config |= {"client-id": "oslo"} | node
    content = question(settings)
    if many:
        inner = {"client": clients_of(grid.contexts[1001])[0], "group": "1", "type": kind}
        content, kind = pack([Part(inner, content)], {"num-clients": 3}), "query.many"
    reply = grid.send_and_receive([Message(content, 1001, kind)])[0]
    if reply.has_error():
        return reply.error.reason
    parts = unpack(reply.content)[1] if many else []
    return str([*(part.facts for part in parts), *map(dict, reply.content.config_records.values())])


@pytest.mark.parametrize("kind", ["query.identity", "query.clients", "train", "evaluate"])
@pytest.mark.parametrize("fault", FILES)
def test_no_fault_of_a_sites_data_says_what_is_in_them(fault, kind, tmp_path):
    header, rows = FILES[fault]
    folder = tmp_path / SECRET
    write_file(folder / "a.csv", "\n".join([header, *rows]) + "\n")
    config = {"sites.client": "ward"} if kind == "query.clients" else {}
    said = asked(config, {"data": str(folder / "a.csv")}, kind)
    assert SECRET not in said
    if kind != "query.clients" and fault != "a client's name":
        assert "the site's log says more" in said or said == "[]"


def classes():
    """Yield every class of exception that the product raises."""
    parts = (ROOT, *(ROOT.parent / name for name in ("clients", "algorithms", "strategies")))
    trees = [ast.parse(file.read_text()) for part in parts for file in part.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    raised = {getattr(node.exc.func, "id", "") for node in nodes if isinstance(node.exc, ast.Call)}
    for name in sorted(raised):
        made = getattr(builtins, name, None) or getattr(errors, name, None)
        if made and issubclass(made, Exception) and made is not errors.SiteFault:
            yield made


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", list(classes()))
def test_no_exception_says_more_than_its_class(kind, many, monkeypatch, tmp_path):
    def fails(*_):
        raise kind(SECRET)

    monkeypatch.setattr("fedapps.runs.client_factory.client_of", fails)
    (tmp_path / "a.csv").write_text("\n".join(["age,kind,label,ward", *(f"{r},w" for r in GOOD)]))
    node = {"data": str(tmp_path / "a.csv"), "store-dir": str(tmp_path / "store")}
    said = asked({"sites.client": "ward"}, node, many=many)
    assert lacking(said, SECRET, "the site's log says more") == [SECRET]
