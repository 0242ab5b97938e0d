import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedapps.clients.families.ensemble_data import DensityData
from fedapps.data.corpus import count_words, generate, read_corpus, words
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.settings.settings import Settings
from fedapps.tasks.base_predictors import divide, label_sets, recipes
from fedapps.tasks.options import EnsembleOptions, PointMassOptions, UnigramOptions
from fedapps.tasks.predictor_library import Library
from tests.helpers import refused


def point_mass(num_clients=100, **options):
    return build_task(
        Settings(task="point-mass", num_clients=num_clients, problem=PointMassOptions(**options))
    )


def unigram(source="generated", num_clients=0, **options):
    return build_task(
        Settings(
            task="unigram",
            num_clients=num_clients,
            data=DataOptions(source=str(source)),
            problem=UnigramOptions(**options),
        )
    )


# --- point-mass -----------------------------------------------------------------------


def whole_loss(task, num_clients, alpha):
    clients = [task.client_data(i, num_clients) for i in range(num_clients)]
    total, tables = (
        sum(c.num_examples for c in clients),
        task.library().take(np.arange(task.library().q)),
    )
    return sum(c.num_examples / total * c.loss_and_gradient(tables, alpha)[0] for c in clients)


def test_the_paper_s_synthetic_study_has_its_optimum():
    task = point_mass()
    share = 1 / np.arange(1, 101) / np.sum(1 / np.arange(1, 101))
    entropy = -share @ np.log(share)
    assert entropy == pytest.approx(3.681, abs=5e-4)
    # Smoothing takes its uniform share from every weight: the best alpha makes up for
    # it.
    alpha = (share - 0.01 / 100) / 0.99
    assert whole_loss(task, 100, alpha) == pytest.approx(entropy, abs=1e-4)
    assert whole_loss(task, 100, np.full(100, 0.01)) == pytest.approx(np.log(100))
    squared = point_mass(loss="squared")
    uniform = whole_loss(squared, 100, np.full(100, 0.01))
    assert whole_loss(squared, 100, share) == pytest.approx(1 - share @ share, abs=1e-4)
    assert uniform - (1 - share @ share) == pytest.approx(0.0508, abs=5e-5)


def test_each_domain_holds_its_own_outcome_and_sizes_follow_the_power_law():
    task = point_mass(size=5, exponent=2.0, samples=146_361, num_clients=5)
    clients = [task.client_data(i, 5) for i in range(5)]
    assert [list(c.train.outcomes) for c in clients] == [[0], [1], [2], [3], [4]]
    sizes = np.array([c.num_examples for c in clients])
    np.testing.assert_allclose(sizes / sizes[0], 1 / np.arange(1, 6) ** 2, atol=2e-5)
    np.testing.assert_array_equal(task.library().take(range(5))["table"], np.eye(5))


@pytest.mark.parametrize("num_clients", [1, 3, 10])
def test_fewer_clients_hold_the_same_samples_together(num_clients):
    task = point_mass(size=10, num_clients=num_clients)
    held = np.zeros(10)
    for client in range(num_clients):
        data = task.client_data(client, num_clients)
        held[data.train.outcomes] += data.train.weights * data.num_examples
    np.testing.assert_allclose(held, task.counts)


def test_more_clients_than_outcomes_are_refused():
    for call, message in (
        (
            lambda: point_mass(size=10).check(11),
            r"num-clients = 11, .*point-mass\.size = 10.*at most 10",
        ),
        (lambda: point_mass().client_data("a", 3), "client 'a'"),
    ):
        refused(call, message, UserError)


# --- unigram --------------------------------------------------------------------------


def test_words_follow_the_paper_s_rule():
    assert words("Four-score! sav'd,\n[Enter] THE_END  no--yes 9th") == [
        "fourscore",
        "savd",
        "enter",
        "theend",
        "noyes",
        "9th",
    ]
    assert words(" -- ... ") == []


def write_play(folder, train, test, columns=("character_id", "text")):
    import datasets

    folder.mkdir(exist_ok=True)
    for split, rows in (("train", train), ("test", test)):
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        datasets.Dataset.from_list(records).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture
def play(tmp_path):
    train = [("B", "To be, or not to be!"), ("A", "No. No? Yes"), ("C", "...")]
    train += [("B", "to sleep")]
    test = [("A", "yes, perchance to dream; no"), ("B", "be sleep"), ("D", "nobody")]
    return write_play(tmp_path / "play", train, test)


def test_a_folder_becomes_unigram_models_over_the_training_words(play):
    task = unigram(play)
    assert task.corpus.vocabulary == ("be", "no", "not", "or", "sleep", "to", "yes", "<unk>")
    assert task.library().names == ["A", "B"]  # C says no word, D nothing in training
    expected = np.array(
        [[0, 2 / 3, 0, 0, 0, 0, 1 / 3, 0], [2 / 8, 0, 1 / 8, 1 / 8, 1 / 8, 3 / 8, 0, 0]]
    )
    np.testing.assert_allclose(task.library().take([0, 1])["table"], expected, rtol=1e-6)
    first = task.client_data(0, 2)
    assert (first.num_examples, first.num_test) == (3, 5)
    # "perchance" and "dream" are unknown: counted as one entry, not left out.
    np.testing.assert_allclose(first.test.dense(), [0, 1 / 5, 0, 0, 0, 1 / 5, 1 / 5, 2 / 5])
    task.library().check_densities()


def test_unknown_words_cost_the_uniform_share(play):
    task = unigram(play, epsilon=0.1)
    data = task.client_data(0, 2)
    table = task.library().take([0])["table"].astype(float)
    chances = 0.9 * table[0] + 0.1 / 8
    expected = -np.mean(np.log([chances[6], 0.1 / 8, chances[5], 0.1 / 8, chances[1]]))
    assert data.score({"table": table}, np.ones(1))["loss"] == pytest.approx(expected)


def test_fewer_clients_use_the_first_roles_and_their_words_only(play):
    task = unigram(play, num_clients=1)
    assert (task.corpus.vocabulary, task.library().q) == (("no", "yes", "<unk>"), 1)
    np.testing.assert_allclose(task.client_data(0, 1).test.dense(), [1 / 5, 1 / 5, 3 / 5])
    refused(lambda: task.check(2), r"2 clients, but .* gives 1 roles: set num-clients", UserError)


def test_texts_that_cannot_be_read_are_named(play, tmp_path):
    for call, message in (
        (
            lambda: unigram(play, num_clients=3).check(3),
            r"num-clients = 3, but .* has 2 roles with text: choose 1\.\.2",
        ),
        (
            lambda: unigram(play, role="speaker").check(2),
            r"unigram\.role = 'speaker': .* has the columns character_id, text",
        ),
        (lambda: unigram(tmp_path / "missing").check(2), r"data\.source = .*no such folder"),
    ):
        refused(call, message, UserError)
    (tmp_path / "empty").mkdir()
    refused(
        lambda: unigram(tmp_path / "empty").check(2),
        r"data\.source = .*'train' cannot be read",
        UserError,
    )


def test_a_role_without_test_text_is_scored_on_its_training_text(tmp_path):
    folder = write_play(tmp_path / "two", [("A", "a b"), ("B", "b")], [("A", "b")])
    data = unigram(folder).client_data(1, 2)
    assert data.test is data.train
    assert data.num_test == 1


def test_the_generated_corpus_needs_nothing_and_grows_with_the_clients():
    task = unigram()
    task.check(40)
    assert task.library().q == 40
    assert isinstance(task.client_data(3, 40), DensityData)
    assert unigram(num_clients=60).library().q == 60
    small, large = generate(3), generate(8)
    assert all(
        large[part][role] == counts for part in (0, 1) for role, counts in small[part].items()
    )


def test_counting_is_kept_for_the_process():
    read_corpus.cache_clear()
    assert unigram(num_clients=5).corpus is unigram(num_clients=5).corpus
    assert count_words([("A", "x y"), ("B", "x"), ("A", "x")]) == {
        "A": Counter(x=2, y=1),
        "B": Counter(x=1),
    }


def test_a_library_from_elsewhere_must_fit_the_task():
    task = point_mass(size=4)
    task.check_library(Library.from_arrays({"table": np.full((7, 4), 0.25)}))
    for call, message in (
        (
            lambda: task.check_library(Library.from_arrays({"table": np.full((7, 5), 0.2)})),
            "densities over 5 outcomes, but task 'point-mass' has 4",
        ),
        (
            lambda: task.check_library(Library.from_arrays({"table": np.full((7, 4), 0.5)})),
            "sums to 2",
        ),
    ):
        refused(call, message, UserError)


SHAKESPEARE = Path(os.environ.get("FEDAPPS_TEST_DATA") or "missing") / "shakespeare"


@pytest.mark.skipif(
    not SHAKESPEARE.is_dir(), reason="FEDAPPS_TEST_DATA names no folder with shakespeare"
)
def test_shakespeare_has_its_715_roles():
    task = unigram(SHAKESPEARE.resolve())
    assert len(task.corpus.roles) == 715
    assert sum(c.num_examples for c in task.corpus.train) == 430_789
    assert len(task.corpus.vocabulary) == 20_343
    task.library().check_densities()


# --- ensemble-classification ----------------------------------------------------------


def ensemble(seed=0, num_clients=4, **options):
    problem = EnsembleOptions(**({"predictors": 5, "epochs": 5} | options))
    data = DataOptions(partition="iid")
    return build_task(
        Settings(
            task="ensemble-classification",
            seed=seed,
            num_clients=num_clients,
            data=data,
            problem=problem,
        )
    )


def test_no_client_holds_a_sample_that_a_net_was_trained_on():
    images = read_samples(DataOptions())
    mine, rest = divide(images, 0.3, 0)
    assert len(mine.labels) + len(rest.labels) == len(images.labels)
    assert len(mine.labels) == pytest.approx(0.3 * len(images.labels), abs=5)

    def rows(part):
        return Counter(zip((p.tobytes() for p in part.x), part.labels.tolist(), strict=True))

    # together exactly the whole set, so nothing lies in both
    assert rows(mine) + rows(rest) == rows(images)
    np.testing.assert_array_equal(np.unique(mine.labels), np.arange(10))


def test_labels_are_covered_evenly():
    for predictors in (4, 7, 10):
        sets = label_sets(10, 3, predictors, seed=1)
        counts = np.bincount(np.concatenate(sets), minlength=10)
        assert counts.max() - counts.min() <= 1
        assert all(len(set(labels)) == 3 for labels in sets)
    refused(
        lambda: ensemble(labels_each=11).check(4),
        r"ensemble\.labels-each = 11, but the data has 10 classes: choose 1\.\.10",
        UserError,
    )


def test_libraries_as_one_finds_them():
    """Who knows what: a third know much and the others one label; copies of the first
    one; half are wrong.
    """
    unequal = recipes("unequal", 10, 3, 10, 0)
    assert [len(labels) for labels, _ in unequal] == [6] * 4 + [1] * 6
    overlapping = recipes("overlapping", 10, 3, 10, 0)
    assert set(np.concatenate([labels for labels, _ in overlapping[:4]])) == set(range(10))
    assert all((labels == overlapping[0][0]).all() for labels, _ in overlapping[4:])
    assert [shift for _, shift in recipes("flawed", 10, 3, 5, 0)] == [0, 0, 0, 1, 1]
    for kind in ("even", "unequal", "overlapping"):
        assert not any(shift for _, shift in recipes(kind, 10, 3, 10, 0))
        assert set(np.concatenate([labels for labels, _ in recipes(kind, 10, 3, 10, 0)])) == set(
            range(10)
        )


def test_a_flawed_net_answers_with_the_next_class():
    task = ensemble(kind="flawed")
    library, data = task.library(), task.client_data(0, 4)
    probabilities, labels = (
        data.probabilities(library.take(range(5)), data.test),
        data.test.y.numpy(),
    )
    sets = recipes("flawed", 10, 3, 5, 0)
    for own, (known, shift), name in zip(probabilities, sets, library.names, strict=True):
        mine = np.isin(labels, known)
        assert (own.argmax(1) == (labels + shift) % 10)[mine].mean() > 0.8
        assert name.endswith("as the next class") == bool(shift)


def test_nets_know_their_own_labels_and_are_the_same_for_a_seed():
    task = ensemble()
    library = task.library()
    assert library.q == 5
    again = ensemble().library()
    assert [library.hash_of(k) for k in range(library.q)] == [
        again.hash_of(k) for k in range(again.q)
    ]
    assert library.hash_of(0) != ensemble(seed=1).library().hash_of(0)
    data = task.client_data(0, 4)
    probabilities, labels = (
        data.probabilities(library.take(range(5)), data.test),
        data.test.y.numpy(),
    )
    for name, own in zip(library.names, probabilities, strict=True):
        known = np.isin(labels, [int(label) for label in name.partition(":")[2].split(",")])
        hit = own.argmax(1) == labels
        assert hit[known].mean() > 0.8
        assert hit[~known].mean() < 0.2


def test_clients_have_the_interface_and_alpha_starts_uniform():
    task = ensemble(loss="squared")
    task.check(4)
    np.testing.assert_allclose(task.initial_arrays()["alpha"], np.full(5, 0.2))
    data = task.client_data(2, 4)
    loss, gradient, norms = data.loss_and_gradient(task.library().take([1, 3]), [0.5, 0.5])
    assert np.isfinite(loss)
    assert gradient.shape == norms.shape == (2,)
    refused(
        lambda: task.check_library(Library.from_arrays({"table": np.full((3, 4), 0.25)})),
        r"model\.name = 'mlp' wants",
        UserError,
    )
    task.check_library(task.library())


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (PointMassOptions, {"size": 1}, r"size = 1: choose a value in \[2, 10000\]"),
        (PointMassOptions, {"samples": 50}, r"samples = 50: choose a value in \[100, "),
        (PointMassOptions, {"exponent": -1.0}, "exponent = -1"),
        (UnigramOptions, {"loss": "l2"}, "loss = 'l2': choose one of log, squared"),
        (UnigramOptions, {"epsilon": 1.0}, r"epsilon = 1\.0"),
        (EnsembleOptions, {"predictors": 0}, "predictors = 0"),
        (EnsembleOptions, {"share": 1.0}, r"share = 1\.0"),
        (EnsembleOptions, {"epochs": 0}, "epochs = 0"),
    ],
)
def test_wrong_options_are_said(kind, wrong, message):
    refused(lambda: kind(**wrong), message)
