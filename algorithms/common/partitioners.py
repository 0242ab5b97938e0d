"""Partition a labelled data set among clients, and split a client's samples into
training, validation and test sets.

Every partitioner returns one int64 array of sample indices per client, ascending (so
that files are read sequentially) and disjoint between clients. All randomness comes
from the generator passed in.

Sources: ``pathological``: McMahan, Moore, Ramage, Hampson, Aguera y Arcas,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, arXiv 1602.05629. ``sorted_share``: Shen, Hassani, Kale, Karbasi, "Federated
Functional Gradient Boosting", AISTATS 2022, arXiv 2103.06972. ``dirichlet_clients``:
Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, arXiv 1909.06335.

Label noise (:func:`flipped`): with ratio e and L classes, a label c becomes

    pair:       c + 1 mod L with probability e
    symmetric:  each of the other classes with probability e / (L - 1)

Sources: Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama, "Co-teaching: Robust Training of
Deep Neural Networks with Extremely Noisy Labels", NeurIPS 2018, arXiv 1804.06872,
section 4; as used in Hahn, "Algorithms for Collaborative Machine Learning under
Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II
(Table 2.6).
"""

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_choice, check_range

Indices = npt.NDArray[np.int64]


def iid(num_samples: int, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Partition all samples uniformly at random; sizes differ by at most one."""
    _check(num_samples, num_clients)
    return _ascending(np.array_split(rng.permutation(num_samples), num_clients))


def pathological(
    labels: npt.NDArray[np.integer],
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Give every client samples of exactly ``classes_per_client`` distinct classes
    (McMahan et al.).

    Each client draws at random among the classes used least so far, so the number of
    clients that hold a class differs by at most one between classes. A class's shuffled
    samples are split evenly among its holders: with equal class sizes and numbers of
    holders, all clients get equally many. If some classes are held by no client, their
    samples are left out; otherwise every sample is assigned.

    The partitioner of this name in flwr-datasets draws each client's classes
    independently: some classes may go unused while others are cut into small pieces,
    and its deterministic mode is not random at all.

    Raises ValueError if there are fewer classes than ``classes_per_client``, or a class
    has fewer samples than holders.
    """
    labels = np.asarray(labels)
    _check(len(labels), num_clients)
    classes = np.unique(labels)
    if not 1 <= classes_per_client <= len(classes):
        raise ValueError(
            f"classes_per_client = {classes_per_client}, but there are {len(classes)} classes: "
            f"choose 1..{len(classes)}"
        )
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(num_clients):
        order = rng.permutation(len(classes))
        used = np.array([len(holders[c]) for c in order])
        for c in order[np.argsort(used, kind="stable")[:classes_per_client]]:
            holders[c].append(client)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label, clients in zip(classes, holders, strict=True):
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(samples) < len(clients):
            raise ValueError(
                f"class {label} has {len(samples)} samples for {len(clients)} clients: choose "
                "fewer clients "
                "or fewer classes per client"
            )
        if clients:
            # Holders in random order: the first ones get the remainder of the even
            # split.
            for client, piece in zip(
                rng.permutation(clients), np.array_split(samples, len(clients)), strict=True
            ):
                parts[client].append(piece)
    return _ascending([np.concatenate(pieces) for pieces in parts])


def sorted_share(
    labels: npt.NDArray[np.integer], num_clients: int, share: float, rng: np.random.Generator
) -> list[Indices]:
    """Partition a fraction ``share`` of the samples at random, and the rest, sorted by
    label, in consecutive blocks.

    The scheme of the functional-boosting papers (Shen et al.): share 1 is i.i.d., share
    0 gives each client one contiguous block of the label order. Two choices differ from
    their program: the samples are shuffled first (it takes the first ones of the file
    as the random share), and no sample is dropped: remainders go one each to some
    clients, so that total sizes differ by at most one.
    """
    labels = np.asarray(labels)
    _check(len(labels), num_clients)
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share}: must be between 0 and 1")
    order = rng.permutation(len(labels))
    num_random = int(share * len(labels))
    rest = order[num_random:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    random_sizes = _even(num_random, num_clients)
    block_sizes = _even(len(labels), num_clients) - random_sizes
    random_parts = np.split(order[:num_random], np.cumsum(random_sizes)[:-1])
    blocks = np.split(rest, np.cumsum(block_sizes)[:-1])
    return _ascending([np.concatenate(pair) for pair in zip(random_parts, blocks, strict=True)])


def dirichlet_clients(
    labels: npt.NDArray[np.integer],
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_classes: int = 2,
) -> list[Indices]:
    """Give all clients equally many samples, with class proportions drawn per client
    from a Dirichlet distribution (Hsu et al.).

    A client draws q ~ Dir(alpha C s), C being the number of classes and s their shares
    of the samples: Dir(alpha) for balanced classes. It takes samples in proportions q;
    an exhausted class gives what it has, and once all classes in q are exhausted,
    samples come from the others in proportion to what they have left. Every sample is
    assigned exactly once. A client with fewer than ``min_classes`` classes draws again,
    at most a hundred times.

    The reference programs of AAggFF and FedEvg instead reuse samples of an exhausted
    class for later clients.
    """
    labels = np.asarray(labels)
    _check(len(labels), num_clients)
    if not alpha > 0:
        raise ValueError(f"alpha = {alpha}: must be above 0")
    _, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
    order = rng.permutation(len(labels))
    pools = np.split(order[np.argsort(classes[order], kind="stable")], np.cumsum(left)[:-1])
    concentration = alpha * len(left) * left / len(labels)
    parts = []
    for size in _even(len(labels), num_clients):
        for _ in range(100):
            counts = _fill(rng.dirichlet(concentration), left, int(size), rng)
            if np.count_nonzero(counts) >= min_classes:
                break
        parts.append(
            np.concatenate(
                [pool[rest - n : rest] for pool, rest, n in zip(pools, left, counts, strict=True)]
            )
        )
        left = left - counts
    return _ascending(parts)


def _fill(
    share: npt.NDArray[np.float64], left: npt.NDArray[np.int64], size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return how many of ``size`` samples to take from each class: in proportions
    ``share``, never more than are ``left``.
    """
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        open_ = left - counts
        weights = share * (open_ > 0)
        weights = weights if weights.sum() > 0 else open_.astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), open_)
    return counts


def train_validation_test(
    indices: Indices,
    rng: np.random.Generator,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
) -> tuple[Indices, Indices, Indices]:
    """Split a client's samples at random into training, validation and test sets, none
    of them empty.

    Raises ValueError for fewer than 3 samples or fractions that do not sum to 1.
    """
    n = len(indices)
    if n < 3:
        raise ValueError(f"{n} samples cannot be split into three parts: at least 3 are needed")
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"fractions = {fractions}: must be non-negative and add up to 1")
    first = min(max(round(fractions[0] * n), 1), n - 2)
    second = min(max(round((fractions[0] + fractions[1]) * n), first + 1), n - 1)
    train, validation, test = _ascending(np.split(rng.permutation(indices), [first, second]))
    return train, validation, test


def stratified(
    labels: npt.NDArray[np.integer], rng: np.random.Generator, test: float, validation: float = 0.0
) -> tuple[Indices, Indices, Indices]:
    """Split samples into training, validation and test sets, stratified by class.

    Of the n samples of a class, ``test`` n (rounded) go to the test set, at least one,
    with at least one left for every other set; likewise ``validation`` n, or none if it
    is 0. Raises ValueError for a class with fewer samples than sets.
    """
    parts: list[list[Indices]] = [[], [], []]
    needed = 3 if validation else 2
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count < needed:
            raise ValueError(
                f"class {label} has {count} samples for {needed} parts: each part needs one"
            )
        order = rng.permutation(np.flatnonzero(labels == label))
        num_test = min(max(int(test * count + 0.5), 1), count - needed + 1)
        num_validation = (
            min(max(int(validation * count + 0.5), 1), count - num_test - 1) if validation else 0
        )
        pieces = np.split(order, [count - num_test - num_validation, count - num_test])
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    train, between, last = _ascending([np.concatenate(pieces) for pieces in parts])
    return train, between, last


def _check(num_samples: int, num_clients: int) -> None:
    if not 1 <= num_clients <= num_samples:
        raise ValueError(
            f"{num_clients} clients for {num_samples} samples: choose 1..{num_samples} clients"
        )


def _even(total: int, parts: int) -> npt.NDArray[np.int64]:
    """Return sizes that sum to ``total`` and differ by at most one, the larger ones
    first.
    """
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def _ascending(parts: list[npt.NDArray[np.int64]]) -> list[Indices]:
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


KINDS = ("pair", "symmetric")


def flipped(
    labels: NDArray[np.int64], num_classes: int, kind: str, ratio: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return a copy of ``labels`` (n,) in 0..num_classes - 1 with each flipped
    independently with probability ``ratio`` in [0, 1).

    The draws do not depend on the ratio: with the same generator, a label flipped at
    one ratio is flipped at every larger one.
    """
    check_choice("noise", kind, KINDS)
    check_range("noise-ratio", ratio, 0, 1, open_high=True)
    if num_classes < 2:
        raise ValueError(
            f"num_classes = {num_classes}: a label can only be wrong where there are two classes"
        )
    hit = rng.random(len(labels)) < ratio
    away = (
        np.ones(len(labels), np.int64)
        if kind == "pair"
        else rng.integers(1, num_classes, len(labels))
    )
    return np.where(hit, (labels + away) % num_classes, labels)
