"""The data of a run: the image set, its partition among the clients, and each client's
samples.

Everything follows from the options and the seed of the split: the server and every
worker process compute the same partition without communicating it.
"""

from collections.abc import Callable

import numpy as np

from fedapps.algorithms.common.options import names_in
from fedapps.algorithms.common.partitioners import (
    dirichlet_clients,
    flipped,
    iid,
    pathological,
    sorted_share,
    stratified,
    train_validation_test,
)
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.clients.base.data import ArrayData, ArraySplit, ClientData, Split
from fedapps.data import flower_partitioners
from fedapps.data.frame import some
from fedapps.data.options import FLOWER, DataOptions
from fedapps.data.scaling import Scale, inputs
from fedapps.data.source import Categorical, Indices, Samples
from fedapps.errors import UserError
from fedapps.notes import logger

# Values tried in order to suggest an alpha that would have worked.
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def thinned(samples: Samples, options: DataOptions) -> Samples:
    """Return ``max_samples`` of the dealt samples, evenly spaced, or all of them; and
    all of the other parts.
    """
    dealt = samples.dealt
    if not 0 < options.max_samples < len(dealt):
        return samples
    # Evenly spaced: a set that is sorted by class keeps all its classes.
    rows = dealt[np.arange(options.max_samples) * len(dealt) // options.max_samples]
    return samples.take(np.concatenate([rows, np.setdiff1d(np.arange(len(samples.labels)), dealt)]))


def partition(samples: Samples, options: DataOptions, num_clients: int, seed: int) -> list[Indices]:
    """Return the sample indices of each of ``num_clients`` clients: disjoint,
    ascending, at least ``min_samples`` each.

    Of natural clients these are the first ones by sorted id. Samples of ``data.test``
    are not among them. Raises UserError if the data cannot be partitioned in this way.
    """
    if options.partition == "natural":
        large = natural_groups(samples, options)
        if len(large) < num_clients:
            raise UserError(
                f"data.natural-id = {options.natural_id!r}: {options.source} has {len(large)} "
                f"clients with at least {options.min_samples} samples, {num_clients} are asked "
                f"for: choose at most {len(large)} nodes"
            )
        return large[:num_clients]
    if options.partition.startswith(FLOWER):
        return _enough(flower_partitioners.dealt(samples, options, num_clients, seed), options)
    dealt = samples.dealt
    return [dealt[part] for part in _dealt(samples.labels[dealt], options, num_clients, seed)]


def _dealt(labels: Indices, options: DataOptions, num_clients: int, seed: int) -> list[Indices]:
    total, source = len(labels), options.source
    if num_clients * options.min_samples > total:
        raise UserError(
            f"{num_clients} clients, but {source} has {total} samples and each client needs "
            f"{options.min_samples}: "
            f"choose at most {total // options.min_samples} clients"
        )
    rng, number = generator(seed, "partition"), derived_seed(seed, "partition") % 2**32
    ways: dict[str, Callable[[], list[Indices]]] = {
        "iid": lambda: iid(total, num_clients, rng),
        "pathological": lambda: _pathological(labels, options, num_clients, rng),
        "dirichlet": lambda: _dirichlet(labels, options, num_clients, number),
        "dirichlet-clients": lambda: dirichlet_clients(labels, num_clients, options.alpha, rng),
        "sorted-share": lambda: sorted_share(labels, num_clients, options.share, rng),
    }
    return _enough(ways[options.partition](), options)


def _enough(parts: list[Indices], options: DataOptions) -> list[Indices]:
    """Return the parts. Raises ``UserError`` if one is too small."""
    smallest = int(np.argmin([len(part) for part in parts]))
    if len(parts[smallest]) < options.min_samples:
        raise UserError(
            f"data.partition = {options.partition!r}: client {smallest} of {len(parts)} gets "
            f"{len(parts[smallest])} samples of {options.source}, it needs {options.min_samples}: "
            "choose fewer clients"
        )
    return parts


def split_rows(
    indices: Indices,
    client_id: int | str,
    seed: int,
    validation: float = 0.2,
    test: Indices | None = None,
    persons: Categorical | None = None,
) -> tuple[Indices, Indices, Indices]:
    """Return the rows of a client's training, validation and test sets; 20 % are the
    test set.

    ``validation``: fraction of the validation set; with 0 there is none. ``test``: rows
    of the test set, which then are not drawn. ``persons``: whose rows stay together.
    """
    if persons is not None:
        return rows_by_person(persons, indices, client_id, seed, validation)
    rng = generator(seed, "split", client=client_id)
    if test is None:
        fractions = (round(0.8 - (validation or 0.2), 9), validation or 0.2, 0.2)
        train, held_back, test = train_validation_test(indices, rng, fractions)
        return (
            (train, held_back, test)
            if validation
            else (np.sort(np.concatenate([train, held_back])), held_back[:0], test)
        )
    rows = rng.permutation(indices)
    cut = (
        min(max(round((1 - validation) * len(rows)), 1), len(rows) - 1) if validation else len(rows)
    )
    return np.sort(rows[:cut]), np.sort(rows[cut:]), test


def stratified_rows(
    samples: Samples, mine: Indices, client_id: int | str, seed: int, validation: float
) -> tuple[Indices, Indices, Indices]:
    """Return the rows of a client's training, validation and test sets, each with its
    share of every class: 20 % are the test set.

    A class with fewer samples than sets is for training. Rows of one person stay
    together, and then classes are not looked at.
    """
    if samples.persons is not None:
        return rows_by_person(samples.persons, mine, client_id, seed, validation)
    labels, needed = samples.labels[mine], 3 if validation else 2
    values, counts = np.unique(labels, return_counts=True)
    rare = np.isin(labels, values[counts < needed])
    if rare.all():
        labels, rare = np.zeros_like(labels), np.zeros_like(rare)
    kept, rng = np.flatnonzero(~rare), generator(seed, "split", client=client_id)
    train, held_back, test = (
        mine[kept[part]] for part in stratified(labels[kept], rng, 0.2, validation)
    )
    return np.sort(np.concatenate([train, mine[rare]])), held_back, test


def rows_by_person(
    persons: Categorical, mine: Indices, client_id: int | str, seed: int, validation: float
) -> tuple[Indices, Indices, Indices]:
    """Return the rows of a client's training, validation and test sets, none of which
    has rows of a person of another.

    Persons are drawn until the test set has 20 % of the rows, then for the validation
    set. Raises ``UserError`` if there are too few.
    """
    codes = persons.codes[mine]
    found, sizes = np.unique(codes, return_counts=True)
    needed = 3 if validation else 2
    if len(found) < needed:
        raise UserError(
            f"data.group-split: client {client_id} has rows of {len(found)} persons, {needed} are "
            "needed for training, validation and test: leave the client out (data.drop-clients), "
            "or name another column"
        )
    order = generator(seed, "split", client=client_id).permutation(len(found))
    ends = np.cumsum(sizes[order])
    last = len(found)
    tests = min(int(np.searchsorted(ends, 0.2 * len(mine))) + 1, last - needed + 1)
    spared = tests
    if validation:
        spared = int(np.searchsorted(ends, (0.2 + validation) * len(mine))) + 1
        spared = min(max(spared, tests + 1), last - 1)
    rank = np.argsort(order)[np.searchsorted(found, codes)]
    return mine[rank >= spared], mine[(rank >= tests) & (rank < spared)], mine[rank < tests]


def fold_rows(
    mine: Indices,
    options: DataOptions,
    client_id: int | str,
    seed: int,
    labels: Indices | None = None,
    persons: Categorical | None = None,
) -> tuple[Indices, Indices, Indices]:
    """Return the rows of a client's training, validation and test sets in the fold
    ``data.fold`` of ``data.folds``: in all folds every row is tested on once.

    Given ``labels`` (of all samples), each set has its share of every class; given
    ``persons``, a person's rows stay together. Folds differ by one row or person.
    """
    units = mine if persons is None else np.unique(persons.codes[mine])

    def drawn(places: Indices, purpose: str) -> Indices:
        """Return these places of units at random, those of a class together."""
        order = generator(seed, purpose, client=client_id).permutation(places)
        if labels is None or persons is not None:
            return order
        return order[np.argsort(labels[units[order]], kind="stable")]

    order = drawn(np.arange(len(units)), "folds")
    tested = np.arange(len(order)) % options.folds == options.fold
    left = drawn(order[~tested], f"fold {options.fold}")
    share = min(options.validation * options.folds / (options.folds - 1), 1 - 1 / max(len(left), 1))
    # evenly spaced, so that each class has its share
    held_back = np.diff(np.floor(share * np.arange(len(left) + 1) + 0.5)) > 0
    parts = left[~held_back], left[held_back], order[tested]
    if persons is not None:
        codes = persons.codes[mine]
        train, validation, test = (mine[np.isin(codes, units[part])] for part in parts)
    else:
        train, validation, test = (np.sort(mine[part]) for part in parts)
    return train, validation, test


def scored(
    rows: tuple[Indices, Indices, Indices],
    options: DataOptions,
    persons: Categorical | None = None,
) -> tuple[Indices, Indices, Indices]:
    """Return the rows of a client's training, validation and test sets, with the
    validation set, or half of it, in place of the test set if clients are scored on it.

    The half is every other row, or the rows of every other person. A client with one
    row or person there is scored on it and has no validation set; one with none is not
    scored.
    """
    if options.score_on == "test":
        return rows
    train, validation, _ = rows
    if options.score_on == "validation":
        if not len(validation):
            raise UserError(
                "data.score-on = 'validation': a client has no validation samples: set "
                "data.validation, to 0.2 say"
            )
        return train, validation, validation
    number = np.arange(len(validation))
    if persons is not None:
        number = np.unique(persons.codes[validation], return_inverse=True)[1]
    return train, validation[number % 2 == 1], validation[number % 2 == 0]


def client_data(
    samples: Samples, rows: tuple[Indices, Indices, Indices], scale: Scale | None = None
) -> ClientData:
    """Return a client's samples as tensors, given the rows of its training, validation
    and test sets (:func:`split_rows`).

    Without validation rows the training set is used as validation set. ``scale`` brings
    inputs to mean 0 and deviation 1. Inputs are float32 of shape (n, C, H, W), images
    in [0, 1], sounds in [-1, 1], or tokens int64 (n, length); labels int64 (n,).
    """
    return client_arrays(samples, rows, scale).tensors()


def client_arrays(
    samples: Samples, rows: tuple[Indices, Indices, Indices], scale: Scale | None = None
) -> ArrayData:
    """Return the same as arrays, with numbers to predict in place of labels."""

    def part(mine: Indices) -> ArraySplit:
        x = inputs(samples, mine)
        y = (samples.labels if samples.targets is None else samples.targets)[mine]
        groups = None if samples.groups is None else samples.groups[mine].members
        return ArraySplit(x if scale is None else scale.of(x), y, groups)

    train = part(rows[0])
    return ArrayData(train, part(rows[1]) if len(rows[1]) else train, part(rows[2]))


def noisy(
    own: ClientData, options: DataOptions, num_classes: int, rng: np.random.Generator
) -> ClientData:
    """Return a client's data with label noise in the training set, also if that is used
    as the validation set.

    With ``noise_validation`` in a validation set of its own, too, whose draws come
    last: the training labels are the same without it.
    """
    if options.noise == "none":
        return own

    import torch  # late: trees on a table do without

    def spoilt(part: Split) -> Split:
        labels = flipped(part.y.numpy(), num_classes, options.noise, options.noise_ratio, rng)
        return Split(part.x, torch.from_numpy(labels), part.groups)

    train = spoilt(own.train)
    if own.validation is own.train:
        return ClientData(train, train, own.test)
    return ClientData(
        train, spoilt(own.validation) if options.noise_validation else own.validation, own.test
    )


def _pathological(
    labels: Indices, options: DataOptions, num_clients: int, rng: np.random.Generator
) -> list[Indices]:
    classes = len(np.unique(labels))
    if options.classes_per_client > classes:
        raise UserError(
            f"data.classes-per-client = {options.classes_per_client}, but {options.source} has "
            f"{classes} "
            f"classes: choose 1..{classes}"
        )
    try:
        parts = pathological(labels, num_clients, options.classes_per_client, rng)
    except ValueError as error:
        raise UserError(f"data.partition = 'pathological': {error}") from error
    if left_out := len(labels) - sum(map(len, parts)):
        logger.warning(
            "%d samples are of classes that none of the %d clients holds", left_out, num_clients
        )
    return parts


def natural_groups(samples: Samples, options: DataOptions) -> list[Indices]:
    """Return the samples of each natural client, by sorted id; those with fewer than
    ``min_samples`` samples are skipped.

    Raises ``UserError`` if all are.
    """
    if samples.clients is None:
        hint = samples.numbers.suggested if samples.numbers else ""
        like = f": {hint} looks like one: data.natural-id={hint.split(chr(39))[1]}" if hint else ""
        raise UserError(
            f"data.natural-id = '': name the column of the clients in {options.source}{like}, or "
            "data.partition=iid for clients at random"
        )
    dealt = samples.dealt
    ids, names = samples.clients.codes[dealt], samples.clients.names
    gone = names_in(options.drop_clients)
    if unknown := [name for name in gone if name not in names]:
        raise UserError(f"data.drop-clients: no client {unknown[0]!r}: there are {some(names)}")
    groups = np.split(
        dealt[np.argsort(ids, kind="stable")],
        np.cumsum(np.bincount(ids, minlength=len(names)))[:-1],
    )
    large = [
        group
        for name, group in zip(names, groups, strict=True)
        if len(group) >= options.min_samples and name not in gone
    ]
    if not large:
        raise UserError(
            f"data.natural-id = {options.natural_id!r}: none of the {len(names)} values of "
            "this column has the "
            f"{options.min_samples} samples that a client needs (data.min-samples): name the "
            "column of the client"
        )
    return large


def natural_clients(samples: Samples, options: DataOptions) -> int:
    """Return the number of clients that the data or the partitioner determine; 0 for
    partitions over any number of clients.
    """
    if options.partition.startswith(FLOWER):
        return flower_partitioners.number_of_clients(samples, options)
    return len(natural_groups(samples, options)) if options.partition == "natural" else 0


def _dirichlet(labels: Indices, options: DataOptions, num_clients: int, seed: int) -> list[Indices]:
    """Partition each class by Dir(alpha), redrawn until every client has enough
    samples.

    A client that already has an even share of all samples gets none of the later
    classes (``self_balancing``), as in the programs published with the methods.
    """
    parts = _dirichlet_once(labels, num_clients, options.alpha, seed, options.min_samples)
    if parts is not None:
        return parts
    # Only for the error message: the first draw as it is, and the smallest larger alpha
    # that works.
    sizes = [len(p) for p in _dirichlet_once(labels, num_clients, options.alpha, seed, 0) or []]
    who = "a client"
    if sizes:
        who = f"client {sizes.index(min(sizes))} of {num_clients} (with {min(sizes)} samples)"
    remedies = (
        f"the smallest alpha that works here is {alpha:g}"
        for alpha in ALPHAS
        if alpha > options.alpha
        and _dirichlet_once(labels, num_clients, alpha, seed, options.min_samples)
    )
    remedy = next(remedies, "no larger alpha helps, choose fewer clients")
    raise UserError(
        f"data.partition = 'dirichlet' with data.alpha = {options.alpha:g} leaves {who} without "
        "the "
        f"{options.min_samples} samples it needs: {remedy}"
    )


def _dirichlet_once(
    labels: Indices, num_clients: int, alpha: float, seed: int, minimum: int
) -> list[Indices] | None:
    """Run the partitioner of flwr-datasets; None if it gives up (after eleven
    draws).
    """
    # imported here: it takes seconds, and only this partition needs it
    from flwr_datasets.partitioner import DirichletPartitioner

    rows = np.random.default_rng(seed).permutation(len(labels))
    partitioner = DirichletPartitioner(
        num_clients, "by", float(alpha), minimum, self_balancing=True, shuffle=False, seed=seed
    )
    # It divides 0 by 0 when a tiny alpha gives a class to full clients only: there is
    # no partition then.
    with np.errstate(invalid="raise", divide="raise"):
        try:
            return flower_partitioners.partitioned(partitioner, labels, rows)
        except (ValueError, ArithmeticError):
            return None
