"""How many clients or runs fit on machines at a time, counted as Ray and Flower do.

Ray counts resources in ten-thousandths, and takes a share of a GPU from one GPU, never
from two. Flower starts (GPUs / share) workers on a machine, and waits forever for one
that Ray cannot place: with shares of 0.39 on two GPUs it starts five, but two fit on
each GPU. Its number has 32 bits, so 0.2 is a little more than a fifth, and it starts
four workers on a GPU. :func:`told_share` is a number with which both count alike.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedapps.errors import UserError

UNITS = 10_000  # Ray's units of a resource
LEAST = 0.001  # of a GPU, as a share


@dataclass(frozen=True)
class Machine:
    """The resources of a machine, or of a node of a Ray cluster."""

    cpus: int
    gpus: int


def check_share(name: str, share: float, most: float = float("inf")) -> None:
    """Raise ``UserError`` if Ray does not know a share of GPUs: parts of one GPU, or
    whole ones. ``name``: of the option.
    """
    if not (
        isinstance(share, int | float)
        and (LEAST <= share <= 1 or (1 < share <= most and share % 1 == 0))
    ):
        whole = "" if most == 1 else ", or a whole number"
        raise UserError(f"{name} {share}: choose a share of a GPU, {LEAST} to 1{whole}")


def per_gpu(share: float) -> int:
    """Return how many shares of at most 1 fit on a GPU."""
    return UNITS // round(share * UNITS)


def told_share(share: float, machines: Sequence[Machine]) -> float:
    """Return the share to pass to Flower in place of ``share``: the least number, up to
    rounding, with which Flower starts no more workers on a machine than Ray can place.
    """
    if share == 0 or share >= 1:
        return share
    gpus = max(machine.gpus for machine in machines)
    units = round(share * UNITS)
    while int(gpus / _told(units)) > gpus * (UNITS // units):
        units += 1
    return _told(units)


def _told(units: int) -> float:
    # Ray rounds it to the units; Flower's rounding to 32 bits leaves it below them
    return float(np.float32((units - 0.25) / UNITS))


def clients_at_once(machines: Sequence[Machine], told: float) -> int:
    """Return the number of Flower's workers (``pool_size_from_resources``), which have
    a CPU and the share ``told`` of a GPU each.
    """
    return sum(
        min(machine.cpus, int(machine.gpus / told) if told else machine.cpus)
        for machine in machines
    )


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine that this process may use, by their names in
    ``CUDA_VISIBLE_DEVICES``. CUDA is not initialised.
    """
    import torch  # imported here: it takes seconds, and a run on CPUs does not need it

    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if chosen is None else chosen.split(",")
    return [name.strip() for name in names][:count]
