import numpy as np
import pytest
import torch

from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import NEXT_TOKEN, next_token
from fedapps.data.corpus import generate, words
from fedapps.errors import UserError
from fedapps.models.text_nets import SIZES, build_lstm
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.tasks.next_character import VOCABULARY, encode, generated_play, sequences
from tests.data_folders import write_play
from tests.helpers import assert_arrays, refused, rounds_of, run_inline, seeded


def text(num_clients=0, model="auto", **options):
    config = {f"text.{key.replace('_', '-')}": value for key, value in options.items()}
    if source := config.pop("text.source", None):
        config["data.source"] = source
    return build_task(
        read_settings({"task": "text", "num-clients": num_clients, "model.name": model} | config)
    )


@pytest.fixture
def play(tmp_path):
    train = [("B", "To be,"), ("A", "No. No? Yes"), ("C", "..."), ("B", "or not"), ("E", "x")]
    test = [("A", "yes"), ("B", "to be"), ("C", "?"), ("D", "nobody")]
    return write_play(tmp_path / "play", train=train, test=test)


# --- tokens ---------------------------------------------------------------------------


def test_the_vocabulary_is_printable_ascii_and_three_more():
    printable = "".join(map(chr, range(32, 127)))
    assert_arrays(
        (encode(printable), encode("\n\t\r\x00é\U0001f600\x7f")),
        (np.arange(3, VOCABULARY), [2, 1, 1, 1, 1, 1, 1]),
    )
    assert (VOCABULARY, len(encode(""))) == (98, 0)


@pytest.mark.parametrize("n", [2, 5, 6, 7, 11, 12])
def test_targets_are_one_character_ahead_and_cover_the_text_once(n):
    x, y = sequences(np.arange(10, 10 + n).astype(np.uint8), 5)
    assert x.shape == y.shape == (-(-(n - 1) // 5), 5)
    pairs = [(int(a), int(b)) for a, b in zip(x.flatten(), y.flatten(), strict=True) if b]
    assert pairs == [(t, t + 1) for t in range(10, 9 + n)]
    assert bool((x[y == 0] == 0).all())


# --- the objective --------------------------------------------------------------------


class Given(torch.nn.Module):
    """A model that looks its logits up: of sequence i, whatever its tokens."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits[x[:, 0]]


def numbered_sequences(n, length, vocabulary, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, length, vocabulary, generator=rng, dtype=torch.float64)
    y = torch.randint(vocabulary, (n, length), generator=rng)
    return logits, torch.arange(n)[:, None].repeat(1, length), y


@pytest.mark.parametrize("special", [1, 4])
def test_loss_and_scores_are_over_the_targets_that_count(special):
    logits, x, y = numbered_sequences(150, 7, 9)  # more than one batch of scoring
    losses, hits = [], []
    for i in range(150):
        for place in range(7):
            target = int(y[i, place])
            if target >= special:
                row = logits[i, place]
                losses.append(float(torch.logsumexp(row, 0) - row[target]))
                hits.append(int(row.argmax()) == target)
    loss, objective = np.mean(losses), next_token(special)
    assert float(objective.loss(logits, y)) == pytest.approx(loss)
    scores = objective.score(Given(logits), Split(x, y))
    wanted = {"loss": loss, "accuracy": np.mean(hits), "perplexity": np.exp(loss)}
    assert {name: scores[name] for name in wanted} == pytest.approx(wanted)


def test_padding_changes_nothing():
    logits, x, y = numbered_sequences(4, 6, 5, seed=1)
    y = y.clamp(min=1)
    y[3, 2:] = 0
    other = logits.clone()
    other[3, 2:] = 100 * torch.randn(4, 5, dtype=torch.float64)
    assert NEXT_TOKEN.loss(logits, y) == NEXT_TOKEN.loss(other, y)
    assert NEXT_TOKEN.score(Given(logits), Split(x, y)) == NEXT_TOKEN.score(
        Given(other), Split(x, y)
    )
    model = build_lstm(VOCABULARY, 4, 6, 1, seed=0)
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, 12).astype(np.uint8)
    plain, padded = (
        NEXT_TOKEN.loss(model(x), y).item()
        for x, y in (sequences(tokens, length) for length in (11, 40))
    )
    assert padded == pytest.approx(plain)
    refused(
        lambda: NEXT_TOKEN.score(Given(logits), Split(x, torch.zeros_like(y))),
        "no target of at least 1",
    )


# --- the nets -------------------------------------------------------------------------


def lstm_parameters(vocabulary, embedding, hidden, layers):
    inputs = [embedding] + [hidden] * (layers - 1)
    gates = sum(4 * hidden * (width + hidden + 2) for width in inputs)
    return vocabulary * embedding + gates + (hidden + 1) * vocabulary


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ((10_000, 200, 256, 2), 5_565_328),  # the Reddit net of the dissertation
        ((VOCABULARY, *SIZES["char-lstm"]), 26_098),
        ((VOCABULARY, *SIZES["stacked-lstm"]), 824_690),
    ],
)
def test_parameter_counts(sizes, count):
    model = build_lstm(*sizes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == lstm_parameters(*sizes) == count


def test_a_place_sees_nothing_of_what_comes_after_it():
    model = build_lstm(20, 4, 8, 2, seed=3).eval()
    x = torch.randint(20, (2, 9))
    other = x.clone()
    other[:, 5:] = (x[:, 5:] + 1) % 20
    assert torch.allclose(model(x)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(x)[:, 5], model(other)[:, 5])


def test_the_seed_decides_the_weights_and_nothing_else_does():
    first, other = seeded(lambda seed: build_lstm(20, 4, 8, 1, seed).state_dict())
    assert not any(torch.equal(first[key], other[key]) for key in first)


# --- the task -------------------------------------------------------------------------


def test_a_folder_becomes_sequences_of_each_role(play):
    task = text(source=play, length=4)
    task.check(2)
    # C has one character of test text, D no training text, E one character
    assert (task.play(2).roles, task.play(2).passed_over) == (("A", "B"), 3)
    data = task.client_data(1, 2)
    said = "".join(chr(int(t) + 29) if t > 2 else "|" for t in data.train.y.flatten() if t)
    assert (said, (len(data.train), len(data.test))) == ("o be,|or not", (3, 1))
    assert data.validation.x is data.train.x
    assert task.client_data(1, 2) is data


def test_settings_can_be_chosen_on_text_that_is_neither_trained_on_nor_tested_on(play):
    def data(validation, score_on="test"):
        task = text(source=play, length=4, validation=validation, score_on=score_on)
        return task.client_data(1, 2)

    plain, chosen = data(0.3), data(0.3, "validation")
    assert_arrays(
        (chosen.test.x, chosen.test.y, chosen.train.x),
        (plain.validation.x, plain.validation.y, plain.train.x),
    )
    assert not torch.equal(plain.test.x, plain.validation.x)
    half, whole = data(0.6, "held-out"), data(0.6).validation
    assert len(whole) > 1
    assert_arrays((half.test.x, half.validation.x), (whole.x[::2], whole.x[1::2]))
    refused(
        lambda: data(0.0, "validation"),
        r"text\.score-on = 'validation': needs .* set validation",
        UserError,
    )


def test_the_end_of_a_role_is_kept_for_validation(play):
    whole, split, most = (
        text(source=play, length=4, validation=share).client_data(1, 2) for share in (0.0, 0.3, 0.9)
    )
    assert [len(part) for part in (split.train, split.validation, split.test)] == [2, 1, 1]
    for part in ("x", "y"):
        joined = torch.cat([getattr(split.train, part), getattr(split.validation, part)])
        assert torch.equal(joined, getattr(whole.train, part))
    assert torch.equal(split.test.x, whole.test.x)
    assert (len(most.train), len(most.validation)) == (1, 2)
    short = text(source=play, validation=0.9).client_data(1, 2)  # a single sequence of 80
    assert (len(short.train), short.validation is short.train) == (1, True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda play: text(source=play).check(3),
            r"num-clients = 3, but .* has 2 roles .*\(3 have fewer\): choose at most 2",
        ),
        (
            lambda play: text(source=play, min_characters=12).check(2),
            r"num-clients = 2, but .* has 1 roles with at least 12 characters",
        ),
        (
            lambda play: text(source=play, role="speaker").check(2),
            r"text\.role = 'speaker': .* has the columns character_id, text",
        ),
        (
            lambda play: text(source="/no/such/folder").check(2),
            r"data\.source = .*no such folder",
        ),
        (
            lambda play: text(model="char-lst"),
            r"model\.name = 'char-lst': did you mean 'char-lstm'\? task 'text' has",
        ),
        (lambda play: text(length=0), r"text\.length = 0: choose a value"),
        (lambda play: text(validation=1.0), r"text\.validation = 1"),
        (lambda play: text().client_data("a", 3), "client 'a'"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(call, message, play):
    refused(lambda: call(play), message, UserError)


def test_the_generated_play_is_that_of_the_unigram_task():
    play, (train, _) = generated_play(3), generate(3)
    for role, tokens in zip(play.roles, play.train, strict=True):
        said = words("".join(chr(int(t) + 29) for t in tokens))
        assert (len(said), set(said)) == (train[role].total(), set(train[role]))
    text(num_clients=50).check(50)


@pytest.mark.slow
def test_a_run_improves_over_the_start(tmp_path):
    job = {"task": "text", "num-clients": 5, "clients-per-round": 3, "num-rounds": 6}
    job |= {"evaluate-every": 1, "text.length": 20, "train.learning-rate": 1.0}
    run_inline(tmp_path / "r", **job)
    found = [row["evaluate"] for row in rounds_of(tmp_path / "r")]
    losses = [scores["loss-weighted"] for scores in found]
    assert losses[-1] < 0.7 * losses[0] < 0.7 * np.log(VOCABULARY)
    assert {"perplexity-mean", "accuracy-worst"} <= set(found[-1])
    assert "auroc-mean" not in found[-1]
