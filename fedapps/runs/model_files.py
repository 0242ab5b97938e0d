"""What `fedapps export` writes beside the arrays of a model, so that `fedapps adapt`
can go on with it where the run's data are not.

The entry ``settings`` of the file's metadata is a JSON object of the run's settings
that make the net and read samples, with a description of the samples as sites with data
of their own have it (``sites.``). A file from elsewhere can set nothing else.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.errors import UserError
from fedapps.extensions.registered import reference_of
from fedapps.runs.prepare import with_defaults
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import PredictsNumbers, SplitsSamples

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
    "tabular.label",
    "tabular.split",
    "regression.label",
    "regression.split",
    "regression.loss",
    "regression.center",
    "regression.scale",
    "train.learning-rate",
    "train.momentum",
    "train.optimizer",
    "train.weight-decay",
    "train.batch-size",
)


def described(settings: Settings, task: Any) -> dict[str, str]:
    """Return the metadata that describe the net of a run; {} where a site could not
    read samples for it.
    """
    flat = settings.flat()
    if not settings.sites.own:
        if (
            not isinstance(task, SplitsSamples)
            or isinstance(task, PredictsNumbers)
            or task.standardise == "sums"
        ):
            return {}
        labels, shape = ",".join(task.samples.classes), ",".join(map(str, task.image_shape))
        flat |= {
            "task": "classification",
            "sites.labels": labels,
            "sites.shape": shape,
            "data.standardise": task.standardise,
        }
        if (
            len(task.samples.classes) != task.samples.num_classes
            or labels.count(",") != task.samples.num_classes - 1
        ):
            return {}
    return {SETTINGS: json.dumps({key: flat[key] for key in KEYS if key in flat})}


def read_model(path: Path, net: str = "") -> "tuple[dict[str, Tensor], dict[str, str], Settings]":
    """Return the arrays, the metadata and the settings of a file that `fedapps export`
    wrote. Raises ``UserError``.

    ``net``: the name of a net that is code of the user's own; what a file names by
    itself is not run.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UserError(f"{path}: there is no such file: write it with `fedapps export DIR`")
    try:
        with safe_open(path, "pt") as file:
            told: dict[str, str] = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no safetensors file ({error})") from None
    if SETTINGS not in told:
        raise UserError(
            f"{path} does not say which net it is of: write it anew with `fedapps export`, of a "
            "run on images or on sites' own data"
        )
    try:
        found = json.loads(told[SETTINGS])
        given = {key: found[key] for key in KEYS if key in found}
        if (name := given.get("model.name")) != net and reference_of("model.name", name):
            raise UserError(
                f"its net is code, {name!r}, which runs only if you name it: --net {name}"
            )
        settings = with_defaults(given)
    except (ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(
            f"{path}: what it says of its net cannot be read ({' '.join(str(error).split())[:200]})"
        ) from None
    if not settings.sites.own:
        raise UserError(
            f"{path} does not describe the samples that it takes: write it anew with `fedapps "
            "export`"
        )
    return arrays, told, settings
