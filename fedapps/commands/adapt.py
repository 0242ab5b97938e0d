"""`fedapps adapt MODEL --data FOLDER`: a site trains an exported model further on its
own samples, after the federation has ended.

One fifth of the samples is held back as test samples, another part for validation.
After every local epoch the model is scored on the validation samples. The model with
the lowest loss is kept; this may be the original one.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps import clients
from fedapps.algorithms.common.measures import leading_of
from fedapps.data.scaling import Scale
from fedapps.errors import UserError, refuse_first
from fedapps.formats import metric_text
from fedapps.lab.commands.options import command_options
from fedapps.runs.client_factory import one_thread
from fedapps.runs.model_files import SETTINGS, read_model, write_model
from fedapps.settings.settings import Settings
from fedapps.tasks.registry import make_task

if TYPE_CHECKING:
    from torch import Tensor

SITE = "site"


@dataclass(frozen=True)
class Adapted:
    """A model after further training: its arrays, the best epoch (0: the original
    model), and its scores on the test samples before and after.
    """

    arrays: "dict[str, Tensor]"
    epoch: int
    before: dict[str, Any]
    after: dict[str, Any]


add_options = command_options(
    (
        "Train a model from `fedapps export` further on the samples of one site, and write the "
        "model of the best epoch."
    ),
    {
        "model": {
            "type": Path,
            "metavar": "MODEL",
            "help": "safetensors file from `fedapps export`",
        },
        "--data": {
            "type": Path,
            "required": True,
            "metavar": "FOLDER",
            "help": "the site's samples: a folder or a file",
        },
        "--out": {
            "type": Path,
            "metavar": "FILE",
            "help": "file for the new model (default: MODEL-adapted.safetensors)",
        },
        "--epochs": {
            "type": int,
            "default": 5,
            "metavar": "E",
            "help": "local epochs (default: 5)",
        },
        "--rate": {
            "type": float,
            "metavar": "R",
            "help": "learning rate (default: the one of the run's first round)",
        },
        "--batch-size": {
            "type": int,
            "metavar": "B",
            "help": "samples per step (default: the run's)",
        },
        "--validation": {
            "type": float,
            "default": 0.2,
            "metavar": "SHARE",
            "help": "share of the samples that choose the best epoch (default: 0.2)",
        },
        "--net": {
            "default": "",
            "metavar": "MODULE:NAME",
            "help": "the net, if it is your own code",
        },
        "--overwrite": {"action": "store_true", "help": "replace an existing file"},
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Adapt the model and return the exit status."""
    out = arguments.out or arguments.model.with_name(f"{arguments.model.stem}-adapted.safetensors")
    if out.exists() and not arguments.overwrite:
        raise UserError(f"{out} already exists: add --overwrite, or choose another --out")
    arrays, metadata, settings, scale = read_model(arguments.model, arguments.net)
    settings = with_options(settings, arguments)
    adapted = adapt(arrays, settings, arguments.data, arguments.epochs, str(arguments.model), scale)
    for name, scores in (("before", adapted.before), ("after", adapted.after)):
        leading = leading_of(scores)
        shown = (
            f"{leading} {metric_text(leading, scores[leading])}, on {scores['test-samples']} "
            "test samples"
        )
        print(f"{name + ':':<8}loss {scores['loss']:.4f}, {shown}")
    best = f"epoch {adapted.epoch} of {arguments.epochs}"
    original = f"the original model, none of the {arguments.epochs} epochs was better"
    print(f"kept:   {best if adapted.epoch else original} (by the loss on validation samples)")
    numbers = {
        name: value for name, value in adapted.after.items() if isinstance(value, int | float)
    }
    trained_with = json.loads(metadata[SETTINGS])
    trained_with["train.learning-rate"] = settings.train.learning_rate
    facts = {**metadata, **numbers, "adapted-epochs": adapted.epoch}
    facts[SETTINGS] = json.dumps(trained_with)
    write_model(adapted.arrays, {name: str(value) for name, value in facts.items()}, out)
    print(f"written: {out}")
    return 0


def with_options(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Return the settings with the options of the command line. Raises
    ``UserError``.
    """
    share = arguments.validation
    refuse_first(
        (arguments.epochs < 1, f"--epochs {arguments.epochs}: must be at least 1"),
        (not 0 < share <= 0.6, f"--validation {share:g}: must be above 0 and at most 0.6"),
    )
    given = {"learning_rate": arguments.rate, "batch_size": arguments.batch_size}
    chosen = {key: value for key, value in given.items() if value is not None}
    part = {"validation": share}
    try:
        return settings.but(
            train={"lr_decay": 1.0, "compile": "off", **chosen},
            data=part,
            # a table has a validation share of its own
            problem=part if hasattr(settings.problem, "validation") else settings.problem,
        )
    except ValueError as error:
        raise UserError(
            str(error).replace("learning-rate", "--rate").replace("batch-size", "--batch-size")
        ) from None


def scaled(data: "clients.ClientData", scale: Scale) -> "clients.ClientData":
    """Return the samples with scaled inputs."""
    import torch

    mean, deviation = map(torch.from_numpy, (scale.mean, scale.deviation))
    train, validation, test = (
        replace(part, x=(part.x - mean) / deviation)
        for part in (data.train, data.validation, data.test)
    )
    return replace(data, train=train, validation=validation, test=test)


def adapt(
    arrays: "dict[str, Tensor]",
    settings: Settings,
    data: Path,
    epochs: int,
    name: str,
    scale: Scale | None = None,
) -> Adapted:
    """Return the model of the epoch with the lowest loss on the validation samples in
    ``data``.

    ``name``: the model's name in error messages. ``scale``: scale of the inputs, unless
    the site has its own. Raises ``UserError`` if model and
    samples do not fit.
    """
    import torch

    from fedapps.clients.base.precision import at_precision
    from fedapps.models.weights import check_arrays

    if not data.exists():
        raise UserError(f"--data {data}: no such folder or file")
    task: Any = make_task(settings.task, settings.problem, settings.context, str(data.absolute()))
    one_thread()
    net = task.work_model()
    check_arrays(name, arrays, net)
    own = task.client_data(SITE, 1)
    own = own if scale is None else scaled(own, scale)
    client = clients.FedAvgClient(
        task.model_fn,
        own,
        SITE,
        model=net,
        objective=task.objective,
    )
    net.load_state_dict(arrays)
    config = {"seed": settings.seed, **settings.train.to_config(), "local-epochs": 1}
    at_precision(client, config)
    before, best = client.score(client.data.test), client.score(client.data.validation)["loss"]
    kept, best_epoch = client.scored([], {}, {}), 0
    for epoch in range(1, epochs + 1):
        client.train({**config, "server-round": epoch})
        loss = client.score(client.data.validation)["loss"]
        if loss < best:  # false for NaN, the loss of a model that diverged
            best, kept, best_epoch = loss, client.scored([], {}, {}), epoch
    if not all(bool((torch.isfinite(t) | (t == arrays[n])).all()) for n, t in kept.items()):
        raise UserError(f"{name}: the model holds NaN or infinite values. Export a sound model.")
    net.load_state_dict(kept)
    return Adapted(kept, best_epoch, before, client.score(client.data.test))
