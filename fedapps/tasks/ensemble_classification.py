"""Task ``ensemble-classification``: an ensemble of torch classifiers.
``fedapps.tasks.densities`` describes the members of the task.

The base predictors are small networks, each trained on some of the labels: centrally,
before the first round, on samples that no client holds. The same settings and seed give
the same networks.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.clients.base.data import Split
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.families.torch_ensemble_data import TorchEnsembleData
from fedapps.clients.steps.batches import train_classifier
from fedapps.data import partition as partitions
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.scaling import Moments, Scale, inputs
from fedapps.data.source import Samples
from fedapps.errors import UserError
from fedapps.models.image_nets import build_model
from fedapps.tasks.classification import Classification
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import EnsembleOptions
from fedapps.tasks.predictor_library import Library

Indices = NDArray[np.int64]


def divide(samples: Samples, share: float, seed: int) -> tuple[Samples, Samples]:
    """Return (samples for the base predictors, samples for the clients): a random
    ``share`` of each class, and the rest.
    """
    if not share:
        return samples.take(np.zeros(len(samples.labels), bool)), samples
    rng = generator(seed, "pre-training")
    taken, dealt = [], samples.dealt
    for label in np.unique(samples.labels):
        rows = rng.permutation(dealt[samples.labels[dealt] == label])
        taken.append(rows[: max(1, round(share * len(rows)))])
    mine = np.zeros(len(samples.labels), bool)
    mine[np.concatenate(taken)] = True

    return samples.take(mine), samples.take(~mine)


def label_sets(num_classes: int, labels_each: int, predictors: int, seed: int) -> list[Indices]:
    """Return each predictor's labels, sorted: drawn at random from the least used
    labels, so that all are covered evenly.
    """
    if not 1 <= labels_each <= num_classes:
        raise UserError(
            f"ensemble.labels-each = {labels_each}, but the data has {num_classes} classes: choose "
            f"1..{num_classes}"
        )
    rng = generator(seed, "label sets")
    used = np.zeros(num_classes, np.int64)
    out = []
    for _ in range(predictors):
        chosen = np.lexsort((rng.random(num_classes), used))[:labels_each]
        used[chosen] += 1
        out.append(np.sort(chosen).astype(np.int64))
    return out


def recipes(options: EnsembleOptions, num_classes: int, seed: int) -> list[tuple[Indices, int]]:
    """Return for each predictor the labels that it is trained on and by how much they
    are written wrong (0, or 1: the next class).

    even: ``label_sets``. unequal: a third of the predictors know twice as many labels,
    the others one each. overlapping: as many as are needed know all labels evenly, the
    others know what the first one knows. flawed: the second half is trained on labels
    counted from 1; each half knows all labels evenly.
    """
    labels_each, predictors = options.labels_each, options.predictors
    if options.kind == "unequal":
        many = -(-predictors // 3)
        wide = label_sets(num_classes, min(num_classes, 2 * labels_each), many, seed)
        return [
            (labels, 0) for labels in wide + label_sets(num_classes, 1, predictors - many, seed)
        ]
    if options.kind == "flawed":
        right = -(-predictors // 2)
        halves = (
            label_sets(num_classes, labels_each, right, seed),
            label_sets(num_classes, labels_each, predictors - right, seed),
        )
        return [(labels, shift) for shift, half in enumerate(halves) for labels in half]
    sets = label_sets(num_classes, labels_each, predictors, seed)
    if options.kind == "overlapping":
        needed = -(-num_classes // labels_each)
        return [(labels if k < needed else sets[0], 0) for k, labels in enumerate(sets)]
    return [(labels, 0) for labels in sets]


def training_of(options: EnsembleOptions) -> TrainOptions:
    """Return how a predictor is trained."""
    return TrainOptions(0.05, 1.0, 0.9, 1e-4, options.epochs, 16)


@lru_cache(maxsize=2)
def pretrained(
    options: EnsembleOptions, source: DataOptions, model: str, seed: int, split_seed: int
) -> Library:
    """Return the library of networks trained on a share of the samples; cached in the
    process.
    """
    whole = partitions.thinned(read_samples(source), source)
    samples, _ = divide(whole, options.share, split_seed)
    training = training_of(options)
    x = inputs(samples, np.arange(len(samples.labels)))
    if source.standardise != "none" and samples.numbers:
        x = Scale.of_sums([Moments.of(x)]).of(x)
    channels, height, width = samples.x.shape[1:]
    kind = model, (channels, height, width), samples.num_classes
    nets, names = [], []
    for k, (labels, shift) in enumerate(recipes(options, samples.num_classes, seed)):
        rows = np.flatnonzero(np.isin(samples.labels, labels))
        net = build_model(*kind, derived_seed(seed, "base net", k))
        known = Split(
            torch.from_numpy(x[rows]),
            torch.from_numpy((samples.labels[rows] + shift) % samples.num_classes),
        )
        train_classifier(net, known, training, generator(seed, "base net batches", k))
        nets.append(get_arrays(net))
        names.append(f"{k}:" + ",".join(map(str, labels)) + (" as the next class" if shift else ""))
    keys = list(build_model(*kind, 0).state_dict())
    return Library.from_arrays(
        {key: np.stack([net[i] for net in nets]) for i, key in enumerate(keys)}, names, False
    )


class EnsembleClassification:
    """Images; predictor k is a network trained on some of the labels. Clients hold the
    samples not used for training predictors.

    The predictors may be the user's instead: a folder of weights (``fedboost.library``)
    of the net ``model.name``.
    """

    name = "ensemble-classification"
    from_clients = ""  # the predictors are trained on samples that no client holds

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options: EnsembleOptions = options
        self.context = context
        self.training = training_of(options)
        self.rest = _Rest(options, context)
        self._clients: dict[int | str, TorchEnsembleData] = {}

    def check(self, num_clients: int) -> None:
        """Load and partition the data, build the model and draw the label sets;
        predictors are trained when the run starts.
        """
        self.rest.check(num_clients)
        if self.options.share:  # else the task trains none
            recipes(self.options, self.rest.samples.num_classes, self.context.seed)

    def library(self) -> Library:
        """Return the trained predictors. Raises ``UserError`` if there are no samples
        to train them on.
        """
        if not self.options.share:
            raise UserError(
                "library = 'task', but with ensemble.share = 0.0 there are no samples to train "
                "nets on: name the folder of yours"
            )
        run = self.context
        return pretrained(self.options, run.data, run.model.name, run.seed, run.split_seed)

    def check_library(self, library: Library) -> None:
        """Raise ``UserError`` unless ``library``, loaded from elsewhere, holds networks
        of the kind ``model.name``.
        """
        state = self.rest.work_model().state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        given = {name: shape for name, (_, shape) in library.spec.items()}
        if wrong := [name for name in [*shapes, *given] if given.get(name) != shapes.get(name)]:
            name = wrong[0]
            raise UserError(
                f"library: array {name!r} has shape {given.get(name)}, but model.name = "
                f"{self.context.model.name!r} wants "
                f"{shapes.get(name)}: choose the model that the predictors were trained as"
            )

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return uniform weights alpha (q,)."""
        return {"alpha": np.full(self.options.predictors, 1 / self.options.predictors)}

    def client_data(self, client_id: int | str, num_clients: int) -> TorchEnsembleData:
        """Return a client's training and test samples, with the module in which it
        evaluates predictors.
        """
        if client_id not in self._clients:
            parts = self.rest.client_data(client_id, num_clients)
            o = self.options
            self._clients[client_id] = TorchEnsembleData(
                self.rest.work_model(), parts.train, parts.test, o.loss, o.epsilon
            )
        return self._clients[client_id]


class _Rest(Classification):
    """The samples dealt to the clients: all except those used to train the base
    predictors.
    """

    def read(self) -> Samples:
        whole = partitions.thinned(read_samples(self.context.data), self.context.data)
        return divide(whole, self.options.share, self.context.split_seed)[1]
