"""The server's unlabelled images, and the runs that use them."""

import numpy as np
import pytest
from PIL import Image

from fedapps.commands.parser import main
from fedapps.data.images import PATCHES, load_public
from fedapps.data.options import PublicOptions
from fedapps.errors import UserError
from fedapps.settings.reading import read_settings
from tests.helpers import rounds_of


def load(source, shape=(1, 8, 8), task="classification", seed=0, **settings):
    return load_public(PublicOptions(source, **settings), shape, task, seed)


def write_images(folder, shape, count=6):
    """Write images without any label; image k has the value 40 k."""
    import datasets

    folder.mkdir()
    pictures = [Image.fromarray(np.full(shape, 40 * k, np.uint8)) for k in range(count)]
    datasets.Dataset.from_dict(
        {"image": pictures}, datasets.Features({"image": datasets.Image()})
    ).to_parquet(folder / "train.parquet")
    return str(folder)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 10)])
def test_patches_of_the_photographs(shape):
    images = load("photos", shape, samples=30)
    assert images.shape == (30, *shape)
    assert images.dtype == np.float32
    assert (images.min(axis=(1, 2, 3)) == 0).all()  # stretched
    assert (images.max(axis=(1, 2, 3)) == 1).all()
    assert len(np.unique(images.reshape(30, -1), axis=0)) == 30
    np.testing.assert_array_equal(images, load("photos", shape, samples=30))
    assert not np.array_equal(images, load("photos", shape, samples=30, seed=1))


def test_the_digits_have_photographs_by_themselves():
    assert len(load("auto", task="digits")) == PATCHES
    with pytest.raises(
        UserError,
        match=r"public\.source = 'auto': .* name a folder or a hub data set .* or 'photos'",
    ):
        load("auto")


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
    with pytest.raises(
        UserError,
        match=r"its images are 10 x 14 with 1 channel, the task's 8 x 8 .*: set public\.resize = 8",
    ):
        load(grey)
    assert load(grey, resize=8).shape == (6, 1, 8, 8)
    assert load(grey, (3, 8, 8), resize=8).shape == (6, 3, 8, 8)
    with pytest.raises(UserError, match=r"8 x 8 with 3 channels, the task's 8 x 8 with 1 channel"):
        load(colour)
    np.testing.assert_allclose(
        load(colour, resize=8)[:, 0, 3, 3], np.arange(6) * np.float32(40 / 255), rtol=1e-6
    )
    with pytest.raises(UserError, match=r"the task's 4 x 6 .*: name a set of the same shape"):
        load(grey, (1, 4, 6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["public.source=/no/such/folder"],
            "public.source = '/no/such/folder': there is no such folder",
        ),
        (["public.resize=-1"], "public.resize = -1: choose a value in [0, inf)"),
        (
            ["public.resize=9"],
            "public.resize = 9: patches of the photographs have the task's shape",
        ),
        (["ffgb-distill.mu=0.5"], "ffgb-distill.step = 10, mu = 0.5"),
        (["task=tabular"], "task = 'tabular': this method runs on classification, digits"),
    ],
)
def test_mistakes_are_said_before_a_run_starts(settings, message, tmp_path, capsys):
    assert (
        main(
            [
                "run",
                "--engine",
                "inline",
                "method=ffgb-distill",
                *settings,
                "--out",
                str(tmp_path / "r"),
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r" / "settings.toml").exists()


@pytest.mark.slow
def test_no_public_set_for_other_images_ends_before_round_1(tmp_path, capsys):
    import datasets

    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)) for _ in range(60)]
    table = {"image": pictures, "label": [k % 3 for k in range(60)]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict(table, features).to_parquet(folder / "train.parquet")
    job = [
        "run",
        "--engine",
        "inline",
        "method=ffgb-distill",
        f"data.source={folder}",
        "--nodes",
        "3",
        "data.partition=iid",
    ]
    assert main([*job, "--out", str(tmp_path / "r")]) == 2
    assert (
        "public.source = 'auto': this method distils on unlabelled images"
        in capsys.readouterr().err
    )
    public = [
        "public.source=photos",
        "public.samples=50",
        "ffgb-distill.oracle-epochs=1",
        "num-rounds=1",
    ]
    assert main([*job, *public, "--out", str(tmp_path / "r")]) == 0


# --- warm starts of two methods -------------------------------------------------------


def test_each_half_of_a_warm_start_takes_its_own_table(tmp_path):
    job = [
        "method=warm-start",
        "warm-start.first=ffgb-distill",
        "warm-start.rounds=2",
        "warm-start.then=aaggff-d",
    ]
    job += [
        "aaggff.base=fedprox",
        "fedprox.mu=0.5",
        "ffgb-distill.step=3",
        "public.samples=100",
        "train.local-epochs=1",
    ]
    job += [
        "num-rounds=4",
        "--nodes",
        "4",
        "clients-per-round=0",
        "evaluate-every=0",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(["run", "--engine", "inline", *job]) == 0
    rows = [row["train"] for row in rounds_of(tmp_path / "r")]
    assert ["distill-loss" in row for row in rows] == [True, True, False, False]
    assert ["weight-max" in row for row in rows] == [False, False, True, True]
    text = (tmp_path / "r" / "settings.toml").read_text()
    assert all(
        line in text
        for line in (
            "mu = 0.5",
            "step = 3.0",
            'then = "aaggff-d"',
            'method = "warm-start"',
            "samples = 100",
        )
    )


def test_only_methods_that_distil_store_the_public_table():
    def stored(**config):
        return any(key.startswith("public.") for key in read_settings(config).flat())

    assert stored(method="ffgb-distill")
    assert stored(method="warm-start")
    assert not stored(method="fedavg")
    assert not stored(**{"method": "warm-start", "warm-start.first": "feddyn"})


def test_mistakes_about_the_halves():
    for settings, message in (
        ({"warm-start.then": "warm-start"}, r"warm-start\.then = 'warm-start': "),
        ({"warm-start.first": "fedfw"}, r"warm-start\.first = 'fedfw': "),
        ({"task": "tabular"}, r"warm-start\.first = 'ffgb-distill': task = 'tabular'"),
        ({"feddyn.alpha": 0.0, "warm-start.then": "feddyn"}, r"feddyn\.alpha = 0"),
    ):
        with pytest.raises(UserError, match=message):
            read_settings({"method": "warm-start", **settings})
