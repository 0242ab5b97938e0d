"""The data of each client before training: samples by client and class, what clients
have in common, warnings, and a figure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.target_errors import error_sums, errors_of, pooled
from fedapps.errors import UserError
from fedapps.formats import few, shortened
from fedapps.lab.charts.drawing import Figure, heat, heat_key, name_cells, panels, title
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import with_clients
from fedapps.tasks.capabilities import HasNet, PredictsNumbers, SplitsSamples
from fedapps.tasks.client_names import client_names

#: At most this many classes get a column, and this many clients a row.
MAX_CLASSES, MAX_CLIENTS = 12, 60
#: A client with fewer test samples gets a warning: one sample would change its accuracy
#: by a third or more.
FEW_TESTS = 3


@dataclass(frozen=True)
class ClientSamples:
    """The samples of each of K clients. ``counts`` (K, 3, C): training, validation and
    test samples by class.

    Validation samples are not counted if a client validates on its training samples. If
    ``numbers`` are predicted, the classes are the quarters of the targets (of the first
    target, if there are several), with equal numbers of samples.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    numbers: bool = False

    @property
    def trained(self) -> NDArray[np.int64]:
        """Training samples of each client and class (K, C)."""
        return np.asarray(self.counts[:, 0])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training, validation and test samples of each client (K, 3)."""
        return np.asarray(self.counts.sum(2))


def client_samples(settings: Any) -> tuple[ClientSamples, Any, list[str]]:
    """Return the clients' data under these settings, the settings with the number of
    clients, and remarks. Raises ``UserError``.
    """
    if settings.sites.own:
        raise UserError("fedapps data: cannot show the data of sites: they stay at the sites")
    settings = with_clients(settings, build_task(settings))
    task: Any = build_task(settings)
    if not isinstance(task, HasNet):
        raise UserError(f"fedapps data: task {settings.task!r} has no samples with a class to show")
    samples = samples_of(task, settings.num_clients)
    notes = task.remarks(settings.num_clients) if isinstance(task, SplitsSamples) else []
    notes += warnings_of(samples)
    notes += means_predicted(task, settings.num_clients) if samples.numbers else []
    return samples, settings, [*notes, *copies_in(task, settings.num_clients)]


def copies_in(task: Any, num_clients: int) -> list[str]:
    """Return one line for test samples that are copies of training samples, since they
    make scores too high, and one for training samples that several clients have.
    """
    if not isinstance(task, SplitsSamples):
        return []
    parts = [task.split(client, num_clients) for client in range(num_clients)]
    trained = [np.concatenate([train, held_back]) for train, held_back, _ in parts]
    scored, twice = copies(task.samples.x, trained, [test for *_, test in parts])
    out = [f"test samples that are copies of training samples: {scored}"] if scored else []
    return (
        [*out, f"training samples that are copies of another client's: {twice}"] if twice else out
    )


def means_predicted(task: Any, num_clients: int) -> list[str]:
    """Return one line for each baseline that needs no training: predicting the mean of
    the training targets, of all clients or of the client itself.
    """
    parts = [task.target_parts(client, num_clients) for client in range(num_clients)]
    everyone = np.concatenate([train for train, _, _ in parts]).mean(0)
    out = []
    for name, means in (
        ("all clients' training targets", [everyone] * num_clients),
        ("each client's own training targets", [train.mean(0) for train, _, _ in parts]),
    ):
        sums = [
            (len(y), error_sums(np.broadcast_to(mean, y.shape), y))
            for mean, (_, _, y) in zip(means, parts, strict=True)
        ]
        own, together = [errors_of(*part)["rmse"] for part in sums], errors_of(*pooled(sums))
        errors = (
            f"RMSE {np.mean(own):.4g} (mean over clients), {max(own):.4g} (worst), "
            f"{together['rmse']:.4g} (all samples)"
        )
        out.append(f"baseline, predicting the mean of {name}: {errors}")
    return out


def quarters(task: Any, num_clients: int) -> tuple[tuple[str, ...], list[list[NDArray[np.int64]]]]:
    """Return the names of the quarters of the targets, and the quarter of each sample
    by client.
    """
    parts = [
        [part[:, 0] for part in task.target_parts(client, num_clients)]
        for client in range(num_clients)
    ]
    cuts = np.quantile(np.concatenate([train for train, *_ in parts]), (0.25, 0.5, 0.75))
    low, middle, high = (f"{cut:.4g}" for cut in cuts)
    names = (f"up to {low}", f"to {middle}", f"to {high}", "above")
    return names, [[np.searchsorted(cuts, part) for part in own] for own in parts]


def samples_of(task: Any, num_clients: int) -> ClientSamples:
    """Return the clients' data of a task. Raises ``UserError`` if its samples have no
    class.
    """
    numbers = isinstance(task, PredictsNumbers)
    classes, labels = (quarters if numbers else labelled)(task, num_clients)
    counts = np.array(
        [[np.bincount(part, minlength=len(classes)) for part in parts] for parts in labels]
    )
    return ClientSamples(names_of(task, num_clients), classes, counts, numbers)


def labelled(task: Any, num_clients: int) -> tuple[tuple[str, ...], list[list[NDArray[np.int64]]]]:
    """Return the names of the classes, and the class of each sample by client. Raises
    ``UserError`` for sequences.
    """
    labels = [_labels(task, client, num_clients) for client in range(num_clients)]
    if any(part.ndim > 1 for parts in labels for part in parts):
        raise UserError(
            f"fedapps data: the samples of task {task.name!r} are sequences, which have no class "
            "to show"
        )
    total = max((int(part.max()) + 1 for parts in labels for part in parts if len(part)), default=1)
    classes = task.samples.classes if isinstance(task, SplitsSamples) else ()
    return classes or tuple(map(str, range(total))), labels


def names_of(task: Any, num_clients: int) -> tuple[str, ...]:
    """Return the names of the clients, or their numbers."""
    return client_names(task, num_clients) or tuple(map(str, range(num_clients)))


def _labels(task: Any, client: int, num_clients: int) -> list[NDArray[np.int64]]:
    if isinstance(task, SplitsSamples):  # without reading the inputs
        return [task.samples.labels[rows] for rows in task.split(client, num_clients)]
    data = task.client_data(client, num_clients)
    held_back = data.validation.y[:0] if data.validation is data.train else data.validation.y
    return [part.cpu().numpy() for part in (data.train.y, held_back, data.test.y)]


def warnings_of(samples: ClientSamples) -> list[str]:
    """Return one line for each property of a partition that makes results less
    meaningful.
    """
    train, test = samples.trained, samples.counts[:, 2]
    unseen = ((test > 0) & (train == 0)).any(1)
    lonely = ((train > 0).sum(1) == 1) & (len(samples.classes) > 1)
    if samples.numbers:  # quarters of the targets are not classes
        unseen, lonely = np.zeros_like(unseen), np.zeros_like(lonely)
    few = test.sum(1) < FEW_TESTS
    sizes = np.sort(train.sum(1))
    out = []
    for which, text in (
        (lonely, "have one class only: a model that always predicts it is right"),
        (few, f"have fewer than {FEW_TESTS} test samples: their scores are mostly chance"),
        (unseen, "have test samples of classes that they do not train on"),
    ):
        if which.any():
            out.append(f"{_count(which, samples)} {text}")
    if len(sizes) > 1 and sizes[-1] > 10 * max(1, sizes[0]):
        out.append(f"the largest client has {sizes[-1]} training samples, the smallest {sizes[0]}")
    nobody = [samples.classes[place] for place in np.flatnonzero(train.sum(0) == 0)]
    if 0 < len(nobody) < 20 and not samples.numbers:
        out.append(f"no client trains on class {', '.join(nobody)}")
    return out


def _count(which: NDArray[np.bool_], samples: ClientSamples) -> str:
    chosen = [samples.names[place] for place in np.flatnonzero(which)]
    return f"{len(chosen)} of {len(samples.names)} clients ({few(chosen, 6)})"


def figure(samples: ClientSamples, source: str) -> Figure:
    """Return a figure: the share of each class in each client's training samples, and
    their number.
    """
    counts = samples.trained[:200]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    drawn, (axes,) = panels(
        1,
        1,
        (max(5.0, 2.6 + 0.22 * min(len(samples.classes), 60)), max(3.0, 1.4 + 0.16 * len(counts))),
    )
    more = f", the first {len(counts)}" if len(counts) < len(samples.names) else ""
    title(axes, f"{Path(source).name}: classes of {len(samples.names)} clients{more}")
    ends = (0.0, float(share.max()))
    heat(axes, np.where(counts > 0, share, np.nan), ends)
    names = [
        f"{shortened(name, 10)} ({total})"
        for name, total in zip(samples.names, counts.sum(1), strict=False)
    ]
    name_cells(axes.y, samples.names, names)
    axes.y.down, axes.y.label = True, "client (training samples)"
    if len(samples.classes) <= 30:
        axes.x.ticks = (range(len(samples.classes)), [name[:8] for name in samples.classes])
    axes.x.label = "quarter of the targets" if samples.numbers else "class"
    heat_key(axes, ends, "share of the client's training samples")
    return drawn


#: If there are more clients, this many, evenly spaced, are compared in pairs.
MOST = 300


def common_share(counts: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return mean, least and most of what two clients' class mixtures have in common,
    in [0, 1], over all pairs.

    ``counts`` (K, C), K > 1, none of them empty: samples by client and class. Two
    mixtures p and q have sum_c min(p_c, q_c) in common: 1 minus their distance in total
    variation.
    """
    rows = counts[np.linspace(0, len(counts) - 1, min(len(counts), MOST)).round().astype(int)]
    mixtures = rows / rows.sum(1, keepdims=True)
    pairs = np.concatenate(
        [np.minimum(p, mixtures[k + 1 :]).sum(1) for k, p in enumerate(mixtures[:-1])]
    )
    return float(pairs.mean()), float(pairs.min()), float(pairs.max())


def copies(
    inputs: NDArray[Any], trained: Iterable[NDArray[np.int64]], scored: Iterable[NDArray[np.int64]]
) -> tuple[int, int]:
    """Return how many samples to be scored on equal one that somebody trains on, and
    how many to train on equal another client's.

    ``inputs`` (N, ...); ``trained``, ``scored``: the rows of each client. Samples are
    equal if all their numbers are.
    """
    clients = [*trained]
    owner = np.repeat(np.arange(len(clients)), [len(rows) for rows in clients])
    held, place = np.unique(_digests(inputs, np.concatenate(clients)), return_inverse=True)
    holders = np.bincount(np.unique(np.stack([place, owner]), axis=1)[0])
    tested = _digests(inputs, np.unique(np.concatenate([*scored])))
    return int(np.isin(tested, held).sum()), int((holders[place] > 1).sum())


def _digests(inputs: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return a digest of each of these samples, equal if all their numbers are."""
    cells = (np.ascontiguousarray(inputs[row]).tobytes() for row in rows)
    return np.fromiter((blake2b(one, digest_size=16).digest() for one in cells), "S16", len(rows))
