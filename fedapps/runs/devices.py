"""The device of a run: decided once, from the job, where the run is launched. Engines
get a definite one, so that the same command trains on the same kind of device in each.
"""

import os
from dataclasses import dataclass
from typing import Any

from fedapps.engines.processes import cores
from fedapps.errors import UserError, refuse_first
from fedapps.notes import logger
from fedapps.runs.assembly import client_class
from fedapps.runs.work import work_of
from fedapps.settings.settings import Settings
from fedapps.tasks.base import device_of
from fedapps.tasks.capabilities import HasNet

#: The GPU needs this many seconds to start the kernels of one layer (forward, backward
#: and update), which is all that a small layer costs. A core does this many operations
#: per second of a large step. Both were measured on a machine with an H100.
SECONDS_A_LAYER, OPERATIONS_OF_A_CORE = 3e-4, 5e10


@dataclass(frozen=True)
class Asked:
    """How a run is asked for, besides its settings: the engine of its clients
    ("inline", "ray" or "deployment"), and their share of a GPU and processes, if given.
    """

    engine: str = "inline"
    gpus_per_client: float = 0.0
    workers: int | None = None


def chosen_device(settings: Settings, task: Any, asked: Asked) -> str:
    """Return the device that the clients train on: not "auto". ``task``: the run's
    task, on the CPU. Raises ``UserError`` for a device that they cannot have.
    """
    device = settings.device
    if device == "auto":
        device, why = _automatic(settings, task, asked)
        if why:
            logger.warning("device %s: %s", device, why)
    elif device == "cpu" and asked.gpus_per_client:
        raise UserError(
            f"device = 'cpu', but --gpus-per-client {asked.gpus_per_client:g}: leave one of them "
            "out"
        )
    elif asked.engine == "inline":
        if device != "cpu" and (asked.workers or 1) > 1:
            raise UserError(
                f"--workers {asked.workers}: worker processes of --engine inline use the CPU: "
                "choose device=cpu, or --engine ray with --gpus-per-client"
            )
        device_of(device)
    elif asked.engine == "ray":
        _check_ray(device, asked)
    if asked.engine == "ray" and device != "cpu" and server_trains(settings):
        try:
            device_of(device)
        except UserError:
            raise UserError(
                f"device = {device!r}: method {settings.method!r} trains on the server, too, and "
                "this machine has no such device: choose device=cpu, or start on one that has"
            ) from None
    return device


def _check_ray(device: str, asked: Asked) -> None:
    kind, _, number = device.partition(":")
    refuse_first(
        (
            kind not in ("cpu", "cuda"),
            f"device = {device!r}: Ray gives clients CUDA GPUs only: choose cuda, or --engine "
            "inline",
        ),
        (
            number,
            f"device = {device!r}: Ray deals the GPUs to the clients: choose {kind}",
        ),
        (
            kind != "cpu" and not asked.gpus_per_client,
            f"device = {device!r}: with Ray, clients see a GPU only with --gpus-per-client: add "
            "it, or choose --engine inline",
        ),
    )


def _automatic(settings: Settings, task: Any, asked: Asked) -> tuple[str, str]:
    """Return the device that "auto" stands for, and why; "" if there is no choice."""
    if asked.gpus_per_client:
        return "cuda", ""
    # whether clients take local steps on the task's net, whose cost can be estimated
    steps = any(client_class(half) for half in settings.halves or (settings,))
    if not isinstance(task, HasNet) or not (kind := visible()) or not steps:
        return "cpu", ""
    if kind != "cuda":  # without float64, which some methods need
        return "cpu", f"auto takes CUDA only; device={kind} takes this machine's {kind}"
    if asked.engine == "ray":
        return "cpu", "with Ray, clients get a GPU by --gpus-per-client"
    if asked.engine == "deployment":
        return "cpu", "device=cuda asks every site for a GPU"
    if (asked.workers or 1) > 1:
        return "cpu", f"--workers {asked.workers} are processes on the CPU; device=cuda takes one"
    work = work_of(settings, task)
    if work is None:
        return "cpu", "the size of a step is not known; device=cuda takes the GPU"
    millions = work.operations / 1e6
    step = f"a step of {millions:{',.0f' if millions >= 10 else '.2g'}} MFLOP"
    if work.operations < least_operations(settings, task):
        return "cpu", f"{step} is too small for a GPU; device=cuda forces it"
    return "cuda", f"{step} pays on a GPU; device=cpu leaves it out"


def visible() -> str:
    """Return the kind of the accelerator that this process may use, or ""."""
    import torch

    if torch.cuda.device_count():
        return "cuda"
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return found.type if found else ""


def least_operations(settings: Settings, task: Any) -> float:
    """Return how many operations a step must have to be faster on a GPU: those that the
    cores do, each with another client, while a GPU starts the kernels of one.
    """
    layers: int = sum(p.dim() > 1 for p in task.work_model().parameters())
    at_once = min(cores(), settings.clients_per_round or settings.num_clients)
    return SECONDS_A_LAYER * OPERATIONS_OF_A_CORE * max(1, layers) * at_once


def repeatable(device: str) -> None:
    """Let this process take kernels that give the same numbers again, in single
    precision, if the device is a CUDA GPU: its usual ones add in any order, and round
    what convolutions multiply. PyTorch warns of an operation that has no such kernel.
    """
    if not device.startswith("cuda"):
        return
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False


def server_trains(settings: Settings) -> bool:
    """Return whether the server half trains nets, too: distils, or fits one to
    synthetic samples.
    """
    methods = settings.methods
    return any(m.synthetic or (m.public and not m.any_net) for m in methods) or (
        bool(settings.data.synthetic) and settings.data.synthetic_use == "pretrain"
    )


def for_server(settings: Settings) -> Settings:
    """Return the settings of a server half that does not share its task with the
    clients: on the CPU, unless it trains. It may have no GPU where they have.
    """
    return settings if server_trains(settings) else settings.but(device="cpu")
