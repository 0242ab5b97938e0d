"""Parts of the data that somebody else has drawn (a column, splits), and folders with a
file of each client.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedapps.commands.parser import main
from fedapps.data.held_out import Part, dealt_part
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.partition import natural_clients, partition
from fedapps.data.samples import Samples
from fedapps.data.source import SITE_CLIENT, Source
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings

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
    given = {f"data.{key.replace('_', '-')}": value for key, value in more.items()}
    return {
        "task": "classification",
        "data.source": source,
        "data.partition": "natural",
        "data.natural-id": "site",
        "data.standardise": "none",
        "device": "cpu",
        "clients-per-round": 0,
        **given,
    }


def told_apart(part):
    return sorted(part.x.numpy()[:, 0, 0, 0].tolist())


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


def test_parts_that_are_missing_are_drawn(tmp_path):
    frame = rows()
    frame["part"] = frame.part.replace("Val", "train")
    task = build_task(
        read_settings(natural(written(tmp_path, frame), part="part", validation=0.25))
    )
    data, mine = task.client_data(0, 4), frame[frame.site == "a"]
    assert told_apart(data.test) == mine[mine.part == "test"].x.tolist()
    assert (
        sorted(told_apart(data.train) + told_apart(data.validation))
        == mine[mine.part == "train"].x.tolist()
    )
    assert len(data.validation) == round(0.25 * (mine.part == "train").sum())

    frame["part"] = rows().part.replace("test", "train")
    task = build_task(read_settings(natural(written(tmp_path, frame), part="part")))
    data, mine = task.client_data(0, 4), frame[frame.site == "a"]
    assert told_apart(data.validation) == mine[mine.part == "Val"].x.tolist()
    assert (
        sorted(told_apart(data.train) + told_apart(data.test))
        == mine[mine.part == "train"].x.tolist()
    )
    assert len(data.test) == round(0.2 * (mine.part == "train").sum())


def test_a_client_without_validation_samples_chooses_by_what_it_trains_on(tmp_path, caplog):
    frame = rows()
    frame.loc[(frame.site == "b") & (frame.part == "Val"), "part"] = "train"
    _, task, _ = assemble(read_settings(natural(written(tmp_path, frame), part="part")))
    data = task.client_data(1, 4)
    assert data.validation is data.train
    assert task.client_data(0, 4).validation is not task.client_data(0, 4).train
    assert (
        "data.part = 'part', validation: each of the 4 clients chooses by its own samples there"
        in caplog.text
    )
    assert "; 1 of them have none and choose by what they train on" in caplog.text


def test_dealt_clients_get_of_each_part_by_class(tmp_path):
    frame = rows()
    config = natural(written(tmp_path, frame), part="part") | {
        "data.partition": "iid",
        "data.natural-id": "",
        "num-clients": 3,
    }
    task = build_task(read_settings(config | {"data.features": "x,noise"}))
    for name, place in (("train", 0), ("Val", 1), ("test", 2)):
        got = [
            x
            for client in range(3)
            for x in told_apart(list(vars(task.client_data(client, 3)).values())[place])
        ]
        assert sorted(got) == frame[frame.part == name].x.tolist(), f"every sample of {name} once"


def test_mistakes_of_a_part_column_are_one_line(tmp_path):
    frame = rows()
    source = written(tmp_path, frame.replace({"part": {"Val": "fold 2"}}))
    with pytest.raises(
        UserError,
        match=r"^data.part = 'part': holds 'fold 2': the parts are train, training, validation, "
        r"valid",
    ):
        assemble(read_settings(natural(source, part="part")))
    with pytest.raises(
        UserError, match=r"^data.part = 'prat': .* has the columns x, noise, label, site, part"
    ):
        assemble(read_settings(natural(source, part="prat")))
    with pytest.raises(
        UserError, match=r"^data.test = 'test': part = 'part' says already which samples these are"
    ):
        read_settings(natural(source, part="part", test="test"))
    (tmp_path / "set" / "train.csv").unlink()
    frame.loc[(frame.site == "b") & (frame.part == "test"), "part"] = "train"
    with pytest.raises(
        UserError, match=r"^data.part = 'part', test: 1 of the 4 clients have no sample in it \(b\)"
    ):
        assemble(read_settings(natural(written(tmp_path, frame), part="part")))


# Splits


def test_an_official_validation_split(tmp_path):
    frame = rows()
    for name, split in (("train", "train"), ("Val", "validation"), ("test", "test")):
        source = written(tmp_path, frame[frame.part == name].drop(columns="part"), split)
    task = build_task(read_settings(natural(source, validation_split="validation", test="test")))
    data, mine = task.client_data(2, 4), frame[frame.site == "c"]
    for name, part in (("train", data.train), ("Val", data.validation), ("test", data.test)):
        assert told_apart(part) == mine[mine.part == name].x.tolist()
    alone = build_task(read_settings(natural(source, validation_split="validation"))).client_data(
        2, 4
    )
    assert told_apart(alone.validation) == mine[mine.part == "Val"].x.tolist()
    assert (
        sorted(told_apart(alone.train) + told_apart(alone.test))
        == mine[mine.part == "train"].x.tolist()
    )
    for key in ("data.validation-split", "data.part"):
        with pytest.raises(UserError, match=rf"^{key} = 'x': task 'text' does not use it"):
            build_task(read_settings({"task": "text", key: "x"}))
    with pytest.raises(
        UserError, match=r"^data.validation-split = 'test': is the split that is scored"
    ):
        read_settings(natural(source, validation_split="test", test="test"))


# A file of each client


def files(tmp_path, kind, frame, under="sites"):
    folder = tmp_path / under
    folder.mkdir(parents=True)
    for site, mine in frame.groupby("site"):
        mine = mine.drop(columns=["site", "part"])
        if kind == "csv":
            mine.to_csv(folder / f"{site}.csv", index=False)
        elif kind == "parquet":
            pq.write_table(
                pa.Table.from_pandas(mine, preserve_index=False), folder / f"{site}.parquet"
            )
        elif kind == "npz":
            np.savez(
                folder / f"{site}.npz", x=mine[["x", "noise"]].to_numpy(), y=mine.label.to_numpy()
            )
        else:
            (folder / site).mkdir()
            np.save(folder / site / "x.npy", mine[["x", "noise"]].to_numpy())
            np.save(folder / site / "y.npy", mine.label.to_numpy())
    return str(tmp_path / "sites")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "npy"])
def test_a_file_is_a_client_by_its_name(tmp_path, kind):
    frame = rows()
    options = DataOptions(
        source=files(tmp_path, kind, frame), partition="natural", natural_id="@file"
    )
    images = read_samples(options)
    assert images.clients.names == ("a", "b", "c", "d")
    assert images.x.shape == (120, 1, 1, 2)
    assert natural_clients(images, options) == 4
    for site, part in zip("abcd", partition(images, options, 4, 0), strict=True):
        mine = frame[frame.site == site]
        assert images.x[part, 0, 0, 0].tolist() == mine.x.tolist()
        assert images.labels[part].tolist() == mine.label.tolist()


def test_a_clients_files_in_folders_of_the_splits(tmp_path):
    frame = rows()
    files(tmp_path, "csv", frame[frame.part != "test"], "sites/train")
    source = files(tmp_path, "csv", frame[frame.part == "test"], "sites/test")
    task = build_task(read_settings(natural(source, test="test") | {"data.natural-id": "@file"}))
    mine = frame[frame.site == "b"]
    assert told_apart(task.client_data(1, 4).test) == mine[mine.part == "test"].x.tolist()


def test_the_splits_in_a_clients_npz(tmp_path):
    (tmp_path / "sites").mkdir()
    for number, site in enumerate("ab"):
        x, y = np.arange(20.0).reshape(10, 2) + 100 * number, np.arange(10) % 2
        np.savez(
            tmp_path / "sites" / f"{site}.npz",
            x_train=x[:7],
            y_train=y[:7],
            x_test=x[7:],
            y_test=y[7:],
        )
    task = build_task(
        read_settings(natural(str(tmp_path / "sites"), test="test") | {"data.natural-id": "@file"})
    )
    assert told_apart(task.client_data(1, 2).test) == [114.0, 116.0, 118.0]


def test_folders_of_images_whose_clients_lack_classes(tmp_path):
    for site, classes in (("a", "xy"), ("b", "yz")):
        for name in classes:
            folder = tmp_path / "sites" / site / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("L", (4, 4), "xyz".index(name) * 50 + number).save(
                    folder / f"{number}.png"
                )
    options = DataOptions(source=str(tmp_path / "sites"), partition="natural", natural_id="@file")
    images = read_samples(options)
    assert images.classes == ("x", "y", "z")
    assert (images.x[:, 0, 0, 0] // 50).tolist() == images.labels.tolist()
    assert [sorted(set(images.labels[part])) for part in partition(images, options, 2, 0)] == [
        [0, 1],
        [1, 2],
    ]


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
def test_a_picture_that_cannot_be_read_is_named_by_its_file(clinics, content, said, capsys):
    picture = clinics / "b" / "x" / "2.png"
    Image.effect_noise((4, 4), 50).save(picture)
    picture.write_bytes(picture.read_bytes()[:content])
    assert main(["data", f"data.source={clinics}", "data.natural-id=@file"]) == 2
    error = capsys.readouterr().err
    assert f"image 10 (b/x/2.png) cannot be decoded: {said}" in error
    assert error.count("\n") == 1
    options = DataOptions(source=str(clinics), natural_id="@file", partition="natural")
    site = Source(str(clinics), client=SITE_CLIENT)
    with pytest.raises(UserError, match="image 10 cannot be decoded"):
        read_samples(options, source=site)


def test_arrays_of_a_site_that_do_not_fit_name_its_file(tmp_path, capsys, monkeypatch):
    def error_of(place, *given):
        assert main(["data", f"data.source={place}", *given]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    sites = tmp_path / "sites"
    sites.mkdir()
    x, y = np.arange(40.0).reshape(8, 5), np.arange(8) % 2
    for site in "ab":
        np.savez(sites / f"{site}.npz", x=x, y=y)
    by_file = "data.natural-id=@file"
    assert "(a file per client: data.natural-id=@file)" in error_of(sites)
    monkeypatch.chdir(tmp_path)
    assert "is not a folder with one file per client: did you mean 'sites'?" in error_of(
        "site", by_file
    )
    missing = "data.natural-id = 'clinic': .*; @file stands for a sample's file or folder"
    assert re.search(missing, error_of(sites / "a.npz", "data.natural-id=clinic"))
    np.savez(sites / "b.npz", x=x[:, :3], y=y)
    assert "'x' holds 5 values in a.npz, holds 3 values in b.npz: write" in error_of(sites, by_file)
    np.savez(sites / "b.npz", x=np.where(x == 7, np.nan, x), y=y)
    assert "(first: column 'x', row 9, of b)" in error_of(sites, by_file)
    (sites / "b.npz").write_bytes((sites / "a.npz").read_bytes()[:300])
    assert "b.npz': cannot be read, it must hold plain arrays" in error_of(sites, by_file)


def test_whole_numbers_and_fractions_of_one_column_are_numbers(tmp_path):
    frame = rows(40)
    source = files(tmp_path, "csv", frame)
    pd.DataFrame({"x": [1, 2, 3, 4, 5], "noise": 7, "label": [0, 1, 0, 1, 1]}).to_csv(
        tmp_path / "sites" / "e.csv", index=False
    )
    images = read_samples(DataOptions(source=source, partition="natural", natural_id="@file"))
    assert images.x.shape == (45, 1, 1, 2)
    pd.DataFrame({"x": ["low"], "noise": 7, "label": [0]}).to_csv(
        tmp_path / "sites" / "f.csv", index=False
    )
    with pytest.raises(
        UserError,
        match=r"^data.source: column 'x' holds numbers in a.csv, holds text in f.csv: ",
    ):
        read_samples(DataOptions(source=source, partition="natural", natural_id="@file"))
    pd.DataFrame({"x": [1], "label": [0]}).to_csv(tmp_path / "sites" / "f.csv", index=False)
    with pytest.raises(
        UserError,
        match=r"column 'noise' is in only one of a.csv and f.csv: give all files the same$",
    ):
        read_samples(DataOptions(source=source, partition="natural", natural_id="@file"))
    (tmp_path / "sites" / "f.csv").write_text("")
    with pytest.raises(UserError, match=r"^data.source: .*f.csv cannot be read: "):
        read_samples(DataOptions(source=source, partition="natural", natural_id="@file"))


def test_what_is_no_folder_of_files_is_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    given = ["data.partition=natural", "data.natural-id=@file"]
    assert main(["data", f"data.source={tmp_path / 'empty'}", *given]) == 2
    assert "holds no file of a client: .npz, .npy" in capsys.readouterr().err
    source = written(tmp_path, rows())
    assert main(["data", f"data.source={source}", *given]) == 2
    assert "have the names of parts, not of clients" in capsys.readouterr().err
    Path(source, "train.csv").rename(Path(source, "ann.csv"))
    assert main(["data", f"data.source={source}", "data.validation-split=half", *given]) == 2
    assert "data.validation-split = 'half': no folder half lies beside" in capsys.readouterr().err
    assert main(["data", f"data.source={source}/ann.csv", *given]) == 2
    assert "is not a folder with one file per client" in capsys.readouterr().err


def test_classes_that_nobody_trains_on_are_scored_by_nobody():
    """Two clients, three classes; the third is in the test part only."""
    labels = np.array([0, 0, 1, 1, 0, 1, 2, 2, 2])
    samples = Samples(np.zeros((9, 1, 1, 1), np.float32), labels, 3)
    part = Part("is scored on", "data.test = 'test'", np.arange(9) >= 4)
    own = dealt_part(samples, [np.array([0, 1]), np.array([2, 3])], part, seed=0)
    assert [rows.tolist() for rows in own] == [[4], [5]]
