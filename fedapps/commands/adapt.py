"""`fedapps adapt MODEL --data FOLDER`: a site goes on with an exported model on samples
of its own, after the federation has ended.

A fifth of the samples is held back to say what came of it, another part to choose:
after every local epoch the model is scored on the latter, and the one with the least
loss is kept, which may be the one that was there before.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms.common.measures import leading_of
from fedapps.errors import UserError
from fedapps.formats import metric_text
from fedapps.runs.client_factory import one_thread
from fedapps.runs.model_files import SETTINGS, read_model
from fedapps.settings.settings import Settings
from fedapps.tasks.registry import make_task

if TYPE_CHECKING:
    from torch import Tensor

    from clients.base.data import ClientData
    from fedapps.data.scaling import Scale

SITE = "site"


@dataclass(frozen=True)
class Adapted:
    """A model that was trained on: its arrays, the epoch that was kept (0: none), and
    the scores on the test samples.
    """

    arrays: "dict[str, Tensor]"
    epoch: int
    before: dict[str, Any]
    after: dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Train a model that `fedapps export` wrote on the samples of one site, and write the best "
        "epoch."
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="safetensors file of `fedapps export`"
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the samples: a folder or file, as a site's data",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the new model (default: MODEL-adapted.safetensors)",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, metavar="E", help="local epochs (default: 5)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="learning rate (default: that of the run's first round)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="B", help="samples of a step (default: the run's)"
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the samples, to choose the epoch by (default: 0.2)",
    )
    parser.add_argument(
        "--net", default="", metavar="MODULE:NAME", help="the net, where it is code of your own"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")


def execute(arguments: argparse.Namespace) -> int:
    """Adapt the model and return the exit status."""
    out = arguments.out or arguments.model.with_name(f"{arguments.model.stem}-adapted.safetensors")
    if out.exists() and not arguments.overwrite:
        raise UserError(f"{out} is there already: add --overwrite, or choose another --out")
    arrays, told, settings, scale = read_model(arguments.model, arguments.net)
    settings = with_choices(settings, arguments)
    found = adapted(arrays, settings, arguments.data, arguments.epochs, str(arguments.model), scale)
    for name, scores in (("before", found.before), ("after", found.after)):
        leading = leading_of(scores)
        shown = (
            f"{leading} {metric_text(leading, scores[leading])}, on {scores['test-samples']} "
            "test samples"
        )
        print(f"{name + ':':<8}loss {scores['loss']:.4f}, {shown}")
    best = f"epoch {found.epoch} of {arguments.epochs}"
    worse = f"the model as it was: none of {arguments.epochs} epochs was better"
    print(f"kept:   {best if found.epoch else worse}, by the loss on validation samples")
    numbers = {name: value for name, value in found.after.items() if isinstance(value, int | float)}
    settled = {**json.loads(told[SETTINGS]), "train.learning-rate": settings.train.learning_rate}
    facts = {**told, **numbers, "adapted-epochs": found.epoch, SETTINGS: json.dumps(settled)}
    write(found.arrays, {name: str(value) for name, value in facts.items()}, out)
    print(f"written: {out}")
    return 0


def write(arrays: "dict[str, Tensor]", metadata: dict[str, str], out: Path) -> None:
    """Write a model, whole or not at all. Raises ``UserError``."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from fedapps.records.files import replace as written

    try:
        written(
            out,
            lambda path: save_file(
                {name: tensor.contiguous() for name, tensor in arrays.items()}, path, metadata
            ),
        )
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written ({error})") from None


def with_choices(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Return the settings with what the command line says. Raises ``UserError``."""
    if arguments.epochs < 1:
        raise UserError(f"--epochs {arguments.epochs}: must be at least 1")
    if not 0 < arguments.validation <= 0.6:
        raise UserError(f"--validation {arguments.validation:g}: must be above 0 and at most 0.6")
    given = {"learning_rate": arguments.rate, "batch_size": arguments.batch_size}
    try:
        train = replace(
            settings.train,
            lr_decay=1.0,
            compile="off",
            **{k: v for k, v in given.items() if v is not None},
        )
    except ValueError as error:
        raise UserError(
            str(error).replace("learning-rate", "--rate").replace("batch-size", "--batch-size")
        ) from None
    data, problem = replace(settings.data, validation=arguments.validation), settings.problem
    # of a table
    problem = (
        replace(problem, validation=arguments.validation)
        if hasattr(problem, "validation")
        else problem
    )
    return replace(settings, train=train, data=data, problem=problem, device="cpu")


def scaled(data: "ClientData", scale: "Scale") -> "ClientData":
    """Return the samples with scaled inputs."""
    import torch

    mean, deviation = map(torch.from_numpy, (scale.mean, scale.deviation))
    train, validation, test = (
        replace(part, x=(part.x - mean) / deviation)
        for part in (data.train, data.validation, data.test)
    )
    return replace(data, train=train, validation=validation, test=test)


def adapted(
    arrays: "dict[str, Tensor]",
    settings: Settings,
    data: Path,
    epochs: int,
    name: str,
    scale: "Scale | None" = None,
) -> Adapted:
    """Return the model after the epoch whose loss on the validation samples in ``data``
    is the least.

    ``name``: of the model, for error messages. ``scale``: of the inputs, unless the
    site has its own. Raises ``UserError`` if model and
    samples do not fit.
    """
    import torch

    from clients import FedAvgClient
    from fedapps.models.weights import check_arrays

    if not data.exists():
        raise UserError(f"--data {data}: there is no such folder or file")
    task: Any = make_task(settings.task, settings.problem, settings.context, str(data.absolute()))
    one_thread()
    net = task.work_model()
    check_arrays(name, arrays, net)
    own = task.client_data(SITE, 1)
    own = own if scale is None else scaled(own, scale)
    client = FedAvgClient(
        task.model_fn,
        own,
        SITE,
        model=net,
        objective=task.objective,
    )
    net.load_state_dict(arrays)
    before, best = client.score(client.data.test), client.score(client.data.validation)["loss"]
    kept, chosen = client.scored([], {}, {}), 0
    config = {"seed": settings.seed, **settings.train.to_config(), "local-epochs": 1}
    for epoch in range(1, epochs + 1):
        client.train({**config, "server-round": epoch})
        loss = client.score(client.data.validation)["loss"]
        if loss < best:  # not for one that diverged, whose loss is no number
            best, kept, chosen = loss, client.scored([], {}, {}), epoch
    if not all(bool(torch.isfinite(tensor).all()) for tensor in kept.values()):
        raise UserError(f"{name}: holds numbers that are not finite")
    net.load_state_dict(kept)
    return Adapted(kept, chosen, before, client.score(client.data.test))
