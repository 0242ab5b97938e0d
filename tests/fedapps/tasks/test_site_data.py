"""Sites with data of their own: the same features everywhere, the server's model
without data, and every fault said by name.
"""

import datasets
import numpy as np
import pytest
from PIL import Image

from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.settings.reading import read_settings
from tests.data_folders import write_parquet
from tests.helpers import clients_of, refused, rounds_of

TABLE = {"task": "tabular", "sites.columns": "age, kind=a|b|c, sex=0|1"}
IMAGES = {"sites.labels": "dog,cat", "sites.shape": "1,4,4"}


def csv_file(path, rows, header="age,kind,sex,label,unused"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def valid_rows(n=20, kinds="ab"):
    return [f"{i}.5,{kinds[i % len(kinds)]},{(i // 2) % 2},{i % 2},x" for i in range(n)]


def picture_folder(path, labels, size=4, names=None):
    label = datasets.ClassLabel(names=names) if names else datasets.Value("string")
    columns = {"image": [Image.effect_noise((size, size), 60) for _ in labels], "label": labels}
    return write_parquet(path, columns, {"image": datasets.Image(), "label": label})


def site(config, source, name="oslo"):
    return build_task(read_settings(config), source).client_data(name, 3)


def test_a_table_has_the_features_of_the_settings_whatever_values_a_site_has_seen(tmp_path):
    settings = read_settings(TABLE | {"data.validation": 0.0})
    arrays = build_task(settings).initial_arrays()  # the server's: no source
    # age, three kinds, sex=1
    assert sorted(array.shape for array in arrays.values()) == [(1,), (1, 5)]
    # this site has seen one kind only
    rows = ["40,b,1,1,x", "60,b,0,0,x", ",b,1,1,x", "50,,0,0,x"] * 5
    task = build_task(settings, csv_file(tmp_path / "a.csv", rows))
    assert dict(zip(task.samples.numbers.used, task.samples.numbers.scaled, strict=True)) == {
        "age": True,
        "kind=a": False,
        "kind=b": False,
        "kind=c": False,
        "sex=1": False,
    }
    np.testing.assert_array_equal(
        task.samples.x[:4, 0, 0],
        [[40, 0, 1, 0, 1], [60, 0, 1, 0, 0], [np.nan, 0, 1, 0, 1], [50, *[np.nan] * 3, 0]],
    )
    oslo, rome = (task.client_data(name, 3) for name in ("oslo", "rome"))
    assert (oslo.train.x.shape, len(oslo.test)) == ((16, 5), 4)
    assert not np.array_equal(rome.test.x, oslo.test.x)  # the split is the site's own


def test_labels_are_numbered_by_the_settings_not_by_the_site(tmp_path):
    strings = site(IMAGES, picture_folder(tmp_path / "a", ["cat"] * 10))
    assert (set(strings.train.y.tolist()), strings.train.x.shape) == ({1}, (6, 1, 4, 4))
    classes = site(IMAGES, picture_folder(tmp_path / "b", [0, 2] * 5, names=["cat", "bird", "dog"]))
    assert sorted({*classes.train.y.tolist(), *classes.test.y.tolist()}) == [0, 1]
    arrays = build_task(read_settings(IMAGES)).initial_arrays()
    assert {len(array) for name, array in arrays.items() if "classifier" in name} == {2}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda tmp_path, rows=rows, header=header: site(
                    TABLE, csv_file(tmp_path / "a.csv", rows, *([header] if header else []))
                ),
                message,
            )
            for rows, header, message in [
                (
                    ["1,x,0,1,z", *valid_rows()],
                    None,
                    r"a\.csv: column 'kind' holds 'x', but sites\.columns names a, b, c for it",
                ),
                (
                    ["old,a,0,1,z", *valid_rows()],
                    None,
                    r"column 'age': 1 of 21 rows hold text .*\(first: row 2 .*sites\.columns",
                ),
                (
                    ["1,a,0,2,z", *valid_rows()],
                    None,
                    r"a\.csv: label 'label' holds 1 values that are none of 0, 1",
                ),
                (
                    ["1,a,0,,z", *valid_rows()],
                    None,
                    r"label 'label' holds 1 values that are none of 0, 1",
                ),
                (
                    ["1,a,0,1", *valid_rows()],
                    None,
                    r"a\.csv cannot be read: row 2 has 4 cells, and there are 5 columns",
                ),
                (
                    valid_rows(),
                    "age,sort,sex,label,unused",
                    r"a\.csv: no column 'kind' .*: it has age, sort, sex",
                ),
                ([], None, r"a\.csv: no rows"),
            ]
        ),
        *(
            (
                lambda tmp_path, labels=labels, size=size: site(
                    IMAGES,
                    picture_folder(tmp_path / "a", labels, size)
                    if labels
                    else str(tmp_path / "none"),
                ),
                message,
            )
            for labels, size, message in [
                (["cat", "cow"] * 5, 4, r"label 'cow' is none of sites\.labels = 'dog,cat'"),
                (["cat"] * 9, 5, r"images are 1,5,5, but sites\.shape = '1,4,4': set data\.resize"),
                (["cat"] * 3, 4, "3 samples, a client needs 5"),
                ([], 4, "there is no such folder"),
            ]
        ),
        *(
            (
                lambda tmp_path, config=config: build_task(read_settings(config), "/srv/data"),
                message,
            )
            for config, message in [
                ({"sites.labels": "a,b"}, "labels and shape go together"),
                (
                    {"sites.labels": "a,a", "sites.shape": "1,4,4"},
                    "must be at least two different names",
                ),
                (
                    {"sites.labels": "a,b", "sites.shape": "4,4"},
                    r"sites\.shape = '4,4': must be channels,height,width",
                ),
                (
                    {"sites.labels": "a,b", "sites.shape": "1,4,4", "sites.columns": "x"},
                    "give one of them",
                ),
                (
                    {"task": "tabular", "sites.columns": "x,kind=a"},
                    r"write name or name=value\|value",
                ),
                ({}, "has data of its own .*, but the settings describe none"),
                (
                    {"method": "fedfw", "task": "lasso", "sites.columns": "x"},
                    r"sites\.columns with task = 'lasso'",
                ),
            ]
        ),
    ],
)
def test_what_is_wrong_with_a_sites_data_or_their_description_is_said(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, UserError)


def run_on(sites, config, out):
    job = {"out": str(out), "num-clients": len(sites), "clients-per-round": 0, "num-rounds": 2}
    settings = read_settings(config | job)
    grid = InlineGrid(app, len(sites), settings.flat())
    for context, (name, source) in zip(grid.contexts.values(), sites.items(), strict=True):
        context.node_config = {"client-id": name} | ({"data": source} if source else {})
    return execute(settings, grid)


@pytest.mark.parametrize("kind", ["table", "images", "numbers"])
def test_a_run_over_named_sites(tmp_path, kind):
    """The server, which sees none of their samples, asks nothing of them either;
    numbers have the scale of their site.
    """

    def source(name):
        if kind == "images":
            return picture_folder(tmp_path / name, ["cat", "dog"] * 10)
        if kind == "table":
            return csv_file(tmp_path / f"{name}.csv", valid_rows(20 if name == "rome" else 21))
        rows = [f"{i}.5,{i % 7},{i % 2},rome" for i in range(20)]
        return csv_file(tmp_path / f"{name}.csv", rows, "age,pulse,label,ward")

    numbers = {"sites.labels": "0,1", "sites.shape": "1,1,2"}
    config = {"table": TABLE, "images": IMAGES, "numbers": numbers}[kind]
    summary = run_on({name: source(name) for name in ("rome", "oslo")}, config, tmp_path / "out")
    assert (summary["status"], summary["failures"]) == ("completed", 0)
    assert [row["client"] for row in clients_of(tmp_path / "out")] == ["oslo", "rome"]


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ("data", r"UserError in fedapps\.tasks\.site_data, line \d+"),
        ("none", "this site has no data path: add data="),
    ],
)
def test_a_site_that_cannot_take_part_ends_the_run_before_round_one(tmp_path, faulty, said):
    bad = csv_file(tmp_path / "bad.csv", valid_rows(kinds="abz")) if faulty == "data" else ""
    sites = {"rome": csv_file(tmp_path / "rome.csv", valid_rows()), "oslo": bad}
    refused(
        lambda: run_on(sites, TABLE, tmp_path / "out"), f"^client 'oslo' cannot take part: .*{said}"
    )
    assert not rounds_of(tmp_path / "out")
