"""The data of a run: the image set, its partition among the clients, and each client's samples.

Everything follows from the settings and the run's seed: the server and every worker process compute the same partition without
communicating it.
"""

import difflib
import logging
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from algorithms.common.checks import check_choice, check_range
from algorithms.common.label_noise import KINDS, flipped
from algorithms.common.partitioners import dirichlet_clients, iid, pathological, sorted_share, train_validation_test
from algorithms.common.seeds import derived_seed, generator
from clients.base.data import ClientData, Split
from fedapps.data.images import Images, read_images
from fedapps.errors import UserError

PARTITIONS = ("iid", "pathological", "dirichlet", "dirichlet-clients", "natural", "sorted-share")
# Values tried in order to suggest an alpha that would have worked.
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

Indices = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSettings:
    """The settings under ``data.``; raises ValueError for what is wrong whatever the data.

    source: "digits" (scikit-learn's, 1797 of 8 x 8), a folder (parquet files, a folder of images by class, or
        what `datasets` saved to disk), or the name of a data set on the Hugging Face hub.
    partition: "iid"; "pathological" (each client ``classes_per_client`` classes); "dirichlet" (each class dealt by
        Dir(``alpha``)); "dirichlet-clients" (each client, all of one size, takes classes by Dir(``alpha``)); "natural" (the
        values of column ``natural_id`` are the clients); "sorted-share" (``share`` of the samples at random, the rest in
        blocks of the label order).
    image, label: columns, "" to find them. split: the split that is dealt to the clients.
    min_samples: that a client needs. At 60/20/20, from 5 on each part is what its fraction says; 3 is the least that can be split.
    validation: part of a client's samples, beside the 20 % for testing; 0: the training samples stand in for it.
    resize: side to which the largest middle square of every image is brought; 0 leaves the images as they are.
    class_weights: weigh the training loss of a class by the samples of the set over (its own + 1), for rare classes.
    max_samples: use only so many samples, evenly spaced over the set; 0 for all.
    noise, noise_ratio: labels of training samples are flipped with this probability, to the next class ("pair") or to any other one
        ("symmetric"); validation and test labels stay right.
    synthetic: folder of a synthetic set, as a run of fedevg, fedcgan or fedcvae leaves it; "": none.
    synthetic_use: "pretrain" (the model at the start is trained on it), "mix" (every client trains on it beside its own samples).
    """

    source: str = "digits"
    partition: str = "pathological"
    classes_per_client: int = 2
    alpha: float = 0.5
    share: float = 0.1
    natural_id: str = ""
    image: str = ""
    label: str = ""
    split: str = "train"
    min_samples: int = 5
    validation: float = 0.2
    resize: int = 0
    class_weights: bool = False
    max_samples: int = 0
    noise: str = "none"
    noise_ratio: float = 0.0
    synthetic: str = ""
    synthetic_use: str = "pretrain"

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            near = difflib.get_close_matches(self.partition, PARTITIONS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"partition = {self.partition!r}: {hint}choose one of {', '.join(PARTITIONS)}")
        for key, text in (("source", self.source), ("split", self.split)):
            if not text:
                raise ValueError(f"{key} = '': must not be empty")
        if self.classes_per_client < 1:
            raise ValueError(f"classes-per-client = {self.classes_per_client}: must be at least 1")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: must be above 0 and finite")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share = {self.share}: must be between 0 and 1")
        if self.min_samples < 3:
            raise ValueError(f"min-samples = {self.min_samples}: must be at least 3, one for each part of a client's samples")
        if not 0 <= self.validation <= 0.6:
            raise ValueError(f"validation = {self.validation}: must be between 0 and 0.6")
        if self.resize < 0:
            raise ValueError(f"resize = {self.resize}: must be at least 0 (0 = as they are)")
        if self.max_samples < 0:
            raise ValueError(f"max-samples = {self.max_samples}: must be at least 0 (0 = all)")
        check_choice("synthetic-use", self.synthetic_use, ["pretrain", "mix"])
        check_choice("noise", self.noise, ["none", *KINDS])
        check_range("noise-ratio", self.noise_ratio, 0, 1, open_high=True)
        if self.noise == "none" and self.noise_ratio:
            raise ValueError(
                f"noise-ratio = {self.noise_ratio}, but noise = 'none': choose noise = pair or symmetric, or the ratio 0"
            )
        if self.partition == "natural" and not self.natural_id:
            raise ValueError("natural-id = '': partition = 'natural' needs the column that names the client")


def load_images(settings: DataSettings) -> Images:
    """Read the image set, from the cache if it has been decoded before. Raises UserError for problems the user can fix."""
    natural_id = settings.natural_id if settings.partition == "natural" else ""
    images = read_images(settings.source, settings.split, settings.image, settings.label, natural_id, settings.resize)
    return thinned(images, settings)


def thinned(images: Images, settings: DataSettings) -> Images:
    """Return ``max_samples`` of the samples, evenly spaced, or all of them."""
    total = len(images.labels)
    if not 0 < settings.max_samples < total:
        return images
    # Evenly spaced, so that a set sorted by class keeps all its classes.
    rows = np.arange(settings.max_samples) * total // settings.max_samples
    natural = None if images.natural is None else images.natural[rows]
    return replace(images, pixels=images.pixels[rows], labels=images.labels[rows], natural=natural)


def partition(images: Images, settings: DataSettings, num_clients: int, seed: int) -> list[Indices]:
    """Return the sample indices of each of ``num_clients`` clients: disjoint, ascending, at least ``min_samples`` each.

    Raises UserError if the data cannot be partitioned in this way.
    """
    total, source = len(images.labels), settings.source
    if num_clients * settings.min_samples > total:
        raise UserError(
            f"{num_clients} clients, but {source} has {total} samples and each client needs {settings.min_samples}: "
            f"choose at most {total // settings.min_samples} clients"
        )
    rng = generator(seed, "partition")
    if settings.partition == "natural":
        return _natural(images, settings, num_clients)
    if settings.partition == "dirichlet":
        return _dirichlet(images.labels, settings, num_clients, derived_seed(seed, "partition") % 2**32)
    if settings.partition == "iid":
        parts = iid(total, num_clients, rng)
    elif settings.partition == "dirichlet-clients":
        parts = dirichlet_clients(images.labels, num_clients, settings.alpha, rng)
    elif settings.partition == "sorted-share":
        parts = sorted_share(images.labels, num_clients, settings.share, rng)
    else:
        parts = _pathological(images.labels, settings, num_clients, rng)
    smallest = int(np.argmin([len(part) for part in parts]))
    if len(parts[smallest]) < settings.min_samples:
        raise UserError(
            f"data.partition = {settings.partition!r}: client {smallest} of {num_clients} gets "
            f"{len(parts[smallest])} samples of {source}, it needs {settings.min_samples}: choose fewer clients"
        )
    return parts


def client_data(images: Images, indices: Indices, client_id: int | str, seed: int, validation: float = 0.2) -> ClientData:
    """Return client ``client_id``'s samples as tensors, split at random with the run's seed; 20 % are the test set.

    ``validation``: fraction of the validation set; with 0 the training set is used as validation set. Inputs are float32 in [0, 1] of
    shape (n, C, H, W), sounds in [-1, 1], tokens int64 (n, length); labels int64 (n,).
    """
    fractions = (round(0.8 - (validation or 0.2), 9), validation or 0.2, 0.2)
    parts = train_validation_test(indices, generator(seed, "split", client=client_id), fractions)
    if not validation:
        train = _tensors(images, np.sort(np.concatenate(parts[:2])))
        return ClientData(train, train, _tensors(images, parts[2]))
    return ClientData(*(_tensors(images, part) for part in parts))


def noisy(own: ClientData, settings: DataSettings, num_classes: int, rng: np.random.Generator) -> ClientData:
    """Return a client's data with the settings' label noise in the training set, also if that is used as the validation set."""
    if settings.noise == "none":
        return own
    labels = torch.from_numpy(flipped(own.train.y.numpy(), num_classes, settings.noise, settings.noise_ratio, rng))
    train = Split(own.train.x, labels)
    return ClientData(train, train if own.validation is own.train else own.validation, own.test)


def _tensors(images: Images, rows: Indices) -> Split:
    pixels = images.pixels[rows]  # a copy, also of a memory-mapped file
    if pixels.dtype == np.int64:  # tokens
        return Split(torch.from_numpy(pixels), torch.from_numpy(images.labels[rows]))
    x = pixels.astype(np.float32)
    if pixels.dtype != np.float32:  # in NumPy: torch would use all its threads, which is far slower on a busy machine
        x /= 255 if pixels.dtype == np.uint8 else 2**15
    return Split(torch.from_numpy(x), torch.from_numpy(images.labels[rows]))


def _pathological(
    labels: npt.NDArray[np.int64], settings: DataSettings, num_clients: int, rng: np.random.Generator
) -> list[Indices]:
    classes = len(np.unique(labels))
    if settings.classes_per_client > classes:
        raise UserError(
            f"data.classes-per-client = {settings.classes_per_client}, but {settings.source} has {classes} "
            f"classes: choose 1..{classes}"
        )
    try:
        parts = pathological(labels, num_clients, settings.classes_per_client, rng)
    except ValueError as error:
        raise UserError(f"data.partition = 'pathological': {error}") from error
    left_out = len(labels) - sum(len(part) for part in parts)
    if left_out:
        logger.warning("%d samples are of classes that none of the %d clients holds", left_out, num_clients)
    return parts


def natural_groups(images: Images, settings: DataSettings) -> list[Indices]:
    """Return the samples of each natural client, sorted by id; clients with fewer than ``min_samples`` samples are skipped."""
    assert images.natural is not None  # load_images reads the column for this partition
    groups = np.split(np.argsort(images.natural, kind="stable"), np.cumsum(np.bincount(images.natural))[:-1])
    return [group for group in groups if len(group) >= settings.min_samples]


def _natural(images: Images, settings: DataSettings, num_clients: int) -> list[Indices]:
    """Group the samples by natural client; if there are more natural clients than nodes, take the first ones by sorted id."""
    large = natural_groups(images, settings)
    if len(large) < num_clients:
        raise UserError(
            f"data.natural-id = {settings.natural_id!r}: {settings.source} has {len(large)} clients with at "
            f"least {settings.min_samples} samples, {num_clients} are asked for: choose at most {len(large)} nodes"
        )
    return large[:num_clients]


def _dirichlet(labels: npt.NDArray[np.int64], settings: DataSettings, num_clients: int, seed: int) -> list[Indices]:
    """Partition each class by Dir(alpha), redrawn until every client has enough samples.

    A client that already has an even share of all samples gets none of the later classes (``self_balancing``), as in the programs
    published with the methods.
    """
    parts = _dirichlet_once(labels, num_clients, settings.alpha, seed, settings.min_samples)
    if parts is not None:
        return parts
    # Only for the error message: the first draw as it is, and the smallest larger alpha that works.
    first = _dirichlet_once(labels, num_clients, settings.alpha, seed, 0)
    who = "a client"
    if first is not None:
        smallest = int(np.argmin([len(part) for part in first]))
        who = f"client {smallest} of {num_clients} (with {len(first[smallest])} samples)"
    for alpha in ALPHAS:
        if alpha > settings.alpha and _dirichlet_once(labels, num_clients, alpha, seed, settings.min_samples):
            remedy = f"the smallest alpha that works here is {alpha:g}"
            break
    else:
        remedy = "no larger alpha helps, choose fewer clients"
    raise UserError(
        f"data.partition = 'dirichlet' with data.alpha = {settings.alpha:g} leaves {who} without the "
        f"{settings.min_samples} samples it needs: {remedy}"
    )


def _dirichlet_once(
    labels: npt.NDArray[np.int64], num_clients: int, alpha: float, seed: int, minimum: int
) -> list[Indices] | None:
    """Run the partitioner of flwr-datasets; None if it gives up (after eleven draws)."""
    import datasets  # imported here: these two take seconds, and only this partition needs them
    from flwr_datasets.partitioner import DirichletPartitioner

    # The library splits a class in file order, which may correlate with the writer or the date: shuffle first.
    rows = np.random.default_rng(seed).permutation(len(labels))
    partitioner = DirichletPartitioner(num_clients, "label", float(alpha), minimum, self_balancing=True, shuffle=False, seed=seed)
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels[rows], "row": rows})
    # It divides 0 by 0 when a tiny alpha gives a class to full clients only: there is no partition then. Its warnings, one
    # per draw, are less informative than the caller's error.
    with warnings.catch_warnings(), np.errstate(invalid="raise", divide="raise"):
        warnings.simplefilter("ignore")
        try:
            parts: list[Any] = [partitioner.load_partition(client)["row"][:] for client in range(num_clients)]
        except (ValueError, ArithmeticError):
            return None
    return [np.sort(np.asarray(part, np.int64)) for part in parts]
