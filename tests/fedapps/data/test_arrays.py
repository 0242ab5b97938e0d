"""Arrays and numbers as samples: every way to store a window, scaling by clients' sums,
test splits, and each mistake of a user.
"""

import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks import tables
from fedapps.data.images import read_samples
from fedapps.data.local_files import arrow_table
from fedapps.data.options import DataOptions
from fedapps.data.partition import partition
from fedapps.data.source import TEST
from fedapps.errors import UserError
from fedapps.models.image_nets import DENSE, NAMES, build_model, net_for
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings
from tests.helpers import clients_of, refused, run_inline

PEOPLE, CHANNELS, STEPS, CLASSES = 5, 3, 16, 4


pytestmark = pytest.mark.usefixtures("own_caches")


def arrow_array(x):
    return arrow_table({"x": x}, "")["x"].combine_chunks()


def windows(count=60, seed=0, people=tuple(range(1, PEOPLE + 1))):
    """Return windows (n, C, L), classes from 1 on and people, whose sensors have
    offsets and units of their own.
    """
    rng = np.random.default_rng(seed)
    subject = np.resize(np.repeat(people, range(2, len(people) + 2)), count)
    x = (
        rng.normal(size=(count, CHANNELS, STEPS)) * [[1], [10], [100]]
        + [[0], [5], [1000]]
        + subject[:, None, None]
    )
    return x.astype(np.float32), 1 + rng.integers(CLASSES, size=count), subject


def write(folder, columns, split="train"):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}-0.parquet")
    return str(folder)


def table(x, y, subject, **more):
    return {"window": arrow_array(x), "activity": y, "subject": subject, **more}


def read(source, **values):
    return read_samples(DataOptions(source=str(source), **values))


STORED = {
    "nested lists of fixed size": lambda x, *rest: table(x, *rest),
    "doubles": lambda x, *rest: table(x.astype(np.float64), *rest),
    "flat list of fixed size": lambda x, *rest: table(x.reshape(len(x), -1), *rest),
    "lists of any size": lambda x, y, s: {
        **table(x, y, s),
        "window": arrow_array(x).cast(pa.list_(pa.list_(pa.float32()))),
    },
    "large lists": lambda x, y, s: {
        **table(x, y, s),
        "window": arrow_array(x).cast(pa.large_list(pa.large_list(pa.float32()))),
    },
    "a column a channel": lambda x, y, s: {
        **{f"acc_{c}": arrow_array(np.ascontiguousarray(x[:, k])) for k, c in enumerate("xyz")},
        "activity": y,
        "subject": s,
    },
}


@pytest.mark.parametrize("kind", STORED)
def test_every_way_to_store_a_window(kind, tmp_path):
    x, y, subject = windows()
    source = write(tmp_path / "set", STORED[kind](x, y, subject))
    options = {
        "flat list of fixed size": {"shape": "3,16"},
        "a column a channel": {"features": "acc_*"},
    }.get(kind, {})
    images = read(source, partition="natural", natural_id="subject", **options)
    assert (images.x.dtype, images.classes, images.num_classes) == (
        np.float32,
        ("1", "2", "3", "4"),
        4,
    )
    assert np.array_equal(images.x, x[:, :, None])
    assert images.labels.tolist() == (y - 1).tolist()
    assert (images.clients.names, images.clients.codes.tolist()) == (
        ("1", "2", "3", "4", "5"),
        (subject - 1).tolist(),
    )
    assert images.numbers


def test_array2d_and_array3d_of_the_library(tmp_path):
    y = [0, 1] * 30
    for name, kind, x in (
        ("windows", "float32", windows()[0]),
        ("cubes", "uint8", np.random.default_rng(0).integers(0, 256, (60, 3, 4, 5), np.uint8)),
    ):
        feature = datasets.Array2D if x.ndim == 3 else datasets.Array3D
        features = {"x": feature(x.shape[1:], kind), "y": datasets.Value("int64")}
        made = datasets.Dataset.from_dict({"x": x, "y": y}, datasets.Features(features))
        made.save_to_disk(tmp_path / name)
        made.to_parquet(tmp_path / f"{name}.parquet")
        for source in (tmp_path / name, tmp_path / f"{name}.parquet"):
            images = read(source)
            assert np.array_equal(images.x, x[:, :, None] if x.ndim == 3 else x)
    assert (images.x.dtype, images.numbers) == (np.uint8, None), "pixels"
    last = read(tmp_path / "cubes", shape="4,5,3", channels="last")
    assert np.array_equal(last.x, x.reshape(-1, 4, 5, 3).transpose(0, 3, 1, 2))


def test_columns_of_numbers_are_a_vector(tmp_path):
    x, y, subject = windows()
    columns = {"a": x[:, 0, 0], "b": np.arange(60), "on": x[:, 1, 0] > 5, "remark": ["text"] * 60}
    people = {"activity": y, "subject": subject, "__index_level_0__": np.arange(60)}
    source = write(tmp_path / "set", columns | people)
    expected = np.stack([x[:, 0, 0], np.arange(60), x[:, 1, 0] > 5], 1).astype(np.float32)
    found = read(source, partition="natural", natural_id="subject").x
    assert np.array_equal(found, expected[:, None, None]), (
        "all numbers but label, client and the row numbers of pandas"
    )
    assert read(source, features="b, a").x[:, 0, 0].tolist() == expected[:, [1, 0]].tolist()


@pytest.mark.parametrize(
    "kind", ["files of splits", "one file", "arrays of splits", "folders of arrays"]
)
def test_numpy_files(kind, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    parts = {"train": windows(), "test": windows(20, 1)}
    together = {}
    for split, arrays in parts.items():
        named = dict(zip(("x", "y", "subject"), arrays, strict=True))
        together |= {f"{name}_{split}": array for name, array in named.items()}
        if kind == "files of splits":
            np.savez_compressed(folder / f"{split}.npz", **named)
        for name, array in named.items():
            if kind == "arrays of splits":
                np.save(folder / f"{name.upper()}_{split}.npy", array)
            elif kind == "folders of arrays":
                (folder / split).mkdir(exist_ok=True)
                np.save(folder / split / f"{name}.npy", array)
    source = folder
    if kind == "one file":
        source = folder / "set.npz"
        np.savez(source, **together)
    options = {"partition": "natural", "natural_id": "subject"}
    if kind == "arrays of splits":
        options |= {"label": "Y", "natural_id": "SUBJECT"}
    images = read(source, test="test", **options)
    x = np.concatenate([parts["train"][0], parts["test"][0]])
    assert np.array_equal(images.x, x[:, :, None])
    assert images.part(TEST).tolist() == [False] * 60 + [True] * 20
    assert np.array_equal(read(source, split="test", **options).x, parts["test"][0][:, :, None])
    assert len(read(source, split="train+test", **options).labels) == 80
    refused(
        lambda: read(source, split="valid"),
        r"^data.split = 'valid': no array of .* is of this split",
        UserError,
    )


def test_an_npz_without_splits_is_the_training_split(tmp_path):
    x, y, _ = windows()
    np.savez(tmp_path / "all.npz", windows=x, label=y)
    assert np.array_equal(read(tmp_path / "all.npz").x, x[:, :, None])
    for columns, message in (
        ({"windows": x, "label": y[:-1]}, r"arrays differ in length \(windows 60, label 59\)"),
        (
            {"windows": np.array([{}] * 3, object), "label": y[:3]},
            r"odd.npz': cannot be read, it must hold plain arrays \(Object arrays cannot",
        ),
    ):
        np.savez(tmp_path / "odd.npz", **columns)
        refused(lambda: read(tmp_path / "odd.npz"), message, UserError)


# Scaling


def har(tmp_path, **more):
    config = {
        "task": "classification",
        "data.source": more.get("data.source") or write(tmp_path / "har", table(*windows(300))),
        "data.partition": "natural",
        "data.natural-id": "subject",
    }
    return {**config, "clients-per-round": 0, "device": "cpu", **more}


def of_all(task, part="train"):
    return torch.cat([getattr(task.client_data(k, PEOPLE), part).x for k in range(PEOPLE)]).numpy()


def test_sums_of_all_clients_scale_their_training_samples_and_nothing_else(tmp_path):
    task, raw, own = (
        build_task(read_settings(har(tmp_path, **{"data.standardise": how})))
        for how in ("auto", "none", "client")
    )
    assert (task.standardise, raw.standardise) == ("sums", "none")
    seen = of_all(raw).astype(np.float64)
    mean, deviation = seen.mean((0, 2, 3)), seen.std((0, 2, 3))
    for part in ("train", "validation", "test"):
        expected = (of_all(raw, part) - mean[:, None, None]) / deviation[:, None, None]
        np.testing.assert_allclose(of_all(task, part), expected, rtol=1e-3, atol=1e-4)
    assert "standardise = 'sums'" in task.from_clients, "what differential privacy refuses"
    assert own.from_clients == ""
    assert build_task(read_settings({"device": "cpu"})).standardise == "none", "pixels"


# Test splits


def split_set(tmp_path, people):
    write(tmp_path / "set", table(*windows(300)))
    source = write(tmp_path / "set", table(*windows(40, 9, people)), "test")
    given = {"data.test": "test", "data.standardise": "none", "data.validation": 0.2}
    return har(tmp_path, **{"data.source": source, **given})


def test_the_same_people_are_scored_on_their_own_samples(tmp_path, caplog):
    settings, task, _ = assemble(read_settings(split_set(tmp_path, (1, 2, 3, 4, 5, 9))))
    assert settings.num_clients == PEOPLE
    x, _, subject = windows(40, 9, (1, 2, 3, 4, 5, 9))
    total = np.bincount(windows(300)[2])[1:]
    for client in range(PEOPLE):
        data = task.client_data(client, PEOPLE)
        assert np.array_equal(data.test.x.numpy()[:, :, 0], x[subject == client + 1])
        assert len(data.train) + len(data.validation) == total[client], (
            "all that is not for testing is for training"
        )
        assert len(data.validation) == round(0.2 * total[client])
    scored = (subject < 9).sum()
    line = (
        f"each of the 5 clients is scored on its own samples there, {scored} in all; "
        f"{40 - scored} samples of others are left out"
    )
    assert line in caplog.text


def test_other_people_are_scored_by_everybody(tmp_path, caplog):
    _, task, _ = assemble(read_settings(split_set(tmp_path, (7, 8))))
    x, _, _ = windows(40, 9, (7, 8))
    for client in range(PEOPLE):
        assert np.array_equal(task.client_data(client, PEOPLE).test.x.numpy()[:, :, 0], x)
    assert task.client_data(0, PEOPLE).test.x is task.client_data(1, PEOPLE).test.x, "one copy"
    assert (
        "none of the 5 clients is in it, so each is scored on all 40 samples of its 2 others, whom "
        "nobody trains on" in caplog.text
    )


def test_dealt_clients_are_tested_on_the_classes_that_they_train_on(tmp_path):
    x, y, subject = windows(400)
    write(tmp_path / "set", table(x, y, subject))
    source = write(tmp_path / "set", table(*windows(200, 9)), "test")
    dealt = {"data.partition": "pathological", "data.classes-per-client": 2, "num-clients": 4}
    task = build_task(
        read_settings(har(tmp_path, **{"data.source": source, "data.test": "test", **dealt}))
    )
    rows = np.concatenate(task.test_parts(4))
    assert sorted(rows) == list(range(400, 600)), "all of the split, each sample once"
    ratio = np.bincount(windows(200, 9)[1] - 1) / np.bincount(y - 1)
    for client in range(4):
        data = task.client_data(client, 4)
        trained = np.bincount(torch.cat([data.train.y, data.validation.y]).numpy(), minlength=4)
        tested = np.bincount(data.test.y.numpy(), minlength=4)
        assert (trained > 0).tolist() == (tested > 0).tolist()
        np.testing.assert_allclose(tested, trained * ratio, atol=1)


# Nets


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_nets_learn_from_windows_of_sensors_by_person(method, tmp_path):
    tables.write(tmp_path / "set", tables.windows((3, 5, 8, 11, 20, 27), 240, steps=32))
    job = har(tmp_path, **{"data.source": str(tmp_path / "set"), "method": method})
    steps = {"num-rounds": 3, "train.local-epochs": 2, "train.learning-rate": 0.05}
    summary = run_inline(tmp_path / "out", **job, **steps)
    assert summary["accuracy-mean"] > 0.4, "of six classes, after three rounds"
    assert len(clients_of(tmp_path / "out")) == 6
    assert 'name = "cnn-1d"' in (tmp_path / "out" / "settings.toml").read_text(), (
        "the net that auto stands for is on record"
    )


def test_the_net_follows_the_shape(tmp_path):
    shapes = (9, 1, 128), (1, 1, 561), (1, 28, 28), (3, 32, 32)
    assert [net_for(shape) for shape in shapes] == ["cnn-1d", "mlp", "mlp", "mlp"]
    settings, task, _ = assemble(read_settings(har(tmp_path)))
    assert settings.model.name == "cnn-1d"
    assert len(task.model_fn(0)(torch.zeros(2, CHANNELS, 1, STEPS))[0]) == CLASSES


@pytest.mark.parametrize("name", NAMES)
def test_every_net_takes_a_window_or_says_in_one_line_that_it_does_not(name):
    if name == "mobilevit-xxs":
        pytest.importorskip("timm")
    if name in ("cnn-1d", *DENSE):
        assert build_model(name, (9, 1, 128), 6, 0)(torch.zeros(2, 9, 1, 128)).shape == (2, 6)
        return
    said = "does not take windows of 9 channels x 128 steps: choose one of cnn-1d, logistic"
    refused(
        lambda: build_model(name, (9, 1, 128), 6, 0),
        rf"^model.name = '{name}': {'' if name == 'm5' else said}",
        UserError,
    )


# Mistakes


def ragged(x):
    return pa.array(
        [
            row.tolist() if k != 7 else [line[:-1] for line in row.tolist()]
            for k, row in enumerate(x)
        ]
    )


def with_nan(x):
    out = x.copy()
    out[[3, 8], 1, 2] = np.nan
    return out


MISTAKES = [
    (
        {"features": "windwo"},
        {},
        "data.features = 'windwo': no column is 'windwo'; SET has the columns window, activity, "
        "subject",
    ),
    (
        {"features": "remark"},
        {"remark": ["a"] * 60},
        "data.features: 'remark' holds 1 values of text, and a category has 2 to 100",
    ),
    (
        {"features": "w*,activity"},
        {},
        "data.features = 'w*,activity': column 'activity' is the label or the client: leave it out",
    ),
    (
        {"features": "window,a"},
        {"a": np.zeros(60)},
        "data.features: column 'a' of SET holds 1 a sample, 'window' 3 x 16",
    ),
    (
        {},
        {"other": arrow_array},
        "data.features: SET has several columns of arrays, name one, or those that are",
    ),
    (
        {},
        {"window": ragged},
        "column 'window': the lists of SET differ in length (16, but 15 in row 7): cut or fill "
        "them to one",
    ),
    (
        {},
        {"window": lambda x: arrow_array(with_nan(x))},
        "data.source = 'SET': 2 of 60 samples hold NaN, infinity or no value "
        "(first: column 'window', row 3)",
    ),
    (
        {},
        {"window": lambda x: pa.array([*x[:5].tolist(), None, *x[6:].tolist()])},
        "column 'window': row 5 of SET has no value",
    ),
    (
        {"shape": "9,128"},
        {},
        "data.shape = '9,128': has 1152 values, but a sample of SET (window) has 3 x 16 = 48",
    ),
    (
        {"image": "window"},
        {},
        "data.image = 'window': is not an image column; SET has the columns window, activity, "
        "subject; "
        "arrays and numbers are named by data.features",
    ),
    (
        {"resize": 8},
        {},
        "data.resize = 8: is for images, but SET holds arrays or numbers: leave it 0",
    ),
    (
        {"label": "activty"},
        {},
        "data.label = 'activty': SET has the columns window, activity, subject",
    ),
    (
        {"label": "speed"},
        {"speed": np.linspace(0, 1, 60)},
        "data.label = 'speed': holds fractions in SET, which are no classes",
    ),
    (
        {"label": "number"},
        {"number": np.arange(60)},
        "data.label = 'number': has 60 different values in 60 samples of SET",
    ),
    (
        {"label": "window"},
        {},
        "data.label = 'window': holds no plain value per sample, name another of window, activity",
    ),
    (
        {},
        {"activity": pa.array([None] + [1.0] * 59)},
        "column 'activity': 1 samples have no value in it",
    ),
    (
        {"natural_id": "person"},
        {},
        "data.natural-id = 'person': SET has the columns window, activity, subject",
    ),
    (
        {"natural_id": "window", "features": "a"},
        {"a": np.zeros(60)},
        "data.natural-id = 'window': holds no plain value per sample",
    ),
    (
        {"natural_id": "subject"},
        {"subject": pa.array([None, *range(59)])},
        "column 'subject': 1 samples have no value in it",
    ),
    (
        {"natural_id": "number"},
        {"number": np.arange(60)},
        "data.natural-id = 'number': none of the 60 values of this column has the 5",
    ),
]


@pytest.mark.parametrize(("values", "change", "message"), MISTAKES)
def test_each_mistake_is_one_line(values, change, message, tmp_path):
    x, y, subject = windows()
    made = {name: column(x) if callable(column) else column for name, column in change.items()}
    source = write(tmp_path / "set", table(x, y, subject) | made)
    way = {"partition": "natural"} if "natural_id" in values else {}
    options = DataOptions(source=source, **way, **values)
    refused(
        lambda: partition(read_samples(options), options, 5, 0),
        "^" + re.escape(message.replace("SET", source)),
        UserError,
    )


@pytest.mark.parametrize("kind", [str, float, int, np.int8])
def test_the_column_of_people_may_be_of_any_type(kind, tmp_path):
    x, y, subject = windows()
    source = write(tmp_path / "set", table(x, y, pa.array([kind(value) for value in subject])))
    options = DataOptions(source=source, partition="natural", natural_id="subject", min_samples=3)
    images = read_samples(options)
    assert images.clients.names == ("1", "2", "3", "4", "5")
    assert [subject[part[0]] for part in partition(images, options, 5, 0)] == [1, 2, 3, 4, 5]


def test_people_with_too_few_samples_are_left_out_and_named(tmp_path, caplog):
    x, y, subject = windows()
    subject[:2], subject[2:] = 99, np.where(subject[2:] == 1, 2, subject[2:])
    y[subject == 3] = 1  # one class: trained and scored all the same
    source = write(tmp_path / "set", table(x, y, subject))
    settings, task, _ = assemble(read_settings(har(tmp_path, **{"data.source": source})))
    assert settings.num_clients == 4
    assert (
        "data.natural-id = 'subject': 1 of 5 clients has fewer than 5 samples (data.min-samples) "
        "and is left out: 99" in caplog.text
    )
    assert set(task.client_data(1, 4).train.y.tolist()) == {0}


def one_class(folder):
    x, y, subject = windows()
    return write(folder / "set", table(x, np.ones_like(y), subject))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda tmp_path: assemble(read_settings(split_set(tmp_path, (1, 2, 3)))),
            r"^data.test = 'test': 2 of the 5 clients have no sample in it \(4, 5\), the others have",
        ),
        (
            lambda tmp_path: assemble(
                read_settings(har(tmp_path, **{"data.source": one_class(tmp_path)}))
            ),
            r"^data.label: all samples of .* are of one class",
        ),
        (
            lambda tmp_path: build_model("cnn-1d", (1, 8, 8), 10, 0),
            "^model.name = 'cnn-1d': does not take images of 8 x 8 pixels with 1 channel: choose",
        ),
        (
            lambda tmp_path: build_model("cnn-1d", (9, 1, 2), 10, 0),
            "^model.name = 'cnn-1d': windows of 2 steps are too short",
        ),
    ],
)
def test_arrays_that_a_task_or_net_cannot_take_are_refused(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, UserError)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": "9x128"}, "shape = '9x128': must be one to three whole numbers, for example 9,"),
        ({"shape": "1,2,3,4"}, "shape = '1,2,3,4': must be one to three"),
        ({"image": "a", "features": "b"}, "features = 'b': image = 'a' is given, too: leave one"),
        ({"test": "train"}, "test = 'train': is the split that is trained on"),
    ],
)
def test_wrong_settings_of_arrays(values, message):
    refused(lambda: DataOptions(**values), "^" + message)
