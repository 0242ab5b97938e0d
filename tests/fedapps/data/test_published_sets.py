"""The data sets of the papers in the columns, types and splits that the hub publishes,
read with the settings of their experiments.
"""

import io
import json
import wave
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml

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
    folder.mkdir()
    for split, columns in splits.items():
        datasets.Dataset.from_dict(columns, datasets.Features(features)).to_parquet(
            folder / f"{split}-00000-of-00001.parquet"
        )
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


def test_tiny_imagenet(tmp_path):
    """64 x 64, some of them grey; 200 classes named by their synsets; splits train and
    valid.
    """
    names = [f"n{number:08d}" for number in range(200)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    pictures = [jpeg((64, 64), "L" if i % 7 == 3 else "RGB", i) for i in range(60)]
    splits = {
        "train": {"image": pictures, "label": [i % 20 for i in range(60)]},
        "valid": {"image": pictures[:5], "label": [0] * 5},
    }
    source = write(tmp_path / "tiny", splits, features)
    more = {"num-clients": 4, "model.name": "mobilenet"}
    _, task, _ = assemble(read_settings(experiment("tinyimagenet", source, **more)))
    assert task.samples.x.shape == (60, 3, 64, 64)
    assert np.array_equal(task.samples.x[3, 0], task.samples.x[3, 1]), "grey"
    assert (task.samples.num_classes, task.samples.classes[1]) == (200, "n00000001")
    assert "top5" in scores(task, 0, 4)


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
    for version, count in (("v0.01", 8), ("v0.02", 10)):
        (tmp_path / "set" / version).mkdir(parents=True)
        columns = {"a": np.arange(count) / 7, "label": [0, 1] * (count // 2)}
        datasets.Dataset.from_dict(columns).to_parquet(
            tmp_path / "set" / version / "train-00000-of-00001.parquet"
        )
    card = "".join(
        f"- config_name: {v}\n  data_files:\n  - split: train\n    path: {v}/train-*\n"
        for v in ("v0.01", "v0.02")
    )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    config = {
        "task": "classification",
        "data.source": str(tmp_path / "set"),
        "data.partition": "iid",
        "device": "cpu",
    }
    with pytest.raises(
        UserError,
        match=r"^data.config = '': .* has several configurations, name one of .*v0.01.*v0.02",
    ) as caught:
        _ = build_task(read_settings(config)).samples
    assert "\n" not in str(caught.value)
    assert len(build_task(read_settings({**config, "data.config": "v0.02"})).samples.labels) == 10
    assert len(build_task(read_settings({**config, "data.config": "v0.01"})).samples.labels) == 8


def test_medical_questions(tmp_path):
    """Doctors are int32, classes 0 and 1 by name."""
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "do", "i", "have", "fever"]
    checkpoint = tmp_path / "bert"
    checkpoint.mkdir()
    (checkpoint / "vocab.txt").write_text("\n".join(names))
    sizes = {
        "vocab_size": len(names),
        "dim": 8,
        "n_heads": 2,
        "n_layers": 1,
        "hidden_dim": 16,
        "max_position_embeddings": 256,
    }
    (checkpoint / "config.json").write_text(
        json.dumps({"model_type": "distilbert", "pad_token_id": 0, **sizes})
    )
    features = {"dr_id": datasets.Value("int32"), "question_1": TEXT, "question_2": TEXT}
    features |= {"label": datasets.ClassLabel(names=["0", "1"])}
    columns = {
        "dr_id": [i % 11 + 1 for i in range(66)],
        "question_1": ["Do I have fever?"] * 66,
        "question_2": ["fever"] * 66,
    }
    source = write(
        tmp_path / "mqp", {"train": {**columns, "label": [i % 2 for i in range(66)]}}, features
    )
    settings, task, _ = assemble(
        read_settings(experiment("mqp", source, **{"text-pairs.checkpoint": str(checkpoint)}))
    )
    assert settings.num_clients == 11
    data = task.client_data(10, 11)
    assert data.train.x.shape[1] == 200
    assert task.work_model()(data.test.x).shape == (len(data.test), 1)


def test_reddit_as_leaf_keeps_it(tmp_path):
    """A comment is a list of lines of ten tokens, marked and filled; users are names;
    comments of a user are rows.
    """
    lines = [["<BOS>", "i", "have", "a", "cat"], ["cat", "<EOS>", "<PAD>", "<PAD>", "<PAD>"]]
    nested = {"text": datasets.List(datasets.List(TEXT)), "user": TEXT}
    columns = {"text": [lines, lines[:1]] * 8, "user": [f"u{i % 2}" for i in range(16)]}
    sizes = {
        "words.vocabulary": 10,
        "words.length": 4,
        "words.embedding": 4,
        "words.hidden": 4,
        "data.min-samples": 5,
    }
    kept = experiment("reddit", write(tmp_path / "nested", {"train": columns}, nested), **sizes)
    settings, task, _ = assemble(read_settings(kept))
    assert settings.num_clients == 2
    flat = {"text": ["i have a cat cat", "i have a cat"] * 8, "user": columns["user"]}
    plain = build_task(
        read_settings(
            {
                **kept,
                "data.source": write(
                    tmp_path / "flat", {"train": flat}, {"text": TEXT, "user": TEXT}
                ),
            }
        )
    )
    assert np.array_equal(task.samples.x, plain.samples.x), "its marks are set here again"
    assert torch.isfinite(task.work_model()(task.client_data(0, 2).test.x)).all()
