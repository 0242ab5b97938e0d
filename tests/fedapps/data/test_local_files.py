"""Local files as people have them: what is read, how, and what is named as left out."""

import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedapps
from fedapps.data.csv_files import read_csv
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.written_numbers import DoubtfulError, has_decimal_commas, numbers_of
from fedapps.errors import UserError
from fedapps.records.rounds import digest
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.helpers import ROOT, assert_arrays, lacking, printed, refused, write_csv

pytestmark = pytest.mark.usefixtures("own_caches")


def column(tmp_path, cells, delimiter=",", other=""):
    """The feature ``v`` of a csv with these cells, and what is said of it."""
    quoted = [f'"{cell}"' if delimiter in cell else cell for cell in cells]
    lines = [f"{cell}{delimiter}{k % 2}{other}" for k, cell in enumerate(quoted)]
    head = f"v{delimiter}y" + f"{delimiter}w" * bool(other)
    (tmp_path / "t.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    samples = read_samples(DataOptions(source=str(tmp_path / "t.csv"), partition="iid"))
    return samples.x[:, 0, 0, 0].tolist(), " ".join(samples.numbers.written)


@pytest.mark.parametrize(
    ("cells", "delimiter", "other", "values", "said"),
    [
        (["1,234", "950"], ",", "", [1234, 950], "thousands"),
        (["1.234", "950"], ";", ";0,5", [1234, 950], "thousands"),
        (["1.234,5", "7"], ";", "", [1234.5, 7], "decimal comma, with thousands"),
        (["1,5", "2,25"], ";", "", [1.5, 2.25], "decimal comma"),
        (["1.5", "2.125"], ",", "", [1.5, 2.125], ""),
        (["12 %", "7%"], ",", "", [12, 7], "in %"),
        (["$1,200.50", "$3"], ",", "", [1200.5, 3], "in $, with thousands"),
        (["1 234", "12"], ",", "", [1234, 12], "thousands"),
        (["1.125", "1500"], ";", "", [1.125, 1500], ""),
        (["0.125", "2.375"], ";", "", [0.125, 2.375], ""),
        (["1.125", "2.375"], ",", "", [1.125, 2.375], ""),
        (["1,125", "2,375"], ";", "", [1.125, 2.375], "decimal comma"),
        (["\u22125", "+3"], ",", "", [-5, 3], ""),
        (["TRUE", "false"], ",", "", [1, 0], ""),
        ([" 5", "7 "], ",", "", [5, 7], ""),
    ],
)
def test_numbers_as_people_write_them(cells, delimiter, other, values, said, tmp_path):
    x, written = column(tmp_path, cells * 4, delimiter, other)
    assert x == values * 4
    assert said in written
    assert written or not said


@pytest.mark.parametrize(
    ("cells", "delimiter", "other"),
    [
        (["1,234", "5,678"], ",", ""),
        (["1,234", "1500"], ",", ""),
        (["1.234", "950"], ";", ""),
        (["1.100", "2.107"], ";", ""),
        (["\u20ac 1.100", "\u20ac 2.107"], ",", ""),
        (["1,234.5", "1.234,5"], ";", ""),
        (["12 %", "0.3"], ",", ""),
        (["5 EUR", "5 USD"], ",", ""),
        (["1,100", "2,107"], ";", ";0.5"),
    ],
)
def test_doubtful_numbers_are_refused(cells, delimiter, other, tmp_path):
    with pytest.raises(UserError, match=r"column 'v' of .*: it is doubtful") as error:
        column(tmp_path, cells * 4, delimiter, other)
    assert cells[1] not in str(error.value), "a site's cells stay there"


@pytest.mark.parametrize(("cells", "used"), [(["red", "blue"], True), (["0", "1"], False)])
def test_a_first_column_without_a_name_is_left_out_if_it_numbers_the_rows(cells, used, tmp_path):
    rows = [f"{cells[k % 2] if used else k},{k},{k // 2 % 2}" for k in range(20)]
    (tmp_path / "t.csv").write_text("\n".join([",v,y", *rows]))
    samples = read_samples(DataOptions(source=str(tmp_path / "t.csv"), partition="iid"))
    assert any(name.startswith("Unnamed: 0") for name in samples.numbers.used) is used


def test_the_file_decides_where_a_column_does_not():
    assert numbers_of(["1,234", "5"], commas=True)[0] == {"1,234": 1.234, "5": 5}
    assert has_decimal_commas(["0,5", "3"], semicolons=False)
    assert not has_decimal_commas(["1,234", "3"], semicolons=True)
    refused(lambda: numbers_of(["1.234", "1,234"]), "", DoubtfulError)


def test_types_are_those_of_the_whole_file(tmp_path):
    lines = [f"{k % 7},{'' if k < 10_500 else 'uvw'[k % 3]},{k % 2}" for k in range(11_000)]
    lines[10_600] = lines[10_600].replace(",", ".5,", 1)
    (tmp_path / "long.csv").write_text("v,t,y\n" + "\n".join(lines))
    samples = read_samples(DataOptions(source=str(tmp_path / "long.csv"), partition="iid"))
    assert samples.x[10_600, 0, 0, 0] == 10_600 % 7 + 0.5
    assert samples.numbers.used == ("v", "t=u", "t=v", "t=w")


ROWS = [[k, 3 * k % 7, k % 2] for k in range(10)]


def table(names="a,b,y", sign=",", end="\n", rows=ROWS):
    text = [names.replace(",", sign), *(sign.join(map(str, row)) for row in rows)]
    return (end.join(text) + end).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", table()),
        ("UPPER.CSV", table()),
        ("semi.csv", table(sign=";")),
        ("tabs.tsv", table(sign="\t")),
        ("excel.csv", b"sep=;\r\n" + table(sign=";", end="\r\n")),
        ("bars.csv", table(sign="|")),
        ("bom.csv", b"\xef\xbb\xbf" + table()),
        ("utf16.csv", table().decode().encode("utf-16")),
        ("crlf.csv", table(end="\r\n")),
        ("mac.csv", table(end="\r")),
        ("blank.csv", b"\n\n" + table() + b"\n\n,,\n"),
        ("no-end.csv", table()[:-1]),
        ("trailing.csv", table("a,b,y,", rows=[[*row, ""] for row in ROWS])),
        ("spaces.csv", table("a, b, y", rows=[[a, f" {b}", f" {y}"] for a, b, y in ROWS])),
        ("quoted.csv", b'"a","b","y"\n' + table().partition(b"\n")[2]),
        ("index.csv", table(",a,b,y", rows=[[k, *row] for k, row in enumerate(ROWS)])),
        ("packed.csv.gz", gzip.compress(table(), mtime=0)),
        ("rows.json", json.dumps([dict(zip("aby", row, strict=True)) for row in ROWS]).encode()),
        ("columns.json", json.dumps(dict(zip("aby", map(list, zip(*ROWS, strict=True)), strict=True))).encode()),
        ("pandas.json", json.dumps({n: {str(k): row[c] for k, row in enumerate(ROWS)} for c, n in enumerate("aby")}).encode()),
        ("lines.jsonl", "\n".join(json.dumps(dict(zip("aby", row, strict=True))) for row in ROWS).encode()),
    ],
)  # fmt: skip
def test_one_table_in_many_ways(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    samples = read_samples(DataOptions(source=str(tmp_path / name), partition="iid"))
    assert samples.x[:, 0, 0].tolist() == [row[:2] for row in ROWS]
    assert (samples.labels.tolist(), samples.classes) == ([k % 2 for k in range(10)], ("0", "1"))
    settings = {"task": "tabular", "sites.columns": "a,b", "data.label": "y"}
    site = build_task(read_settings(settings), str(tmp_path / name)).samples
    assert_arrays((site.x, site.labels), (samples.x, samples.labels))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.csv", "a,b,y\nZ\xfcrich,1,0\n".encode("latin-1"), "latin.csv .*is no UTF-8"),
        ("name.csv", "gr\xf6sse,y\n1,0\n".encode("latin-1"), "name.csv .*is no UTF-8"),
        ("odd.csv", table() + b"Z\xfcrich,1,2,3\n", "row 12 has 4 cells, and there are 3 col"),
        ("wide.csv", table().decode().encode("utf-16-le"), "wide.csv .*holds NUL characters"),
        ("really.csv", gzip.compress(table(), mtime=0), "really.csv .*holds NUL characters"),
        ("kilos.csv", b"a,y\n" + b"%d kg,0\n" * 30 % (*range(30),), "kilos.csv is left .*: a: n"),
        ("twice.csv", table("a,a,y"), "several columns are called 'a'"),
        ("short.csv", table() + b"1,2\n", "row 12 has 2 cells, and there are 3 columns"),
        ("quote.csv", table() + b'1,"2,0\n', "short|quote"),
        ("nameless.csv", table("0.5,3,1"), "first line holds values"),
        ("flowers.csv", b"5.1,3.5,setosa\n" + b"4.9,3.0,setosa\n" * 9, "first line holds values"),
        ("credit.csv", b"A11,6,A34,4,4,1\n" * 9, "first line holds values"),
        ("signs.csv", b"'40-49','yes','3'\n" * 9, "first line holds values"),
        ("again.csv", b"kind,y\nu,0\n" * 3, "names of the columns there, and nowhere else"),
        ("title.csv", b"Visits of 2024\n" + table(), "row 2 has 3 cells, .* remove lines that"),
        ("empty.csv", b"", "has no rows"),
        ("names.csv", b"a,b,y\n", "has no rows"),
        (
            "latin.json",
            '[{"a": "Z\xfcrich", "y": 1}]'.encode("latin-1"),
            "latin.json .*is no UTF-8",
        ),
        (
            "kinds.json",
            b'[{"a": 1.5}, {"a": null}, {"a": "x"}]',
            "different kinds .first: row 2.: write",
        ),
        ("big.json", b'[{"a": 1%s}]' % (b"0" * 30), "column 'a' holds whole numbers of over 64"),
        ("cut.jsonl", b'{"a": 1}\n{"a": 2}\n{"a":', "line 3"),
        ("deep.json", b"[" * 120_000, "deep.json cannot be read"),
        ("nested.json", b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested more than 32 times"),
        ("sheet.xlsx", b"PK", "a file must be one of .*: save a table as csv"),
        (
            "genes.csv",
            table(",".join(f"g{i}" for i in range(900)), rows=[range(900)]),
            "no label column found in .*, g29 and 870 more",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_files_name(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(
        lambda: read_samples(DataOptions(source=str(tmp_path / name), partition="iid")),
        f"(?=.*{re.escape(name)}).*({said})",
        UserError,
    )


@pytest.mark.parametrize(
    ("files", "test", "rows", "others"),
    [
        (["part1", "part2_train", "extra"], "", 30, []),
        (["dev_hospital", "train_station"], "", 10, ["dev_hospital.csv"]),
        (["train", "test", "extra"], "", 10, ["extra.csv, test.csv"]),
        (["train", "test", "extra"], "test", 20, ["extra.csv"]),
        (["mnist_train", "mnist_test"], "", 10, ["mnist_test.csv"]),
        (["car", "train", "plane"], "", 30, []),
    ],
)
def test_every_file_of_a_folder_is_accounted_for(files, test, rows, others, tmp_path):
    for name in files:
        (tmp_path / f"{name}.csv").write_bytes(table())
    (tmp_path / "notes.xlsx").write_bytes(b"")
    (tmp_path / "odd.csv").symlink_to(tmp_path / "nowhere")
    samples = read_samples(DataOptions(source=str(tmp_path), partition="iid", test=test))
    assert len(samples.labels) == rows
    assert [line for line in samples.account if "left out" in line] == [
        "left out (no csv files): notes.xlsx, odd.csv",
        *(f"left out (not of this split): {names}" for names in others),
    ]


@pytest.mark.parametrize(("shape", "numbers"), [((3,), True), ((3, 2), False), ((3, 2, 2), False)])
def test_bytes_are_pixels_where_samples_have_several_axes(shape, numbers, tmp_path):
    x = np.arange(40 * math.prod(shape), dtype=np.uint8).reshape(40, *shape)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2)
    samples = read_samples(DataOptions(source=str(tmp_path / "a.npz")))
    assert (samples.numbers is not None, samples.x.dtype == np.uint8) == (numbers, not numbers)


def test_labels_of_one_number_per_class_are_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 3)), y=np.eye(2)[np.arange(40) % 2])
    refused(
        lambda: read_samples(DataOptions(source=str(tmp_path / "a.npz"))),
        r"has the shape \(N, 2\).* as y\.argmax\(1\)",
        UserError,
    )


def test_narrow_integers_are_numbers_and_lists_hide_no_column():
    import pandas as pd

    frame = pd.DataFrame({"q": np.arange(40) % 5, "site": ["a", "b"] * 20, "y": np.arange(40) % 2})
    given = {"natural_id": "site", "label": "y"}
    wide, narrow = (
        fedapps.partition(data={"source": one, **given}).notes
        for one in (frame, frame.astype({"q": "uint8"}))
    )
    assert wide[1:] == narrow[1:]
    notes = fedapps.partition(data={"source": frame.assign(tags=[[1.0, 2.0]] * 40), **given}).notes
    assert "data.source: left out (columns of no sample): q" in notes


@pytest.mark.parametrize(
    ("mode", "dark", "bright"),
    [
        ("1", 0, 255),
        ("L", 10, 200),
        ("P", 10, 200),
        ("RGB", (9, 9, 9), (200, 200, 200)),
        ("CMYK", (0, 0, 0, 240), (0, 0, 0, 20)),
        ("I;16", 2600, 51_400),
        ("F", 0.04, 0.8),
        ("RGBA", (0, 0, 0, 255), (0, 0, 0, 60)),
        ("LA", (0, 255), (0, 60)),
    ],
)
def test_pictures_are_scaled_by_their_mode(mode, dark, bright, tmp_path):
    for name, colour in (("dark", dark), ("bright", bright)):
        (tmp_path / name).mkdir()
        picture = Image.new("L" if mode == "P" else mode, (5, 4), colour).convert(mode)
        picture.putpixel((0, 0), dark if name == "bright" else bright)
        picture.save(tmp_path / name / "train 1.tif")
    samples = read_samples(DataOptions(source=str(tmp_path), partition="iid"))
    x = samples.x[:, 0, 1:, 1:].reshape(2, -1)
    assert samples.classes == ("bright", "dark")
    assert (x[0] > 150).all()
    assert (x[1] < 20).all()


def test_pictures_are_turned_upright_and_shapes_in_transparency_refused(tmp_path):
    folder = tmp_path / "set"
    for name, size, turn in (("a", (6, 4), 1), ("b", (4, 6), 6)):
        (folder / name).mkdir(parents=True)
        exif = Image.Exif()
        exif[0x0112] = turn
        Image.new("RGB", size).save(folder / name / "x.jpg", exif=exif)
    samples = read_samples(DataOptions(source=str(folder), partition="iid"))
    assert samples.x.shape == (2, 3, 4, 6)
    (folder / "b" / "more").mkdir()
    Image.new("RGB", (6, 4)).save(folder / "b" / "more" / "x.jpg")
    several = read_samples(DataOptions(source=str(folder), partition="iid"))
    assert "labels are the innermost folders, of several depths" in several.account
    assert "1 of 2 images are turned upright (EXIF)" in samples.account
    picture = Image.new("RGBA", (6, 4), (255, 255, 255, 0))
    picture.putpixel((2, 2), (255, 255, 255, 255))
    picture.save(folder / "a" / "y.png")
    refused(
        lambda: read_samples(DataOptions(source=str(folder), partition="iid")),
        "only its transparency holds a shape",
        UserError,
    )


def test_arrays_of_another_split_are_accounted_for(tmp_path):
    arrays = {f"{name}_{split}": np.arange(8) % 2 for split in ("train", "test") for name in "xy"}
    (folder := tmp_path / "sites").mkdir()
    for name in ("set.npz", "more.npz"):
        np.savez(folder / name, **arrays)
    for test, said in (("", ["left out (not of this split): x_test, y_test"]), ("test", [])):
        alone = DataOptions(source=str(folder / "set.npz"), partition="iid", test=test)
        clients = DataOptions(
            source=str(folder), natural_id="@file", partition="natural", test=test
        )
        for options in (alone, clients):
            assert [line for line in read_samples(options).account if "left out" in line] == said


def test_a_column_that_says_the_label_is_noted(tmp_path):
    cells = [("abc"[k % 3], k // 2 % 2, "ab"[k % 2], k % 2, "rb"[k % 2]) for k in range(30)]
    (tmp_path / "t.csv").write_bytes(table("three,mixed,two,one,y", rows=cells))
    samples = read_samples(DataOptions(source=str(tmp_path / "t.csv"), partition="iid"))
    noted = [
        line.split(":")[0] for line in samples.numbers.written if "one value per class" in line
    ]
    assert noted == ["one", "two"]


def test_names_that_look_alike_and_numbers_of_rows_are_noted(tmp_path):
    lines = [f"{100 + k},{['bern', 'bern ', 'Bern'][k % 3]},{k % 2}" for k in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["patient,ward,y", *lines]))
    given = {"source": str(tmp_path / "t.csv"), "natural_id": "ward", "label": "y"}
    notes = " ".join(fedapps.partition(data=given).notes)
    assert (
        lacking(
            notes,
            "'Bern' and 'bern' and 'bern ' are different clients",
            "patient: looks like the number of a row",
        )
        == []
    )


def test_a_resumed_run_has_the_data_of_its_first_rounds(tmp_path):
    source = tmp_path / "t.csv"
    source.write_bytes(table(rows=ROWS * 4))
    job = {"data": {"source": str(source), "partition": "iid"}, "num_clients": 2, "num_rounds": 2}
    job |= {"progress": False, "checkpoint_every": 1, "out": str(tmp_path / "out")}
    fedapps.run(**job, until=1)
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["account"]
    source.write_bytes(table(rows=[[a, b, 1 - y] for a, b, y in ROWS * 4]))
    refused(
        lambda: fedapps.run(**job, resume=True),
        r"t\.csv has changed since the first rounds",
        UserError,
    )


def test_files_that_nobody_reads_do_not_change_the_data(tmp_path):
    (tmp_path / "t.csv").write_bytes(table())
    before = digest(tmp_path)
    (tmp_path / ".DS_Store").write_bytes(b"")
    assert digest(tmp_path) == before
    (tmp_path / "more.csv").write_bytes(table())
    assert digest(tmp_path) != before


THREADS = """
import os, sys
from pathlib import Path
from fedapps.data.csv_files import read_csv
before = len(os.listdir("/proc/self/task"))
read_csv(Path(sys.argv[1]))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads on Linux")
def test_a_csv_is_read_without_threads_that_abort_a_process_which_ends_soon(tmp_path):
    wide = tmp_path / "wide.csv"
    wide.write_bytes(table(",".join(f"c{i}" for i in range(900)), rows=[["word"] * 900] * 700))
    assert int(printed("-c", THREADS, wide)) <= 1  # one that reads ahead
    assert read_csv(wide).columns["c0"].num_chunks == 1, "a block holds many rows"


ALLOCATED = """
import sys, numpy as np, pyarrow as pa
from pathlib import Path
from pyarrow import parquet
from fedapps.data.local_files import READERS
table = pa.table({f"c{i}": np.random.default_rng(i).normal(size=20_000) for i in range(40)})
parquet.write_table(table, sys.argv[1])
read = READERS["parquet"](Path(sys.argv[1]))
assert list(read.columns) == table.column_names
print(pa.default_memory_pool().max_memory() / table.nbytes)
"""


def test_a_parquet_file_is_not_held_beside_its_values(tmp_path):
    assert float(printed("-c", ALLOCATED, tmp_path / "t.parquet")) < 1.5


@pytest.mark.parametrize("long", ["names", "cell"])
def test_a_csv_with_a_line_of_several_megabytes_is_read(long, tmp_path):
    file, cell = tmp_path / "long.csv", "w" * (6 << 20 if long == "cell" else 1)
    names = [f"c{place}".ljust(100_000 if long == "names" else 1, "x") for place in range(60)]
    file.write_bytes(table(",".join(names), rows=[["y"] * 60] * 5 + [[cell] * 2 + ["z"] * 58]))
    columns = read_csv(file).columns
    assert list(columns) == names
    assert columns[names[1]].to_pylist() == ["y"] * 5 + [cell]


# --- one reader for tables of every task ----------------------------------------------


def rows(n=30, classes=("bad", "good", "best"), seed=0):
    """Rows of four plants: a number with gaps, a text with few values, a text of one
    value per row, a label.
    """
    rng = np.random.default_rng(seed)
    return [
        {
            "plant": plant,
            "heat": "" if number == 3 else f"{rng.normal(50, 10):.3f}",
            "shift": rng.choice(["day", "night"]),
            "note": f"{plant} {number}",
            "label": classes[number % len(classes)],
        }
        for plant in ("Ulm", "Jena", "Bonn", "Kiel")
        for number in range(n)
    ]


def write(path, lines):
    return str(write_csv(path, lines, {}))


def task_of(source, task="tabular", **settings):
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    given = {"task": task, "data.source": source, "device": "cpu", **given}
    return build_task(with_defaults(given))


# --- one way to name a source ---------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            (
                {"task": task, "method": method, key: value},
                rf"{key} = .*: task '{task}' does not use it",
            )
            for task, method, key, value in [
                ("lasso", "fedfw", "data.source", "x.csv"),
                ("lasso", "fedfw", "data.label", "y"),
                ("sparse-logistic", "fedfw", "data.score-on", "validation"),
                ("text", "fedavg", "data.natural-id", "role"),
                ("text", "fedavg", "data.part", "x"),
                ("text", "fedavg", "data.group", "role"),
                ("qap", "fedfw", "data.alpha", 0.3),
            ]
        ),
        # the main job's file with a method whose default task reads no such data
        (
            {**read_toml(ROOT / "experiments" / "default.toml"), "method": "fedfw"},
            "^data.source = 'digits', data.partition = 'dirichlet': task 'lasso' does not use "
            "them: leave them out, or choose task = 'constrained-classification'$",
        ),
    ],
)
def test_settings_that_a_task_does_not_read_are_refused(given, message):
    refused(lambda: read_settings(given), message, UserError)


# --- one reader -----------------------------------------------------------------------


@pytest.mark.parametrize("task", ["tabular", "classification"])
def test_categories_and_missing_values_and_three_classes(task, tmp_path):
    task = task_of(write(tmp_path / "t.csv", rows()), task, data__natural_id="plant")
    task.check(4)
    assert (task.samples.numbers.used, task.samples.classes, task.num_outputs) == (
        ("heat", "shift=night"),
        ("bad", "best", "good"),
        3,
    )
    assert any("note" in line and "left out" in line for line in task.remarks(4))
    assert any("shift" in line and "categor" in line for line in task.remarks(4))
    filled = "data.features: missing values are filled with means and shares: heat (3 %)"
    assert filled in task.remarks(4)
    data = task.client_data(0, 4)
    x = np.concatenate([part.x.reshape(len(part), -1) for part in (data.train, data.test)])
    assert np.isfinite(x).all()
    assert set(np.unique(x[:, 1])) == {0.0, 1.0}
    if task.name == "tabular":
        assert np.isnan(task.arrays(0, 4, scale=False).train.x).any()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("label", "", r"'label': 1 samples have no value in it \(first: row 7\)"),
        ("heat", "warm", r"'heat': 1 of 120 rows hold text where the others hold .*first: row 7"),
    ],
)
def test_messages_count_rows_as_the_file_does(column, value, message, tmp_path):
    lines = rows()
    lines[5][column] = value  # the header is row 1
    source = write(tmp_path / "t.csv", lines)
    refused(lambda: task_of(source, data__natural_id="plant").check(4), message, UserError)


def test_a_column_of_clients_is_suggested_and_none_are_invented(tmp_path):
    source = write(tmp_path / "t.csv", rows())
    refused(
        lambda: assemble(
            with_defaults({"task": "tabular", "data.source": source, "device": "cpu"})
        ),
        r"'plant' \(4 values\) looks like one.*natural-id=plant",
        UserError,
    )
    task = task_of(source, "classification", num_clients=5)
    assert any("'plant' (4 values) looks like one" in line for line in task.remarks(5))
    assert len(task_of(source, data__partition="iid", num_clients=5).partition(5)) == 5
