"""Synthetic sets of images: a classifier trained on one and its scores, measures of the images, and starting another run from a set.

The classifier is the task's model, trained to convergence on augmented images, and scored on whole test sets. The Fréchet distance is
taken in the features of a classifier trained centrally on the real images of all clients: it is no FID, and only a simulation has it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from algorithms.common.checks import check_range
from algorithms.common.modules import get_arrays, outputs_of
from algorithms.common.seeds import derived_seed, generator
from algorithms.synthetic.frechet import frechet_distance
from clients.base.data import ClientData, Split
from fedapps.data import partition as partitions
from fedapps.data.images import Images, read_images
from fedapps.errors import UserError
from strategies.families.sample_sets import balanced_labels

if TYPE_CHECKING:
    from fedapps.tasks.classification import Classification

BATCH = 50
#: Steps of the classifier whose features the Fréchet distance is taken in.
FEATURE_STEPS = 600


@dataclass(frozen=True)
class SyntheticSettings:
    """The settings under ``synthetic.``, of methods that make a synthetic set.

    samples: M, as many of each class. every: rounds between pictures of the set; 0: only after the last.
    steps: Adam's steps on the classifier that is trained on the set.
    reference: what the server itself scores on, beside the clients: "clients" (their test samples together, which only a simulation
        has), or a split of ``data.source`` ("test"); "": nothing.
    """

    samples: int = 100
    every: int = 10
    steps: int = 400
    reference: str = ""

    def __post_init__(self) -> None:
        check_range("samples", self.samples, 1)
        check_range("every", self.every, 0)
        check_range("steps", self.steps, 1)


class SetJudge:
    """Trains the task's model on a synthetic set; measures it on the reference, where there is one."""

    def __init__(self, task: "Classification") -> None:
        self.task = task
        self.settings = task.settings.synthetic

    def __call__(self, x: NDArray[Any], y: NDArray[Any], server_round: int) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
        """Return the classifier's arrays by name and ``test-accuracy``, ``test-loss`` and ``frechet``."""
        model, seed = self.task.model_fn(derived_seed(self.task.settings.seed, "judge")), self.task.settings.seed
        images = torch.tensor(x, dtype=torch.float32, device=self.task.device)
        labels = torch.tensor(y, device=self.task.device).long()
        fit(model, Split(images, labels), self.settings.steps, generator(seed, "judge batches"))
        measured = {}
        if self.settings.reference:
            scores = self.task.objective.score(model, self.reference)
            measured = {f"test-{name}": scores[name] for name in ("accuracy", "loss")}
            made, real = (outputs_of(self.features, part).cpu().numpy() for part in (images, self.reference.x))
            measured["frechet"] = frechet_distance(made, real)
        return dict(zip(model.state_dict(), get_arrays(model), strict=True)), measured

    def check(self) -> None:
        """Raise ``UserError`` for a number of samples that cannot be balanced, or a reference that there is not."""
        try:
            balanced_labels(self.settings.samples, self.task.num_outputs)
        except ValueError as error:
            raise UserError(f"synthetic.{error}") from None
        name = self.settings.reference
        if name and self.task.settings.sites.own:
            raise UserError(f"synthetic.reference = {name!r}: the sites keep their data, the server has none: leave it empty")
        if name and name != "clients":
            self._images(name)

    @cached_property
    def reference(self) -> Split:
        """The real images that the server scores on."""
        name = self.settings.reference
        return self._of_all("test") if name == "clients" else _tensors(self._images(name), self.task.device)

    def _images(self, split: str) -> Images:
        source, what = self.task.settings.data, f"synthetic.reference = {split!r}"
        if source.source == "digits":
            raise UserError(f"{what}: the digits have one split: choose 'clients', their test samples together")
        try:
            images = partitions.load_images(replace(source, split=split, max_samples=0))
        except UserError as error:
            raise UserError(str(error).replace("data.split", "synthetic.reference")) from error
        _check_fits(images, self.task, what)
        return images

    @cached_property
    def features(self) -> nn.Module:
        """The body of a classifier that was trained on the training samples of all clients together, with its hidden layer."""
        net = self.task.model_fn(derived_seed(self.task.settings.seed, "feature net"))
        rng = generator(self.task.settings.seed, "feature net batches")
        fit(net, self._of_all("train"), FEATURE_STEPS, rng)
        last = list(net.classifier)[:-1] if isinstance(net.classifier, nn.Sequential) else []
        return nn.Sequential(net.body, *last)  # type: ignore[arg-type]

    def _of_all(self, part: str) -> Split:
        number = self.task.settings.num_clients
        parts: list[Split] = [getattr(self.task.client_data(client, number), part) for client in range(number)]
        return Split(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def fit(model: nn.Module, samples: Split, steps: int, rng: np.random.Generator, rate: float = 2e-3) -> None:
    """Train a classifier in place by Adam on augmented batches; the rate falls to 0 by half a cosine."""
    optimiser = torch.optim.Adam(model.parameters(), rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    size = min(BATCH, len(samples))
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))  # of layers that draw
        order = np.empty(0, np.int64)
        for _ in range(steps):
            if len(order) < size:
                order = np.concatenate([order, rng.permutation(len(samples))])
            rows, order = torch.from_numpy(order[:size]).to(samples.y.device), order[size:]
            loss = functional.cross_entropy(model(augmented(samples.x[rows], rng)), samples.y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()


def augmented(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images (n, C, H, W) turned by up to 15 degrees, scaled by up to 15 % and moved by up to a fourteenth of their side."""
    angle, scale = rng.uniform(-np.pi / 12, np.pi / 12, len(x)), rng.uniform(0.85, 1.15, len(x))
    matrix = np.zeros((len(x), 2, 3))
    matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle) * scale
    matrix[:, 1, 0] = np.sin(angle) * scale
    matrix[:, 0, 1] = -matrix[:, 1, 0]
    matrix[:, :, 2] = rng.uniform(-1 / 7, 1 / 7, (len(x), 2))  # the side is 2 here
    grid = functional.affine_grid(torch.from_numpy(matrix).to(x), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


# --- a set on disk, and runs that start from one ----------------------------------------------------------------------


def save_set(folder: Path, x: NDArray[Any], y: NDArray[Any], num_classes: int) -> None:
    """Write images (M, C, H, W) in [0, 1] and labels (M,) as what ``datasets.load_from_disk`` reads: ``image``, ``label``."""
    import datasets  # late: it takes a second
    from PIL import Image

    pixels = np.round(np.clip(x, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    pictures = [Image.fromarray(p[:, :, 0] if p.shape[2] == 1 else p) for p in pixels]
    labels = datasets.ClassLabel(names=[str(label) for label in range(num_classes)])
    features = datasets.Features({"image": datasets.Image(), "label": labels})
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        datasets.Dataset.from_dict({"image": pictures, "label": y.tolist()}, features).save_to_disk(str(folder))
    finally:
        if shown:
            datasets.enable_progress_bars()


def load_set(task: "Classification") -> Split:
    """Return the set ``data.synthetic`` as tensors. Raises ``UserError`` where it does not fit the task."""
    source = task.settings.data.synthetic
    try:
        images = read_images(source, "train")
    except UserError as error:
        raise UserError(str(error).replace("data.source", "data.synthetic")) from error
    _check_fits(images, task, f"data.synthetic = {source!r}")
    return _tensors(images, task.device)


def pretrain(task: "Classification", model: nn.Module) -> None:
    """Train the model with which a run starts on the set ``data.synthetic``, in place."""
    seed = task.settings.seed
    fit(model, load_set(task), task.settings.synthetic.steps, generator(seed, "pre-training on synthetic samples"))


def mixed(task: "Classification", own: ClientData) -> ClientData:
    """Return a client's samples with the set ``data.synthetic`` among those it trains on; it is never tested on them."""
    made = load_set(task)
    x, y = torch.cat([own.train.x, made.x.to(own.train.x)]), torch.cat([own.train.y, made.y.to(own.train.y)])
    return replace(own, train=Split(x, y))


def _check_fits(images: Images, task: "Classification", what: str) -> None:
    got, wanted, classes = images.pixels.shape[1:], task.image_shape, task.num_outputs
    if got != wanted:
        sizes = [f"{s[1]} x {s[2]} with {s[0]} channel{'s' if s[0] > 1 else ''}" for s in (got, wanted)]
        raise UserError(
            f"{what}: its images are {sizes[0]}, the task's {sizes[1]}: make it with the same data.source and data.resize"
        )
    if images.num_classes > classes:
        raise UserError(f"{what}: has {images.num_classes} classes, the task {classes}: name another set")


def _tensors(images: Images, device: torch.device) -> Split:
    values = images.pixels.astype(np.float32) / (255 if images.pixels.dtype == np.uint8 else 1)
    return Split(torch.from_numpy(values), torch.from_numpy(images.labels)).to(device)
