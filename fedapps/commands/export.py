"""`fedapps export DIR --client 7`: writes the model that a client of a finished run was
scored with, as named arrays and as a program; without a client, the global model.

The files also say which net they are of (``runs.model_files``).
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
        "Write the model that a client of a finished run was scored with: its arrays, as "
        "safetensors under the net's names."
    )
    parser.add_argument("run", type=Path, metavar="DIR", help="results folder")
    parser.add_argument(
        "--client",
        metavar="NAME",
        help="whose model: name or number of a client (default: the global one)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the arrays (default: DIR/client-N.safetensors, DIR/global.safetensors)",
    )
    parser.add_argument(
        "--program",
        type=Path,
        metavar="FILE.pt2",
        help="also the net with its arrays, by torch.export",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the model and return the exit status."""
    if arguments.client is None:
        client, scores, found = of_nobody(arguments.run, arguments.program is not None)
    else:
        client, scores, found = exported(arguments.run, arguments.client)
    settings = settings_in(arguments.run, own=True)
    task = build_task(settings)
    number = (
        None
        if arguments.client is None
        else identified(task, settings.num_clients, arguments.client)[0]
    )
    name = "global" if number is None else f"client-{number}"
    out = arguments.out or arguments.run / f"{name}.safetensors"
    arrays = {name: tensor.numpy() for name, tensor in found.items()}
    metadata = {name: str(value) for name, value in scores.items()} | described(settings, task)
    # for whoever loads it without this project
    if (scale := scale_of(settings, task, number)) is not None:
        metadata |= {
            name: json.dumps(getattr(scale, name).tolist()) for name in ("mean", "deviation")
        }
    if isinstance(task, ScalesColumns):
        metadata |= {
            name: json.dumps(values)
            for name, values in task.input_scale(settings.num_clients).items()
        }
    if isinstance(task, PredictsNumbers):  # what is predicted is center + scale * output
        metadata |= {
            f"target-{name}": json.dumps(getattr(task.target_scale, name).tolist())
            for name in ("center", "scale")
        }
    save_file(arrays, out, metadata=metadata)
    shown = ", ".join(f"{name} {metric_text(name, value)}" for name, value in scores.items())
    print(f"written: {out} ({shown})")
    if arguments.program:
        write_program(client, found, arguments.program)
        print(f"written: {arguments.program}")
    return 0
