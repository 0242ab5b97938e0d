"""A site that answers for many clients: the same bits as with a node for each of them,
and their states stay at the site.
"""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapps.data.columns import digest
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import MANY, Part, pack, unpack
from fedapps.engines.node_grid import GatewayGrid
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from fedapps.strategies import ClientGrid
from fedapps.strategies.base.messages import to_record
from fedapps.tasks.site_data import SiteImages, SiteTable
from tests.helpers import clients_of, exchanged, outcome_of, refused

JOB = {
    "task": "tabular",
    "sites.columns": "age,kind=a|b",
    "data.label": "sick",
    "data.validation": 0.0,
    "num-rounds": 3,
    "evaluate-every": 3,
    "seed": 2,
    "clients-per-round": 3,
    "num-clients": 5,
    "client-store": "message",
    "checkpoint-every": 0,
    "max-weight": 0.0,
}
WARDS = {"rome": ["red", "blue", "blue/../2"], "oslo": ["red", "7"]}
HEADER = "age,kind,sick,ward"


@pytest.fixture
def sites(tmp_path):
    """Return the csv file of each site, and the rows of each client by its id."""
    rng, files, rows_of = np.random.default_rng(0), {}, {}
    for name, wards in WARDS.items():
        sick = iter(rng.random(30 * len(wards)) < 0.8)
        rows = [
            f"{rng.integers(20, 80)},{'ab'[i % 2]},{i % 2 if next(sick) else 1 - i % 2},{ward}"
            for ward in wards
            for i in range(30)
        ]
        rng.shuffle(rows)
        files[name] = tmp_path / f"{name}.csv"
        files[name].write_text("\n".join([HEADER, *rows]) + "\n")
        rows_of |= {(name, w): [row for row in rows if row.endswith(f",{w}")] for w in wards}
    return files, rows_of


def nodes(settings, facts):
    """Return an inline grid with a node for each of the facts (client-id, data)."""
    grid = InlineGrid(app, len(facts), settings.flat())
    for context, (name, data) in zip(grid.contexts.values(), facts.items(), strict=True):
        context.node_config.clear()
        context.node_config.update({"client-id": name, "data": str(data)})
    return grid


#: The id of each client.
IDS = {(site, ward): f"{site}:{digest(ward)}" for site, wards in WARDS.items() for ward in wards}


def trained_alike(job, column, places, parts, folder):
    """Check that clients behind the nodes of their sites train as if each had a node;
    return the grids.
    """
    together = read_settings(job | {"sites.client": column, "out": str(folder / "together")})
    gateway = GatewayGrid(nodes(together, places))
    execute(together, gateway)
    alone = read_settings(job | {"out": str(folder / "alone")})
    apart = nodes(alone, parts)
    execute(alone, apart)
    assert outcome_of(folder / "together") == outcome_of(folder / "alone")
    assert {row["client"] for row in clients_of(folder / "together")} == set(parts)
    return gateway, apart


#: A number to predict, in a unit of its own.
NUMBERS = {"task": "regression", "regression.center": "0", "regression.scale": "2"}


@pytest.mark.parametrize(
    ("method", "new", "more"),
    [
        ("fedavg", 0, {}),
        ("fedavg", 0, {**NUMBERS, "data.standardise": "client"}),
        ("scaffold", 0, {}),
        ("scaffold", 1, {}),
    ],
)
def test_wards_of_two_hospitals_train_as_if_each_had_a_node(method, new, more, sites, tmp_path):
    files, rows_of = sites
    parts = {}
    for key, rows in rows_of.items():
        part = parts[IDS[key]] = tmp_path / f"part-{len(parts)}.csv"
        part.write_text("\n".join([HEADER, *rows]) + "\n")
    job = JOB | {"method": method, "num-new-clients": new} | more
    gateway, apart = trained_alike(job, "ward", files, parts, tmp_path)
    # the evaluation of five clients, or then of the one that is new
    assert gateway.travel.messages == (1 if new else 2)
    kept = {name for context in gateway.grid.contexts.values() for name in context.state}
    assert {name.partition("/")[0] for name in kept} == (
        set()
        if method == "fedavg"
        else {c.node_config["client-id"] for c in apart.contexts.values() if c.state}
    )


def test_a_site_whose_table_lacks_the_column_ends_the_start_and_logs_its_reason(sites, caplog):
    """The server hears the class of the fault, and nothing of the table."""
    settings = read_settings(JOB | {"sites.client": "bed", "out": ""})
    refused(
        lambda: list(GatewayGrid(nodes(settings, sites[0])).get_node_ids()),
        r"did not send its list of clients: UserError in fedapps\.tasks\.site_data, line \d+: the "
        "site's log says more",
    )
    assert "no column 'bed' (sites.client): it has age, kind, sick, ward" in caplog.text


@pytest.mark.parametrize("names", [[], [1, 2], ["a", "a"], "a", None])
def test_a_strange_list_of_clients_is_refused(names):
    client_app = ClientApp()

    @client_app.query("clients")
    def answer(message, context):
        return Message(
            RecordDict({"config": ConfigRecord({} if names is None else {"clients": names})}),
            reply_to=message,
        )

    refused(
        lambda: list(GatewayGrid(InlineGrid(client_app, 2)).get_node_ids()),
        "a site did not send its list of clients",
    )


# --- samples: columns of numbers, arrays in NumPy files, a file a client --------------

SAMPLES = JOB | {
    "task": "classification",
    "sites.columns": "",
    "data.label": "",
    "sites.labels": "no,yes",
    "sites.shape": "1,1,3",
    "data.validation": 0.2,
    "data.min-samples": 10,
    "data.max-samples": 25,
}
OF_SITES = {"rome": ["red", "blue", "7"], "oslo": ["red", "7"]}


def samples_file(path, x, y, wards):
    """Write samples (n, 3), labels (n,) and, unless ``None``, the ward of each."""
    labels = np.array(["no", "yes"])[y]
    if path.suffix == ".npz":
        np.savez(
            path, x=x.reshape(len(x), 1, 3), y=labels, **({} if wards is None else {"ward": wards})
        )
        return
    columns = [*x.T.tolist(), labels, *([] if wards is None else [wards])]
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text(
        "\n".join(["a,b,c,label,ward"[: None if wards is not None else -5], *lines]) + "\n"
    )


@pytest.fixture(params=["csv", "npz", "a file each"])
def samples(request, tmp_path):
    """Return sites.client, the file or folder of each site, and the file of each client
    by its id; one of each site is too small.
    """
    rng, places, parts = np.random.default_rng(1), {}, {}
    ending = ".npz" if request.param == "npz" else ".csv"
    for site, names in OF_SITES.items():
        wards = rng.permutation([name for name in names for _ in range(30)] + ["tiny"] * 4)
        y = rng.integers(0, 2, len(wards))
        x = (rng.normal(size=(len(wards), 3)) + y[:, None]).round(3)
        places[site] = tmp_path / (site if request.param == "a file each" else site + ending)
        if request.param == "a file each":
            places[site].mkdir()
            for ward in [*names, "tiny"]:
                samples_file(places[site] / f"{ward}.csv", x[wards == ward], y[wards == ward], None)
        else:
            samples_file(places[site], x, y, wards)
        for ward in names:
            path = parts[f"{site}:{digest(ward)}"] = tmp_path / f"part-{len(parts)}{ending}"
            samples_file(path, x[wards == ward], y[wards == ward], None)
    return ("@file" if request.param == "a file each" else "ward"), places, parts


def test_clients_in_the_samples_of_sites_train_as_if_each_had_a_node(samples, tmp_path):
    gateway, _ = trained_alike(SAMPLES | {"method": "scaffold"}, *samples, tmp_path)
    assert gateway.travel.messages == 2  # five clients, two sites


def image_site(tmp_path, config, x=(30, 3), wards=("red", "blue")):
    """Return the task of a site with samples of shape ``x``."""
    rng = np.random.default_rng(0)
    path = tmp_path / "site.csv"
    samples_file(path, rng.normal(size=x), rng.integers(0, 2, x[0]), np.resize(wards, x[0]))
    settings = read_settings(SAMPLES | {"sites.client": "ward"} | config)
    return SiteImages(settings.problem, settings.context, str(path))


def test_what_is_wrong_with_the_clients_of_a_site_is_said(tmp_path, sites):
    wards = read_settings(JOB | {"sites.client": "ward"})
    table = SiteTable(wards.problem, wards.context, str(sites[0]["rome"]))
    for call, message in (
        (
            lambda: image_site(tmp_path, {"sites.client": "bed"}).names(),
            r"sites\.client = 'bed': .* has the columns a, b, c, label, ward",
        ),
        (
            lambda: image_site(tmp_path, {"sites.client": "@file"}).names(),
            r"sites\.client = '@file': .* is not a folder with one file per client",
        ),
        (
            lambda: image_site(tmp_path, {"data.min-samples": 20}).names(),
            r"none of its 2 clients has the 20 samples .*data\.min-samples",
        ),
        *(
            (lambda task=task: task.client_data("rome:nobody", 5), "'rome:nobody' has no rows at")
            for task in (image_site(tmp_path, {}), table)
        ),
        (
            lambda: read_settings({"sites.client": "ward"}),
            r"sites\.client = 'ward': is a column of sites' own data",
        ),
        (
            lambda: read_settings(JOB | {"sites.client": "ward", "num-clients": 0}),
            r"num-clients = 0: with sites\.client = 'ward': set it to the number",
        ),
        (
            lambda: image_site(tmp_path, {"data.class-weights": True}),
            r"data\.class-weights = true: .*sites\.client",
        ),
    ):
        refused(call, message, UserError)


def test_numbers_that_name_clients_are_nothing_to_learn_from(tmp_path):
    task = image_site(tmp_path, {}, wards=("1", "2"))
    assert task.names() == sorted([digest("1"), digest("2")])
    assert task.client_data(f"rome:{digest('2')}", 2).train.x.shape[1:] == (1, 1, 3)


def test_numbers_of_people_keep_all_their_digits(tmp_path):
    rows = [f"{20 + i},a,{i % 2},{1234567 + i // 12}" for i in range(24)]
    (tmp_path / "rome.csv").write_text("\n".join([HEADER, *rows]))
    settings = read_settings(JOB | {"sites.client": "ward"})
    task = SiteTable(settings.problem, settings.context, str(tmp_path / "rome.csv"))
    assert task.names() == sorted([digest("1234567"), digest("1234568")])


@pytest.mark.parametrize("names", ["own", "ward", ""])
def test_a_site_answers_for_its_own_clients_only_and_logs_each(names, sites, tmp_path):
    """Invented names would have the same rows dealt anew; a site that is one client
    has no other.
    """
    files, _ = sites
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "policy.toml").write_text("rounds-per-run = 2")
    settings = read_settings(JOB | ({"sites.client": "ward"} if names else {}))
    grid = nodes(settings, files)
    context = grid.contexts[min(grid.contexts)]
    context.node_config |= {"store-dir": str(store), "policy": str(tmp_path / "policy.toml")}
    model = build_task(settings).initial_arrays()
    facts = {"seed": 0, "first-round": 1, "num-rounds": 9, "checkpoint-round": 0}
    sent = ConfigRecord(facts | settings.train.to_config() | {"server-round": 1})
    content = RecordDict({"arrays": to_record(list(model), list(model.values())), "config": sent})
    own = [one for (site, _), one in IDS.items() if site == "rome"]
    invented = [f"rome:{i}" for i in range(50)] + ["rome", "red"]
    asked = own * 3 if names == "own" else invented + own[:1]
    parts = [Part({"client": one, "type": "train", "group": "1"}, content) for one in asked]
    ask = Message(pack(parts, {"num-clients": 5}), context.node_id, MANY)
    (reply,) = grid.send_and_receive([ask])
    why = [part.facts.get("reason", "") for part in unpack(reply.content)[1]]
    alien = {"own": 0, "ward": len(invented), "": len(asked)}[names]
    assert ["is no client of this site" in reason for reason in why].count(True) == alien
    assert ["rounds-per-run = 2 is used up" in reason for reason in why[:9]] == (
        [False] * 6 + [True] * 3 if names == "own" else [False] * 9
    )
    assert why.count("") == {"own": 6, "ward": 1, "": 0}[names]
    logged = [json.loads(line) for line in (store / "audit.jsonl").read_text().splitlines()]
    answered = [line["client"] for line in logged if line["event"] == "answered"]
    assert answered == [*{"own": own * 2, "ward": own[:1], "": []}[names], "rome"]


def test_a_table_with_a_file_of_each_client(tmp_path):
    site = tmp_path / "rome"
    site.mkdir()
    for ward in ("red", "blue"):
        (site / f"{ward}.csv").write_text(
            "\n".join(["age,kind,sick", *(f"{20 + i},{'ab'[i % 2]},{i % 2}" for i in range(12))])
        )
    settings = read_settings(JOB | {"sites.client": "@file"})
    task = SiteTable(settings.problem, settings.context, str(site))
    assert task.names() == sorted([digest("red"), digest("blue")])
    data = task.client_data(f"rome:{digest('red')}", 2)
    assert len(data.train) + len(data.test) == 12


def test_a_message_for_many_is_one_a_site_and_no_value_of_the_column_leaves_it(sites, monkeypatch):
    settings = read_settings(JOB | {"sites.client": "ward", "out": ""})
    seen = exchanged(monkeypatch)
    assert len(ClientGrid(GatewayGrid(nodes(settings, sites[0])), num_clients=5).wait()) == 5
    # the question of each site; three clients are asked who they are, then the others
    assert [kind for kind, *_ in seen] == ["query.clients"] * 2 + [MANY] * 3
    assert [len(unpack(sent)[1]) for _, sent, _ in seen[2:]] == [1, 2, 2]
    clients = [name for _, _, reply in seen[:2] for name in reply["config"]["clients"]]
    assert len(clients) == 5
    values = {ward for wards in WARDS.values() for ward in wards if len(ward) > 1}
    assert not [name for name in clients if any(ward in name.partition(":")[2] for ward in values)]
    assert all("/" not in name for name in clients)  # names of files, too
