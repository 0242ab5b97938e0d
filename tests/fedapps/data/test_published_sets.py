"""The data sets of the papers in the columns, types and splits that the hub publishes,
read with the settings of their experiments.
"""

import io
import wave
from pathlib import Path

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
from tests.helpers import refused

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
TEXT, NUMBER, FLAG = datasets.Value("string"), datasets.Value("int64"), datasets.Value("bool")
FACES = """
5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair Blurry
Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male
Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks
Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie
Young
""".split()  # noqa: SIM905
WORDS = """
yes no up down left right on off stop go zero one two three four five six seven eight nine bed bird cat dog happy house
marvin sheila tree wow backward forward follow learn visual _silence_
""".split()  # noqa: SIM905


pytestmark = pytest.mark.usefixtures("own_caches")


def write(folder, splits, features):
    for split, columns in splits.items():
        write_parquet(folder, columns, features, split)
    return str(folder)


def experiment(name, source, **more):
    """Return the settings of an experiment on a folder in place of the hub's set,
    without pre-trained weights.
    """
    config = {
        **read_toml(EXPERIMENTS / "aaggff" / f"{name}.toml"),
        "device": "cpu",
        "model.pretrained": False,
        "data.source": source,
    }
    return {**config, "num-clients": 0, "clients-per-round": 1, "method": "fedavg", **more}


def jpeg(size, mode="RGB", seed=0):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8), mode).save(
        file, "JPEG"
    )
    return {"bytes": file.getvalue(), "path": None}


def scores(task, client, num_clients):
    """Score the initial model of a task on a client's test samples."""
    return task.objective.score(task.work_model(), task.client_data(client, num_clients).test)


def test_celeba(tmp_path):
    """Forty flags a picture, 178 x 218; people in all three splits, counted together;
    one has four pictures.
    """
    features = {"image": datasets.Image(), "celeb_id": NUMBER} | dict.fromkeys(FACES, FLAG)

    def part(people):
        flags = {
            name: [(i * k) % 3 == 0 for i in range(len(people))] for k, name in enumerate(FACES, 1)
        }
        return {
            "image": [jpeg((178, 218), seed=i) for i in range(len(people))],
            "celeb_id": people,
            **flags,
        }

    splits = {
        "train": part([2880] * 4 + [10177] * 6 + [7] * 2),
        "valid": part([2880] * 3 + [7] * 2),
        "test": part([10177] * 2),
    }
    settings, task, _ = assemble(
        read_settings(experiment("celeba", write(tmp_path / "celeba", splits, features)))
    )
    assert settings.num_clients == 2, "celeb 7 has fewer than five pictures"
    assert task.samples.clients.names == ("7", "2880", "10177")
    assert task.samples.x.shape == (19, 3, 84, 84)
    smiles = [value for split in splits.values() for value in split["Smiling"]]
    assert (task.samples.labels.tolist(), task.samples.classes) == (
        [int(smile) for smile in smiles],
        ("False", "True"),
    )
    assert set(scores(task, 1, 2)) >= {"accuracy", "loss"}


def test_isic(tmp_path):
    """Pictures of several sizes, the shorter side 224; six centres in both splits;
    eight classes, not all at every centre.
    """
    features = {
        "image": datasets.Image(),
        "center": NUMBER,
        "label": datasets.ClassLabel(num_classes=8),
    }

    def part(count):
        sizes = [(224, 224), (337, 224), (298, 224)]
        pictures = [jpeg(sizes[i % 3], seed=i) for i in range(count)]
        return {
            "image": pictures,
            "center": [i % 6 for i in range(count)],
            "label": [(i * i) % 8 for i in range(count)],
        }

    source = write(tmp_path / "isic", {"train": part(30), "test": part(12)}, features)
    settings, task, _ = assemble(
        read_settings(experiment("isic", source, **{"model.name": "logistic"}))
    )
    assert (settings.num_clients, task.samples.num_classes) == (6, 8)
    assert task.samples.x.shape == (42, 3, 200, 200)
    assert task.client_data(0, 6).train.x.shape[1:] == (3, 200, 200)


def wav(seconds, seed=0):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(
            np.random.default_rng(seed)
            .integers(-999, 999, int(16_000 * seconds), np.int16)
            .tobytes()
        )
    return {"bytes": file.getvalue(), "path": f"{seed}.wav"}


def test_speech_commands(tmp_path):
    """WAV files of a second or less, minutes of noise without a speaker, hexadecimal
    speakers; one folder a version.
    """
    features = {
        "file": TEXT,
        "audio": datasets.Audio(sampling_rate=16_000),
        "label": datasets.ClassLabel(names=WORDS),
    }
    features |= {"is_unknown": FLAG, "speaker_id": TEXT, "utterance_id": datasets.Value("int8")}
    speakers = ["004ae714"] * 4 + ["0a7c2a8d"] * 3 + ["ffd2ba2f"] * 2 + [None] * 2
    labels = [0, 30, 12, 5, 0, 30, 30, 1, 2, 35, 35]
    sounds = [wav(1 if i % 2 else 0.7, i) for i in range(9)] + [wav(3)] * 2
    stored = datasets.Features(
        features | {"audio": {"bytes": datasets.Value("binary"), "path": TEXT}}
    )
    columns = {
        "file": [f"{i}.wav" for i in range(11)],
        "audio": sounds,
        "label": labels,
        "is_unknown": [i > 9 for i in labels],
    }
    columns |= {"speaker_id": speakers, "utterance_id": [0] * 11}
    (tmp_path / "v0.02" / "train").mkdir(parents=True)
    data = datasets.Dataset.from_dict(columns, stored).cast(datasets.Features(features))
    data.to_parquet(tmp_path / "v0.02" / "train" / "0000.parquet")
    settings, task, _ = assemble(read_settings(experiment("speech", str(tmp_path / "v0.02"))))
    assert settings.num_clients == 2, "with three recordings or more; noise is nobody's"
    assert task.samples.x.shape == (9, 1, 1, 16_000)
    assert task.samples.classes == ("yes", "no", "up", "right", "two", "backward"), (
        "those that somebody says"
    )
    assert "top5" in scores(task, 0, 2)


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
