"""Evaluation of a synthetic set of images: the test metrics of a classifier trained on
it, and its Fréchet distance to real images.

The classifier is the task's model, trained to convergence on augmented images and
evaluated on complete test sets. The Fréchet distance is computed in the features of a
classifier trained centrally on the real images of all clients: it is not the FID, and
it is available only in a simulation.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from fedapps.algorithms.common.modules import get_arrays, outputs_of
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.synthetic.frechet import frechet_distance
from fedapps.clients.base.data import Split
from fedapps.data.images import read_samples
from fedapps.data.source import Samples, Source
from fedapps.errors import UserError
from fedapps.strategies.families.sample_sets import balanced_labels
from fedapps.tasks.classification import Classification
from fedapps.tasks.set_training import check_fits, fit, tensors

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
