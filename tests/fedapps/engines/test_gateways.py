"""A site that answers for many clients: the same bits as with a node for each of them, and their states stay at the site."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapps.client_app import app
from fedapps.engines.gateways import GatewayGrid
from fedapps.engines.inline import InlineGrid
from fedapps.engines.packing import unpack
from fedapps.errors import UserError
from fedapps.execution import execute
from fedapps.settings import read_settings
from fedapps.tasks.site_data import SiteTable
from strategies import ClientGrid

JOB = {
    "task": "tabular", "sites.columns": "age,kind=a|b", "tabular.label": "sick", "num-rounds": 3, "evaluate-every": 3, "seed": 2,
    "clients-per-round": 3, "num-clients": 5, "client-store": "message", "checkpoint-every": 0, "max-weight": 0.0,
}  # fmt: skip
WARDS = {"rome": ["red", "blue", "blue/../2"], "oslo": ["red", "7"]}
HEADER = "age,kind,sick,ward"


@pytest.fixture
def sites(tmp_path):
    """Return the csv file of each site, and the rows of each client by its id."""
    rng, files, rows_of = np.random.default_rng(0), {}, {}
    for name, wards in WARDS.items():
        rows = []
        for ward in wards:
            own = [f"{rng.integers(20, 80)},{'ab'[i % 2]},{i % 2 if rng.random() < 0.8 else 1 - i % 2},{ward}" for i in range(30)]
            rows += own
            rows_of[name, ward] = own
        files[name] = tmp_path / f"{name}.csv"
        order = rng.permutation(len(rows))
        files[name].write_text("\n".join([HEADER, *(rows[i] for i in order)]) + "\n")
        for ward in wards:
            rows_of[name, ward] = [rows[i] for i in order if rows[i].endswith(f",{ward}")]
    return files, rows_of


def nodes(settings, facts):
    """Return an inline grid with a node for each of the facts (client-id, data)."""
    grid = InlineGrid(app, len(facts), settings.flat())
    for context, (name, data) in zip(grid.contexts.values(), facts.items(), strict=True):
        context.node_config.clear()
        context.node_config.update({"client-id": name, "data": str(data)})
    return grid


def names_of(files):
    """Return the id of each client."""
    settings, found = read_settings(JOB | {"sites.client": "ward"}), {}
    for site, wards in WARDS.items():
        task = SiteTable(settings.problem, settings.context, str(files[site]))
        for ward in wards:
            at = task.columns["ward"].index(float(ward) if ward.isdigit() else ward)
            found[site, ward] = f"{site}:{task.owners[at]}"
    return found


def result(settings, grid, out):
    execute(settings, grid)
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        for key in [key for key in row if key == "seconds" or "travelled" in key or "node-messages" in key]:
            del row[key]
    return rows, (out / "model.safetensors").read_bytes(), (out / "clients.csv").read_bytes()


@pytest.mark.parametrize(("method", "new"), [("fedavg", 0), ("scaffold", 0), ("scaffold", 1)])
def test_wards_of_two_hospitals_train_as_if_each_had_a_node(method, new, sites, tmp_path):
    files, rows_of = sites
    job = JOB | {"method": method, "num-new-clients": new}
    together = read_settings(job | {"sites.client": "ward", "out": str(tmp_path / "together")})
    inner = nodes(together, files)
    gateway = GatewayGrid(inner)
    found = result(together, gateway, tmp_path / "together")
    assert gateway.travel.messages == (1 if new else 2)  # the evaluation of five clients, or then of the one that is new
    ids, parts = names_of(files), {}
    for key, rows in rows_of.items():
        parts[ids[key]] = tmp_path / f"part-{len(parts)}.csv"
        parts[ids[key]].write_text("\n".join([HEADER, *rows]) + "\n")
    alone = read_settings(job | {"out": str(tmp_path / "alone")})
    apart = nodes(alone, parts)
    assert result(alone, apart, tmp_path / "alone") == found
    assert {row.split(",")[0] for row in found[2].decode().splitlines()[1:]} == set(ids.values())
    kept = {name for context in inner.contexts.values() for name in context.state}
    assert {name.partition("/")[0] for name in kept} == (
        set() if method == "fedavg" else {c.node_config["client-id"] for c in apart.contexts.values() if c.state}
    )


def test_no_value_of_the_column_leaves_the_site(sites):
    files, _ = sites
    settings, said = read_settings(JOB | {"sites.client": "ward", "out": ""}), []
    inner = nodes(settings, files)
    send = inner.send_and_receive
    inner.send_and_receive = lambda messages, *, timeout=None: said.extend(replies := send(messages)) or replies
    assert len(list(GatewayGrid(inner).get_node_ids())) == 5
    told = [name for reply in said for name in reply.content["config"]["clients"]]
    assert len(told) == 5
    assert not [
        name for name in told for wards in WARDS.values() for ward in wards if ward in name.partition(":")[2] and len(ward) > 1
    ]
    assert all("/" not in name for name in told)  # names of files, too


def test_a_site_whose_table_lacks_the_column_ends_the_start_with_its_reason(sites):
    settings = read_settings(JOB | {"sites.client": "bed", "out": ""})
    with pytest.raises(ValueError, match=r"no column 'bed' \(sites.client\): it has age, kind, sick, ward"):
        list(GatewayGrid(nodes(settings, sites[0])).get_node_ids())


def test_a_client_that_a_site_does_not_have_is_refused(sites):
    settings = read_settings(JOB | {"sites.client": "ward"})
    with pytest.raises(UserError, match="'rome:nobody' has no rows at this site"):
        SiteTable(settings.problem, settings.context, str(sites[0]["rome"])).client_data("rome:nobody", 5)


@pytest.mark.parametrize("names", [[], [1, 2], ["a", "a"], "a", None])
def test_a_strange_list_of_clients_is_refused(names):
    client_app = ClientApp()

    @client_app.query("clients")
    def answer(message, context):
        return Message(RecordDict({"config": ConfigRecord({} if names is None else {"clients": names})}), reply_to=message)

    with pytest.raises(ValueError, match="a site does not say which clients it has"):
        list(GatewayGrid(InlineGrid(client_app, 2)).get_node_ids())


def test_the_column_of_clients_is_for_tables():
    with pytest.raises(UserError, match=r"sites\.client = 'ward': is a column of tables"):
        read_settings({"sites.client": "ward"})
    with pytest.raises(UserError, match=r"num-clients = 0: sites\.client = 'ward' needs the number of all"):
        read_settings(JOB | {"sites.client": "ward", "num-clients": 0})


def test_a_message_for_many_is_one_a_site(sites):
    files, _ = sites
    settings = read_settings(JOB | {"sites.client": "ward", "out": ""})
    inner, sizes = nodes(settings, files), []
    send = inner.send_and_receive

    def listen(messages, *, timeout=None):
        messages = list(messages)
        sizes.append([len(unpack(m.content)[1]) for m in messages if m.metadata.message_type == "query.many"])
        return send(messages)

    inner.send_and_receive = listen
    grid = ClientGrid(GatewayGrid(inner), num_clients=5)
    assert len(grid.wait()) == 5
    assert sizes == [[], [1], [3, 1]]  # the question; one client is asked who it is, then the others
