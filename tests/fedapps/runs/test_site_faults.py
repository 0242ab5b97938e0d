"""What leaves a site of an error: its class and the line of code that raised it, never
the name of a column, a value of a cell or a path.
"""

import ast
import builtins
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapps import errors
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import Part, pack, unpack
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.client_factory import clients_of
from fedapps.settings.reading import default_config, read_settings
from fedapps.strategies.base.records import to_record

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
    settings = read_settings(TABLE | (config or {}))
    grid = InlineGrid(app, settings.num_clients, default_config() | settings.flat())
    grid.contexts[1001].node_config |= {"client-id": "oslo"} | node
    model = build_task(settings).initial_arrays()
    facts = {"seed": 0, "first-round": 1, "num-rounds": 9, "server-round": 1, "checkpoint-round": 0}
    content = RecordDict(
        {
            "arrays": to_record(list(model), list(model.values())),
            "config": ConfigRecord(facts | settings.train.to_config()),
        }
    )
    if many:
        inner = {"client": clients_of(grid.contexts[1001])[0], "group": "1", "type": kind}
        content, kind = pack([Part(inner, content)], {"num-clients": 3}), "query.many"
    reply = grid.send_and_receive([Message(content, 1001, kind)])[0]
    if reply.has_error():
        return reply.error.reason
    said = [str(dict(record)) for record in reply.content.config_records.values()]
    return " ".join(
        [*said, *(str(part.facts) for part in unpack(reply.content)[1])] if many else said
    )


@pytest.mark.parametrize("kind", ["query.identity", "query.clients", "train", "evaluate"])
@pytest.mark.parametrize("fault", FILES)
def test_no_fault_of_a_sites_data_says_what_is_in_them(fault, kind, tmp_path):
    header, rows = FILES[fault]
    folder = tmp_path / SECRET
    folder.mkdir()
    (folder / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    config = {"sites.client": "ward"} if kind == "query.clients" else {}
    said = asked(config, {"data": str(folder / "a.csv")}, kind)
    assert SECRET not in said
    if kind != "query.clients" and fault != "a client's name":
        assert "the site's log says more" in said or not said


def classes():
    """Yield every class of exception that the product raises."""
    names = set()
    for part in (ROOT, *(ROOT.parent / n for n in ("clients", "algorithms", "strategies"))):
        for file in part.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    names.add(getattr(node.exc.func, "id", ""))
    for name in sorted(names):
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
    assert SECRET not in said
    assert "the site's log says more" in said
