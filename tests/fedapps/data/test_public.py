"""The server's unlabelled images, and the runs that use them."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.data.images import PATCHES, load_public, read_samples
from fedapps.data.options import DataOptions, PublicOptions
from fedapps.errors import UserError
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.data_folders import write_parquet
from tests.helpers import ROOT, lacking, refused, rounds_of, run_inline


def load(source, shape=(1, 8, 8), task="classification", seed=0, **settings):
    return load_public(PublicOptions(source, **settings), shape, task, seed)


def write_images(folder, shape, count=6):
    """Write images without any label; image k has the value 40 k."""
    pictures = [Image.fromarray(np.full(shape, 40 * k, np.uint8)) for k in range(count)]
    return write_parquet(folder, {"image": pictures}, {"image": datasets.Image()})


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 10)])
def test_patches_of_the_photographs(shape):
    images = load("photos", shape, samples=30)
    assert (images.shape, images.dtype) == ((30, *shape), np.float32)
    assert (images.min(axis=(1, 2, 3)) == 0).all()  # stretched
    assert (images.max(axis=(1, 2, 3)) == 1).all()
    assert len(np.unique(images.reshape(30, -1), axis=0)) == 30
    np.testing.assert_array_equal(images, load("photos", shape, samples=30))
    assert not np.array_equal(images, load("photos", shape, samples=30, seed=1))


def test_the_digits_have_photographs_by_themselves():
    assert len(load("auto", task="digits")) == PATCHES


def test_a_folder_needs_no_labels(tmp_path):
    folder = write_images(tmp_path / "grey", (8, 8))
    images = load(folder)
    np.testing.assert_allclose(images[:, 0, 3, 3], np.arange(6) * np.float32(40 / 255))
    np.testing.assert_array_equal(load(folder, samples=3), images[[0, 2, 4]])


def test_another_shape_is_resized_only_when_asked(tmp_path):
    grey, colour = (
        write_images(tmp_path / "grey", (10, 14)),
        write_images(tmp_path / "colour", (8, 8, 3)),
    )
    assert load(grey, resize=8).shape == (6, 1, 8, 8)
    assert load(grey, (3, 8, 8), resize=8).shape == (6, 3, 8, 8)
    np.testing.assert_allclose(
        load(colour, resize=8)[:, 0, 3, 3], np.arange(6) * np.float32(40 / 255), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda tmp_path: load("auto"),
            r"public\.source = 'auto': .* name a folder or a hub data set .* or 'photos'",
        ),
        (
            lambda tmp_path: load(write_images(tmp_path / "grey", (10, 14))),
            r"its images are 10 x 14 with 1 channel, the task's 8 x 8 .*: set public\.resize = 8",
        ),
        (
            lambda tmp_path: load(write_images(tmp_path / "colour", (8, 8, 3))),
            r"8 x 8 with 3 channels, the task's 8 x 8 with 1 channel",
        ),
        (
            lambda tmp_path: load(write_images(tmp_path / "grey", (10, 14)), (1, 4, 6)),
            r"the task's 4 x 6 .*: name a set of the same shape",
        ),
    ],
)
def test_images_that_do_not_fit_the_task_are_refused(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, UserError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"public.source": "/no/such/folder"},
            "public.source = '/no/such/folder': there is no such folder",
        ),
        ({"public.resize": -1}, r"public.resize = -1: choose a value in \[0, inf\)"),
        (
            {"public.resize": 9},
            "public.resize = 9: patches of the photographs have the task's shape",
        ),
        ({"ffgb-distill.mu": 0.5}, "ffgb-distill.step = 10, mu = 0.5"),
        ({"task": "tabular"}, "task = 'tabular': this method runs on classification, digits"),
        *(
            ({"method": "warm-start", **halves}, message)
            for halves, message in (
                ({"warm-start.then": "warm-start"}, r"warm-start\.then = 'warm-start': "),
                ({"warm-start.first": "fedfw"}, r"warm-start\.first = 'fedfw': "),
                ({"task": "tabular"}, r"warm-start\.first = 'ffgb-distill': task = 'tabular'"),
                ({"feddyn.alpha": 0.0, "warm-start.then": "feddyn"}, r"feddyn\.alpha = 0"),
            )
        ),
    ],
)
def test_mistakes_are_said_before_a_run_starts(settings, message):
    job = {"method": "ffgb-distill", **settings}
    refused(lambda: assemble(with_defaults(job)), message, UserError)


# --- warm starts of two methods -------------------------------------------------------


def test_each_half_of_a_warm_start_takes_its_own_table(tmp_path):
    halves = {"first": "ffgb-distill", "rounds": 2, "then": "aaggff-d"}
    own = {"aaggff.base": "fedprox", "fedprox.mu": 0.5, "ffgb-distill.step": 3}
    job = {"num-rounds": 4, "num-clients": 4, "clients-per-round": 0, "evaluate-every": 0}
    job |= {"public.samples": 100, "train.local-epochs": 1, "method": "warm-start"}
    out = tmp_path / "r"
    run_inline(out, **job, **own, **{f"warm-start.{key}": one for key, one in halves.items()})
    rows = [row["train"] for row in rounds_of(out)]
    assert [("distill-loss" in row, "weight-max" in row) for row in rows] == (
        [(True, False)] * 2 + [(False, True)] * 2
    )
    kept = ("mu = 0.5", "step = 3.0", 'then = "aaggff-d"', "samples = 100")
    assert not lacking((out / "settings.toml").read_text(), 'method = "warm-start"', *kept)


@pytest.mark.slow
def test_fedavg_and_then_fine_tuning_is_fine_tuning(tmp_path):
    """Fine-tuning trains like FedAvg, so from the second half on the two are equal;
    until then clients use the common model.
    """
    job = {"num-rounds": 4, "evaluate-every": 1, "num-clients": 6, "clients-per-round": 3}
    job |= {"train.local-epochs": 1, "data.max-samples": 600, "checkpoint-every": 0}
    halves = {"warm-start.first": "fedavg", "warm-start.rounds": 2, "warm-start.then": "finetune"}
    run_inline(tmp_path / "finetune", method="finetune", **job)
    run_inline(tmp_path / "halves", method="warm-start", **job, **halves)
    whole, found = (
        [row["evaluate"] for row in rounds_of(tmp_path / name)] for name in ("finetune", "halves")
    )
    assert found[2:] == whole[2:]
    assert found[1]["accuracy-mean"] < whole[1]["accuracy-mean"]


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({"method": "ffgb-distill"}, True),
        ({"method": "warm-start"}, True),
        ({"method": "fedavg"}, False),
        ({"method": "warm-start", "warm-start.first": "feddyn"}, False),
    ],
)
def test_only_methods_that_distil_store_the_public_table(config, stored):
    assert any(key.startswith("public.") for key in read_settings(config).flat()) == stored


# --- the data sets of the papers in the columns that the hub publishes ----------------


TEXT = datasets.Value("string")
FACES = """
5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair Blurry
Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male
Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks
Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie
Young
""".split()  # noqa: SIM905


pytestmark = pytest.mark.usefixtures("own_caches")


def experiment(name, source, **more):
    """Return the settings of an experiment on a folder in place of the hub's set."""
    config = read_toml(ROOT / "experiments" / "aaggff" / f"{name}.toml")
    own = {"data.source": source, "num-clients": 0, "clients-per-round": 1, "method": "fedavg"}
    return config | own | {"device": "cpu"} | more


def test_celeba(tmp_path):
    """Forty flags a picture, 178 x 218; people in all three splits, counted together;
    one has four pictures.
    """
    features = {"image": datasets.Image(), "celeb_id": datasets.Value("int64")}
    smiles = []
    for split, people in (
        ("train", [2880] * 4 + [10177] * 6 + [7] * 2),
        ("valid", [2880] * 3 + [7] * 2),
        ("test", [10177] * 2),
    ):
        columns = {"image": [Image.new("RGB", (178, 218))] * len(people), "celeb_id": people}
        columns |= {
            name: [i * k % 3 == 0 for i in range(len(people))] for k, name in enumerate(FACES)
        }
        smiles += columns["Smiling"]
        kinds = features | dict.fromkeys(FACES, datasets.Value("bool"))
        source = write_parquet(tmp_path / "celeba", columns, kinds, split)
    settings, task, _ = assemble(read_settings(experiment("celeba", source)))
    assert settings.num_clients == 2, "celeb 7 has fewer than five pictures"
    assert (task.samples.clients.names, task.samples.classes, task.samples.x.shape) == (
        ("7", "2880", "10177"),
        ("False", "True"),
        (19, 3, 84, 84),
    )
    assert task.samples.labels.tolist() == list(map(int, smiles))
    scores = task.objective.score(task.work_model(), task.client_data(1, 2).test)
    assert scores.keys() >= {"accuracy", "loss"}


def test_several_configurations_are_named(tmp_path):
    """SpeechCommands has v0.01 and v0.02, and no default between them."""
    (tmp_path / "set").mkdir()
    card = ""
    for version, count in (("v0.01", 8), ("v0.02", 10)):
        columns = {"a": np.arange(count) / 7, "label": [0, 1] * (count // 2)}
        write_parquet(tmp_path / "set" / version, columns)
        card += (
            f"- config_name: {version}\n  data_files:\n  - split: train\n    path: {version}/*\n"
        )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{card}---\n")

    def labels(version):
        return read_samples(DataOptions(source=str(tmp_path / "set"), config=version)).labels

    refused(
        lambda: labels(""),
        r"^data.config = '': .* has several configurations, name one of .*v0.01.*v0.02",
        UserError,
    )
    assert (len(labels("v0.01")), len(labels("v0.02"))) == (8, 10)


def test_reddit_as_leaf_keeps_it(tmp_path):
    """A comment is a list of lines of ten tokens, marked and filled; users are names;
    comments of a user are rows.
    """
    lines = [["<BOS>", "i", "have", "a", "cat"], ["cat", "<EOS>", "<PAD>", "<PAD>", "<PAD>"]]
    users = [f"u{i % 2}" for i in range(16)]
    sizes = {"vocabulary": 10, "length": 4, "embedding": 4, "hidden": 4}
    given = {f"words.{key}": size for key, size in sizes.items()} | {"data.min-samples": 5}

    def made(name, texts, kind):
        columns, features = {"text": texts, "user": users}, {"text": kind, "user": TEXT}
        source = write_parquet(tmp_path / name, columns, features)
        return assemble(read_settings(experiment("reddit", source, **given)))

    settings, task, _ = made("nested", [lines, lines[:1]] * 8, datasets.List(datasets.List(TEXT)))
    assert settings.num_clients == 2
    plain = made("flat", ["i have a cat cat", "i have a cat"] * 8, TEXT)
    assert np.array_equal(task.samples.x, plain[1].samples.x), "its marks are set here again"
    assert torch.isfinite(task.work_model()(task.client_data(0, 2).test.x)).all()
