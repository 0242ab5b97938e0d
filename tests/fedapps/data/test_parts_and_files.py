"""Parts of the data that somebody else has drawn (a column, splits), and folders with a
file of each client.
"""

import itertools
import re
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedapps.algorithms.fairness.groups import group_measures, group_sums
from fedapps.clients.fedavg import FedAvgClient
from fedapps.commands.parser import main
from fedapps.data.columns import MAX_GROUPS, grouped
from fedapps.data.held_out import Part, dealt_part
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.partition import natural_clients, partition, thinned
from fedapps.data.source import SITE_CLIENT, Samples, Source
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline, with_folder
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings
from tests.data_folders import write_parquet
from tests.helpers import lacking, refused, rounds_of, rows_of

pytestmark = pytest.mark.usefixtures("own_caches")


def rows(count=120, seed=0):
    """Samples that can be distinguished: ``x`` is the row's number; 4 sites in turn,
    two classes.
    """
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": np.arange(count, dtype=float),
            "noise": rng.normal(size=count),
            "label": rng.permutation(np.arange(count) % 2),
            "site": np.resize(list("abcd"), count),
            "part": np.repeat(["train", "Val", "test"], [count // 2, count // 4, count // 4])[
                rng.permutation(count)
            ],
        }
    )


def written(tmp_path, frame, name="train"):
    (tmp_path / "set").mkdir(exist_ok=True)
    frame.to_csv(tmp_path / "set" / f"{name}.csv", index=False)
    return str(tmp_path / "set")


def natural(source, **more):
    return {
        "task": "classification",
        "data.source": source,
        "data.partition": "natural",
        "data.natural-id": "site",
        "data.standardise": "none",
        "device": "cpu",
        "clients-per-round": 0,
        **{f"data.{key.replace('_', '-')}": value for key, value in more.items()},
    }


def told_apart(*parts):
    return sorted(x for part in parts for x in part.x.numpy()[:, 0, 0, 0].tolist())


def task_of(source, **more):
    return build_task(read_settings(natural(source, **more)))


# A column


def test_a_column_names_the_part_of_each_sample(tmp_path):
    frame = rows()
    settings, task, _ = assemble(read_settings(natural(written(tmp_path, frame), part="part")))
    assert settings.num_clients == 4
    assert task.image_shape == (1, 1, 2), "neither the site nor the part is an input"
    for client, site in enumerate("abcd"):
        data = task.client_data(client, 4)
        mine = frame[frame.site == site]
        for name, part in (("train", data.train), ("Val", data.validation), ("test", data.test)):
            assert told_apart(part) == mine[mine.part == name].x.tolist()


@pytest.mark.parametrize(
    ("lacking", "given", "share"), [("Val", "test", 0.25), ("test", "Val", 0.2)]
)
def test_parts_that_are_missing_are_drawn(lacking, given, share, tmp_path):
    frame = rows()
    frame["part"] = frame.part.replace(lacking, "train")
    data = task_of(written(tmp_path, frame), part="part", validation=0.25).client_data(0, 4)
    parts = {"Val": data.validation, "test": data.test}
    mine = frame[frame.site == "a"]
    to_train_on = mine[mine.part == "train"].x.tolist()
    assert told_apart(parts[given]) == mine[mine.part == given].x.tolist()
    assert told_apart(data.train, parts[lacking]) == to_train_on
    assert len(parts[lacking]) == round(share * len(to_train_on))


def test_a_client_without_validation_samples_chooses_by_what_it_trains_on(tmp_path, caplog):
    frame = rows()
    frame.loc[(frame.site == "b") & (frame.part == "Val"), "part"] = "train"
    _, task, _ = assemble(read_settings(natural(written(tmp_path, frame), part="part")))
    data = task.client_data(1, 4)
    assert data.validation is data.train
    assert task.client_data(0, 4).validation is not task.client_data(0, 4).train
    assert (
        lacking(
            caplog.text,
            "data.part = 'part', validation: each of the 4 clients chooses by its own samples there",
            "; 1 of them have none and choose by what they train on",
        )
        == []
    )


def test_dealt_clients_get_of_each_part_by_class(tmp_path):
    frame = rows()
    given = {"part": "part", "partition": "iid", "natural_id": "", "features": "x,noise"}
    config = natural(written(tmp_path, frame), **given) | {"num-clients": 3}
    task = build_task(read_settings(config))
    clients = [task.client_data(client, 3) for client in range(3)]
    for name, part in (("train", "train"), ("Val", "validation"), ("test", "test")):
        got = told_apart(*(getattr(data, part) for data in clients))
        assert got == frame[frame.part == name].x.tolist(), f"every sample of {name} once"


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (
            {"Val": "fold 2"},
            {"part": "part"},
            "data.part = 'part': holds 'fold 2': the parts are train, training, validation, valid",
        ),
        (
            {},
            {"part": "prat"},
            "data.part = 'prat': .* has the columns x, noise, label, site, part",
        ),
        (
            {},
            {"part": "part", "test": "test"},
            "data.test = 'test': part = 'part' says already which samples these are",
        ),
        (
            {},
            {"validation_split": "test", "test": "test"},
            "data.validation-split = 'test': is the split that is scored",
        ),
        (
            {"of b": "train"},
            {"part": "part"},
            r"data.part = 'part', test: 1 of the 4 clients have no sample in it \(b\)",
        ),
    ],
)
def test_mistakes_of_parts_are_one_line(change, given, message, tmp_path):
    frame = rows()
    if "of b" in change:
        frame.loc[(frame.site == "b") & (frame.part == "test"), "part"] = "train"
    source = written(tmp_path, frame.replace({"part": change}))
    refused(lambda: assemble(read_settings(natural(source, **given))), f"^{message}", UserError)


# Splits


def test_an_official_validation_split(tmp_path):
    frame = rows()
    for name, split in (("train", "train"), ("Val", "validation"), ("test", "test")):
        source = written(tmp_path, frame[frame.part == name].drop(columns="part"), split)
    mine = frame[frame.site == "c"]
    data = task_of(source, validation_split="validation", test="test").client_data(2, 4)
    for name, part in (("train", data.train), ("Val", data.validation), ("test", data.test)):
        assert told_apart(part) == mine[mine.part == name].x.tolist()
    alone = task_of(source, validation_split="validation").client_data(2, 4)
    assert [told_apart(alone.validation), told_apart(alone.train, alone.test)] == [
        mine[mine.part == part].x.tolist() for part in ("Val", "train")
    ]


# A file of each client


def files(tmp_path, kind, frame, under="sites"):
    folder = tmp_path / under
    folder.mkdir(parents=True)
    for site, mine in frame.groupby("site"):
        mine = mine.drop(columns=["site", "part"])
        x, y = mine[["x", "noise"]].to_numpy(), mine.label.to_numpy()
        if kind == "csv":
            mine.to_csv(folder / f"{site}.csv", index=False)
        elif kind == "parquet":
            mine.to_parquet(folder / f"{site}.parquet", index=False)
        elif kind == "npz":
            np.savez(folder / f"{site}.npz", x=x, y=y)
        else:
            (folder / site).mkdir()
            np.save(folder / site / "x.npy", x)
            np.save(folder / site / "y.npy", y)
    return str(tmp_path / "sites")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "npy"])
def test_a_file_is_a_client_by_its_name(tmp_path, kind):
    frame = rows()
    options = DataOptions(
        source=files(tmp_path, kind, frame), partition="natural", natural_id="@file"
    )
    images = read_samples(options)
    assert (images.clients.names, images.x.shape) == (("a", "b", "c", "d"), (120, 1, 1, 2))
    assert natural_clients(images, options) == 4
    for site, part in zip("abcd", partition(images, options, 4, 0), strict=True):
        mine = frame[frame.site == site]
        assert images.x[part, 0, 0, 0].tolist() == mine.x.tolist()
        assert images.labels[part].tolist() == mine.label.tolist()


def test_a_clients_files_in_folders_of_the_splits(tmp_path):
    frame = rows()
    files(tmp_path, "csv", frame[frame.part != "test"], "sites/train")
    source = files(tmp_path, "csv", frame[frame.part == "test"], "sites/test")
    data = task_of(source, test="test", natural_id="@file").client_data(1, 4)
    assert told_apart(data.test) == frame[(frame.site == "b") & (frame.part == "test")].x.tolist()


@pytest.mark.parametrize("split", ["../secret", "/secret", "..", "train/"])
def test_a_split_leads_to_no_other_folder(tmp_path, split):
    files(tmp_path, "csv", rows(), "secret")
    source = files(tmp_path, "csv", rows(), "sites/train")
    split = str(tmp_path / "secret") if split == "/secret" else split
    options = DataOptions(source=source, split=split, partition="natural", natural_id="@file")
    refused(lambda: read_samples(options), "no name of a split", UserError)


def test_the_splits_in_a_clients_npz(tmp_path):
    for number, site in enumerate("ab"):
        x, y = np.arange(20.0).reshape(10, 2) + 100 * number, np.arange(10) % 2
        parts = {"x_train": x[:7], "y_train": y[:7], "x_test": x[7:], "y_test": y[7:]}
        np.savez(tmp_path / f"{site}.npz", **parts)
    data = task_of(str(tmp_path), test="test", natural_id="@file").client_data(1, 2)
    assert told_apart(data.test) == [114.0, 116.0, 118.0]


def test_folders_of_images_whose_clients_lack_classes(tmp_path):
    for place, number in itertools.product(("a/x", "a/y", "b/y", "b/z"), range(4)):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        shade = "xyz".index(place[-1]) * 50 + number
        Image.new("L", (4, 4), shade).save(tmp_path / place / f"{number}.png")
    options = DataOptions(source=str(tmp_path), partition="natural", natural_id="@file")
    images = read_samples(options)
    assert images.classes == ("x", "y", "z")
    assert (images.x[:, 0, 0, 0] // 50).tolist() == images.labels.tolist()
    parts = partition(images, options, 2, 0)
    assert [sorted(set(images.labels[part])) for part in parts] == [[0, 1], [1, 2]]


@pytest.fixture
def clinics(tmp_path):
    """Four pictures of two classes, x and y, of each of three clinics."""
    for clinic, name, number in itertools.product("abc", "xy", range(4)):
        folder = tmp_path / "clinics" / clinic / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(folder / f"{number}.png")
    return tmp_path / "clinics"


def noted(capsys, *given):
    assert main(["data", *given]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]


def test_a_folder_per_clinic_is_suggested_and_an_empty_one_is_named(clinics, capsys):
    given = f"data.source={clinics}", "data.min-samples=4"
    assert (
        "note: data.natural-id: clinics looks like one folder per client: choose @file to have "
        "these in place of random ones"
    ) in noted(capsys, *given, "num-clients=2")
    by_file = (*given, "data.natural-id=@file")
    assert not any("without samples" in line for line in noted(capsys, *by_file))
    (clinics / "d" / "x").mkdir(parents=True)
    assert "note: data.source: left out (without samples): d" in noted(capsys, *by_file)
    (clinics / "c" / "y").rename(clinics / "c" / "Y")
    assert (
        "note: data.label: 'Y' and 'y' are different classes: write them alike if they are one"
    ) in noted(capsys, *by_file)


@pytest.mark.parametrize(
    ("content", "said"), [(60, "image file is truncated"), (0, "it holds no image")]
)
def test_a_picture_that_cannot_be_read_is_named_by_its_file(clinics, content, said):
    picture = clinics / "b" / "x" / "2.png"
    Image.effect_noise((4, 4), 50).save(picture)
    picture.write_bytes(picture.read_bytes()[:content])
    options = DataOptions(source=str(clinics), natural_id="@file", partition="natural")
    message = rf"image 10 \(b/x/2.png\) cannot be decoded: {said}"
    refused(lambda: read_samples(options), message, UserError)
    site = Source(str(clinics), client=SITE_CLIENT)
    refused(lambda: read_samples(options, source=site), "image 10 cannot be decoded", UserError)


@pytest.fixture
def refuses(error_of):
    """``refuses(source, *settings)``: the line with which ``fedapps data`` refuses."""
    return lambda source, *settings: error_of("data", f"data.source={source}", *settings)


def test_arrays_of_a_site_that_do_not_fit_name_its_file(tmp_path, refuses, monkeypatch):
    sites = tmp_path / "sites"
    sites.mkdir()
    x, y = np.arange(40.0).reshape(8, 5), np.arange(8) % 2
    for site in "ab":
        np.savez(sites / f"{site}.npz", x=x, y=y)
    by_file = "data.natural-id=@file"
    assert "(a file per client: data.natural-id=@file)" in refuses(sites)
    monkeypatch.chdir(tmp_path)
    assert "is not a folder with one file per client: did you mean 'sites'?" in refuses(
        "site", by_file
    )
    missing = "data.natural-id = 'clinic': .*; @file stands for a sample's file or folder"
    assert re.search(missing, refuses(sites / "a.npz", "data.natural-id=clinic"))
    np.savez(sites / "b.npz", x=x[:, :3], y=y)
    assert "'x' holds 5 values in a.npz, holds 3 values in b.npz: write" in refuses(sites, by_file)
    np.savez(sites / "b.npz", x=np.where(x == 7, np.nan, x), y=y)
    assert "(first: column 'x', row 9, of b)" in refuses(sites, by_file)
    (sites / "b.npz").write_bytes((sites / "a.npz").read_bytes()[:300])
    assert "b.npz': cannot be read, it must hold plain arrays" in refuses(sites, by_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,noise,label\nlow,7,0\n", "column 'x' holds numbers in a.csv, holds text in e.csv: "),
        ("x,label\n1,0\n", "column 'noise' is in only one of a.csv and e.csv: give all .* same$"),
        ("", ".*e.csv cannot be read: "),
    ],
)
def test_files_that_do_not_fit_are_named(content, message, tmp_path):
    source = files(tmp_path, "csv", rows(40))
    given = DataOptions(source=source, partition="natural", natural_id="@file")
    (tmp_path / "sites" / "e.csv").write_text("x,noise,label\n1,7,0\n2,7,1\n")
    assert read_samples(given).x.shape == (42, 1, 1, 2), "whole numbers and fractions"
    (tmp_path / "sites" / "e.csv").write_text(content)
    refused(lambda: read_samples(given), f"^data.source: {message}", UserError)


def test_what_is_no_folder_of_files_is_one_line(tmp_path, refuses):
    (tmp_path / "empty").mkdir()
    by_file = "data.natural-id=@file"
    assert "holds no file of a client: .npz, .npy" in refuses(tmp_path / "empty", by_file)
    source = written(tmp_path, rows())
    assert "have the names of parts, not of clients" in refuses(source, by_file)
    Path(source, "train.csv").rename(Path(source, "ann.csv"))
    assert "data.validation-split = 'half': no folder half lies beside" in refuses(
        source, "data.validation-split=half", by_file
    )
    assert "is not a folder with one file per client" in refuses(f"{source}/ann.csv", by_file)


def test_classes_that_nobody_trains_on_are_scored_by_nobody():
    """Two clients, three classes; the third is in the test part only."""
    samples = Samples(np.zeros((9, 1, 1, 1), np.float32), np.array([0, 0, 1, 1, 0, 1, 2, 2, 2]), 3)
    part = Part("is scored on", "data.test = 'test'", np.arange(9) >= 4)
    own = dealt_part(samples, [np.array([0, 1]), np.array([2, 3])], part, seed=0)
    assert [rows.tolist() for rows in own] == [[4], [5]]


# --- groups of samples ----------------------------------------------------------------


GREY = {"image": datasets.Image(), "label": datasets.Value("int64")}


def pictures(folder, n=120):
    """Grey 4 x 4 pictures in three classes with a column ``sex``, empty in every tenth
    row.
    """
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=n)
    pixels = (60 * label[:, None, None] + rng.integers(0, 80, (n, 4, 4))).astype(np.uint8)
    sex = [None if i % 10 == 9 else "fm"[int(k)] for i, k in enumerate(rng.integers(2, size=n))]
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": label.tolist(), "sex": sex}
    return write_parquet(folder, columns, GREY | {"sex": datasets.Value("string")})


def run(tmp_path, clients, **config):
    job = {"num-clients": clients, "clients-per-round": 0, "num-rounds": 2}
    settings = read_settings(job | {"train.local-epochs": 1} | config)
    settings = with_folder(settings, tmp_path / "run")
    summary = execute_inline(settings)
    return settings, summary, {row["group"]: row for row in rows_of(tmp_path / "run/groups.csv")}


@pytest.mark.parametrize(
    ("values", "edges", "codes", "names"),
    [
        (["m", "f", None, "m"], (), [1, 0, -1, 1], ("f", "m")),
        ([1.0, 0.0, np.nan, 1.0], (), [1, 0, -1, 1], ("0", "1")),
        (
            [39, 40, None, 60.4, 60.5, 99],
            (40.0, 60.5),
            [0, 1, -1, 1, 2, 2],
            ("below 40", "40 to below 60.5", "from 60.5"),
        ),
    ],
)
def test_values_are_groups_in_order_and_a_missing_one_is_in_none(values, edges, codes, names):
    found = grouped(pa.chunked_array([values]), "sex", edges)
    assert (found.codes.tolist(), found.names) == (codes, names)


def test_more_sums_than_a_reply_may_hold_are_refused(tmp_path):
    """20 groups of 200 classes: 20 (3 x 200 + 45) = 12,900 numbers."""
    grey = [Image.fromarray(np.zeros((2, 2), np.uint8))] * 1000
    columns = {"image": grey, "label": np.arange(1000) % 200, "site": np.arange(1000) % 20}
    source = write_parquet(tmp_path / "set", columns, GREY | {"site": datasets.Value("int64")})
    config = {"task": "classification", "data.source": source, "data.partition": "iid"}
    build_task(read_settings(config)).check(2)
    refused(
        lambda: build_task(read_settings(config | {"data.group": "site"})).check(2),
        r"data.group = 'site': 20 groups and 200 classes are 12900 numbers a client, more than "
        r"10000",
        UserError,
    )


@pytest.mark.parametrize(
    ("call", "message", "kind"),
    [
        *(
            (
                lambda values=values, edges=edges: grouped(
                    pa.chunked_array([list(values)]), "g", edges
                ),
                message,
                UserError,
            )
            for values, edges, message in [
                (
                    range(MAX_GROUPS + 1),
                    (),
                    "21 values, from 2 to 20 can be groups: set data.group-edges",
                ),
                (["a"] * 5, (), "1 values"),
                (["a", "b"], (3.0,), "is for a column of numbers, but 'g' holds text"),
            ]
        ),
        *(
            (
                lambda edges=edges: DataOptions(group="age", group_edges=edges),
                "group-edges",
                ValueError,
            )
            for edges in ["60,40", "40,", "x", "1,nan", "inf"]  # they do not ascend
        ),
        *(
            (
                lambda given=given: read_settings(given | {"data.group": "sex"}),
                message,
                UserError,
            )
            for given, message in [
                ({}, "task 'digits' is not scored by group"),
                (
                    {"sites.labels": "a,b", "sites.shape": "1,4,4", "task": "classification"},
                    "sites with their own data are not scored by group",
                ),
            ]
        ),
    ],
)
def test_what_makes_no_groups_is_refused(call, message, kind):
    refused(call, message, kind)


def test_a_run_on_images_reports_what_its_model_does_to_each_group(tmp_path):
    """The sums of the clients give the measures of the final model on all test samples
    together.
    """
    given = {"data.source": pictures(tmp_path / "set"), "data.group": "sex"}
    given |= {"task": "classification", "data.partition": "iid"}
    settings, summary, rows = run(tmp_path, 4, **given)
    task = build_task(settings)
    model = task.model_fn(0)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    tests = [task.client_data(k, 4).test for k in range(4)]
    p = model(torch.cat([t.x for t in tests])).softmax(1).detach().numpy()
    y, g = (torch.cat([getattr(t, name) for t in tests]).numpy() for name in ("y", "groups"))
    expected = group_measures(group_sums(y, p.argmax(1), p.max(1), g, 3), task.groups)
    assert list(rows) == ["f", "m"]
    assert sum(int(row["samples"]) for row in rows.values()) == g.sum() < len(y)
    for row, wanted in zip(rows.values(), expected, strict=True):
        assert {name: float(row[name]) for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert (row["clients"], row["tp"], row["selected"]) == ("4", "", "")
    accuracies = [row["accuracy"] for row in expected]
    assert summary["group-accuracy-gap"] == pytest.approx(max(accuracies) - min(accuracies))
    assert {"demographic-parity-gap", "equalised-odds-gap", "group-ece-worst"} <= set(summary)
    assert "test-samples-mean" not in summary


@pytest.mark.parametrize("method", ["fedavg", "superfed-mm", "ditto", "local", "ffgb"])
def test_the_generated_table_has_groups_with_every_kind_of_client(method, tmp_path):
    settings, summary, rows = run(
        tmp_path, 3, method=method, task="tabular", **{"data.group": "kind"}
    )
    assert list(rows) == ["a", "b", "c"]
    tests = [build_task(settings).client_data(k, 3).test for k in range(3)]
    assert [int(row["samples"]) for row in rows.values()] == sum(
        part.groups.sum(0) for part in tests
    ).tolist()
    for row in rows.values():
        tp, fp, fn, tn = (int(row[name]) for name in ("tp", "fp", "fn", "tn"))
        assert tp + fp + fn + tn == int(row["samples"])
        assert [float(row[name]) for name in ("tpr", "fpr")] == pytest.approx(
            [tp / (tp + fn), fp / (fp + tn)]
        )
    right = sum(int(row["right"]) for row in rows.values())
    # every row has a kind
    assert summary["accuracy-weighted"] == pytest.approx(right / sum(map(len, tests)))
    assert "left-out" not in rounds_of(tmp_path / "run")[-1]


def test_a_table_by_age_and_one_by_sex(tmp_path):
    rng = np.random.default_rng(0)
    ages = rng.integers(20, 90, 120)
    ages[2::3] = 75  # of client c, which is in one group only
    columns = {"client": ["a", "b", "c"] * 40, "age": ages, "label": rng.integers(2, size=120)}
    source = write_parquet(tmp_path / "set", columns | {"sex": rng.choice(["f", "m"], 120)})
    table = {"task": "tabular", "data.source": source, "data.drop": "sex"}
    _, _, rows = run(tmp_path, 3, **table, **{"data.group": "age", "data.group-edges": "40,60"})
    assert {name: row["clients"] for name, row in rows.items()} == {
        "below 40": "2",
        "40 to below 60": "2",
        "from 60": "3",
    }
    task = build_task(read_settings(table | {"data.group": "sex"}))
    assert (task.groups.names, task.samples.numbers.used) == (("f", "m"), ("age",))


def test_malformed_sums_are_left_out_and_named_and_the_run_goes_on(tmp_path, monkeypatch):
    """Client 1 has samples of a class that no bin holds, client 2 sends a single
    number.
    """
    honest = FedAvgClient.evaluate

    def evaluate(self, parameters, config):
        loss, n, metrics = honest(self, parameters, config)
        if self.client_id == 1:
            metrics["group-sums"] = [1e12, *metrics["group-sums"][1:]]
        if self.client_id == 2:
            metrics["group-sums"] = [7.0]
        return loss, n, metrics

    monkeypatch.setattr(FedAvgClient, "evaluate", evaluate)
    settings, summary, rows = run(tmp_path, 4, task="tabular", **{"data.group": "kind"})
    assert summary["status"] == "completed"
    parts = [build_task(settings).client_data(k, 4).test.groups.sum(0) for k in (0, 3)]
    assert [int(row["samples"]) for row in rows.values()] == sum(parts).tolist()
    left_out = rounds_of(tmp_path / "run")[-1]["left-out"]
    assert [entry["client"] for entry in left_out] == [1, 2]
    assert "different numbers of samples" in left_out[0]["reason"]
    assert "1 numbers, but 3 groups need" in left_out[1]["reason"]


def test_samples_of_all_splits_have_a_group(tmp_path):
    source = tmp_path / "set"
    source.mkdir()
    for split, count in (("train", 30), ("test", 9), ("validation", 6)):
        lines = [f"{row / 7},{'fm'[row % 2]},{row % 3}" for row in range(count)]
        (source / f"{split}.csv").write_text("\n".join(["height,sex,label", *lines]))
    options = DataOptions(
        source=str(source),
        test="test",
        validation_split="validation",
        group="sex",
        partition="iid",
        max_samples=10,
    )
    samples = thinned(read_samples(options), options)
    assert len(samples.labels) == len(samples.groups.codes) == 10 + 9 + 6
    # every second row, of each split
    np.testing.assert_array_equal(samples.groups.codes[-15:], [0, 1] * 4 + [0] + [0, 1] * 3)
