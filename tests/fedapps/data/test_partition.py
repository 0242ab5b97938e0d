"""Image sets made here (parquet, folders of images, saved sets), their partitions, the
cache, and every error.
"""

import os
import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.commands.parser import main
from fedapps.data import cache, flower_partitioners, images, sources
from fedapps.data.images import read_samples
from fedapps.data.options import PARTITIONS, DataOptions
from fedapps.data.partition import client_data, natural_clients, partition, split_rows, thinned
from fedapps.data.scaling import inputs
from fedapps.data.source import Categorical, Samples
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from tests.data_folders import write_parquet
from tests.helpers import assert_arrays, refused

IMAGES = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=4)}


@pytest.fixture(autouse=True)
def online(own_caches, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)


def pictures(count=40, size=(6, 5), channels=3):
    shape = (count, size[0], size[1], 3) if channels == 3 else (count, *size)
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """40 colour images in 4 classes; column ``writer`` names 5 natural clients of 8."""
    features = IMAGES | {"writer": datasets.Value("string")}
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
    assert (digits.x.shape, digits.x.dtype, digits.num_classes) == ((1797, 1, 8, 8), np.float32, 10)
    assert (digits.x.min(), digits.x.max()) == (0, 1)


def test_taken_samples_keep_all_that_belongs_to_them():
    rows, number = np.array([3, 1]), np.arange(4)
    column = Categorical(number, tuple("abcd"))
    given = {"clients": column, "groups": column, "persons": column, "parts": number, "by": number}
    taken = Samples(number, number, 4, **given, targets=number[:, None] / 2).take(rows)
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


def test_grey_then_colour_becomes_colour(tmp_path):
    grey, colour = pictures(2, channels=1), pictures(2)
    mixed = [Image.fromarray(grey[0]), Image.fromarray(colour[1]), Image.fromarray(grey[1])]
    features = {"img": datasets.Image(), "fine_label": datasets.Value("int64")}
    source = write_parquet(tmp_path / "set", {"img": mixed, "fine_label": [7, 9, 7]}, features)
    images = read_samples(DataOptions(source=source))
    grey = np.repeat(grey[:, None], 3, 1)
    np.testing.assert_array_equal(images.x, [grey[0], colour[1].transpose(2, 0, 1), grey[1]])
    assert (images.labels.tolist(), images.num_classes) == ([0, 1, 0], 2)


def test_folder_of_images(tmp_path):
    for name, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / "set" / "train" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (4, 4), shade + i).save(tmp_path / "set" / "train" / name / f"{i}.png")
    images = read_samples(DataOptions(source=str(tmp_path / "set")))
    assert images.x.shape == (6, 1, 4, 4)
    assert ((images.x.mean((1, 2, 3)) > 100) == images.labels).all()


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


def test_max_samples_keeps_the_classes_of_a_sorted_set():
    fewer = thinned(Samples(np.arange(40), np.arange(40) // 10, 4), DataOptions(max_samples=8))
    assert (fewer.labels.tolist(), fewer.x.tolist()) == (
        [0, 0, 1, 1, 2, 2, 3, 3],
        list(range(0, 40, 5)),
    )


# The cache


def test_second_read_does_not_decode(folder, monkeypatch):
    first = read_samples(DataOptions(source=folder))
    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("decoded twice"))
    second = read_samples(DataOptions(source=folder))
    assert isinstance(second.x, np.memmap)
    assert_arrays((first.x, first.labels), (second.x, second.labels))


def test_changed_files_are_read_anew(folder):
    read_samples(DataOptions(source=folder))
    write_parquet(Path(folder), {"image": [Image.fromarray(pictures(1)[0])], "label": [1]}, IMAGES)
    assert len(read_samples(DataOptions(source=folder)).labels) == 1


@pytest.mark.parametrize("damage", ["truncate", "no facts", "other shape"])
def test_broken_entry_is_replaced(folder, damage, caplog):
    read_samples(DataOptions(source=folder))
    (entry,) = cache.folder().iterdir()
    if damage == "truncate":
        os.truncate(entry / "x.npy", 200)
    elif damage == "no facts":
        (entry / "facts.json").write_text("{")
    else:
        np.save(entry / "labels.npy", np.zeros(3, np.int64))
    images = read_samples(DataOptions(source=folder))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))
    assert "cache" in caplog.text
    assert list(cache.folder().iterdir()) == [entry], "nothing is left behind"
    assert cache.load(entry.name) is not None


@pytest.mark.parametrize("place", ["the entry", "the folder"])
def test_unwritable_cache_is_no_failure(folder, place, tmp_path, monkeypatch, caplog):
    """A file stands where the entry, or the cache, would be."""
    if place == "the folder":
        monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "file" / "below"))
        (tmp_path / "file").write_text("")
    else:
        read_samples(DataOptions(source=folder))
        (entry,) = cache.folder().iterdir()
        shutil.rmtree(entry)
        entry.write_text("")
    images = read_samples(DataOptions(source=folder))
    assert np.array_equal(images.x, pictures().transpose(0, 3, 1, 2))
    assert "are not kept" in caplog.text


def test_nothing_is_seen_before_it_is_complete(monkeypatch):
    seen, save = [], np.save

    def watched(path, *args, **kwargs):
        save(path, *args, **kwargs)
        seen.append((cache.folder() / "key").exists())

    monkeypatch.setattr(np, "save", watched)
    assert cache.save("key", {"pixels": np.zeros(3), "labels": np.zeros(3)}, {}) is not None
    assert seen == [False, False]


def test_writers_do_not_disturb_each_other():
    arrays = {"pixels": np.arange(200_000)}
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: cache.save("key", arrays, {"n": 1}), range(8)))
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
    refused(
        lambda: partition(digits, settings, 359, seed=0),
        "no larger alpha helps, choose fewer clients",
        UserError,
    )


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
    refused(
        lambda: partition(images, settings, 6, seed=0),
        r"data.natural-id = 'writer': .* has 5 clients .* choose at most 5 nodes",
        UserError,
    )


def test_client_data():
    """The first pixel of a sample is its number, as its label is."""
    number = np.arange(40)
    samples = Samples(np.full((40, 3, 6, 5), number[:, None, None, None], np.uint8), number, 40)
    rows = split_rows(number[3:33], client_id=7, seed=1)
    data = client_data(samples, rows)
    parts = data.train, data.validation, data.test
    assert [len(part) for part in parts] == [18, 6, 6]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    assert (x.dtype, y.dtype, x.shape) == (torch.float32, torch.int64, (30, 3, 6, 5))
    assert sorted(y.tolist()) == list(range(3, 33)), "every sample is there once"
    assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), y), "with its label"
    again, client, seed = (
        split_rows(number[3:33], *of)[2].tolist() for of in ((7, 1), (8, 1), (7, 2))
    )
    assert rows[2].tolist() == again
    assert again not in (client, seed)


def test_without_validation_the_training_part_is_larger_and_stands_in(digits):
    indices = np.arange(3, 38)
    train, validation, test = split_rows(indices, 7, 1)
    joined, none, same = split_rows(indices, 7, 1, validation=0.0)
    assert joined.tolist() == sorted([*train, *validation])
    assert (len(none), same.tolist()) == (0, test.tolist())
    data = client_data(digits, (joined, none, same))
    assert data.validation is data.train
    assert [len(part) for part in split_rows(indices, 7, 1, validation=0.4)] == [14, 14, 7]


HUB = {  # the columns of the hub's sets: label column and classes, side, others
    "cifar100": ("img", "fine_label", 100, {"coarse_label": datasets.ClassLabel(num_classes=20)}),
    "femnist": (
        "image",
        "character",
        62,
        {"writer_id": datasets.Value("string"), "hsf_id": datasets.Value("int64")},
    ),
}


def noisy_client(config):
    """The data of one of four clients, with noise in 40 % of the labels, if any."""
    ratio = 0.0 if config["data.noise"] == "none" else 0.4
    job = {"data.partition": "iid", "num-clients": 4, "seed": 5, "data.noise-ratio": ratio}
    return build_task(read_settings(job | config)).client_data(1, 4)


@pytest.mark.parametrize("name", HUB)
def test_the_columns_of_the_superfed_papers_sets_need_not_be_named(name, tmp_path):
    image, label, classes, others = HUB[name]
    columns = {image: [Image.fromarray(p) for p in pictures(24)], label: list(range(24))}
    columns |= {key: ["w0" if key == "writer_id" else 0] * 24 for key in others}
    features = {image: datasets.Image(), label: datasets.ClassLabel(num_classes=classes), **others}
    images = read_samples(DataOptions(source=write_parquet(tmp_path / "set", columns, features)))
    assert (images.num_classes, images.labels.tolist()) == (classes, list(range(24)))


@pytest.mark.parametrize("validation", [0.2, 0.0])
def test_noise_is_in_the_training_labels_only(validation):
    clean, noisy, again = (
        noisy_client({"data.noise": noise, "data.validation": validation})
        for noise in ("none", "pair", "pair")
    )
    assert torch.equal(noisy.test.y, clean.test.y)
    wrong = noisy.train.y != clean.train.y
    assert 0.3 < wrong.float().mean() < 0.5
    assert_arrays(
        (noisy.train.y[wrong], noisy.train.x, noisy.validation.y, again.train.y),
        (
            (clean.train.y[wrong] + 1) % 10,
            clean.train.x,
            clean.validation.y if validation else noisy.train.y,
            noisy.train.y,
        ),
    )


def test_validation_labels_are_noisy_where_a_site_has_no_clean_ones():
    clean, usual, own, without = (
        noisy_client({"data.noise": noise, "data.validation": validation, **more})
        for noise, validation, more in (
            ("none", 0.2, {}),
            ("symmetric", 0.2, {}),
            ("symmetric", 0.2, {"data.noise-validation": True}),
            ("symmetric", 0.0, {"data.noise-validation": True}),
        )
    )
    # what a site trains on does not depend on the option
    assert_arrays(
        (own.train.y, own.test.y, own.validation.x),
        (usual.train.y, clean.test.y, clean.validation.x),
    )
    right = own.validation.y == clean.validation.y
    assert 0.25 < 1 - right.float().mean() < 0.55
    # Drawn for themselves: not the flips of the first training samples over again.
    assert not torch.equal(right, (own.train.y == clean.train.y)[: len(right)])
    assert without.validation is without.train


def test_client_data_leaves_the_images_alone(digits):
    before = digits.x.copy()
    client_data(digits, split_rows(np.arange(10), 0, 0)).train.x.zero_()
    assert np.array_equal(before, digits.x)


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
    refused(lambda: DataOptions(**values), "^" + re.escape(message))


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
    refused(
        lambda: partition(digits, DataOptions(**values), clients, seed=0),
        "^" + re.escape(message),
        UserError,
    )


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
        ({"group": "six"}, "data.group = 'six': SOURCE has the columns image, label, writer"),
        ({"split": "tran"}, "data.split = 'tran': SOURCE has train"),
    ],
)
def test_wrong_columns_and_splits(folder, values, message):
    refused(
        lambda: read_samples(DataOptions(source=folder, **values)),
        "^" + re.escape(message.replace("SOURCE", folder)),
        UserError,
    )


NO_IMAGE = {"bytes": b"no image", "path": None}
SIZES = [Image.new("RGB", (5, 6)), Image.new("RGB", (5, 4))]
PAIRS = {"left": datasets.Image(), "right": datasets.Image(), "label": datasets.Value("int64")}


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        ({"name": ["a", "b"], "label": [0, 1]}, None, "data.features: no column of .* is left to"),
        (
            {"picture": SIZES[:1]},
            {"picture": datasets.Image()},
            "the pictures of .* lie in one folder, and no class is known",
        ),
        (
            {"image": SIZES, "label": [0, 1]},
            IMAGES,
            r"images differ in size \(6 x 5 and 4 x 5 in image 1\): set data.resize",
        ),
        ({"image": [NO_IMAGE], "label": [0]}, IMAGES, "image 0 cannot be decoded"),
        (
            {"image": SIZES[:1] * 2, "label": [0, None]},
            IMAGES,
            "column 'label': 1 samples have no value in it",
        ),
        (
            {"left": SIZES, "right": SIZES, "label": [0, 1]},
            PAIRS,
            "data.image: .* has several image columns, name one of left, right",
        ),
    ],
)
def test_sets_that_cannot_be_used(columns, features, message, tmp_path):
    source = write_parquet(tmp_path / "set", columns, features)
    refused(lambda: read_samples(DataOptions(source=source)), message, UserError)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./nowhere/at/all", r"data.source = '\./nowhere/at/all': there is no such folder"),
        ("{}", r"data.source = .*cannot be read"),
    ],
)
def test_a_source_that_holds_nothing(source, message, tmp_path):
    refused(lambda: read_samples(DataOptions(source=source.format(tmp_path))), message, UserError)


def test_one_of_two_columns_of_pictures(tmp_path):
    columns = {"left": [SIZES[0]], "right": [SIZES[1]], "label": [0]}
    source = write_parquet(tmp_path / "set", columns, PAIRS)
    assert read_samples(DataOptions(source=source, image="right")).x.shape == (1, 3, 4, 5)


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
    refused(
        lambda: read_samples(DataOptions(source="some/set")),
        r"data.source = 'some/set': no such folder, and the hub at http://127.0.0.1",
        UserError,
    )
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
    refused(
        lambda: read_samples(DataOptions(source=Path(folder).name)),
        r"no such folder, and the hub at .* is not reachable",
        UserError,
    )


def test_name_unknown_to_the_hub(monkeypatch):
    from huggingface_hub.errors import HFValidationError

    def refuse(self, name, timeout):
        raise HFValidationError(name)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    refused(
        lambda: read_samples(DataOptions(source="digit")),
        r"'digit': no such folder, nor such a data set on the hub: did you mean 'digits'",
        UserError,
    )
    refused(
        lambda: read_samples(DataOptions(source="a/b/c")),
        "use its owner/name, a folder, or digits",
        UserError,
    )


def test_tensors_of_clients_are_kept_up_to_a_limit_and_made_again(monkeypatch):
    """Three of six fit: the one used longest ago goes, what is made again is the same,
    parts that stand in count once.
    """
    noise = {"data.noise": "pair", "data.noise-ratio": 0.3, "data.validation": 0.0}
    settings = read_settings({"num-clients": 6, "data.partition": "iid", **noise})
    task = build_task(settings)
    first = [task.client_data(client, 6) for client in range(6)]
    assert first[0].nbytes == sum(
        t.nbytes for part in (first[0].train, first[0].test) for t in (part.x, part.y)
    )
    assert all(task.client_data(client, 6) is data for client, data in enumerate(first))
    made, prepare = [], task.prepare
    monkeypatch.setattr("fedapps.tasks.base.KEPT_BYTES", 3 * first[0].nbytes + 1000)
    task = build_task(settings)
    monkeypatch.setattr(
        task, "prepare", lambda client, number: made.append(client) or prepare(client, number)
    )
    for client in (0, 1, 2, 0, 3, 0, 1):  # 3 sends 1 away, 1 sends 2 away
        data = task.client_data(client, 6)
        assert_arrays((data.train.x, data.train.y), (first[client].train.x, first[client].train.y))
    assert made == [0, 1, 2, 3, 1]
    monkeypatch.setattr("fedapps.tasks.base.KEPT_BYTES", 1)
    # too large for any limit: used all the same
    assert torch.equal(task.client_data(5, 6).test.y, first[5].test.y)


# --- partitioners of flwr-datasets ----------------------------------------------------


@pytest.fixture
def table_of_sites(tmp_path, own_caches):
    """60 rows: ``site`` names 6 clients of 10, ``age`` is 0..59 in a mixed order,
    ``label`` one of 3 classes.
    """
    age = np.random.default_rng(0).permutation(60)
    columns = {
        "x": age / 10,
        "age": age,
        "site": [f"s{i % 6}" for i in range(60)],
        "label": [i // 20 for i in range(60)],
    }
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(columns).to_csv(tmp_path / "set" / "train.csv")
    return str(tmp_path / "set")


def parts_of(images, name, arguments="", clients=5, seed=3, **others):
    options = DataOptions(partition=f"flwr:{name}", partition_arguments=arguments, **others)
    return partition(images, options, clients, seed)


ARGUMENTS = {
    "ContinuousPartitioner": 'partition_by = "label", strictness = 0.7',
    "DirichletPartitioner": "alpha = 0.5",
    "DistributionPartitioner": f"distribution_array = {[[1, 2, 1, 3]] * 10}, num_unique_labels_per_partition = 4, "
    "preassigned_num_samples_per_label = 3",
    "GroupedNaturalIdPartitioner": 'partition_by = "label", group_size = 2',
    "InnerDirichletPartitioner": "partition_sizes = [100, 200, 300, 50, 80], alpha = 0.4",
    "NaturalIdPartitioner": 'partition_by = "label"',
    "PathologicalPartitioner": "num_classes_per_partition = 2",
    "ShardPartitioner": "num_shards_per_partition = 2",
    "SizePartitioner": "partition_sizes = [100, 200, 300, 50, 80]",
}


@pytest.mark.parametrize("name", flower_partitioners.names())
def test_every_partitioner_deals_disjoint_samples_by_the_seed(digits, name):
    given = {"name": name, "arguments": ARGUMENTS.get(name, "")}
    clients = 10 if name in ("NaturalIdPartitioner", "DistributionPartitioner") else 5
    parts = parts_of(digits, **given, clients=clients)
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert len(set(rows.tolist())) == len(rows), "no sample is dealt twice"
    assert all((np.diff(part) > 0).all() for part in parts)
    again = parts_of(digits, **given, clients=clients)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = parts_of(digits, **given, clients=clients, seed=4)
    same = all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    assert same == (
        name == "NaturalIdPartitioner" or (name == "GroupedNaturalIdPartitioner" and same)
    )


def test_each_does_what_its_name_says(digits):
    def sizes(name):
        return [len(part) for part in parts_of(digits, name, ARGUMENTS.get(name, ""))]

    assert sizes("SizePartitioner") == sizes("InnerDirichletPartitioner") == [100, 200, 300, 50, 80]
    assert np.ptp(sizes("IidPartitioner")) <= 1
    np.testing.assert_allclose(sizes("LinearPartitioner"), 1797 * np.arange(1, 6) / 15, atol=5)
    np.testing.assert_allclose(sizes("SquarePartitioner"), 1797 * np.arange(1, 6) ** 2 / 55, atol=5)
    two = parts_of(digits, "PathologicalPartitioner", "num_classes_per_partition = 2")
    assert all(len(np.unique(digits.labels[part])) == 2 for part in two)

    def skew(alpha):
        parts = parts_of(digits, "DirichletPartitioner", f"alpha = {alpha}")
        return np.mean([np.bincount(digits.labels[part]).max() / len(part) for part in parts])

    assert skew(0.1) > 2 * skew(100.0)


def test_a_set_that_is_sorted_by_class_is_shuffled_before_it_is_cut(table_of_sites):
    images = read_samples(DataOptions(source=table_of_sites, partition="flwr:IidPartitioner"))
    assert (np.diff(images.labels) >= 0).all()
    assert all(
        len(np.unique(images.labels[part])) == 3
        for part in parts_of(images, "IidPartitioner", clients=3)
    )


def test_columns_of_a_table(table_of_sites):
    def dealt(clients, name, **arguments):
        options = DataOptions(
            source=table_of_sites,
            partition=f"flwr:{name}",
            partition_arguments=", ".join(f"{key} = {one!r}" for key, one in arguments.items()),
        )
        images = read_samples(options)
        return images, natural_clients(images, options), partition(images, options, clients, 0)

    images, number, parts = dealt(6, "NaturalIdPartitioner", partition_by="site")
    assert images.x.shape[-1] == 2, "x and age; whose a sample is is no input"
    assert number == 6
    natural = DataOptions(source=table_of_sites, partition="natural", natural_id="site")
    wanted = partition(read_samples(natural), natural, 6, 0)
    assert [part.tolist() for part in parts] == [part.tolist() for part in wanted]
    _, number, parts = dealt(3, "GroupedNaturalIdPartitioner", partition_by="site", group_size=2)
    assert number == 3
    for part in parts:
        assert len(part) == 20
        assert len(np.unique(part % 6)) == 2
    images, _, parts = dealt(4, "ContinuousPartitioner", partition_by="age", strictness=1.0)
    assert images.x.shape[-1] == 8, "x, age, and the six values of site"
    ages = [np.sort(images.by[part]).tolist() for part in parts]
    assert ages == [list(range(start, start + 15)) for start in (0, 15, 30, 45)]


def test_the_command_names_partitioner_and_arguments(capsys):
    asked = ["data.partition=flwr:DirichletPartitioner", "data.partition-arguments=alpha = 0.7"]
    assert main(["data", *asked, "num-clients=4"]) == 0
    assert capsys.readouterr().out.startswith(
        "digits: 4 clients (flwr:DirichletPartitioner, alpha = 0.7), 10 classes"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "Dirichlet",
            "",
            "data.partition = 'flwr:Dirichlet': did you mean 'DirichletPartitioner'? choose one of "
            "ContinuousPart",
        ),
        (
            "DirichletPartitioner",
            "",
            "data.partition = 'flwr:DirichletPartitioner': needs alpha: data.partition-arguments = "
            "'alpha = ...'",
        ),
        (
            "DirichletPartitioner",
            "alhpa = 1",
            "data.partition-arguments: DirichletPartitioner has no argument 'alhpa': did you mean "
            "'alpha'?",
        ),
        (
            "IidPartitioner",
            "num_partitions = 3",
            "data.partition-arguments: num_partitions is the number of clients: set num-clients",
        ),
        (
            "DirichletPartitioner",
            "alpha = -1.0",
            "data.partition = 'flwr:DirichletPartitioner': flwr-datasets refuses: ",
        ),
        (
            "SizePartitioner",
            "partition_sizes = [9, 9]",
            "makes 2 clients of digits, 5 are asked for: leave num-clients 0",
        ),
        (
            "ExponentialPartitioner",
            "",
            "of 8 gets 1 samples of digits, it needs 5: choose fewer clients",
        ),
        (
            "VerticalEvenPartitioner",
            "",
            "data.partition = 'flwr:VerticalEvenPartitioner': deals columns",
        ),
        ("IdToSizeFncPartitioner", "", "takes a function: choose Linear-, Square-"),
        ("NaturalIdPartitioner", "", "name a column: data.partition-arguments = 'partition_by"),
        (
            "NaturalIdPartitioner",
            "partition_by = 3",
            "data.partition-arguments: partition_by = 3: must be the name of a column",
        ),
        (
            "NaturalIdPartitioner",
            "partition_by = 'writer'",
            "partition_by = 'writer': the digits have no such column",
        ),
    ],
)
def test_mistakes_about_partitioners_are_one_line(name, arguments, message):
    options = DataOptions(partition=f"flwr:{name}", partition_arguments=arguments)
    clients = 8 if name == "ExponentialPartitioner" else 5
    refused(
        lambda: partition(read_samples(options), options, clients, 0), re.escape(message), UserError
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data.partition-arguments": "alpha = 1"},
            "data.partition-arguments = 'alpha = 1': are those of partition = 'flwr:NAME'",
        ),
        (
            {"data.partition": "flwr:IidPartitioner", "data.partition-arguments": "alpha: 1"},
            "data.partition-arguments = 'alpha: 1': must be name = value, with commas between them",
        ),
    ],
)
def test_text_that_cannot_be_read_is_refused_at_once(settings, message):
    refused(lambda: read_settings(settings), "^" + re.escape(message), UserError)
