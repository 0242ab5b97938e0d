"""`fedapps export DIR --client 7`: writes the model that a client of a finished run was
scored with, as named arrays and as a program. Without ``--client``, it writes the
global model.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.algorithms.common.measures import LEADING
from fedapps.errors import UserError
from fedapps.formats import metric_text
from fedapps.lab.commands.options import command_options
from fedapps.records.files import replace
from fedapps.runs.assembly import build_task
from fedapps.runs.models import (
    exported,
    identified,
    of_nobody,
    scale_of,
    settings_in,
    whole,
    write_program,
)
from fedapps.tasks.capabilities import PredictsNumbers, ScalesColumns

if TYPE_CHECKING:
    from torch import Tensor

add_options = command_options(
    (
        "Write the model that a client of a finished run was scored with, or the global model, as "
        "a safetensors file."
    ),
    {
        "run": {"type": Path, "metavar": "DIR", "help": "results folder"},
        "--client": {
            "metavar": "NAME",
            "help": (
                "the client whose model is written, by name or number (default: the global model)"
            ),
        },
        "--out": {
            "type": Path,
            "metavar": "FILE",
            "help": "file (default: client-N.safetensors or global.safetensors in DIR)",
        },
        "--program": {
            "type": Path,
            "metavar": "FILE.pt2",
            "help": "also write the net with its arrays, by torch.export",
        },
        "--trust": {
            "action": "store_true",
            "help": "execute the code that the folder's settings name",
        },
    },
)


def execute(arguments: argparse.Namespace) -> int:
    """Write the model and return the exit status."""
    if arguments.client is None:
        client, scores, tensors = of_nobody(
            arguments.run, arguments.program is not None, arguments.trust
        )
    else:
        client, scores, tensors = exported(arguments.run, arguments.client, arguments.trust)
    settings = settings_in(arguments.run, own=True, trust=arguments.trust)
    task = build_task(settings)
    number = (
        None
        if arguments.client is None
        else identified(task, settings.num_clients, arguments.client)[0]
    )
    name = "global" if number is None else f"client-{number}"
    out = arguments.out or arguments.run / f"{name}.safetensors"
    metadata = {name: str(value) for name, value in scores.items()}
    # for users who load the model without this project
    if (scale := scale_of(settings, task, number)) is not None:
        metadata |= {
            name: json.dumps(getattr(scale, name).tolist()) for name in ("mean", "deviation")
        }
    if isinstance(task, ScalesColumns):
        metadata |= {
            name: json.dumps(values)
            for name, values in task.input_scale(settings.num_clients).items()
        }
    if isinstance(task, PredictsNumbers):  # the prediction is center + scale * output
        metadata |= {
            f"target-{name}": json.dumps(getattr(task.target_scale, name).tolist())
            for name in ("center", "scale")
        }
    write_model(whole(task, tensors), metadata, out)
    named = {name.removesuffix("-mean"): value for name, value in scores.items()}
    own = {} if number is not None else {k: named.pop(k) for k in LEADING if k in named}
    shown = ", ".join(
        f"{name.replace('global-', 'global ')} {metric_text(name, value)}"
        for name, value in named.items()
    )
    print(f"written: {out} ({shown})")
    for name, value in own.items():
        print(
            f"The clients were scored with models of their own, mean {name} "
            f"{metric_text(name, value)}: --client NAME exports one of them."
        )
    if arguments.program:
        write_program(client, tensors, arguments.program)
        print(f"written: {arguments.program}")
    return 0


def write_model(arrays: "dict[str, Tensor]", metadata: dict[str, str], out: Path) -> None:
    """Write a model; an error leaves no partial file. Raises ``UserError``."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in arrays.items()}
    try:
        replace(out, lambda path: save_file(whole, path, metadata))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{out}: cannot be written ({error})") from None
