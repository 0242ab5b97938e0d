"""AAggFF's data sets that must be brought along, on tiny sets made here: sound, pairs
of texts, words, and options for images.
"""

import io
import json
import sys
import wave

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from fedapps.clients.fedavg import FedAvgClient
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.errors import UserError
from fedapps.models.options import ModelOptions
from fedapps.settings.settings import Settings
from fedapps.tasks.classification import Classification
from fedapps.tasks.next_word import Words, vocabulary, windows
from fedapps.tasks.options import SpeechOptions, TextPairsOptions, WordsOptions
from fedapps.tasks.speech import Speech, waveform
from fedapps.tasks.text_pairs import TextPairs, build_pair_classifier, tokenise
from tests.helpers import assert_arrays, refused, seeded, write_file

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.fixture
def write(tmp_path):
    def write(columns, features=None, name="set", audio=False):
        (tmp_path / name).mkdir()
        data = datasets.Dataset.from_dict(columns, features)
        if audio:
            data = data.cast_column("audio", datasets.Audio(sampling_rate=16_000))
        data.to_parquet(tmp_path / name / "train-00000-of-00001.parquet")
        return str(tmp_path / name)

    return write


NETS = {Classification: "mlp", Speech: "m5", TextPairs: "distilbert", Words: "stacked-lstm"}
TEXT = datasets.Value("string")


def made(kind, source, options, natural="", model="", pretrained=False, **values):
    partition = {"partition": "natural", "natural_id": natural} if natural else {"partition": "iid"}
    settings = Settings(
        data=DataOptions(source=source, **(partition | values)),
        model=ModelOptions(model or NETS[kind], pretrained=pretrained),
        problem=options,
        device="cpu",
    )
    return kind(options, settings.context)


def train_one_round(task, client, num_clients):
    """Train and score as a run does; return the scores."""
    data = task.client_data(client, num_clients)
    worker = FedAvgClient(task.model_fn, data, client, None, task.work_model(), task.objective)
    arrays = list(task.initial_arrays().values())
    config = {"local-epochs": 1, "batch-size": 4, "loss-before": True}
    trained, count, metrics = worker.fit(arrays, config)
    assert count == len(data.train)
    assert np.isfinite(metrics["loss"])
    assert any(not np.array_equal(a, b) for a, b in zip(arrays, trained, strict=True))
    return worker.evaluate(trained, config)[2]


# Images


def test_resize_takes_the_middle_square(write):
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 200  # the middle; the sides are black
    tall = np.full((6, 3, 3), 50, np.uint8)
    cells = {"image": [Image.fromarray(wide), Image.fromarray(tall)], "Smiling": [True, False]}
    features = {"image": datasets.Image(), "Smiling": datasets.Value("bool")}
    source = write(cells, datasets.Features(features))

    def read(size):
        return read_samples(DataOptions(source=source, resize=size, label="Smiling"))

    images = read(2)
    assert images.x.shape == (2, 3, 2, 2)
    small = np.asarray(Image.fromarray(wide).resize((4, 2), Image.Resampling.BILINEAR))[:, 1:3]
    assert np.array_equal(images.x[0], small.transpose(2, 0, 1))
    assert np.unique(images.x[1]).tolist() == [50]
    assert images.labels.tolist() == [1, 0]
    assert read(3).x.shape == (2, 3, 3, 3), "another entry of the cache"
    refused(lambda: read(0), r"images differ in size .*: set data.resize", UserError)
    refused(
        lambda: read_samples(DataOptions(resize=4)),
        r"data.resize = 4: the digits stay 8 x 8",
        UserError,
    )
    refused(lambda: DataOptions(resize=-1), r"resize = -1: choose a value in \[0, inf\)")


def test_class_weights_weigh_training_only():
    task, plain = (
        made(Classification, "digits", None, max_samples=100, class_weights=weigh)
        for weigh in (True, False)
    )
    counts = np.bincount(task.samples.labels, minlength=10)
    outputs, y = torch.randn(20, 10), torch.arange(20) % 10
    losses = functional.cross_entropy(outputs, y, reduction="none").double().numpy()
    wanted = np.average(losses, weights=(100 / (counts + 1))[y.numpy()])
    assert float(task.objective.loss(outputs, y)) == pytest.approx(wanted, rel=1e-5)
    assert (plain.objective.loss, task.objective.score) == (
        functional.cross_entropy,
        plain.objective.score,
    )


# Sound


def wav(samples, channels=1, bits=16):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(bits // 8)
        out.setframerate(16_000)
        out.writeframes(np.asarray(samples, f"<i{bits // 8}" if bits > 8 else "u1").tobytes())
    return file.getvalue()


def test_every_way_to_write_a_sound_reads_alike(tmp_path):
    samples = [0, 16_384, -32_768, 32_767]
    (tmp_path / "a.wav").write_bytes(wav(samples))
    cells = [
        {"bytes": wav(samples), "path": "a.wav"},
        {"bytes": None, "path": str(tmp_path / "a.wav")},
        {"bytes": wav(np.repeat(samples, 2), channels=2), "path": None},
        {"array": [0.0, 0.5, -1.0, 1.0], "sampling_rate": 16_000},
        [0.0, 0.5, -1.0, 1.0],
        samples,
    ]
    for cell in cells:
        assert (waveform(cell).tolist(), waveform(cell).dtype) == (samples, np.int16)
    for cell, problem in (
        ({"bytes": wav([1], bits=8), "path": None}, "8 bits"),
        ("hello", "not a list of numbers but str"),
        ([0.0, float("nan")], "NaN or infinity"),
    ):
        refused(lambda: waveform(cell), problem)


def sounds(count=24, length=1200):
    return np.random.default_rng(0).integers(-3000, 3000, (count, length), dtype=np.int16)


def speech(write, name="set", audio=False, broken=()):
    """24 sounds: 18 of two speakers, 6 of background noise without a speaker, as
    SpeechCommands has.
    """
    sounds_there = [{"bytes": wav(sound), "path": None} for sound in sounds()]
    for place in broken:
        sounds_there[place] = {"bytes": b"fLaC", "path": None}
    columns = {
        "audio": sounds_there,
        "label": [i % 3 for i in range(18)] + [4] * 6,
        "speaker_id": [f"s{i % 2}" for i in range(18)] + [None] * 6,
    }
    features = {
        "audio": {"bytes": datasets.Value("binary"), "path": TEXT},
        "label": datasets.ClassLabel(names=["yes", "no", "up", "down", "_silence_"]),
        "speaker_id": TEXT,
    }
    return write(columns, datasets.Features(features), name, audio)


@pytest.mark.parametrize("audio", [True, False])
def test_speech(write, audio):
    task = made(Speech, speech(write, audio=audio), SpeechOptions(length=1300), "speaker_id")
    assert task.samples.x.shape == (18, 1, 1, 1300)
    assert np.array_equal(task.samples.x[:, 0, 0, :1200], sounds()[:18])
    assert not task.samples.x[..., 1200:].any()
    assert (task.samples.num_classes, task.samples.clients.names) == (3, ("s0", "s1")), (
        "silence and unheard words are no classes"
    )
    task.check(2)
    data = task.client_data(1, 2)
    parts = data.train, data.validation, data.test
    assert [len(part) for part in parts] == [5, 2, 2]
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.float32, torch.int64)
    loudest = np.abs(sounds()[1:18:2].astype(int)).max() / 2**15
    assert torch.cat([part.x for part in parts]).abs().max() == loudest
    assert {"accuracy", "loss"} <= set(train_one_round(task, 1, 2))


def test_speech_cuts_long_sounds_and_says_what_it_cannot_read(write):
    source = speech(write)
    assert made(Speech, source, SpeechOptions(length=100)).samples.x.shape == (24, 1, 1, 100)
    for given, options, message in (
        (
            source,
            SpeechOptions(audio="sound"),
            "^speech.audio = 'sound': .* has the columns audio, label, speaker_id",
        ),
        (
            speech(write, "damaged", broken=[3]),
            SpeechOptions(),
            "^speech.audio = 'audio': sound 3 of .* cannot be read .*: give 16-bit WAV",
        ),
        ("digits", SpeechOptions(), "data.source = 'digits': this task cannot use them"),
    ):
        refused(lambda: made(Speech, given, options).samples, message, UserError)


# Words


def test_vocabulary_ranks_by_count_then_alphabet():
    assert vocabulary([["b", "a", "c"], ["b", "a"], ["b", "d"]], 7) == {"b": 4, "a": 5, "c": 6}


@pytest.mark.parametrize("number", [1, 9, 10, 11, 19, 20, 25])
def test_windows_ask_for_every_word_once_after_the_words_before_it(number):
    words = list(range(4, 4 + number))
    rows = windows(words, 10)
    assert {len(row) for row in rows} == {11}
    asked = [(row[: i + 1], word) for row in rows for i, word in enumerate(row[1:]) if word >= 4]
    assert [word for _, word in asked] == words
    marked = [1, *words]
    for seen, word in asked:
        place = marked.index(word)
        assert seen == marked[place - len(seen) : place]


def test_rows_without_a_known_word_are_left_out():
    assert (windows([3, 3], 5), windows([], 5)) == ([], [])
    assert windows([3, 3, 3, 3, 5], 2) == [[3, 5, 2]]


def test_words(write):
    texts = ["the cat sat on the mat", "the dog sat", "a cat and a dog", "on and on and on"] * 6
    source = write({"text": texts, "user": [i % 2 for i in range(24)]})
    options = WordsOptions(vocabulary=8, length=4, embedding=5, hidden=6, layers=2)
    task = made(Words, source, options, "user")
    task.check(2)
    data = task.client_data(0, 2)
    assert (data.train.x.shape[1:], data.train.y.shape[1:]) == ((4,), (4,))
    assert torch.equal(data.train.x[:, 1:], data.train.y[:, :-1])
    assert int(data.train.x.max()) <= 7
    scores = train_one_round(task, 0, 2)
    # By hand, from all logits at once: marks are not asked for.
    with torch.no_grad():
        logits = task.work_model().eval()(data.test.x)
    asked = data.test.y >= 4
    logits, y = logits[asked], data.test.y[asked]
    assert (scores["accuracy"], scores["loss"]) == (
        pytest.approx(float((logits.argmax(1) == y).float().mean())),
        pytest.approx(float(functional.cross_entropy(logits, y)), rel=1e-5),
    )


def test_words_as_lists_and_what_is_no_text(write):
    def task_of(name, texts, **values):
        source = write({"text": texts}, name=name)
        return made(Words, source, WordsOptions(vocabulary=8, length=4), **values)

    as_list = task_of("list", [["a", "b", "c"], ["b", "c"]]).samples.x
    assert as_list.tolist() == task_of("text", ["a b c", "b c"]).samples.x.tolist()
    for name, texts, message in (
        ("number", [1, 2], "^words.text = 'text': holds int, neither a text nor a list of words"),
        ("empty", ["", " "], "has no words in it"),
    ):
        task = task_of(name, texts)
        refused(lambda: task.samples, message, UserError)
    refused(
        lambda: task_of("any", ["a"], partition="dirichlet"),
        "^data.partition = 'dirichlet': task 'words' has no labels: choose natural or iid",
        UserError,
    )


# Pairs of texts

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "do",
    "i",
    "have",
    "##s",
    "fever",
    "?",
    "is",
    "it",
    "cold",
]


@pytest.fixture
def checkpoint(tmp_path):
    """A DistilBERT of one tiny layer: sizes and vocabulary, no weights."""
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    folder = tmp_path / "tiny-bert"
    write_file(folder / "vocab.txt", "\n".join(WORDS))
    sizes = {"dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 16, "max_position_embeddings": 32}
    kind = {"model_type": "distilbert", "pad_token_id": 0, "vocab_size": len(WORDS)}
    (folder / "config.json").write_text(json.dumps(kind | sizes))
    return folder


@pytest.fixture
def pairs(write):
    features = {"question_1": TEXT, "question_2": TEXT}
    features |= {"label": datasets.ClassLabel(num_classes=2), "dr_id": datasets.Value("int32")}
    columns = {
        "question_1": ["do i have fever?", "is it cold"] * 10,
        "question_2": ["is it fever", "have i fever", "do i", "cold?"] * 5,
        "label": [0, 1] * 10,
        "dr_id": [1] * 10 + [5] * 10,
    }
    return write(columns, datasets.Features(features))


def test_what_is_scored_on_validation_samples_holds_no_test_sample(write):
    """They are those that a run which is scored on its test samples chooses by."""
    texts = ["the cat sat on the mat", "the dog sat", "a cat and a dog", "on and on"] * 6
    source = write({"text": texts, "user": [i % 2 for i in range(24)]})
    options = WordsOptions(vocabulary=8, length=4, embedding=5, hidden=6)
    plain, chosen = (
        made(Words, source, options, "user", validation=0.2, score_on=on).client_data(1, 2)
        for on in ("test", "validation")
    )
    assert_arrays(
        (chosen.train.x, chosen.validation.x, chosen.test.x),
        (plain.train.x, plain.validation.x, plain.validation.x),
    )
    assert not torch.equal(plain.test.x, plain.validation.x)


def test_pairs_are_joined_with_marks_and_filled(checkpoint):
    tokens = tokenise(checkpoint, ["Do I have fevers?"], ["is it zzz"], 14)
    words = " ".join(WORDS[number] for number in tokens[0])
    assert words == "[CLS] do i have fever ##s ? [SEP] is it [UNK] [SEP] [PAD] [PAD]"
    assert tokens.dtype == np.int64
    assert tokenise(checkpoint, ["fever " * 50], ["is it"], 8).shape == (1, 8)


def test_text_pairs(checkpoint, pairs):
    task = made(TextPairs, pairs, TextPairsOptions(length=16, checkpoint=str(checkpoint)), "dr_id")
    task.check(2)
    assert task.samples.clients.names == ("1", "5")
    data = task.client_data(0, 2)
    assert (data.train.x.shape, data.train.x.dtype) == ((6, 16), torch.int64)
    assert task.model_fn(0)(data.train.x).shape == (6, 1)
    assert {"accuracy", "loss"} <= set(train_one_round(task, 0, 2))
    one, other = seeded(lambda seed: task.model_fn(seed).state_dict())
    embedding = "body.embeddings.word_embeddings.weight"
    assert not torch.equal(one[embedding], other[embedding])


def test_padding_is_not_read(checkpoint):
    model = build_pair_classifier(checkpoint, 0, False, 16).eval()
    x = torch.tensor([[2, 5, 6, 3, 9, 3]])
    assert torch.allclose(model(x), model(functional.pad(x, (0, 10))), atol=1e-6)


def test_pretrained_distilbert_is_never_drawn_anew(checkpoint, pairs):
    import transformers

    config = transformers.DistilBertConfig.from_pretrained(checkpoint)
    published = transformers.DistilBertModel(config)
    published.save_pretrained(checkpoint)
    options = TextPairsOptions(length=16, checkpoint=str(checkpoint))
    task = made(TextPairs, pairs, options, pretrained=True)
    nets = [task.model_fn(seed) for seed in (0, 1)]
    for net in nets:
        assert_arrays(net.body.state_dict(), published.state_dict())
    # the head is new, from the seed
    assert not torch.equal(nets[0].classifier[0].weight, nets[1].classifier[0].weight)


def test_what_text_pairs_cannot_do(checkpoint, pairs, tmp_path, monkeypatch):
    def no_network(*_, **values):
        raise FileNotFoundError(
            "not in the cache" if values.get("local_files_only") else "no route to host"
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    (tmp_path / "empty").mkdir()
    here, empty = {"checkpoint": str(checkpoint)}, {"checkpoint": str(tmp_path / "empty")}
    for given, pretrained, message in (
        (
            {},
            False,
            "^text-pairs.checkpoint = 'distilbert/.*': is no folder, and without "
            "model.pretrained nothing",
        ),
        (
            {},
            True,
            r"no such folder, and the hub does not give it \(no route to host\): check the network",
        ),
        (
            {"length": 16, **here},
            True,
            "^text-pairs.checkpoint: .* holds no DistilBERT that can be read",
        ),
        (
            {"length": 64, **here},
            False,
            "^text-pairs.length = 64, but the checkpoint reads 32 tokens: choose at most 32",
        ),
        (empty, False, "cannot be read or used"),
    ):
        task = made(TextPairs, pairs, TextPairsOptions(**given), pretrained=pretrained)
        refused(lambda: task.check(2), message, UserError)


@pytest.mark.parametrize(
    ("kind", "options", "model", "message"),
    [
        (
            TextPairs,
            TextPairsOptions(),
            "",
            r"^task = 'text-pairs': transformers is not installed: pip install 'fedapps\[text\]'$",
        ),
        (
            TextPairs,
            TextPairsOptions(),
            "mlp",
            "^model.name = 'mlp': task 'text-pairs' has one net: choose distilbert or auto",
        ),
        (
            Words,
            WordsOptions(),
            "mlp",
            "^model.name = 'mlp': task 'words' has one net: choose stacked-lstm or auto",
        ),
    ],
)
def test_what_a_task_has_not_is_refused(kind, options, model, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(lambda: made(kind, "anything", options, model=model), message, UserError)
