"""Properties of partitions: disjoint, complete, of the promised classes and sizes, and
the same for the same seed.
"""

import numpy as np
import pytest

from fedapps.algorithms.common.partitioners import (
    KINDS,
    dirichlet_clients,
    flipped,
    iid,
    pathological,
    sorted_share,
    stratified,
    train_validation_test,
)
from tests.helpers import refused

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))  # 600 samples, balanced

SCHEMES = {
    "iid": lambda clients, rng: iid(len(LABELS), clients, rng),
    "pathological": lambda clients, rng: pathological(LABELS, clients, 2, rng),
    "sorted-share": lambda clients, rng: sorted_share(LABELS, clients, 0.3, rng),
    "dirichlet-clients": lambda clients, rng: dirichlet_clients(LABELS, clients, 0.1, rng),
}


def sizes(parts):
    return np.array([len(part) for part in parts])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("clients", [5, 7, 20, 60])
def test_disjoint_covering_and_decided_by_the_seed(scheme, clients):
    deal = SCHEMES[scheme]
    parts = deal(clients, np.random.default_rng(1))
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    again, other = deal(clients, np.random.default_rng(1)), deal(clients, np.random.default_rng(2))
    assert all(map(np.array_equal, parts, again))
    assert not all(map(np.array_equal, parts, other))


@pytest.mark.parametrize("clients", [7, 20, 600])
def test_iid_is_even_and_mixed(clients):
    parts = iid(600, clients, np.random.default_rng(0))
    assert np.ptp(sizes(parts)) <= 1
    if clients == 7:  # every client of 85 samples holds all ten classes, near 8.5 of each
        counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
        assert counts.min() >= 1
        assert counts.max() <= 22


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("clients", "k"), [(20, 2), (7, 3), (13, 1), (10, 10), (60, 2), (30, 7)])
def test_pathological_gives_exactly_k_classes_used_evenly(clients, k, seed):
    parts = pathological(LABELS, clients, k, np.random.default_rng(seed))
    held = [np.unique(LABELS[part]) for part in parts]
    assert {len(classes) for classes in held} == {k}
    assert np.ptp(np.bincount(np.concatenate(held), minlength=10)) <= 1
    for label in range(10):  # a class is dealt evenly to its holders
        pieces = [np.sum(LABELS[part] == label) for part in parts if label in LABELS[part]]
        assert max(pieces) - min(pieces) <= 1
    if clients * k % 10 == 0 and 60 % (clients * k // 10) == 0:
        assert np.ptp(sizes(parts)) == 0


def test_pathological_pieces_of_a_class_are_random():
    """A class is not cut in file order: neighbours in the file may be one writer's."""
    assert (
        60 < np.sum(pathological(np.zeros(400, int), 2, 1, np.random.default_rng(0))[0] < 200) < 140
    )


def test_pathological_pairs_are_random():
    pairs = {
        tuple(np.unique(LABELS[part]))
        for seed in range(30)
        for part in pathological(LABELS, 5, 2, np.random.default_rng(seed))
    }
    assert len(pairs) > 40, "nearly all of the 45 pairs of classes turn up"


def test_pathological_leaves_out_what_no_client_holds():
    parts = pathological(LABELS, 3, 2, np.random.default_rng(0))
    assert len(np.concatenate(parts)) == 6 * 60
    assert sorted(np.concatenate([np.unique(LABELS[part]) for part in parts])) == sorted(
        set(LABELS[np.concatenate(parts)])
    )


def test_pathological_label_values_are_free():
    labels = np.array([-5, 100, 7] * 10)
    assert sorted(
        labels[part[0]] for part in pathological(labels, 6, 1, np.random.default_rng(0))
    ) == [-5, -5, 7, 7, 100, 100]


def test_sorted_share_extremes():
    assert [
        set(LABELS[part]) for part in sorted_share(LABELS, 10, 0.0, np.random.default_rng(0))
    ] == [{c} for c in range(10)]
    everything_random = sorted_share(LABELS, 10, 1.0, np.random.default_rng(0))
    assert all(len(set(LABELS[part])) == 10 for part in everything_random)


@pytest.mark.parametrize(
    ("clients", "share"), [(7, 0.1), (7, 0.5), (11, 0.33), (100, 0.2), (13, 0.999)]
)
def test_sorted_share_is_even_and_drops_nothing(clients, share):
    parts = sorted_share(LABELS, clients, share, np.random.default_rng(3))
    assert np.ptp(sizes(parts)) <= 1
    assert sizes(parts).sum() == 600


def test_sorted_share_mixes_by_the_share():
    """With 10 clients of 60, a fifth random: about 12 + (48 of one or two neighbouring
    classes).
    """
    for client, part in enumerate(sorted_share(LABELS, 10, 0.2, np.random.default_rng(0))):
        near = np.bincount(LABELS[part], minlength=10)[max(0, client - 1) : client + 2].sum()
        assert 48 <= near < 60
    # a file sorted by label: the random share must still hold every class
    shuffled_file = np.sort(LABELS)
    mixed = np.concatenate(sorted_share(shuffled_file, 2, 1.0, np.random.default_rng(0))[:1])
    assert len(set(shuffled_file[mixed])) == 10


@pytest.mark.parametrize("n", [3, 4, 5, 10, 99, 600])
def test_split_covers_and_is_never_empty(n):
    indices = np.arange(1000, 1000 + n)
    parts = train_validation_test(indices, np.random.default_rng(0))
    assert np.array_equal(np.sort(np.concatenate(parts)), indices)
    assert min(sizes(parts)) >= 1
    if n % 5 == 0:
        assert sizes(parts).tolist() == [n * 3 // 5, n // 5, n // 5]
    skewed = train_validation_test(indices, np.random.default_rng(0), (0.01, 0.01, 0.98))
    assert min(sizes(skewed)) >= 1


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 1.0, 1e6])
def test_dirichlet_clients_are_of_one_size_and_as_skewed_as_alpha_says(alpha):
    counts = np.array(
        [
            np.bincount(LABELS[p], minlength=10)
            for p in dirichlet_clients(LABELS, 20, alpha, np.random.default_rng(0))
        ]
    )
    assert (counts.sum(1) == 30).all()
    # The variance of a Dirichlet share over 10 equal classes: s (1 - s) / (10 alpha +
    # 1), beside the multinomial's. Later clients take what is left, so only the first
    # ones are looked at.
    share = 0.1 * 0.9 / (10 * alpha + 1)
    first = [
        np.bincount(LABELS[p], minlength=10) / 30
        for seed in range(60)
        for p in dirichlet_clients(LABELS, 20, alpha, np.random.default_rng(seed), min_classes=1)[
            :5
        ]
    ]
    assert np.mean((np.array(first) - 0.1) ** 2) == pytest.approx(
        share + (0.1 * 0.9 - share) / 30, rel=0.06
    )


def test_dirichlet_clients_hold_two_classes_where_they_can():
    for seed in range(5):
        parts = dirichlet_clients(LABELS, 20, 0.01, np.random.default_rng(seed))
        # the last ones get what is left
        assert sum(len(np.unique(LABELS[part])) < 2 for part in parts) <= 2


def test_unequal_classes_are_dealt_in_proportion():
    labels = np.repeat([0, 1], [900, 100])
    parts = dirichlet_clients(labels, 10, 1e6, np.random.default_rng(0))
    assert np.abs([np.mean(labels[part]) - 0.1 for part in parts]).max() < 0.12


def test_split_is_random_by_seed():
    indices = np.arange(100)
    first, again, other = (
        train_validation_test(indices, np.random.default_rng(s)) for s in (1, 1, 2)
    )
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[2], other[2])
    assert not np.array_equal(first[0], indices[:60])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: iid(3, 4, rng), "4 clients for 3 samples"),
        (lambda rng: iid(3, 0, rng), "choose 1..3 clients"),
        (
            lambda rng: pathological(LABELS, 20, 12, rng),
            "classes_per_client = 12, but there are 10 classes: choose 1..10",
        ),
        (
            lambda rng: pathological(np.array([0] * 9 + [1]), 2, 2, rng),
            "class 1 has 1 samples for 2 clients",
        ),
        (
            lambda rng: stratified(np.array([0, 0, 0, 1, 1]), rng, 0.2, 0.2),
            "class 1 has 2 samples for 3 parts",
        ),
        (lambda rng: sorted_share(LABELS, 5, 1.5, rng), "share = 1.5: must be between 0 and 1"),
        (lambda rng: dirichlet_clients(LABELS, 5, 0.0, rng), "alpha = 0.0: must be above 0"),
        (lambda rng: train_validation_test(np.arange(2), rng), "at least 3 are needed"),
        (lambda rng: train_validation_test(np.arange(9), rng, (0.5, 0.5, 0.5)), "add up to 1"),
        *(
            (
                lambda rng, classes=classes, kind=kind, ratio=ratio: flipped(
                    np.zeros(3, np.int64), classes, kind, ratio, rng
                ),
                why,
            )
            for classes, kind, ratio, why in [
                (2, "pair", -0.1, r"noise-ratio = .*: choose a value in \[0, 1\)"),
                (2, "pair", 1.0, r"noise-ratio = .*: choose a value in \[0, 1\)"),
                (2, "pair", float("nan"), r"noise-ratio = .*: choose a value in \[0, 1\)"),
                (2, "pairs", 0.1, "noise = 'pairs': did you mean 'pair'"),
                (1, "pair", 0.1, "two classes"),
            ]
        ),
    ],
)
def test_bad_arguments(call, message):
    refused(lambda: call(np.random.default_rng(0)), message)


# --- label noise ----------------------------------------------------------------------

# The transition matrices that the kinds are defined by.


def transitions(kind, ratio, classes=5, each=20_000):
    """Return the share of each class (row) that became each class (column)."""
    labels = np.repeat(np.arange(classes), each)
    table = np.zeros((classes, classes))
    np.add.at(
        table, (labels, flipped(labels, classes, kind, ratio, np.random.default_rng(3))), 1 / each
    )
    return table


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.6])
def test_the_transition_matrices(ratio):
    own = np.eye(5) * (1 - ratio)
    np.testing.assert_allclose(
        transitions("pair", ratio), own + ratio * np.roll(np.eye(5), 1, axis=1), atol=0.015
    )
    np.testing.assert_allclose(
        transitions("symmetric", ratio), own + ratio / 4 * (1 - np.eye(5)), atol=0.015
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_at_one_ratio_is_wrong_at_every_larger_one(kind):
    labels = np.random.default_rng(0).integers(0, 7, 500)
    little, much = (
        flipped(labels, 7, kind, ratio, np.random.default_rng(1)) for ratio in (0.1, 0.5)
    )
    at = little != labels
    assert 0 < at.sum() < (much != labels).sum()
    assert np.array_equal(little[at], much[at])
