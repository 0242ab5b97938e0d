"""Evaluation of a synthetic set of images: the test metrics of a classifier trained on
it, and its Fréchet distance to real images.

The classifier is the task's model, trained to convergence on augmented images and
evaluated on complete test sets. The Fréchet distance is computed in the features of a
classifier trained centrally on the real images of all clients: it is not the FID, and
it is available only in a simulation.

Training of a classifier on a synthetic set of images, with augmentation; conversion
of the set to tensors.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import get_arrays, outputs_of, torch_seeded
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.synthetic.frechet import frechet_distance
from fedapps.clients.base.data import Split
from fedapps.data.images import read_samples
from fedapps.data.samples import Samples
from fedapps.data.source import Source
from fedapps.errors import UserError
from fedapps.strategies.families.sample_sets import balanced_labels
from fedapps.tasks.classification import Classification

#: Training steps of the classifier that provides the features of the Fréchet distance.
FEATURE_STEPS = 600


class SetEvaluator:
    """Trains the task's model on a synthetic set and evaluates it on the reference set,
    if there is one.
    """

    def __init__(self, task: Classification) -> None:
        self.task = task
        self.options = task.context.synthetic

    def __call__(
        self, x: NDArray[Any], y: NDArray[Any], server_round: int
    ) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
        """Return the classifier's arrays by name and, with a reference,
        ``test-accuracy``, ``test-loss`` and ``frechet``.
        """
        model, seed = (
            self.task.model_fn(derived_seed(self.task.context.seed, "judge")),
            self.task.context.seed,
        )
        images = torch.tensor(x, dtype=torch.float32, device=self.task.device)
        labels = torch.tensor(y, device=self.task.device).long()
        fit(model, Split(images, labels), self.options.steps, generator(seed, "judge batches"))
        measured = {}
        if self.options.reference:
            scores = self.task.objective.score(model, self.reference)
            measured = {f"test-{name}": scores[name] for name in ("accuracy", "loss")}
            made, real = (
                outputs_of(self.features, part).cpu().numpy() for part in (images, self.reference.x)
            )
            measured["frechet"] = frechet_distance(made, real)
        return dict(zip(model.state_dict(), get_arrays(model), strict=True)), measured

    def check(self) -> None:
        """Raise ``UserError`` if the number of samples cannot be balanced or the
        reference does not exist.
        """
        try:
            balanced_labels(self.options.samples, self.task.num_outputs)
        except ValueError as error:
            raise UserError(f"synthetic.{error}") from None
        name = self.options.reference
        if not self.task.context.sites.own and self.task.samples.numbers:
            raise UserError(
                f"data.source = {self.task.context.data.source!r}: holds arrays or numbers, but "
                "this method makes images"
            )
        if name and self.task.context.sites.own:
            raise UserError(
                f"synthetic.reference = {name!r}: the sites keep their data, the server has none: "
                "leave it empty"
            )
        if name and name != "clients":
            self._images(name)

    @cached_property
    def reference(self) -> Split:
        """The real images on which the server evaluates."""
        name = self.options.reference
        return (
            self._of_all("test")
            if name == "clients"
            else tensors(self._images(name), self.task.device)
        )

    def _images(self, split: str) -> Samples:
        source, what = self.task.context.data, f"synthetic.reference = {split!r}"
        if source.source == "digits":
            raise UserError(
                f"{what}: the digits have one split: choose 'clients', their test samples together"
            )
        named = replace(Source.of(source), split=split, split_setting="synthetic.reference")
        images = read_samples(source, source=named)
        check_fits(images, self.task.image_shape, self.task.num_outputs, what)
        return images

    @cached_property
    def features(self) -> nn.Module:
        """The body and hidden layers of a classifier trained on the pooled training
        samples of all clients.
        """
        net = self.task.model_fn(derived_seed(self.task.context.seed, "feature net"))
        rng = generator(self.task.context.seed, "feature net batches")
        fit(net, self._of_all("train"), FEATURE_STEPS, rng)
        last = list(net.classifier)[:-1] if isinstance(net.classifier, nn.Sequential) else []
        return nn.Sequential(net.body, *last)  # type: ignore[arg-type]

    def _of_all(self, part: str) -> Split:
        number = self.task.context.num_clients
        parts: list[Split] = [
            getattr(self.task.client_data(client, number), part) for client in range(number)
        ]
        return Split(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


BATCH = 50


def fit(model: nn.Module, samples: Split, steps: int, rng: np.random.Generator) -> None:
    """Train a classifier in place with Adam on augmented batches; cosine learning-rate
    schedule down to 0.
    """
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    size = min(BATCH, len(samples))
    model.train()
    with torch_seeded(int(rng.integers(2**63))):
        order = np.empty(0, np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.concatenate([order, rng.permutation(len(samples))])
            rows, order = torch.from_numpy(order[:size]).to(samples.y.device), order[size:]
            loss = functional.cross_entropy(model(augmented(samples.x[rows], rng)), samples.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            falling.step()


def augmented(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images (n, C, H, W) rotated by up to 15 degrees, scaled by up to 15 % and
    shifted by up to a fourteenth of their side.
    """
    angle, scale = rng.uniform(-np.pi / 12, np.pi / 12, len(x)), rng.uniform(0.85, 1.15, len(x))
    matrix = np.zeros((len(x), 2, 3))
    matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle) * scale
    matrix[:, 1, 0] = np.sin(angle) * scale
    matrix[:, 0, 1] = -matrix[:, 1, 0]
    matrix[:, :, 2] = rng.uniform(-1 / 7, 1 / 7, (len(x), 2))  # in units where the side is 2
    grid = functional.affine_grid(
        torch.from_numpy(matrix).to(x), list(x.shape), align_corners=False
    )
    return functional.grid_sample(x, grid, align_corners=False)


def check_fits(images: Samples, shape: tuple[int, int, int], num_classes: int, what: str) -> None:
    """Raise ``UserError``, with a message that begins with ``what``, unless a set has
    ``shape`` (C, H, W) and no more classes.
    """
    got = images.x.shape[1:]
    if got != shape:
        sizes = [
            f"{s[1]} x {s[2]} with {s[0]} channel{'s' if s[0] > 1 else ''}" for s in (got, shape)
        ]
        raise UserError(
            f"{what}: its images are {sizes[0]}, the task's {sizes[1]}: make it with the same "
            "data.source and data.resize"
        )
    if images.num_classes > num_classes:
        raise UserError(
            f"{what}: has {images.num_classes} classes, the task {num_classes}: name another set"
        )


def tensors(images: Samples, device: torch.device) -> Split:
    """Return a set as float32 images in [0, 1] and int64 labels, on a device."""
    values = images.x.astype(np.float32) / (255 if images.x.dtype == np.uint8 else 1)
    return Split(torch.from_numpy(values), torch.from_numpy(images.labels)).to(device)
