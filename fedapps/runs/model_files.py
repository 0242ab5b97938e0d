"""The metadata that `fedapps export` writes with the arrays of a model. With it,
`fedapps adapt` can use the model on a machine without the run's data.

The entry ``settings`` of the metadata is a JSON object with the settings that build the
net and read samples. It describes the samples like those of sites with their own data
(``sites.``). A file from elsewhere cannot set anything else.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedapps.data.scaling import Scale
from fedapps.errors import UserError
from fedapps.extensions.registered import reference_of
from fedapps.records.files import replace
from fedapps.runs.prepare import with_defaults
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import SplitsSamples

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = "settings"
#: The settings that a file may hold.
KEYS = (
    "task",
    "seed",
    "model.name",
    "model.head",
    "data.image",
    "data.features",
    "data.shape",
    "data.channels",
    "data.label",
    "data.resize",
    "data.standardise",
    "sites.labels",
    "sites.shape",
    "sites.columns",
    "data.split",
    "regression.loss",
    "regression.center",
    "regression.scale",
    "survival.event",
    "train.learning-rate",
    "train.momentum",
    "train.optimizer",
    "train.weight-decay",
    "train.batch-size",
)


def described(settings: Settings, task: Any) -> dict[str, str]:
    """Return the metadata that describe the net of a run, or {} if a site could not
    read samples for it.
    """
    flat = settings.flat()
    if not settings.sites.own:
        if not isinstance(task, SplitsSamples) or task.samples.targets is not None:
            return {}
        labels, shape = ",".join(task.samples.classes), ",".join(map(str, task.image_shape))
        flat |= {
            "task": "classification",
            "sites.labels": labels,
            "sites.shape": shape,
            "data.standardise": task.standardise,
        }
        if task.samples.numbers is not None and task.samples.numbers.used:
            # A site's file may have more columns, such as the run's natural id.
            flat["data.features"] = ",".join(task.samples.numbers.used)
        if (
            len(task.samples.classes) != task.samples.num_classes
            or labels.count(",") != task.samples.num_classes - 1
        ):
            return {}
    return {SETTINGS: json.dumps({key: flat[key] for key in KEYS if key in flat})}


def read_model(
    path: Path, net: str = ""
) -> "tuple[dict[str, Tensor], dict[str, str], Settings, Scale | None]":
    """Return the arrays, the metadata, the settings and the input scale of a file
    written by `fedapps export`. Raises ``UserError``.

    The scale is that of all clients together; ``None``: a site computes its own, or
    inputs are not scaled.

    ``net``: the name of a net in the user's own code. Code that only the file names is
    never run.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UserError(f"{path}: no such file: write it with `fedapps export DIR`")
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a safetensors file ({error})") from None
    if SETTINGS not in metadata:
        raise UserError(
            f"{path} does not name its net: write it again with `fedapps export`, from a run that "
            "classifies images, arrays or numbers, or a run on sites' own data"
        )
    try:
        recorded = json.loads(metadata[SETTINGS])
        given = {key: recorded[key] for key in KEYS if key in recorded}
        if (name := given.get("model.name")) != net and reference_of("model.name", name):
            raise UserError(
                f"its net is the code {name!r}: if you trust it, run it with --net {name}"
            )
        scale = None
        if given.get("data.standardise") == "sums":
            given["data.standardise"] = "none"  # the file's scale replaces the site's
            scale = scale_from(metadata)
        settings = with_defaults(given)
        if scale is not None:
            np.broadcast_to(scale.mean, settings.sites.image)
    except (ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(
            f"{path}: cannot read the description of its net ({' '.join(str(error).split())[:200]})"
        ) from None
    if not settings.sites.own:
        raise UserError(
            f"{path} does not describe its input samples: write it again with `fedapps export`"
        )
    return arrays, metadata, settings, scale


def write_model(arrays: "dict[str, Tensor]", metadata: dict[str, str], out: Path) -> None:
    """Write a model; an error leaves no partial file. Raises ``UserError``."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in arrays.items()}
    try:
        replace(out, lambda path: save_file(whole, path, metadata))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written ({error})") from None


def scale_from(metadata: dict[str, str]) -> Scale:
    """Return the input scale in a file's metadata. Raises ``ValueError``."""
    if missing := [name for name in ("mean", "deviation") if name not in metadata]:
        raise ValueError(f"{missing[0]} of the inputs is missing")
    mean, deviation = (
        np.array(json.loads(metadata[name]), np.float32) for name in ("mean", "deviation")
    )
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
        raise ValueError("mean or deviation of the inputs is broken")
    return Scale(mean, deviation)
