from collections import Counter

import numpy as np
import pytest

from fedapps.clients.families.ensemble_data import DensityData
from fedapps.data.corpus import generate, words
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.settings.settings import Settings
from fedapps.tasks.ensemble_classification import divide, label_sets, recipes
from fedapps.tasks.options import EnsembleOptions, PointMassOptions, UnigramOptions
from fedapps.tasks.predictor_library import Library
from tests.data_folders import write_play
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
    assert whole_loss(task, 100, (share - 0.01 / 100) / 0.99) == pytest.approx(entropy, abs=1e-4)
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


@pytest.fixture
def play(tmp_path):
    train = [("B", "To be, or not to be!"), ("A", "No. No? Yes"), ("C", "...")]
    train += [("B", "to sleep")]
    test = [("A", "yes, perchance to dream; no"), ("B", "be sleep"), ("D", "nobody")]
    return write_play(tmp_path / "play", train=train, test=test)


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


def test_a_role_without_test_text_is_scored_on_its_training_text(tmp_path):
    train, test = [("A", "a b"), ("B", "b")], [("A", "b")]
    data = unigram(write_play(tmp_path / "two", train=train, test=test)).client_data(1, 2)
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


def test_a_library_from_elsewhere_may_fit_the_task():
    point_mass(size=4).check_library(Library.from_arrays({"table": np.full((7, 4), 0.25)}))


# --- ensemble-classification ----------------------------------------------------------


def ensemble(seed=0, num_clients=4, **options):
    return build_task(
        Settings(
            task="ensemble-classification",
            seed=seed,
            num_clients=num_clients,
            data=DataOptions(partition="iid"),
            problem=EnsembleOptions(**({"predictors": 5, "epochs": 5} | options)),
        )
    )


FLAWED = EnsembleOptions(kind="flawed", predictors=5)


def predicted(task):
    """The name, the probabilities and the labels of every net on a client's tests."""
    library, data = task.library(), task.client_data(0, 4)
    found = data.probabilities(library.take(range(5)), data.test)
    return [
        (name, own, data.test.y.numpy()) for name, own in zip(library.names, found, strict=True)
    ]


def test_no_client_holds_a_sample_that_a_net_was_trained_on():
    images = read_samples(DataOptions())

    def rows(part):
        return Counter(zip((p.tobytes() for p in part.x), part.labels.tolist(), strict=True))

    for share in (0.3, 0.0):
        mine, rest = divide(images, share, 0)
        assert len(mine.labels) == pytest.approx(share * len(images.labels), abs=5 * (share > 0))
        # together exactly the whole set, so nothing lies in both
        assert rows(mine) + rows(rest) == rows(images)
        assert len(np.unique(mine.labels)) == (10 if share else 0)


def test_labels_of_nets_that_others_train_are_not_drawn():
    """Of two classes no net knows the default of three."""
    ensemble(labels_each=11, share=0.0).check(4)


def test_labels_are_covered_evenly():
    for predictors in (4, 7, 10):
        sets = label_sets(10, 3, predictors, seed=1)
        counts = np.bincount(np.concatenate(sets), minlength=10)
        assert counts.max() - counts.min() <= 1
        assert all(len(set(labels)) == 3 for labels in sets)


def test_libraries_as_one_finds_them():
    """Who knows what: a third know much and the others one label; copies of the first
    one; half are wrong.
    """
    found = {
        kind: recipes(EnsembleOptions(kind=kind), 10, 0)
        for kind in ("even", "unequal", "overlapping")
    }
    for kind, nets in found.items():
        assert not any(shift for _, shift in nets), kind
        assert set(np.concatenate([labels for labels, _ in nets])) == set(range(10)), kind
    assert [len(labels) for labels, _ in found["unequal"]] == [6] * 4 + [1] * 6
    first, *others = (labels for labels, _ in found["overlapping"])
    assert set(np.concatenate([first, *others[:3]])) == set(range(10))
    assert all((labels == first).all() for labels in others[3:])
    assert [shift for _, shift in recipes(FLAWED, 10, 0)] == [0, 0, 0, 1, 1]


def test_a_flawed_net_answers_with_the_next_class():
    sets = recipes(FLAWED, 10, 0)
    nets = predicted(ensemble(kind="flawed"))
    for (name, own, labels), (known, shift) in zip(nets, sets, strict=True):
        assert (own.argmax(1) == (labels + shift) % 10)[np.isin(labels, known)].mean() > 0.8
        assert name.endswith("as the next class") == bool(shift)


def test_nets_know_their_own_labels_and_are_the_same_for_a_seed():
    task = ensemble()
    hashes, again, other = (
        [library.hash_of(k) for k in range(library.q)]
        for library in (task.library(), ensemble().library(), ensemble(seed=1).library())
    )
    assert hashes == again
    assert (len(hashes), set(hashes) & set(other)) == (5, set())
    for name, own, labels in predicted(task):
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
    task.check_library(task.library())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda play, empty: point_mass(size=10).check(11),
            r"num-clients = 11, .*point-mass\.size = 10.*at most 10",
        ),
        (lambda play, empty: point_mass().client_data("a", 3), "client 'a'"),
        (
            lambda play, empty: unigram(play, num_clients=1).check(2),
            r"2 clients, but .* gives 1 roles: set num-clients",
        ),
        (
            lambda play, empty: unigram(play, num_clients=3).check(3),
            r"num-clients = 3, but .* has 2 roles with text: choose 1\.\.2",
        ),
        (
            lambda play, empty: unigram(play, role="speaker").check(2),
            r"unigram\.role = 'speaker': .* has the columns character_id, text",
        ),
        (
            lambda play, empty: unigram("/no/such/folder").check(2),
            r"data\.source = .*no such folder",
        ),
        (
            lambda play, empty: unigram(empty).check(2),
            r"data\.source = .*'train' cannot be read",
        ),
        (
            lambda play, empty: ensemble(labels_each=11).check(4),
            r"ensemble\.labels-each = 11, but the data has 10 classes: choose 1\.\.10",
        ),
        *(
            (
                lambda play, empty, task=task, shape=shape, value=value: task().check_library(
                    Library.from_arrays({"table": np.full(shape, value)})
                ),
                message,
            )
            for task, shape, value, message in [
                (
                    lambda: point_mass(size=4),
                    (7, 5),
                    0.2,
                    "densities over 5 outcomes, but task 'point-mass' has 4",
                ),
                (lambda: point_mass(size=4), (7, 4), 0.5, "sums to 2"),
                (lambda: ensemble(loss="squared"), (3, 4), 0.25, r"model\.name = 'mlp' wants"),
            ]
        ),
    ],
)
def test_clients_texts_and_libraries_that_do_not_fit_are_named(
    call, message, play, tmp_path_factory
):
    refused(lambda: call(play, tmp_path_factory.mktemp("empty")), message, UserError)


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
