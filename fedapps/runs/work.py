"""An estimate of the local steps of a run: from the settings and the data, never from a
clock, so that what depends on it is the same in every run with the same settings; and
whether the steps are compiled (``train.compile``), which depends on it.

The server decides ``auto`` once, at the start of a run. The decision is written into
``settings.toml``, and a resumed run keeps it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fedapps.clients.base.options import BF16
from fedapps.data.cache import folder
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet

if TYPE_CHECKING:
    from fedapps.clients.steps.compiled import Compiler

# Measured with benchmarks/speed.py steps on one core: seconds that a step takes besides
# its operations, and operations per second.
SECONDS_A_STEP, OPERATIONS_A_SECOND = 1.5e-4, 2e10
# Number of clients whose samples are counted.
COUNTED = 5
# Measured with benchmarks/speed.py steps on nets of dense layers, from 5,000 to 200,000
# parameters: seconds that compiling saves in a step, which are those in which PyTorch
# starts its operations, so they hardly depend on the net; and seconds that it takes.
SAVED_A_STEP, COMPILING = 1.3e-4, 15.0
#: ``auto`` compiles if it saves more seconds of CPU time: twice what it takes,
#: since one core compiles while the others wait.
WORTH = 2 * COMPILING


@dataclass(frozen=True)
class Work:
    """Local steps of a run, without compiling. ``clients``: how often a client trains;
    ``steps``: of one client in one round; ``operations``: floating-point operations of
    one step.
    """

    clients: int
    steps: float
    operations: float

    @property
    def seconds(self) -> float:
        """Seconds of a step on one core."""
        return SECONDS_A_STEP + self.operations / OPERATIONS_A_SECOND

    @property
    def of_client(self) -> float:
        """Seconds of a client in a round."""
        return self.steps * self.seconds

    @property
    def of_run(self) -> float:
        """Seconds of all local steps of the run."""
        return self.clients * self.of_client


def trainings(settings: Settings) -> int:
    """Return how often a client trains in the run: once in each round it is sampled."""
    return settings.num_rounds * (settings.clients_per_round or settings.num_clients)


def work_of(settings: Settings, task: Any) -> Work | None:
    """Return the estimate, or ``None`` where it is not known: sites with their own
    data, and tasks without a net. It reads the samples of some clients.
    """
    if settings.sites.own or not settings.num_clients or not isinstance(task, HasNet):
        return None
    train = settings.train
    counted = [
        task.client_data(client, settings.num_clients).train
        for client in range(min(COUNTED, settings.num_clients))
    ]
    samples = sum(map(len, counted)) / len(counted)
    # for methods whose number of local steps does not follow from ``train``
    own = getattr(settings.options, "steps_a_round", None)
    steps, batch_size = (
        own(samples)
        if own
        else (train.local_epochs * max(1, samples / train.batch_size), train.batch_size)
    )
    forward = operations(task.work_model(), counted[0].x[:1]) if len(counted[0]) else 0
    # backward takes twice as many
    return Work(trainings(settings), float(steps), 3.0 * forward * min(batch_size, samples))


def operations(model: Any, x: Any) -> int:
    """Return about how many operations a forward pass of one sample x (1, ...) takes:
    those of linear, convolutional and recurrent layers; in a net without these, two for
    each parameter. PyTorch's own counter finds none in a recurrent layer.
    """
    import torch
    from torch import nn

    total = 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.RNNBase):
            weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
            total += 2 * weights * inputs[0].numel() // inputs[0].shape[-1]
        elif isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            total += 2 * layer.weight.numel() * output.numel() // len(layer.weight)

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(x)
    except Exception:  # whatever is wrong with a net, its clients report it
        return 0
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return total or 2 * sum(p.numel() for p in model.parameters())


# --- compiled steps -------------------------------------------------------------------


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
    return seconds_saved(settings, task) >= WORTH and takes_steps(settings, task)


def seconds_saved(settings: Settings, task: Any) -> float:
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
