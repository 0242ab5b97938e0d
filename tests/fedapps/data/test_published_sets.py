"""The data sets of the papers in the columns, types and splits that the hub publishes,
read with the settings of their experiments.
"""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.errors import UserError
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.data_folders import write_parquet
from tests.helpers import ROOT, refused

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
    assert task.samples.clients.names == ("7", "2880", "10177")
    assert task.samples.x.shape == (19, 3, 84, 84)
    assert task.samples.classes == ("False", "True")
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
