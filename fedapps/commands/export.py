"""`fedapps export DIR --client 7`: writes the model that a client of a finished run was
scored with, as named arrays and as a program. Without ``--client``, it writes the
global model.

The files also name their net (``runs.model_files``).
"""

import argparse
import json
from pathlib import Path

from safetensors.numpy import save_file

from fedapps.formats import metric_text
from fedapps.runs.assembly import build_task
from fedapps.runs.model_files import described
from fedapps.runs.models import (
    exported,
    identified,
    of_nobody,
    scale_of,
    settings_in,
    write_program,
)
from fedapps.tasks.capabilities import PredictsNumbers, ScalesColumns


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Write the model that a client of a finished run was scored with, or the global model, as "
        "a safetensors file."
    )
    parser.add_argument("run", type=Path, metavar="DIR", help="results folder")
    parser.add_argument(
        "--client",
        metavar="NAME",
        help="the client whose model is written, by name or number (default: the global model)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file for the arrays (default: DIR/client-N.safetensors or DIR/global.safetensors)",
    )
    parser.add_argument(
        "--program",
        type=Path,
        metavar="FILE.pt2",
        help="also write the net with its arrays, by torch.export",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the model and return the exit status."""
    if arguments.client is None:
        client, scores, tensors = of_nobody(arguments.run, arguments.program is not None)
    else:
        client, scores, tensors = exported(arguments.run, arguments.client)
    settings = settings_in(arguments.run, own=True)
    task = build_task(settings)
    number = (
        None
        if arguments.client is None
        else identified(task, settings.num_clients, arguments.client)[0]
    )
    name = "global" if number is None else f"client-{number}"
    out = arguments.out or arguments.run / f"{name}.safetensors"
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    metadata = {name: str(value) for name, value in scores.items()} | described(settings, task)
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
    save_file(arrays, out, metadata=metadata)
    shown = ", ".join(f"{name} {metric_text(name, value)}" for name, value in scores.items())
    print(f"written: {out} ({shown})")
    if arguments.program:
        write_program(client, tensors, arguments.program)
        print(f"written: {arguments.program}")
    return 0
