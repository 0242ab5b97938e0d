"""Whether a run's local steps are compiled (``train.compile``), and the compiler that
its clients share.

The server decides ``auto`` once, at the start of a run. It uses the settings and the
data, never a clock, so that the same settings give the same numbers. The decision is
written into ``settings.toml``, and a resumed run keeps it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.data.cache import folder
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet
from fedapps.toml_text import read_toml

if TYPE_CHECKING:
    from clients.steps.compiled import Compiler

# For nets of dense layers, measured with benchmarks/round_time.py on one core: seconds
# that a step takes besides its operations, operations per second, and the share of the
# time that compiling saves.
SECONDS_A_STEP, OPERATIONS_A_SECOND, SAVED = 1.5e-4, 2e10, 0.6
#: ``auto`` compiles if this saves more seconds. Compiling takes a minute on one core.
WORTH = 120.0
# Number of clients whose samples are counted for the estimate.
COUNTED = 5


@cache
def compiler() -> "Compiler":
    """Return the compiler of this process; its libraries are in the cache folder."""
    from clients.steps.compiled import Compiler

    return Compiler(folder() / "steps")


def with_compilation(
    settings: Settings, task: Any, takes_steps: Callable[[Settings, Any], bool]
) -> Settings:
    """Return the settings with ``train.compile`` "on" or "off"."""
    if settings.train.compile != "auto":
        return settings
    before = Path(settings.out) / "settings.toml"
    recorded = (
        read_toml(before).get("train.compile") if settings.resume and before.exists() else None
    )
    decision = (
        recorded
        if recorded in ("on", "off")
        else "on"
        if worth(settings, task, takes_steps)
        else "off"
    )
    return replace(settings, train=replace(settings.train, compile=str(decision)))


def worth(settings: Settings, task: Any, takes_steps: Callable[[Settings, Any], bool]) -> bool:
    """Return whether compiling would save enough time in this run. ``takes_steps``:
    whether the clients of a method take local steps.
    """
    return seconds(settings, task) >= WORTH and takes_steps(settings, task)


def seconds(settings: Settings, task: Any) -> float:
    """Return an estimate of the seconds that compiling would save in the run's local
    steps; 0 if that is not known.
    """
    rounds, train = (
        settings.num_rounds * (settings.clients_per_round or settings.num_clients),
        settings.train,
    )
    # for methods whose number of local steps does not follow from ``train``
    own = getattr(settings.options, "steps_a_round", None)
    if (
        settings.sites.own
        or not settings.num_clients
        or not isinstance(task, HasNet)
        or not is_dense(task.work_model())
    ):
        return 0.0
    if not own and rounds * train.local_epochs < 1000:  # saves reading the samples
        return 0.0
    counted = [
        task.client_data(client, settings.num_clients).train
        for client in range(min(COUNTED, settings.num_clients))
    ]
    samples = sum(map(len, counted)) / len(counted)
    steps, batch_size = (
        own(samples) if own else (train.local_epochs * samples / train.batch_size, train.batch_size)
    )
    of_step = (
        SECONDS_A_STEP
        + 3 * operations(task.work_model(), counted[0].x[:1]) * batch_size / OPERATIONS_A_SECOND
    )
    return SAVED * rounds * float(steps) * of_step


def operations(model: Any, x: Any) -> int:
    """Return the number of operations of a forward pass of one sample x (1, ...)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    was_training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(x)
    model.train(was_training)
    return int(counter.get_total_flops())


def is_dense(model: Any) -> bool:
    """Return whether a net has neither recurrent layers nor convolutions. Compiling
    changes the speed of convolutions only a little.
    """
    from torch import nn

    return not any(
        isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase) for module in model.modules()
    )
