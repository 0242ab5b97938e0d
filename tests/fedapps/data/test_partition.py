"""Image sets made here (parquet, folders of images, saved sets), their partitions, the
cache, and every error.
"""

import os
import socket
import threading
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.data import cache, images, sources
from fedapps.data.images import read_samples
from fedapps.data.options import PARTITIONS, DataOptions
from fedapps.data.partition import client_data, partition, split_rows, thinned
from fedapps.data.samples import Categorical, Samples
from fedapps.data.scaling import inputs
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings


@pytest.fixture(autouse=True)
def online(own_caches, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)


def pictures(count=40, size=(6, 5), channels=3):
    shape = (count, size[0], size[1], 3) if channels == 3 else (count, *size)
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


def write_parquet(folder, columns, features=None, split="train"):
    folder.mkdir(exist_ok=True)
    data = datasets.Dataset.from_dict(columns, features=features)
    data.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    """40 colour images in 4 classes; column ``writer`` names 5 natural clients of 8."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=4),
            "writer": datasets.Value("string"),
        }
    )
    columns = {
        "image": [Image.fromarray(p) for p in pictures()],
        "label": [i % 4 for i in range(40)],
        "writer": [f"w{i % 5}" for i in range(40)],
    }
    return write_parquet(tmp_path / "set", columns, features)


@pytest.fixture(scope="module")
def digits():
    return read_samples(DataOptions())


def test_digits(digits):
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.float32
    assert (digits.x.min(), digits.x.max(), digits.num_classes) == (0, 1, 10)


def test_taken_samples_keep_all_that_belongs_to_them():
    rows, number = np.array([3, 1]), np.arange(4)
    column = Categorical(number, tuple("abcd"))
    given = {"clients": column, "groups": column, "persons": column, "parts": number, "by": number}
    samples = Samples(number, number, 4, **given, targets=number[:, None] / 2)
    taken = samples.take(rows)
    for name in ("x", "labels", "parts", "by"):
        np.testing.assert_array_equal(getattr(taken, name), rows)
    for name in ("clients", "groups", "persons"):
        np.testing.assert_array_equal(getattr(taken, name).codes, rows)
    np.testing.assert_array_equal(taken.targets, [[1.5], [0.5]])


def test_pixels_are_from_0_to_1_and_sounds_from_minus_1_to_1():
    for kind, lowest in ((np.uint8, 0), (np.int16, -1)):
        x = np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind).reshape(2, 1, 1, 1)
        got = inputs(Samples(x, np.zeros(2, int), 1), np.arange(2))
        np.testing.assert_allclose(got.ravel(), [lowest, 1], atol=1e-4)


def test_parquet_folder_gives_the_pixels_back(folder):
    images = read_samples(DataOptions(source=folder))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))
    assert images.x.dtype == np.uint8
    assert images.labels.tolist() == [i % 4 for i in range(40)]
    assert (images.num_classes, images.clients) == (4, None)


def test_grey_then_colour_becomes_colour(tmp_path):
    grey, colour = pictures(2, channels=1), pictures(2)
    mixed = [Image.fromarray(grey[0]), Image.fromarray(colour[1]), Image.fromarray(grey[1])]
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.Value("int64")})
    source = write_parquet(tmp_path / "set", {"img": mixed, "fine_label": [7, 9, 7]}, features)
    images = read_samples(DataOptions(source=source))
    assert np.array_equal(images.x[0], np.stack([grey[0]] * 3))
    assert np.array_equal(images.x[1], colour[1].transpose(2, 0, 1))
    assert np.array_equal(images.x[2], np.stack([grey[1]] * 3))
    assert (images.labels.tolist(), images.num_classes) == ([0, 1, 0], 2)


def test_folder_of_images(tmp_path):
    for name, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / "set" / "train" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((4, 4), shade + i, np.uint8)).save(
                tmp_path / "set" / "train" / name / f"{i}.png"
            )
    images = read_samples(DataOptions(source=str(tmp_path / "set")))
    assert images.x.shape == (6, 1, 4, 4)
    assert all(
        (image.mean() > 100) == bool(label)
        for image, label in zip(images.x, images.labels, strict=True)
    )


@pytest.mark.parametrize("as_dict", [True, False])
def test_saved_set(tmp_path, as_dict):
    data = datasets.Dataset.from_dict(
        {"picture": [Image.fromarray(p) for p in pictures(4)], "character": list("bab?")},
        features=datasets.Features(
            {"picture": datasets.Image(), "character": datasets.Value("string")}
        ),
    )
    (datasets.DatasetDict({"train": data}) if as_dict else data).save_to_disk(str(tmp_path / "set"))
    images = read_samples(DataOptions(source=str(tmp_path / "set")))
    assert np.array_equal(images.x, pictures(4).transpose(0, 3, 1, 2))
    assert images.labels.tolist() == [2, 1, 2, 0]  # "?" < "a" < "b"


def test_plain_parquet_without_the_librarys_metadata(folder, tmp_path):
    data = datasets.Dataset.from_parquet(str(Path(folder) / "train-00000-of-00001.parquet"))
    frame = data.cast_column("image", datasets.Image(decode=False)).to_pandas()
    (tmp_path / "plain").mkdir()
    frame.to_parquet(tmp_path / "plain" / "train.parquet")
    images = read_samples(DataOptions(source=str(tmp_path / "plain")))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))


def test_max_samples_keeps_the_classes_of_a_sorted_set(tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=4)}
    )
    columns = {
        "image": [Image.fromarray(p) for p in pictures()],
        "label": [i // 10 for i in range(40)],
    }
    source = write_parquet(tmp_path / "set", columns, features)
    images = thinned(read_samples(DataOptions(source=source)), DataOptions(max_samples=8))
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert np.array_equal(images.x[-1], pictures()[35].transpose(2, 0, 1))


# The cache


def test_second_read_does_not_decode(folder, monkeypatch):
    first = read_samples(DataOptions(source=folder))
    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("decoded twice"))
    second = read_samples(DataOptions(source=folder))
    assert isinstance(second.x, np.memmap)
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.labels, second.labels)


def test_changed_files_are_read_anew(folder):
    read_samples(DataOptions(source=folder))
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=2)}
    )
    write_parquet(
        Path(folder), {"image": [Image.fromarray(pictures(1)[0])], "label": [1]}, features
    )
    assert len(read_samples(DataOptions(source=folder)).labels) == 1


@pytest.mark.parametrize("damage", ["truncate", "no facts", "other shape", "a file in its place"])
def test_broken_entry_is_replaced(folder, damage, caplog):
    read_samples(DataOptions(source=folder))
    (entry,) = cache.folder().iterdir()
    if damage == "truncate":
        os.truncate(entry / "x.npy", 200)
    elif damage == "no facts":
        (entry / "facts.json").write_text("{")
    elif damage == "other shape":
        np.save(entry / "labels.npy", np.zeros(3, np.int64))
    else:
        for path in entry.iterdir():
            path.unlink()
        entry.rmdir()
        entry.write_text("")
    images = read_samples(DataOptions(source=folder))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))
    assert "cache" in caplog.text or damage == "a file in its place"
    assert [path.name for path in cache.folder().iterdir()] == [entry.name], (
        "nothing is left behind"
    )
    if damage != "a file in its place":
        assert cache.load(entry.name) is not None


def test_unwritable_cache_is_no_failure(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "file" / "below"))
    assert read_samples(DataOptions(source=folder)).x.shape == (40, 3, 6, 5)
    assert "are not kept" in caplog.text


def test_nothing_is_seen_before_it_is_complete(monkeypatch):
    seen = []
    save = np.save

    def watched(path, *args, **kwargs):
        save(path, *args, **kwargs)
        seen.append((cache.folder() / "key").exists())

    monkeypatch.setattr(np, "save", watched)
    assert cache.save("key", {"pixels": np.zeros(3), "labels": np.zeros(3)}, {}) is not None
    assert seen == [False, False]


def test_writers_do_not_disturb_each_other():
    arrays = {"pixels": np.arange(200_000)}
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.save("key", arrays, {"n": 1})))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(np.array_equal(entry[0]["pixels"], arrays["pixels"]) for entry in results)
    assert [path.name for path in cache.folder().iterdir()] == ["key"]


# Partitions


@pytest.mark.parametrize("scheme", [name for name in PARTITIONS if name != "natural"])
def test_partitions_of_digits(digits, scheme):
    settings = DataOptions(partition=scheme)
    parts = partition(digits, settings, 20, seed=0)
    assert len(parts) == 20
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1797))
    assert min(map(len, parts)) >= 5
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert all(map(np.array_equal, parts, partition(digits, settings, 20, seed=0)))
    assert not all(map(np.array_equal, parts, partition(digits, settings, 20, seed=1)))


def test_small_alpha_is_more_skewed(digits):
    def skew(alpha):
        parts = partition(digits, DataOptions(partition="dirichlet", alpha=alpha), 10, seed=0)
        shares = [np.bincount(digits.labels[part], minlength=10) / len(part) for part in parts]
        return np.mean(np.max(shares, axis=1))

    assert skew(0.1) > skew(1.0) + 0.1 > skew(100.0) + 0.2


@pytest.mark.slow
def test_dirichlet_names_client_and_alpha_that_works(digits):
    settings = DataOptions(partition="dirichlet", alpha=0.001)
    with pytest.raises(
        UserError,
        match=r"^data.partition = 'dirichlet' with data.alpha = 0.001 leaves client \d+ of 20 "
        r"\(with [0-4] samples\) "
        r"without the 5 samples it needs: the smallest alpha that works here is \d",
    ) as caught:
        partition(digits, settings, 20, seed=0)
    alpha = float(str(caught.value).split()[-1])
    parts = partition(digits, DataOptions(partition="dirichlet", alpha=alpha), 20, seed=0)
    assert min(map(len, parts)) >= 5
    with pytest.raises(UserError, match="no larger alpha helps, choose fewer clients"):
        partition(digits, settings, 359, seed=0)


def test_natural_clients(folder):
    # min_samples: exactly what each has
    settings = DataOptions(source=folder, partition="natural", natural_id="writer", min_samples=8)
    images = read_samples(settings)
    assert images.clients.names == ("w0", "w1", "w2", "w3", "w4")
    parts = partition(images, settings, 5, seed=0)
    assert [part.tolist() for part in parts] == [list(range(i, 40, 5)) for i in range(5)]
    assert [part.tolist() for part in partition(images, settings, 2, seed=0)] == [
        list(range(i, 40, 5)) for i in range(2)
    ]
    with pytest.raises(
        UserError, match=r"data.natural-id = 'writer': .* has 5 clients .* choose at most 5 nodes"
    ):
        partition(images, settings, 6, seed=0)


def test_client_data(folder):
    images = read_samples(DataOptions(source=folder))
    indices = np.arange(3, 33)
    data = client_data(images, split_rows(indices, client_id=7, seed=1))
    assert [len(data.train), len(data.validation), len(data.test)] == [18, 6, 6]
    x = torch.cat([data.train.x, data.validation.x, data.test.x])
    y = torch.cat([data.train.y, data.validation.y, data.test.y])
    assert (x.dtype, y.dtype, x.shape) == (torch.float32, torch.int64, (30, 3, 6, 5))
    # every sample is there once, with its label: find each by its pixels
    rows = [
        next(i for i in indices if np.array_equal(np.round(sample.numpy() * 255), images.x[i]))
        for sample in x
    ]
    assert sorted(rows) == indices.tolist()
    assert y.tolist() == images.labels[rows].tolist()
    assert torch.equal(client_data(images, split_rows(indices, 7, 1)).test.x, data.test.x)
    assert not torch.equal(client_data(images, split_rows(indices, 8, 1)).test.x, data.test.x)
    assert not torch.equal(client_data(images, split_rows(indices, 7, 2)).test.x, data.test.x)


def test_without_validation_the_training_part_is_larger_and_stands_in(digits):
    indices = np.arange(3, 38)
    apart = client_data(digits, split_rows(indices, 7, 1))
    joined = client_data(digits, split_rows(indices, 7, 1, validation=0.0))
    assert torch.equal(joined.test.x, apart.test.x), "the same test samples"
    assert joined.validation is joined.train
    both = torch.cat([apart.train.x, apart.validation.x]).flatten(1)
    assert sorted(map(tuple, joined.train.x.flatten(1).tolist())) == sorted(
        map(tuple, both.tolist())
    )
    assert [
        len(part)
        for part in vars(client_data(digits, split_rows(indices, 7, 1, validation=0.4))).values()
    ] == [14, 14, 7]


CHAPTER = {  # the columns of the hub's sets: label column and classes, side, others
    "cifar100": (
        "img",
        "fine_label",
        100,
        32,
        {"coarse_label": datasets.ClassLabel(num_classes=20)},
        "resnet9",
    ),
    "femnist": (
        "image",
        "character",
        62,
        28,
        {"writer_id": datasets.Value("string"), "hsf_id": datasets.Value("int64")},
        "vgg9",
    ),
    "tiny-imagenet": ("image", "label", 200, 64, {}, "mobilenet"),
}


@pytest.mark.parametrize("name", CHAPTER)
def test_the_sets_and_nets_of_the_superfed_paper(name, tmp_path):
    """A folder with the columns of each set: found without being named, dealt, and
    scored by the paper's net for it.
    """
    image, label, classes, side, others, net = CHAPTER[name]
    shape = (side, side) if name == "femnist" else (side, side, 3)
    shots = np.random.default_rng(0).integers(0, 256, (24, *shape), dtype=np.uint8)
    columns = {image: [Image.fromarray(p) for p in shots], label: list(range(24))}
    columns |= {
        key: [f"w{i % 2}" if key == "writer_id" else 0 for i in range(24)] for key in others
    }
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.ClassLabel(num_classes=classes), **others}
    )
    config = {
        "data.source": write_parquet(tmp_path / "set", columns, features),
        "model.name": net,
        "data.partition": "iid",
    }
    if "writer_id" in others:
        config |= {"data.partition": "natural", "data.natural-id": "writer_id"}
    task = build_task(read_settings(config))
    task.check(2)
    assert (task.samples.num_classes, task.samples.x.shape[1:]) == (
        classes,
        (1 if name == "femnist" else 3, side, side),
    )
    assert task.natural_clients() == (2 if name == "femnist" else 0)
    scores = task.objective.score(task.work_model(), task.client_data(1, 2).test)
    assert np.isfinite(scores["loss"])


@pytest.mark.parametrize("validation", [0.2, 0.0])
def test_noise_is_in_the_training_labels_only(validation):
    config = {"data.partition": "iid", "data.validation": validation, "num-clients": 4, "seed": 5}
    clean = build_task(read_settings(config)).client_data(1, 4)
    noisier = read_settings({**config, "data.noise": "pair", "data.noise-ratio": 0.4})
    noisy = build_task(noisier).client_data(1, 4)
    assert torch.equal(noisy.test.y, clean.test.y)
    wrong = noisy.train.y != clean.train.y
    assert 0.3 < wrong.float().mean() < 0.5
    assert torch.equal(noisy.train.y[wrong], (clean.train.y[wrong] + 1) % 10)
    assert torch.equal(noisy.train.x, clean.train.x)
    assert torch.equal(noisy.validation.y, clean.validation.y if validation else noisy.train.y)
    again = build_task(noisier).client_data(1, 4)
    assert torch.equal(again.train.y, noisy.train.y)


def test_validation_labels_are_noisy_where_a_site_has_no_clean_ones():
    config = {
        "data.partition": "iid",
        "num-clients": 4,
        "seed": 5,
        "data.noise": "symmetric",
        "data.noise-ratio": 0.4,
    }
    clean = build_task(
        read_settings({**config, "data.noise": "none", "data.noise-ratio": 0.0})
    ).client_data(1, 4)
    usual = build_task(read_settings(config)).client_data(1, 4)
    own = build_task(read_settings({**config, "data.noise-validation": True})).client_data(1, 4)
    # what a site trains on does not depend on the option
    assert torch.equal(own.train.y, usual.train.y)
    assert torch.equal(own.test.y, clean.test.y)
    assert torch.equal(own.validation.x, clean.validation.x)
    right = own.validation.y == clean.validation.y
    assert 0.25 < 1 - right.float().mean() < 0.55
    # Drawn for themselves: not the flips of the first training samples over again.
    assert not torch.equal(right, (own.train.y == clean.train.y)[: len(right)])
    without = build_task(
        read_settings({**config, "data.validation": 0.0, "data.noise-validation": True})
    ).client_data(1, 4)
    assert without.validation is without.train


def test_tasks_whose_labels_cannot_be_flipped_say_so():
    for task in ("text", "words"):
        with pytest.raises(UserError, match=r"data.noise = 'pair'.* (leave it|does not use)"):
            build_task(read_settings({"task": task, "data.noise": "pair", "data.noise-ratio": 0.1}))


def test_client_data_leaves_the_images_alone(digits):
    before = digits.x.copy()
    client_data(digits, split_rows(np.arange(10), 0, 0)).train.x.zero_()
    assert np.array_equal(before, digits.x)


@pytest.mark.skipif(
    "FEDAPPS_TEST_DATA" not in os.environ, reason="FEDAPPS_TEST_DATA names no folder with mnist"
)
def test_real_mnist():
    settings = DataOptions(source=str(Path(os.environ["FEDAPPS_TEST_DATA"]) / "mnist"))
    images = read_samples(settings)
    assert images.x.shape == (60_000, 1, 28, 28)
    # the known mean of the training set
    assert round(float(images.x.mean()) / 255, 4) == 0.1307
    assert np.bincount(images.labels)[:3].tolist() == [5923, 6742, 5958]
    parts = partition(images, settings, 100, seed=0)
    assert {len(np.unique(images.labels[part])) for part in parts} == {2}


# Errors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"partition": "pathologic"},
            "partition = 'pathologic': did you mean 'pathological'? choose one of iid, ",
        ),
        ({"alpha": -1.0}, "alpha = -1.0: choose a value in (0, inf)"),
        ({"alpha": float("nan")}, "alpha = nan: choose a value in (0, inf)"),
        ({"share": 1.1}, "share = 1.1: choose a value in [0, 1]"),
        ({"classes_per_client": 0}, "classes-per-client = 0: choose a value in [1, inf)"),
        ({"noise": "pear"}, "noise = 'pear': did you mean 'pair'?"),
        ({"noise": "pair", "noise_ratio": 1.0}, "noise-ratio = 1.0: choose a value in [0, 1)"),
        (
            {"noise": "symmetric", "noise_ratio": -0.1},
            "noise-ratio = -0.1: choose a value in [0, 1)",
        ),
        (
            {"noise_ratio": 0.1},
            "noise-ratio = 0.1: noise = 'none': choose noise = pair or symmetric, or the ratio 0",
        ),
        (
            {"noise_validation": True},
            "noise-validation = True: noise = 'none': choose noise = pair or symmetric, or false",
        ),
        ({"max_samples": -1}, "max-samples = -1: choose a value in [0, inf)"),
        ({"source": ""}, "source = '': must not be empty"),
    ],
)
def test_settings_are_checked_at_once(values, message):
    with pytest.raises(ValueError, match=r".") as caught:
        DataOptions(**values)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("values", "clients", "message"),
    [
        (
            {"classes_per_client": 12},
            20,
            "data.classes-per-client = 12, but digits has 10 classes: choose 1..10",
        ),
        (
            {},
            400,
            "400 clients, but digits has 1797 samples and each client needs 5: choose at most 359 "
            "clients",
        ),
        (
            {"classes_per_client": 10},
            350,
            "data.partition = 'pathological': class 0 has 178 samples for 350 clients",
        ),
    ],
)
def test_impossible_partitions(digits, values, clients, message):
    with pytest.raises(UserError, match=r"^") as caught:
        partition(digits, DataOptions(**values), clients, seed=0)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": "img"}, "data.image = 'img': SOURCE has the columns image, label, writer"),
        (
            {"image": "writer"},
            "data.image = 'writer': is not an image column; SOURCE has the columns image, label",
        ),
        ({"label": "lable"}, "data.label = 'lable': SOURCE has the columns image, label, writer"),
        ({"label": "image"}, "data.label = 'image': holds no plain value per sample"),
        (
            {"partition": "natural", "natural_id": "author"},
            "data.natural-id = 'author': SOURCE has the columns image, label, writer",
        ),
        (
            {"split": "tran"},
            "data.split = 'tran': SOURCE has train",
        ),
    ],
)
def test_wrong_columns_and_splits(folder, values, message):
    with pytest.raises(UserError, match=r"^data\.") as caught:
        read_samples(DataOptions(source=folder, **values))
    assert str(caught.value).startswith(message.replace("SOURCE", folder))


def test_data_that_cannot_be_used(tmp_path, folder):
    with pytest.raises(
        UserError, match=r"data.source = '\./nowhere/at/all': there is no such folder"
    ):
        read_samples(DataOptions(source="./nowhere/at/all"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"data.source = .*cannot be read"):
        read_samples(DataOptions(source=str(tmp_path / "empty")))
    table = write_parquet(tmp_path / "table", {"name": ["a", "b"], "label": [0, 1]})
    with pytest.raises(
        UserError,
        match=r"data.features: no column of .* is left to learn from",
    ):
        read_samples(DataOptions(source=table))
    one = {"picture": [Image.fromarray(pictures(1)[0])]}
    no_label = write_parquet(
        tmp_path / "no-label", one, datasets.Features({"picture": datasets.Image()})
    )
    with pytest.raises(
        UserError, match=r"the pictures of .* lie in one folder, and no class is known"
    ):
        read_samples(DataOptions(source=no_label))
    both = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    sizes = [Image.fromarray(pictures(1)[0]), Image.fromarray(pictures(1, (4, 5))[0])]
    uneven = write_parquet(tmp_path / "uneven", {"image": sizes, "label": [0, 1]}, both)
    with pytest.raises(
        UserError, match=r"images differ in size \(6 x 5 and 4 x 5 in image 1\): set data.resize"
    ):
        read_samples(DataOptions(source=uneven))
    damaged = write_parquet(
        tmp_path / "damaged", {"image": [{"bytes": b"no image", "path": None}], "label": [0]}, both
    )
    with pytest.raises(UserError, match="image 0 cannot be decoded"):
        read_samples(DataOptions(source=damaged))
    missing = write_parquet(
        tmp_path / "missing", {"image": [sizes[0]] * 2, "label": [0, None]}, both
    )
    with pytest.raises(UserError, match="column 'label': 1 samples have no value in it"):
        read_samples(DataOptions(source=missing))
    two = datasets.Features(
        {"left": datasets.Image(), "right": datasets.Image(), "label": datasets.Value("int64")}
    )
    stereo = write_parquet(
        tmp_path / "stereo", {"left": sizes[:1], "right": sizes[:1], "label": [0]}, two
    )
    with pytest.raises(
        UserError, match=r"data.image: .* has several image columns, name one of left, right"
    ):
        read_samples(DataOptions(source=stereo))
    assert read_samples(DataOptions(source=stereo, image="right")).x.shape == (1, 3, 6, 5)


# The hub


@pytest.fixture
def endpoint(monkeypatch):
    """A loopback port that nobody listens on, or one that accepts and never answers."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        huggingface_hub.close_session()
        yield server
    huggingface_hub.close_session()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("silent", [True, False])
def test_unreachable_hub_ends_soon(endpoint, silent, monkeypatch):
    assert sources.HUB_SECONDS < 15
    monkeypatch.setattr(sources, "HUB_SECONDS", 1.0)
    if silent:
        endpoint.listen()
    with pytest.raises(
        UserError,
        match=r"data.source = 'some/set': no such folder, and the hub at http://127.0.0.1",
    ):
        read_samples(DataOptions(source="some/set"))
    assert datasets.config.HF_HUB_OFFLINE is False


def test_set_in_the_hub_cache_needs_no_hub(endpoint, folder):
    """What the library keeps of a hub set after a download, made here from a local
    one.
    """
    datasets.load_dataset(folder)
    kept = Path(datasets.config.HF_DATASETS_CACHE)
    (kept / "set").rename(kept / "some___set")
    images = read_samples(DataOptions(source="some/set"))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))


def test_folder_in_the_librarys_cache_is_not_taken_for_a_hub_set(endpoint, folder):
    datasets.load_dataset(folder)
    assert (Path(datasets.config.HF_DATASETS_CACHE) / Path(folder).name).is_dir()
    with pytest.raises(UserError, match=r"no such folder, and the hub at .* is not reachable"):
        read_samples(DataOptions(source=Path(folder).name))


def test_name_unknown_to_the_hub(monkeypatch):
    from huggingface_hub.errors import HFValidationError

    def refuse(self, name, timeout):
        raise HFValidationError(name)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    with pytest.raises(
        UserError,
        match=r"'digit': no such folder, nor such a data set on the hub: did you mean 'digits'",
    ):
        read_samples(DataOptions(source="digit"))
    with pytest.raises(UserError, match="use its owner/name, a folder, or digits"):
        read_samples(DataOptions(source="a/b/c"))


def test_tensors_of_clients_are_kept_up_to_a_limit_and_made_again(monkeypatch):
    """Three of six fit: the one used longest ago goes, what is made again is the same,
    parts that stand in count once.
    """
    settings = read_settings(
        {
            "num-clients": 6,
            "data.partition": "iid",
            "data.validation": 0.0,
            "data.noise": "pair",
            "data.noise-ratio": 0.3,
        }
    )
    task = build_task(settings)
    first = [task.client_data(client, 6) for client in range(6)]
    assert first[0].validation is first[0].train
    assert first[0].nbytes == sum(
        t.nbytes for part in (first[0].train, first[0].test) for t in (part.x, part.y)
    )
    assert all(task.client_data(client, 6) is data for client, data in enumerate(first))
    made = []
    prepare = task.prepare
    monkeypatch.setattr("fedapps.tasks.base.KEPT_BYTES", 3 * first[0].nbytes + 1000)
    task = build_task(settings)
    monkeypatch.setattr(
        task, "prepare", lambda client, number: made.append(client) or prepare(client, number)
    )
    for client in (0, 1, 2, 0, 3, 0, 1):  # 3 sends 1 away, 1 sends 2 away
        data = task.client_data(client, 6)
        assert torch.equal(data.train.x, first[client].train.x)
        assert torch.equal(data.train.y, first[client].train.y)
        assert torch.equal(data.test.x, first[client].test.x)
    assert made == [0, 1, 2, 3, 1]
    monkeypatch.setattr("fedapps.tasks.base.KEPT_BYTES", 1)
    # too large for any limit: used all the same
    assert torch.equal(task.client_data(5, 6).test.y, first[5].test.y)
