"""Whether a run's local steps are compiled (``train.compile``), and the compiler that
its clients share.

The server decides ``auto`` once, at the start of a run. It uses the settings and the
data, never a clock, so that the same settings give the same numbers. The decision is
written into ``settings.toml``, and a resumed run keeps it.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from fedapps.clients.base.options import BF16
from fedapps.data.cache import folder
from fedapps.runs.work import trainings, work_of
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet

if TYPE_CHECKING:
    from fedapps.clients.steps.compiled import Compiler

# Measured with benchmarks/speed.py steps on nets of dense layers, from 5,000 to 200,000
# parameters: seconds that compiling saves in a step, which are those in which PyTorch
# starts its operations, so they hardly depend on the net; and seconds that it takes.
SAVED_A_STEP, COMPILING = 1.3e-4, 15.0
#: ``auto`` compiles if it saves more seconds of CPU time: twice what it takes,
#: since one core compiles while the others wait.
WORTH = 2 * COMPILING


@cache
def compiler() -> "Compiler":
    """Return the compiler of this process; its libraries are in the cache folder."""
    from fedapps.clients.steps.compiled import Compiler

    return Compiler(folder() / "steps")


def with_compilation(
    settings: Settings, task: Any, takes_steps: Callable[[Settings, Any], bool]
) -> Settings:
    """Return the settings with ``train.compile`` "on" or "off"."""
    if settings.train.compile != "auto":
        return settings
    before = settings.recorded("train.compile")
    on = before == "on" if before else worth(settings, task, takes_steps)
    return settings.but(train={"compile": "on" if on else "off"})


def worth(settings: Settings, task: Any, takes_steps: Callable[[Settings, Any], bool]) -> bool:
    """Return whether compiling would save enough time in this run. ``takes_steps``:
    whether the clients of a method take local steps.
    """
    on_cpu = settings.device in ("auto", "cpu")  # only such steps are compiled
    if not on_cpu or settings.train.precision == BF16:
        return False
    return seconds(settings, task) >= WORTH and takes_steps(settings, task)


def seconds(settings: Settings, task: Any) -> float:
    """Return an estimate of the seconds that compiling would save in the run's local
    steps; 0 if that is not known.
    """
    # for methods whose number of local steps does not follow from ``train``
    own = getattr(settings.options, "steps_a_round", None)
    if settings.sites.own or not isinstance(task, HasNet) or not is_dense(task.work_model()):
        return 0.0
    # saves reading the samples
    if not own and trainings(settings) * settings.train.local_epochs < 1000:
        return 0.0
    work = work_of(settings, task)
    return SAVED_A_STEP * work.clients * work.steps if work else 0.0


def is_dense(model: Any) -> bool:
    """Return whether a net has neither recurrent layers nor convolutions. Compiling
    changes the speed of convolutions only a little.
    """
    from torch import nn

    return not any(
        isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase) for module in model.modules()
    )
